//! A queue between a daemon and the tasks that work for it.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

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

/// Runs futures concurrently until all have completed, and returns their results in order.
///
/// # Cancel safety
/// If the future is dropped, all of the futures are dropped.
pub(crate) async fn together<T, F: Future<Output = T>>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<T> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        match results.iter_mut().all(|result| result.is_some()) {
            true => Poll::Ready(results.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    })
    .await
}
