//! Steps for a node's processes and channels, and the task that carries them out.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::node_core::{Step, StepOutcome};

/// Carries steps out.
pub(crate) trait Executor: Send {
    /// Carries a step out.
    ///
    /// # Errors
    /// The reason why the jobs of this node can't continue.
    fn carry_out(&mut self, step: Step)
    -> impl Future<Output = Result<StepOutcome, String>> + Send;

    /// Does work that no other node waits for, after a step is reported.
    fn carry_on(&mut self) -> impl Future<Output = ()> + Send;
}

#[derive(Debug, Default)]
struct Queue {
    steps: VecDeque<(u64, Step)>,
    waker: Option<Waker>,
    is_closed: bool,
}

/// Steps to be carried out, each with its number. Clones share one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepQueue(Arc<Mutex<Queue>>);

impl StepQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a step. If a [`Step::Stop`] is under way, that is cancelled: a channel to a node that is lost is never steady.
    pub(crate) fn push(&self, number: u64, step: Step) {
        let mut queue = self.queue();
        queue.steps.push_back((number, step));
        let waker = queue.waker.take();
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Runs `executor` until the queue is closed. Calls `done` with the result of each step that was not cancelled.
    pub(crate) async fn run<E: Executor>(
        self,
        mut executor: E,
        done: impl Fn(u64, Result<StepOutcome, String>),
    ) {
        while let Some((number, step)) = self.next().await {
            let is_cancelled = matches!(step, Step::Stop { .. });
            if let Some(result) = self.unless_next(executor.carry_out(step), is_cancelled).await {
                done(number, result);
                executor.carry_on().await;
            }
        }
    }

    /// Returns the next step; `None` once the queue is closed.
    async fn next(&self) -> Option<(u64, Step)> {
        poll_fn(|context| {
            let mut queue = self.queue();
            if queue.is_closed {
                return Poll::Ready(None);
            }
            if let Some(next) = queue.steps.pop_front() {
                return Poll::Ready(Some(next));
            }
            queue.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Returns the result of a step, or `None` if the queue is closed before that, or if the next step comes first and
    /// cancels this one.
    async fn unless_next<T>(&self, step: impl Future<Output = T>, is_cancelled: bool) -> Option<T> {
        let mut step = pin!(step);
        poll_fn(|context| {
            if let Poll::Ready(result) = step.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            let mut queue = self.queue();
            if queue.is_closed || is_cancelled && !queue.steps.is_empty() {
                return Poll::Ready(None);
            }
            queue.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}
