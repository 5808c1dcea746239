//! The time of floating-point operations in virtual time.

use std::time::Duration;

use midplane::gang::process::SuspendHandle;
use midplane::simhw::host::Host;
use midplane_nas::Pace;

/// Virtual time: operations take virtual time, and make no progress while their process is suspended.
#[derive(Clone, Debug)]
pub(crate) struct VirtualTime<H> {
    host: H,
    suspend_handle: SuspendHandle,
    per_second: f64,
}

impl<H: Host> VirtualTime<H> {
    /// Creates a processor of `per_second` operations per second, for the process that `suspend_handle` suspends.
    #[must_use]
    pub(crate) const fn new(host: H, suspend_handle: SuspendHandle, per_second: f64) -> Self {
        Self { host, suspend_handle, per_second }
    }
}

impl<H: Host> Pace for VirtualTime<H> {
    async fn work(&self, operations: u64) {
        let mut left = Duration::from_secs_f64(operations as f64 / self.per_second);
        while !left.is_zero() {
            let (began, stood) =
                (self.host.now(), self.suspend_handle.suspended_time(self.host.now()));
            self.host.sleep_until(began + left).await;
            let passed = Duration::from_nanos(self.host.now().nanos_since(began));
            let idle = self.suspend_handle.suspended_time(self.host.now()) - stood;
            left = left.saturating_sub(passed - idle);
        }
    }
}
