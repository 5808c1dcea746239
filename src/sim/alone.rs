//! Threads that make runs repeatable.

use std::panic::resume_unwind;
use std::thread::{self, Builder};

/// Runs `work` on a new thread with this thread's name. With the feature `deterministic`, random numbers and the clock
/// of the system come from `seed`. Hash maps draw random numbers once per thread, so each run needs a new one.
pub(super) fn alone<T: Send>(seed: u64, work: impl FnOnce() -> T + Send) -> T {
    let name = thread::current().name().unwrap_or("sim").to_owned();
    let run = move || {
        #[cfg(feature = "deterministic")]
        let _guard = midplane_deterministic::enter(seed, wall_clock);
        #[cfg(not(feature = "deterministic"))]
        let _ = seed;
        work()
    };
    thread::scope(|scope| {
        let thread = Builder::new().name(name).spawn_scoped(scope, run);
        thread
            .expect("the system starts threads")
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Returns the wall clock of the simulated host whose code runs: runs start on 2001-09-09, at 1:46:40 UTC.
#[cfg(feature = "deterministic")]
fn wall_clock() -> Option<std::time::Duration> {
    use std::time::Duration;
    const START: Duration = Duration::from_secs(1_000_000_000);
    let host = midplane_simhw::services::VirtualHost::current();
    Some(START + host.map_or(Duration::ZERO, |host| Duration::from_nanos(host.now().as_nanos())))
}
