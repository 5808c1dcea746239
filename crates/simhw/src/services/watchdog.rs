//! Ends visits of a runtime in which no time passes: a task wakes itself for ever.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

/// Seconds of real time that a visit may take.
const SECONDS: u32 = if cfg!(test) { 2 } else { 20 };

/// The visit that a thread makes.
#[derive(Debug, Default)]
pub(super) struct Visit {
    /// The number of the visit, and what polls its step.
    step: Mutex<(u64, Option<Waker>)>,
    is_overdue: AtomicBool,
}

thread_local! {
    static OWN: Arc<Visit> = register();
}

/// The visits of all threads.
static ALL: Mutex<Vec<Weak<Visit>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register() -> Arc<Visit> {
    static THREAD: Once = Once::new();
    THREAD.call_once(|| {
        std::thread::spawn(watch);
    });
    let own = Arc::new(Visit::default());
    lock(&ALL).push(Arc::downgrade(&own));
    own
}

/// Wakes the steps of visits that take too long, once a second.
fn watch() {
    let mut seen: BTreeMap<*const Visit, (u64, u32)> = BTreeMap::new();
    loop {
        #[expect(clippy::disallowed_methods, reason = "this thread watches the real time")]
        std::thread::sleep(Duration::from_secs(1));
        lock(&ALL).retain(|visit| {
            let Some(visit) = visit.upgrade() else { return false };
            let (number, waker) = &*lock(&visit.step);
            let (known, seconds) = seen.entry(Arc::as_ptr(&visit)).or_default();
            *seconds = if known == number && waker.is_some() { *seconds + 1 } else { 0 };
            *known = *number;
            if let Some(waker) = waker.as_ref().filter(|_| *seconds >= SECONDS) {
                visit.is_overdue.store(true, Ordering::Release);
                waker.wake_by_ref();
            }
            true
        });
    }
}

/// Begins a visit of this thread, whose step this waker polls.
pub(super) fn begin(waker: &Waker) {
    OWN.with(|own| {
        let mut step = lock(&own.step);
        step.0 += 1;
        step.1 = Some(waker.clone());
        own.is_overdue.store(false, Ordering::Relaxed);
    });
}

/// Ends the visit of this thread, and wakes its step for the last time.
pub(super) fn end() {
    let waker = OWN.with(|own| lock(&own.step).1.take());
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns whether the visit of this thread takes too long.
pub(super) fn is_overdue() -> bool {
    OWN.with(|own| own.is_overdue.load(Ordering::Acquire))
}
