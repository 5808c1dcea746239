// The first definition of a link counts: these two replace the README's, which name files.
#![doc = "[guide]: crate::guide"]
#![cfg_attr(unix, doc = "[other hosts]: crate::guide::chapter_02_two_hosts")]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(unix)]
pub mod call;
#[cfg(unix)]
pub mod discovery;
#[cfg(unix)]
mod error;
#[cfg(unix)]
mod framing;
pub mod guide;
#[cfg(unix)]
pub mod latest;
#[cfg(unix)]
mod member;
#[cfg(unix)]
pub mod message;
#[cfg(all(feature = "sim", unix))]
pub mod net;
#[cfg(unix)]
mod node;
pub mod prelude;
#[cfg(all(feature = "prometheus", unix))]
pub mod prometheus;
#[cfg(all(feature = "sim", unix))]
pub mod sim;
pub mod time;
#[cfg(all(feature = "fabric", target_os = "linux"))]
pub mod world;

#[cfg(feature = "gang")]
pub use midplane_gang as gang;
#[cfg(feature = "fabric")]
pub use midplane_nicvm as nicvm;
#[cfg(feature = "pipeline")]
pub use midplane_pipeline as pipeline;
pub use midplane_simhw as simhw;
pub use midplane_simhw::seal::{Key, PublicKey};
pub use midplane_via as via;
#[cfg(unix)]
pub use midplane_via::session::Stream;
#[cfg(unix)]
pub use midplane_via::wire::pipe::congestion::Congestion;
#[cfg(feature = "warp")]
pub use midplane_warp as warp;

#[cfg(unix)]
pub use error::{Error, ErrorKind};
#[cfg(unix)]
pub use node::top;
#[cfg(unix)]
pub use node::{
    Connector, DEFAULT_CONNECT_TIMEOUT, DEFAULT_DRAIN, Explanation, FailedDial, Listener, Node,
    NodeBuilder, PeerInfo, PeerName, PeerPath, ReceiveTokens, UnusedReason,
};
#[cfg(all(feature = "tonic", unix))]
pub use node::{Incoming, NamedStream};
#[cfg(all(feature = "sim", unix))]
pub use sim::Sim;
