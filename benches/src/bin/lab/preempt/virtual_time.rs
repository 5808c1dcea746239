//! The time of floating-point operations in virtual time.

use std::time::Duration;

use midplane_benches::anchors::pm::processor::Processor;
use midplane_nas::Pace;

/// Virtual time: operations take virtual time of their process's processor.
#[derive(Clone, Debug)]
pub(crate) struct VirtualTime {
    pub(crate) processor: Processor,
    /// Operations of the processor per second.
    pub(crate) per_second: f64,
    /// False if operations take virtual time alone.
    pub(crate) computes: bool,
}

impl Pace for VirtualTime {
    async fn work(&self, operations: u64) {
        self.processor.charge(Duration::from_secs_f64(operations as f64 / self.per_second));
        self.processor.idle().await;
    }

    fn computes(&self) -> bool {
        self.computes
    }
}
