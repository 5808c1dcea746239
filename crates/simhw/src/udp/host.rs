//! Applications on a NIC over UDP: tokio's tasks and the machine's clock.

use std::future::Future;
use std::sync::Arc;

use super::shared::Shared;
use crate::host::{Host, OpenError};
use crate::id::NodeId;
use crate::live::Tasks;
use crate::port::{Port, PortOptions};
use crate::rng::Rng;
use crate::time::Instant;

/// The application's side of a [`UdpNic`](super::UdpNic).
///
/// Its sleeps have the resolution of the system's timers, some 50 us on Linux and 1 ms elsewhere, and never end
/// early.
#[derive(Clone, Debug)]
pub struct UdpHost {
    tasks: Arc<Tasks>,
    shared: Arc<Shared>,
}

impl UdpHost {
    pub(super) fn new(tasks: Tasks, shared: Arc<Shared>) -> Self {
        Self { tasks: Arc::new(tasks), shared }
    }
}

impl Host for UdpHost {
    fn node(&self) -> NodeId {
        self.tasks.node()
    }

    /// Returns the time: on Linux that of the machine's monotonic clock, which all processes of the host share;
    /// elsewhere the nanoseconds since the first fabric of this process started.
    fn now(&self) -> Instant {
        self.tasks.now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.tasks.sleep_until(at).await;
    }

    /// Starts a task on the runtime in which the NIC was started.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    fn rng(&self, stream: &str) -> Rng {
        self.tasks.rng(stream)
    }

    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError> {
        self.shared.open(options)
    }
}
