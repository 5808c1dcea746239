#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod call;
#[cfg(target_os = "linux")]
pub mod discovery;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod framing;
pub mod guide;
#[cfg(target_os = "linux")]
pub mod latest;
#[cfg(target_os = "linux")]
mod member;
#[cfg(target_os = "linux")]
pub mod message;
#[cfg(all(feature = "sim", target_os = "linux"))]
pub mod net;
#[cfg(target_os = "linux")]
mod node;
pub mod prelude;
#[cfg(all(feature = "prometheus", target_os = "linux"))]
pub mod prometheus;
#[cfg(all(feature = "sim", target_os = "linux"))]
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
#[cfg(target_os = "linux")]
pub use midplane_via::session::Stream;
#[cfg(target_os = "linux")]
pub use midplane_via::wire::pipe::congestion::Congestion;
#[cfg(feature = "warp")]
pub use midplane_warp as warp;

#[cfg(target_os = "linux")]
pub use error::{Error, ErrorKind};
#[cfg(target_os = "linux")]
pub use node::top;
#[cfg(target_os = "linux")]
pub use node::{
    Connector, DEFAULT_CONNECT_TIMEOUT, DEFAULT_DRAIN, Explanation, FailedDial, Listener, Node,
    NodeBuilder, PeerInfo, PeerName, PeerPath, ReceiveTokens, UnusedReason,
};
#[cfg(all(feature = "tonic", target_os = "linux"))]
pub use node::{Incoming, NamedStream};
#[cfg(all(feature = "sim", target_os = "linux"))]
pub use sim::Sim;
