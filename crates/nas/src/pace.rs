//! Accounts for the time of floating-point operations.

use std::future::Future;

/// Accounts for the time of floating-point operations, which take no time in virtual time otherwise.
pub trait Pace: Send + Sync {
    /// Waits for the time of `operations` floating-point operations. Zero operations only mark a point of progress.
    fn work(&self, operations: u64) -> impl Future<Output = ()> + Send;
}

/// Real time: waits for nothing, since arithmetic takes real time anyway.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Pace for RealTime {
    async fn work(&self, _: u64) {}
}
