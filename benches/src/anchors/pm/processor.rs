//! The processor of one simulated process, which its arithmetic and its library take in turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use midplane::gang::process::SuspendHandle;
use midplane::simhw::host::Host;
use midplane::simhw::sim::SimHost;
use midplane::simhw::time::Instant;

/// A processor that works only while its process is not suspended. Its daemon takes it from the process at once, as a
/// kernel would, and at no cost to the process. Clones are the same processor.
#[derive(Clone, Debug)]
pub struct Processor {
    host: SimHost,
    suspend_handle: SuspendHandle,
    /// When its work is done, by the process's own clock, which stops while the process is suspended.
    done_at: Arc<Mutex<Duration>>,
}

impl Processor {
    /// Creates the idle processor of the process on `host` that `suspend_handle` suspends.
    pub fn new(host: SimHost, suspend_handle: SuspendHandle) -> Self {
        Self { host, suspend_handle, done_at: Arc::default() }
    }

    /// Returns the process's host.
    pub const fn host(&self) -> &SimHost {
        &self.host
    }

    /// Adds work, which begins once earlier work is done.
    pub fn charge(&self, work: Duration) {
        let mut done_at = self.done_at();
        *done_at = self.own_now().max(*done_at) + work;
    }

    /// Returns the time that is left of its work.
    pub fn left(&self) -> Duration {
        self.done_at().saturating_sub(self.own_now())
    }

    /// Waits until its work is done.
    pub async fn idle(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            self.host.sleep_until(self.host.now() + left).await;
        }
    }

    fn done_at(&self) -> MutexGuard<'_, Duration> {
        self.done_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_now(&self) -> Duration {
        let now = self.host.now();
        Duration::from_nanos(now.nanos_since(Instant::ZERO))
            - self.suspend_handle.suspended_time(now)
    }
}
