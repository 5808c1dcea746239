//! A tokio runtime on the clock of a simulated host.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::kernel::{Entered, Kernel};
use super::watchdog;
use crate::host::Host as _;
use crate::time::Instant;

/// The granularity of tokio's timers, counted from the start of the runtime.
pub(super) const TICK_NANOS: u64 = 1_000_000;

thread_local! {
    /// True once the runtime that this thread visits has no runnable task.
    static IS_PARKED: Cell<bool> = const { Cell::new(false) };
    /// True while panics of hosts' code are recorded but not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    /// The first panic of a host's code since the last visit.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a hook that records panics in the code of simulated hosts; other panics are handled as before.
fn record_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if super::kernel::current().is_some() {
                PANIC.with_borrow_mut(|panic| {
                    panic.get_or_insert_with(|| info.to_string());
                });
                if IS_QUIET.get() {
                    return;
                }
            }
            previous(info);
        }));
    });
}

/// Calls a function without printing the panics of hosts' code that this thread runs meanwhile.
pub fn without_panic_messages<R>(call: impl FnOnce() -> R) -> R {
    let before = IS_QUIET.replace(true);
    let result = call();
    IS_QUIET.set(before);
    result
}

/// The runtime of a host.
#[derive(Debug)]
pub(super) struct HostRuntime {
    /// Dropped with the host's code, in the host's context.
    runtime: Option<Runtime>,
    kernel: Arc<Kernel>,
    started: Instant,
    clock: Instant,
    has_threads: Arc<AtomicBool>,
}

impl HostRuntime {
    pub(super) fn new(kernel: &Arc<Kernel>) -> Self {
        record_panics();
        let has_threads = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_threads);
        let mut builder = Builder::new_current_thread();
        // The seed decides which branch `select!` polls first.
        #[cfg(tokio_unstable)]
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(
            &super::kernel::VirtualHost(Arc::clone(kernel)).random().to_le_bytes(),
        ));
        let runtime = builder
            .enable_time()
            .start_paused(true)
            .on_thread_park(|| {
                IS_PARKED.set(true);
                watchdog::end();
            })
            .on_thread_start(move || seen.store(true, Ordering::Relaxed))
            .build()
            .expect("a runtime without I/O needs nothing of the system");
        let started = kernel.host.now();
        let kernel = Arc::clone(kernel);
        Self { runtime: Some(runtime), kernel, started, clock: started, has_threads }
    }

    /// Starts the host's code.
    pub(super) fn spawn(&self, main: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.as_ref().expect("it ends when it is dropped");
        let _entered = Entered::new(&self.kernel);
        runtime.spawn(main);
    }

    /// Moves the clock to the host's time, wakes these tasks, and runs all tasks until each of them waits. Returns
    /// `false` if that never happens, because a task wakes itself again and again.
    pub(super) fn visit(&mut self, wakes: &mut Vec<Waker>) -> bool {
        let now = self.kernel.host.now();
        let by = now.nanos_since(self.clock);
        self.clock = self.clock.max(now);
        let _entered = Entered::new(&self.kernel);
        let runtime = self.runtime.as_ref().expect("it ends when it is dropped");
        let advance = (by > 0).then(|| tokio::time::advance(Duration::from_nanos(by)));
        let advance = std::pin::pin!(advance);
        runtime.block_on(Step { advance, wakes, is_started: false })
    }

    /// Returns the next instant at which a timer of tokio's may fire.
    pub(super) const fn next_tick(&self) -> Instant {
        let ticks = self.clock.nanos_since(self.started) / TICK_NANOS + 1;
        self.started.plus_nanos(ticks * TICK_NANOS)
    }

    /// Returns the message of the first panic since the last call.
    pub(super) fn take_panic() -> Option<String> {
        PANIC.take()
    }

    /// Returns whether the host's code has used the pool of blocking threads.
    pub(super) fn has_threads(&self) -> bool {
        self.has_threads.load(Ordering::Relaxed)
    }
}

impl Drop for HostRuntime {
    fn drop(&mut self) {
        let _entered = Entered::new(&self.kernel);
        drop(self.runtime.take());
        // Panics of code that is being dropped are not part of the run.
        PANIC.take();
    }
}

/// Runs a runtime until no task is runnable: only then does the runtime call `on_thread_park`. Returns `false` if that
/// takes too long.
struct Step<'a, A> {
    advance: Pin<&'a mut Option<A>>,
    wakes: &'a mut Vec<Waker>,
    is_started: bool,
}

impl<A: Future<Output = ()>> Future for Step<'_, A> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        if self.is_started {
            let is_parked = IS_PARKED.get();
            let is_over = is_parked || watchdog::is_overdue();
            return if is_over { Poll::Ready(is_parked) } else { Poll::Pending };
        }
        self.is_started = true;
        IS_PARKED.set(false);
        watchdog::begin(context.waker());
        if let Some(advance) = self.advance.as_mut().as_pin_mut() {
            // Moves the clock, and yields.
            let _ = advance.poll(context);
        }
        self.wakes.drain(..).for_each(Waker::wake);
        Poll::Pending
    }
}
