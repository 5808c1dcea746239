//! tokio's own tests of streams over UDP, with the types swapped: see `build.rs`, and `cut.txt` for those that are
//! left out.

#[path = "tokio/blocking.rs"]
mod blocking;
#[path = "tokio/net.rs"]
mod net;
#[path = "tokio/nodes.rs"]
mod nodes;

/// Selects UDP for all streams; else shared memory.
const IS_UDP: bool = true;

include!(concat!(env!("OUT_DIR"), "/tokio.rs"));
