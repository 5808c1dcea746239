//! The interface of applications to a live NIC, whatever its fabric and firmware.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::NicCounters;
use crate::host::{Host, OpenError};
use crate::id::NodeId;
use crate::live::Tasks;
#[cfg(target_os = "linux")]
use crate::peer_rings::PeerRings;
use crate::port::{Port, PortOptions};
use crate::rng::Rng;
use crate::time::Instant;

/// Opens ports for applications in this process.
pub(crate) trait PortOpener: fmt::Debug + Send + Sync {
    /// Opens a port of this NIC.
    fn open(self: Arc<Self>, options: PortOptions) -> Result<Port, OpenError>;
}

/// A running NIC, whatever its fabric and firmware.
pub(crate) trait NicHandle: PortOpener {
    /// Returns the counters; once the NIC has stopped, its last ones.
    fn counters(&self) -> NicCounters;

    /// Stops the NIC: after its firmware's last turn if it is `orderly`, else at once.
    fn end(&self, is_orderly: bool);
}

/// The application's side of a live NIC: tokio's tasks and the machine's clock.
///
/// Its sleeps have the resolution of the system's timers, some 50 us on Linux and 1 ms elsewhere, and never end early.
/// On Linux, its time is that of the machine's monotonic clock, which all processes of the host share. Elsewhere, it
/// counts the nanoseconds since the first fabric of this process started. Its tasks run on the runtime in which the NIC
/// was started.
#[derive(Clone, Debug)]
pub struct LiveHost {
    tasks: Arc<Tasks>,
    ports: Arc<dyn PortOpener>,
    /// The fabric whose processes it connects by rings that bypass the NICs, if that is allowed.
    #[cfg(target_os = "linux")]
    rings: Option<Arc<crate::shm::ShmConfig>>,
}

impl LiveHost {
    pub(crate) fn new(tasks: Tasks, ports: Arc<dyn PortOpener>) -> Self {
        Self {
            tasks: Arc::new(tasks),
            ports,
            #[cfg(target_os = "linux")]
            rings: None,
        }
    }

    /// Allows the process to open rings to the other processes of that fabric.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_rings(self, config: crate::shm::ShmConfig) -> Self {
        Self { rings: Some(Arc::new(config)), ..self }
    }
}

impl Host for LiveHost {
    fn node(&self) -> NodeId {
        self.tasks.node()
    }

    fn now(&self) -> Instant {
        self.tasks.now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.tasks.sleep_until(at).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    fn rng(&self, stream: &str) -> Rng {
        self.tasks.rng(stream)
    }

    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError> {
        Arc::clone(&self.ports).open(options)
    }

    #[cfg(target_os = "linux")]
    fn open_peer_rings(&self) -> Option<Box<dyn PeerRings>> {
        let _inside = self.tasks.enter();
        let rings = crate::shm::lanes::Lanes::bypassing_nic(self.rings.as_deref()?).ok()?;
        Some(Box::new(rings))
    }
}
