//! Tasks that can be stopped and resumed, as processes are by signals.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use midplane_simhw::time::Instant;

#[derive(Debug, Default)]
struct State {
    stopped_at: Option<Instant>,
    /// It was to go on while it stood still.
    parked: Option<Waker>,
    stood: Duration,
    ended: bool,
    killed: bool,
    watcher: Option<Waker>,
}

/// Stops and resumes one task. Clones hold the same one.
#[derive(Clone, Debug, Default)]
pub struct Reins(Arc<Mutex<State>>);

impl Reins {
    /// Reins of a task that runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A task that panics while it is polled is as good as ended.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Stops the task: it does nothing from when this returns until it is resumed.
    pub fn stop(&self, now: Instant) {
        self.state().stopped_at.get_or_insert(now);
    }

    /// Lets the task go on.
    pub fn resume(&self, now: Instant) {
        let mut state = self.state();
        if let Some(since) = state.stopped_at.take() {
            state.stood += Duration::from_nanos(now.nanos_since(since));
            if let Some(waker) = state.parked.take() {
                waker.wake();
            }
        }
    }

    /// Ends the task where it is.
    pub fn kill(&self) {
        let mut state = self.state();
        state.killed = true;
        state.stopped_at = None;
        for waker in [state.parked.take(), state.watcher.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    /// How long it has stood still in all, up to now: what a job's own clock does not count.
    #[must_use]
    pub fn stood(&self, now: Instant) -> Duration {
        let state = self.state();
        state.stood
            + state
                .stopped_at
                .map_or(Duration::ZERO, |since| Duration::from_nanos(now.nanos_since(since)))
    }

    /// Whether it has come to its end, or was killed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// The task, held by these reins.
    pub fn hold<F: Future<Output = ()> + Send>(&self, task: F) -> Held<F> {
        Held { reins: self.clone(), task: Some(Box::pin(task)) }
    }
}

/// A task that can be stopped.
#[derive(Debug)]
pub struct Held<F> {
    reins: Reins,
    task: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Future for Held<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let reins = self.reins.clone();
        let mut state = reins.state();
        if state.killed {
            self.task = None;
            state.ended = true;
            return Poll::Ready(());
        }
        if state.stopped_at.is_some() {
            state.parked = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.watcher = Some(context.waker().clone());
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        // What the task does to its own reins would wait for this turn's end for ever.
        drop(state);
        let polled = task.as_mut().poll(context);
        if polled.is_ready() {
            reins.state().ended = true;
        }
        polled
    }
}
