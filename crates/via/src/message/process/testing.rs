//! Testing one, any, some or all of several requests.
//!
//! A request that is not under way (built, or its outcome taken) counts as done and empty, as an
//! inactive one does in MPI: nobody waits for it, and it has no outcome.

use super::Process;
use crate::message::progression::{Progression, Wait};
use crate::message::request::{Failure, Outcome, Request, State, Status};

/// What one look at several requests has found.
#[derive(Debug)]
pub enum Found<T> {
    /// This.
    Done(T),
    /// None of them is done yet.
    Pending,
    /// None of them is under way.
    Idle,
}

impl<P: Progression> Process<P> {
    /// Moves things forward; the outcome of a request, once it is done. It can then be started
    /// again, or freed.
    #[inline]
    pub fn test(&mut self, request: Request) -> Option<Outcome> {
        if self.lower.requests().state(request) != Some(State::Done) {
            self.lower.advance(Wait::Not);
        }
        self.lower.requests().take(request)
    }

    /// The same, and the request is gone with its outcome.
    #[inline]
    pub fn finish(&mut self, request: Request) -> Option<Outcome> {
        let outcome = self.test(request)?;
        self.lower.destroy(request, false);
        Some(outcome)
    }

    /// Status and result of a request that is done; it stays as it is (`MPI_Request_get_status`).
    pub fn status(&mut self, request: Request) -> Option<(Status, Result<(), Failure>)> {
        self.lower.advance(Wait::Not);
        self.lower.requests().peek(request)
    }

    fn is_under_way(&mut self, request: Request) -> bool {
        !matches!(self.lower.requests().state(request), None | Some(State::Built))
    }

    /// The outcome of the first request in the list that is done, and its place.
    pub fn test_any(&mut self, requests: &[Request]) -> Found<(usize, Outcome)> {
        self.lower.advance(Wait::Not);
        let mut idle = true;
        for (index, request) in requests.iter().enumerate() {
            if let Some(outcome) = self.lower.requests().take(*request) {
                return Found::Done((index, outcome));
            }
            idle &= !self.is_under_way(*request);
        }
        if idle { Found::Idle } else { Found::Pending }
    }

    /// The outcomes of all requests in the list that are done, and their places.
    pub fn test_some(&mut self, requests: &[Request]) -> Found<Vec<(usize, Outcome)>> {
        self.lower.advance(Wait::Not);
        let mut done = Vec::new();
        let mut idle = true;
        for (index, request) in requests.iter().enumerate() {
            match self.lower.requests().take(*request) {
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

    /// All outcomes, once every request that is under way is done; `None` in the place of one that
    /// was not. Until then, none is taken.
    pub fn test_all(&mut self, requests: &[Request]) -> Option<Vec<Option<Outcome>>> {
        self.lower.advance(Wait::Not);
        let done = |state| matches!(state, None | Some(State::Built | State::Done));
        if !requests.iter().all(|request| done(self.lower.requests().state(*request))) {
            return None;
        }
        Some(requests.iter().map(|request| self.lower.requests().take(*request)).collect())
    }
}
