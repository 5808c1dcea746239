//! Carries out a node's steps, one after another, in a task, and the queue between a daemon and the tasks that work for
//! it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::node_core::{Step, StepOutcome};

/// Steps to carry out, each with its number.
pub(crate) type StepQueue = Queue<(u64, Step)>;

/// Carries out steps.
pub(crate) trait Executor: Send {
    /// Carries out a step.
    ///
    /// # Errors
    /// The reason why the jobs of this node can't continue.
    fn carry_out(&mut self, step: Step)
    -> impl Future<Output = Result<StepOutcome, String>> + Send;

    /// Does the work after a reported step for which no other node waits.
    fn carry_on(&mut self) -> impl Future<Output = ()> + Send;
}

/// Carries out steps until the queue is closed, and calls `done` with the result of each.
///
/// The next step cancels a step that waits until channels are quiescent, because a channel to a lost node never
/// becomes so.
pub(crate) async fn run(
    steps: StepQueue,
    mut executor: impl Executor,
    done: impl Fn(u64, Result<StepOutcome, String>),
) {
    loop {
        steps.ready().await;
        let Some((number, step)) = steps.pop() else { return };
        let is_stop = step.is_stop();
        let cancelled = async {
            match is_stop {
                true => steps.ready().await,
                false => steps.closed().await,
            }
        };
        if let Some(result) = until(executor.carry_out(step), cancelled).await {
            done(number, result);
            executor.carry_on().await;
        }
    }
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
    /// The waker of the waiting task.
    waker: Option<Waker>,
}

/// A queue with at most one waiting task at a time. Clones share it.
#[derive(Debug)]
pub(crate) struct Queue<T>(Arc<Mutex<State<T>>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State { items: VecDeque::new(), is_closed: false, waker: None };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        let mut state = self.state();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Adds an item.
    pub(crate) fn push(&self, item: T) {
        self.change(|state| state.items.push_back(item));
    }

    /// Drops all items, closes the queue, and wakes the waiting task.
    pub(crate) fn close(&self) {
        self.change(|state| (state.is_closed, state.items) = (true, VecDeque::new()));
    }

    /// Removes and returns the next item, if there is one.
    pub(crate) fn pop(&self) -> Option<T> {
        self.state().items.pop_front()
    }

    /// Waits until there is an item or the queue is closed.
    pub(crate) async fn ready(&self) {
        self.wait(|state| state.is_closed || !state.items.is_empty()).await;
    }

    /// Waits until the queue is closed.
    pub(crate) async fn closed(&self) {
        self.wait(|state| state.is_closed).await;
    }

    async fn wait(&self, is_met: impl Fn(&State<T>) -> bool) {
        poll_fn(|context| {
            let mut state = self.state();
            if is_met(&state) {
                return Poll::Ready(());
            }
            let before = state.waker.replace(context.waker().clone());
            drop(state);
            drop(before);
            Poll::Pending
        })
        .await;
    }
}

/// Returns the result of `first`, or `None` if `end` completes earlier.
pub(crate) async fn until<T>(
    first: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut first, mut end) = (pin!(first), pin!(end));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
