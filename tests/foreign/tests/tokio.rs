//! tokio's own tests of streams, with the types swapped: see `build.rs`, and `cut.txt` for those that are left out.

use midplane_foreign::{blocking, net};

include!(concat!(env!("OUT_DIR"), "/tokio.rs"));
