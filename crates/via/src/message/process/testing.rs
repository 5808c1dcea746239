//! Tests of one, any, some or all of several requests, without waiting.
//!
//! A request that is not under way (built, or its outcome taken) counts as done without an outcome, like an
//! inactive request in MPI: waits skip it.

use super::Process;
use crate::message::request::{Failure, Outcome, Request, State, Status};
use crate::message::transport::Wait;

/// The result of one test of several requests.
#[derive(Debug)]
pub enum Found<T> {
    /// At least one is done: its outcome, or theirs.
    Done(T),
    /// None of them is done yet.
    Pending,
    /// None of them is under way.
    Idle,
}

impl Process {
    /// Moves requests forward, and takes the outcome of `request` if it is done. The request can then be
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

    fn is_under_way(&mut self, request: Request) -> bool {
        !matches!(self.engine.requests().state(request), None | Some(State::Built))
    }

    /// Takes the outcome of the first request in the list that is done, with its index.
    pub fn test_any(&mut self, requests: &[Request]) -> Found<(usize, Outcome)> {
        self.engine.advance(Wait::Not);
        let mut idle = true;
        for (index, request) in requests.iter().enumerate() {
            if let Some(outcome) = self.engine.requests().take(*request) {
                return Found::Done((index, outcome));
            }
            idle &= !self.is_under_way(*request);
        }
        if idle { Found::Idle } else { Found::Pending }
    }

    /// Takes the outcomes of all requests in the list that are done, with their indices.
    pub fn test_some(&mut self, requests: &[Request]) -> Found<Vec<(usize, Outcome)>> {
        self.engine.advance(Wait::Not);
        let mut done = Vec::new();
        let mut idle = true;
        for (index, request) in requests.iter().enumerate() {
            match self.engine.requests().take(*request) {
                Some(outcome) => done.push((index, outcome)),
                None => idle &= !self.is_under_way(*request),
            }
        }
        match (done.is_empty(), idle) {
            (false, _) => Found::Done(done),
            (true, true) => Found::Idle,
            (true, false) => Found::Pending,
        }
    }

    /// Takes all outcomes once every request under way is done; `None` in the place of one that was not under
    /// way. Until then, takes none.
    pub fn test_all(&mut self, requests: &[Request]) -> Option<Vec<Option<Outcome>>> {
        self.engine.advance(Wait::Not);
        let done = |state| matches!(state, None | Some(State::Built | State::Done));
        if !requests.iter().all(|request| done(self.engine.requests().state(*request))) {
            return None;
        }
        Some(requests.iter().map(|request| self.engine.requests().take(*request)).collect())
    }
}
