//! Runs tokio's own tests of streams over UDP, with replaced types: see `build.rs`, and `cut.txt` for the tests left
//! out.

#[path = "tokio/blocking.rs"]
mod blocking;
#[path = "tokio/net.rs"]
mod net;
#[path = "tokio/nodes.rs"]
mod nodes;

/// True if all streams use UDP, not shared memory.
const IS_UDP: bool = true;

include!(concat!(env!("OUT_DIR"), "/tokio.rs"));
