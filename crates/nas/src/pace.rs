//! Accounts for the time of floating-point operations.

use std::future::Future;

/// Accounts for the time of floating-point operations, which take no time in virtual time otherwise.
pub trait Pace: Send + Sync {
    /// Waits for the time of `operations` floating-point operations. Zero operations only mark a point of progress.
    fn work(&self, operations: u64) -> impl Future<Output = ()> + Send;

    /// Returns whether the kernel computes. If not, it sends the same messages, of the same lengths at the same times,
    /// and its results mean nothing. Default: true.
    fn computes(&self) -> bool {
        true
    }
}

/// Runs arithmetic, if the kernel computes, and accounts for the time of its `operations`.
pub(crate) async fn compute(pace: &impl Pace, operations: u64, arithmetic: impl FnOnce() + Send) {
    if pace.computes() {
        arithmetic();
    }
    pace.work(operations).await;
}

/// Real time: waits for nothing, since arithmetic takes real time anyway.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Pace for RealTime {
    async fn work(&self, _: u64) {}
}
