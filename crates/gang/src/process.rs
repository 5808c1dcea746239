//! Tasks that can be suspended and resumed, like processes by signals.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use midplane_simhw::id::PortId;
use midplane_simhw::time::Instant;

#[derive(Debug, Default)]
struct State {
    stopped_at: Option<Instant>,
    /// The task's waker, if the task was polled while it was suspended.
    parked: Option<Waker>,
    suspended_time: Duration,
    ended: bool,
    killed: bool,
    watcher: Option<Waker>,
    ports: Vec<PortId>,
}

/// Suspends, resumes and ends one task. Clones control the same task.
#[derive(Clone, Debug, Default)]
pub struct SuspendHandle(Arc<Mutex<State>>);

impl SuspendHandle {
    /// Creates the handle of a running task.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A task that panics while it is polled counts as ended, so a poisoned lock is used as it is.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Suspends the task: it is not polled after this returns until it is resumed.
    pub fn suspend(&self, now: Instant) {
        self.state().stopped_at.get_or_insert(now);
    }

    /// Resumes the task.
    pub fn resume(&self, now: Instant) {
        let mut state = self.state();
        if let Some(since) = state.stopped_at.take() {
            state.suspended_time += now.since(since);
            if let Some(waker) = state.parked.take() {
                waker.wake();
            }
        }
    }

    /// Ends the task without polling it again.
    pub fn kill(&self) {
        let mut state = self.state();
        state.killed = true;
        state.stopped_at = None;
        for waker in [state.parked.take(), state.watcher.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    /// Registers a port of the task on its node's NIC. A [`Daemon`](crate::daemon::Daemon) suspends and resumes the
    /// port with the task; data that arrives for it meanwhile wakes the job early. The task must keep the port open
    /// until it ends. The NICs' [`GangConfig`](crate::GangConfig) must set
    /// [`PORT_SUSPENDER`](crate::port_suspender::PORT_SUSPENDER) and
    /// [`ARRIVAL_WATCHER`](crate::port_suspender::ARRIVAL_WATCHER).
    pub fn add_port(&self, port: PortId) {
        self.state().ports.push(port);
    }

    /// Returns the ports of the task; none if it has ended.
    pub(crate) fn ports(&self) -> Vec<PortId> {
        let state = self.state();
        if state.ended { Vec::new() } else { state.ports.clone() }
    }

    /// Returns the total time for which the task has been suspended up to `now`. A job's own clock does not count this
    /// time.
    #[must_use]
    pub fn suspended_time(&self, now: Instant) -> Duration {
        let state = self.state();
        state.suspended_time + state.stopped_at.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns whether the task has completed or was killed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Wraps a task so that this handle controls it.
    pub fn hold<F: Future<Output = ()> + Send>(&self, task: F) -> SuspendableTask<F> {
        SuspendableTask { suspend_handle: self.clone(), task: Some(Box::pin(task)) }
    }
}

/// A task that a [`SuspendHandle`] can suspend.
#[derive(Debug)]
pub struct SuspendableTask<F> {
    suspend_handle: SuspendHandle,
    task: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Future for SuspendableTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let suspend_handle = self.suspend_handle.clone();
        let mut state = suspend_handle.state();
        if state.killed {
            state.ended = true;
            // The task may use its own handle while it is dropped, which locks the state.
            drop(state);
            self.task = None;
            return Poll::Ready(());
        }
        if state.stopped_at.is_some() {
            state.parked = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.watcher = Some(context.waker().clone());
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        // The task may use its own handle, which locks the state.
        drop(state);
        let polled = task.as_mut().poll(context);
        if polled.is_ready() {
            suspend_handle.state().ended = true;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Suspends its own task when it is dropped.
    struct SuspendsOnDrop(SuspendHandle);

    impl Drop for SuspendsOnDrop {
        fn drop(&mut self) {
            assert!(self.0.has_ended());
            self.0.suspend(Instant::ZERO);
        }
    }

    /// Regression: the task waited for the lock of its own state.
    #[test]
    fn a_killed_task_may_use_its_handle_while_it_is_dropped() {
        let handle = SuspendHandle::new();
        let guard = SuspendsOnDrop(handle.clone());
        let mut task = Box::pin(handle.hold(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
        let mut context = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending());
        handle.kill();
        assert!(task.as_mut().poll(&mut context).is_ready());
        assert!(handle.has_ended());
    }
}
