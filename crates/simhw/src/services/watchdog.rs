//! Ends visits of a runtime that take too long, because a task wakes itself again and again.

use std::sync::{Arc, Mutex, Once, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::lock::lock;

/// Seconds of real time that a visit may take.
const SECONDS: u32 = if cfg!(test) { 2 } else { 20 };

/// The visit that a thread makes; `waker` is `None` while the thread makes none.
#[derive(Debug, Default)]
struct Visit {
    /// Wakes the visit's step.
    waker: Option<Waker>,
    /// Seconds since the visit began, rounded down.
    seconds: u32,
}

thread_local! {
    static OWN: Arc<Mutex<Visit>> = register();
}

/// The visits of all threads.
static ALL: Mutex<Vec<Weak<Mutex<Visit>>>> = Mutex::new(Vec::new());

fn register() -> Arc<Mutex<Visit>> {
    static THREAD: Once = Once::new();
    THREAD.call_once(|| {
        std::thread::spawn(watch);
    });
    let own = Arc::<Mutex<Visit>>::default();
    lock(&ALL).push(Arc::downgrade(&own));
    own
}

/// Wakes the steps of visits that take too long, once a second.
fn watch() {
    loop {
        #[expect(clippy::disallowed_methods, reason = "this thread watches the real time")]
        std::thread::sleep(Duration::from_secs(1));
        lock(&ALL).retain(|visit| {
            let Some(visit) = visit.upgrade() else { return false };
            let mut visit = lock(&visit);
            visit.seconds = visit.seconds.saturating_add(1);
            if let (true, Some(waker)) = (visit.seconds >= SECONDS, &visit.waker) {
                waker.wake_by_ref();
            }
            true
        });
    }
}

/// Begins a visit of this thread; `waker` wakes the visit's step.
pub(super) fn begin(waker: &Waker) {
    OWN.with(|own| *lock(own) = Visit { waker: Some(waker.clone()), seconds: 0 });
}

/// Ends the visit of this thread, and wakes its step for the last time.
pub(super) fn end() {
    let waker = OWN.with(|own| lock(own).waker.take());
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns whether the visit of this thread takes too long.
pub(super) fn is_overdue() -> bool {
    OWN.with(|own| lock(own).seconds >= SECONDS)
}
