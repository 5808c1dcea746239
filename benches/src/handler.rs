//! The served handler, which is independent of its transport.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use tower_service::Service;

/// Returns the bytes of a request in reverse order.
#[derive(Clone, Copy, Debug)]
pub struct Reverse;

impl Service<Bytes> for Reverse {
    type Response = Bytes;
    type Error = Infallible;
    type Future = Ready<Result<Bytes, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        ready(Ok(reversed(&request)))
    }
}

/// Returns the expected answer to a request.
pub fn reversed(request: &[u8]) -> Bytes {
    request.iter().rev().copied().collect()
}
