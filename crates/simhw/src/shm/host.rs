//! Applications on a NIC over shared memory: tokio's tasks and the machine's clock.

use std::future::Future;
use std::sync::Arc;

use super::core::NicHandle;
use crate::host::{Host, OpenError};
use crate::id::NodeId;
use crate::live::Tasks;
use crate::port::{Port, PortOptions};
use crate::rng::Rng;
use crate::time::Instant;

/// The application's side of a [`ShmNic`](super::ShmNic).
///
/// Its sleeps have the resolution of the system's timers, some 50 us, and never end early.
#[derive(Clone, Debug)]
pub struct ShmHost {
    tasks: Arc<Tasks>,
    handle: Arc<dyn NicHandle>,
}

impl ShmHost {
    pub(super) fn new(tasks: Tasks, handle: Arc<dyn NicHandle>) -> Self {
        Self { tasks: Arc::new(tasks), handle }
    }
}

impl Host for ShmHost {
    fn node(&self) -> NodeId {
        self.tasks.node()
    }

    /// Returns the time of the machine's monotonic clock, which all processes of the host share.
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
        Arc::clone(&self.handle).open(options)
    }
}
