//! The NIC of live fabrics: ports, registered memory, staged effects, timers and loopback, over one link per fabric.

mod config;
#[cfg(feature = "unstable")]
pub mod custom;
mod engine;
mod handle;
mod hardware;
mod inbound;
mod injector;
mod link;
mod staged;
mod start_error;
mod turn_time;

use crate::drops::Drops;

pub use handle::LiveHost;
pub use injector::FaultInjector;
pub use start_error::StartError;

pub(crate) use config::{NicConfig, nic_setters};
pub(crate) use engine::Engine;
pub(crate) use handle::{NicHandle, PortOpener};
pub(crate) use hardware::{Nic, payload};
pub(crate) use link::Link;
#[cfg(target_os = "linux")]
pub(crate) use turn_time::TurnTime;

/// Counters of a NIC on a live fabric.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct NicCounters {
    /// Frames sent, without frames to the own node. Over UDP: datagrams that the system accepted, that is frames,
    /// pieces of longer ones, path probes, and handshakes about keys.
    pub frames_sent: u64,
    /// Bytes of those frames, with headers, without the wire's framing.
    pub bytes_sent: u64,
    /// Frames passed to the firmware, without frames from the own node.
    pub frames_received: u64,
    /// Bytes of those frames, with headers.
    pub bytes_received: u64,
    /// Dropped frames in both directions, by cause. Over shared memory, frames to a peer that is not connected count as
    /// [`NicDown`](crate::drops::DropCause::NicDown). Over UDP on Linux, datagrams that the system dropped before the
    /// socket count as [`System`](crate::drops::DropCause::System). The system counts several datagrams that were sent
    /// in one call as one.
    pub drops: Drops,
}
