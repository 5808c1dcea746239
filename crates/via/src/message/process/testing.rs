//! Tests whether a request has completed, without waiting (`MPI_Test`).
//!
//! A request that is not in progress (built, or its outcome taken) has no outcome, like an inactive request in MPI.

use super::Process;
use crate::message::request::{Failure, Outcome, Request, State, Status};
use crate::message::transport::Wait;

impl Process {
    /// Advances requests, and takes the outcome of `request` if it is done. The request can then be
    /// started again, or freed.
    #[inline]
    pub fn test(&mut self, request: Request) -> Option<Outcome> {
        if self.engine.requests().state(request) != Some(State::Done) {
            self.engine.advance(Wait::Not);
        }
        self.engine.requests().take(request)
    }

    /// Does the same as `test`, and frees the request with its outcome.
    #[inline]
    pub fn finish(&mut self, request: Request) -> Option<Outcome> {
        let outcome = self.test(request)?;
        self.engine.destroy(request, false);
        Some(outcome)
    }

    /// Returns status and result of a request that is done, without taking its outcome
    /// (`MPI_Request_get_status`).
    pub fn status(&mut self, request: Request) -> Option<(Status, Result<(), Failure>)> {
        self.engine.advance(Wait::Not);
        self.engine.requests().peek(request)
    }
}
