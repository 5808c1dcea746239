//! Where operations take time.

use std::future::Future;
use std::time::Duration;

use midplane_simhw::host::Host;

use crate::process::Reins;

/// Where operations take time: nowhere but in virtual time, where arithmetic is free otherwise.
pub trait Pace: Send + Sync {
    /// Takes the time of so many floating-point operations; none only says how far a kernel is.
    fn work(&self, operations: u64) -> impl Future<Output = ()> + Send;
}

/// Arithmetic takes the time that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Pace for RealTime {
    async fn work(&self, _: u64) {}
}

/// Operations take virtual time, and make no progress while their process stands still.
#[derive(Clone, Debug)]
pub struct VirtualTime<H> {
    host: H,
    reins: Reins,
    per_second: f64,
}

impl<H: Host> VirtualTime<H> {
    /// A processor of so many operations a second, for the process in these reins.
    #[must_use]
    pub const fn new(host: H, reins: Reins, per_second: f64) -> Self {
        Self { host, reins, per_second }
    }
}

impl<H: Host> Pace for VirtualTime<H> {
    async fn work(&self, operations: u64) {
        let mut left = Duration::from_secs_f64(operations as f64 / self.per_second);
        while !left.is_zero() {
            let (began, stood) = (self.host.now(), self.reins.stood(self.host.now()));
            self.host.sleep_until(began + left).await;
            let passed = Duration::from_nanos(self.host.now().nanos_since(began));
            let idle = self.reins.stood(self.host.now()) - stood;
            left = left.saturating_sub(passed - idle);
        }
    }
}
