//! NICs on a fabric of your own: you implement how frames are carried.
//!
//! [`FrameLink`] carries whole frames. Above it, a [`CustomNic`] has ports, registered memory, staged effects, timers
//! and injected faults, as on the other live fabrics. The guide's chapter on fabrics has a complete example.

mod core;
mod link;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::core::Core;
use self::link::StagingLink;
use super::config::{NicConfig, nic_setters};
use super::{Engine, LiveHost, NicCounters, NicHandle, StartError};
use crate::drops::DropCause;
use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::live::Tasks;
use crate::time::LineRate;

/// Default MTU: 16 KiB.
const DEFAULT_MTU: usize = 16 << 10;

/// Carries frames between one NIC and the NICs of the other nodes.
///
/// A frame is its header and its payload. The NIC sends frames when its firmware commits them, and checks received
/// frames. It drops and counts a frame that is malformed, is for another node, or names another source than
/// [`FrameLink::poll_receive`] returned.
pub trait FrameLink: Send + 'static {
    /// Returns the number of nodes of the fabric. A broadcast is sent to each other node.
    fn nodes(&self) -> u16;

    /// Returns the line rate that the firmware assumes; frames are not paced to it.
    fn line_rate(&self) -> LineRate;

    /// Returns whether one more frame to `to` is accepted after `staged` others that are not yet sent. If not, the
    /// firmware tries again some microseconds later.
    fn has_room(&mut self, to: NodeId, staged: usize) -> bool;

    /// Sends a frame, for which there was room.
    ///
    /// # Errors
    /// The cause for which the frame is dropped.
    fn send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), DropCause>;

    /// Receives a frame: the node that sent it, and its bytes. A link that can't tell the node returns the header's
    /// source: then every sender is trusted. If there is no frame, wakes the context's task once there is. Frames of one
    /// node must stay in order.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<(NodeId, Vec<u8>)>;

    /// Returns whether the link has failed for good: the NIC then stops, and its ports close. Never, unless
    /// implemented. The NIC calls this only within its turns: when the link fails, wake the task of the last
    /// [`FrameLink::poll_receive`].
    fn has_failed(&self) -> bool {
        false
    }
}

/// The configuration of a NIC on a fabric of your own.
#[derive(Clone, Debug)]
pub struct CustomConfig {
    nic: NicConfig,
}

impl CustomConfig {
    /// Creates the configuration of `node`.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self { nic: NicConfig::new(node, DEFAULT_MTU, Duration::ZERO) }
    }

    /// Sets the most payload bytes of one frame, from 1 to [`MAX_PAYLOAD`](crate::frame::MAX_PAYLOAD); the same on
    /// all nodes. Default: 16 KiB.
    #[must_use]
    pub const fn mtu(mut self, bytes: usize) -> Self {
        self.nic.mtu = bytes;
        self
    }

    nic_setters!();
}

/// A NIC on a fabric of your own. It runs on a task of the runtime. Dropping it stops it.
#[derive(Debug)]
pub struct CustomNic {
    host: LiveHost,
    nic: Arc<dyn NicHandle>,
    ended: oneshot::Receiver<()>,
}

impl CustomNic {
    /// Starts a NIC that runs `firmware` and sends and receives over `link`.
    ///
    /// # Errors
    /// [`StartError`] says how to fix it; nothing then runs.
    ///
    /// # Panics
    /// If the current runtime's I/O or time is not enabled.
    pub fn start<F>(
        config: CustomConfig,
        firmware: F,
        link: impl FrameLink,
    ) -> Result<Self, StartError>
    where
        F: Firmware + Send + 'static,
    {
        let CustomConfig { nic: config } = config;
        config.check(link.nodes().into())?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let nic = config.nic(StagingLink::new(link));
        let core = Core::new(config.node, Engine::new(firmware, nic, config.port_depth));
        let driver = core::run(Arc::clone(&core));
        let driver = driver.map_err(|error| StartError::System(error.kind()))?;
        let (end, ended) = oneshot::channel();
        runtime.spawn(async move {
            driver.await;
            let _ = end.send(());
        });
        let host =
            LiveHost::new(Tasks::new(config.node, config.seed, runtime), Arc::clone(&core) as _);
        Ok(Self { host, nic: core, ended })
    }

    /// Returns the application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }

    /// Returns the NIC's counters.
    #[must_use]
    pub fn counters(&self) -> NicCounters {
        self.nic.counters()
    }

    /// Stops the NIC after its firmware's last turn, and returns its last counters.
    ///
    /// # Cancel safety
    /// Dropping the future stops the NIC nevertheless.
    pub async fn shutdown(mut self) -> NicCounters {
        self.nic.end(true);
        // An error means that the runtime shuts down, and with it the driver.
        let _ = (&mut self.ended).await;
        self.counters()
    }
}

impl Drop for CustomNic {
    fn drop(&mut self) {
        self.nic.end(true);
    }
}
