//! Computation time of a rank: on a simulated processor, or real time of the stated length.

use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::nic::LiveHost;
use midplane::simhw::sim::SimHost;
use midplane::simhw::time::Instant;

/// Largest delay that a rank makes up for after a late wake-up; it computes at a steady pace.
const CATCH_UP: Duration = Duration::from_millis(5);

/// A host on which ranks compute.
pub trait Pace: Host {
    /// Computes for `nanos` nanoseconds; `due` is the time until which the processor has work so far.
    fn compute(&self, due: &mut Instant, nanos: u64) -> impl Future<Output = ()> + Send;
}

impl Pace for SimHost {
    async fn compute(&self, _: &mut Instant, nanos: u64) {
        Self::compute(self, nanos).await;
    }
}

impl Pace for LiveHost {
    async fn compute(&self, due: &mut Instant, nanos: u64) {
        *due = (*due).max(self.now() - CATCH_UP).plus_nanos(nanos);
        self.sleep_until(*due).await;
    }
}
