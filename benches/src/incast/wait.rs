//! Waits of the receiver and the senders: for the first of two futures, and up to a time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::time::{Instant, nanos};

/// Runs `work` until time `at`; returns `None` if it has not completed by then.
pub async fn by<T>(host: &impl Host, at: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut alarm = pin!(host.sleep_until(at));
    poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        alarm.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Waits for the first of two futures; `first` wins if both are ready.
pub async fn either<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| {
        if let Poll::Ready(value) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}

/// Result of one of two futures.
#[derive(Debug)]
pub enum Either<A, B> {
    /// Result of the first one.
    First(A),
    /// Result of the second one.
    Second(B),
}

/// Returns the time `after` from now.
pub fn later(host: &impl Host, after: Duration) -> Instant {
    host.now().plus_nanos(nanos(after))
}
