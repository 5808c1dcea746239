//! How long a rank computes: on a simulated processor, or as much time as it is said to take.

use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::sim::SimHost;
use midplane::simhw::time::Instant;
use midplane::simhw::udp::UdpHost;

/// What a rank that woke up late makes up for, and no more: it computes at a steady pace.
const CATCH_UP: Duration = Duration::from_millis(5);

/// A host that ranks compute on.
pub trait Pace: Host {
    /// Computes for `nanos` nanoseconds; `due` is until when there has been work so far.
    fn compute(&self, due: &mut Instant, nanos: u64) -> impl Future<Output = ()> + Send;
}

impl Pace for SimHost {
    async fn compute(&self, _: &mut Instant, nanos: u64) {
        Self::compute(self, nanos).await;
    }
}

impl Pace for UdpHost {
    async fn compute(&self, due: &mut Instant, nanos: u64) {
        *due = (*due).max(self.now() - CATCH_UP).plus_nanos(nanos);
        self.sleep_until(*due).await;
    }
}
