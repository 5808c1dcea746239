//! Blocking operations: the thread busy-polls for a while, then parks until its carrier wakes it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;

use super::{MessageError, Process};
use crate::message::envelope::Tag;
use crate::message::group::{CommHandle, Rank};
use crate::message::matching::Pattern;
use crate::message::request::{Load, Mode, Operation, Outcome};
use crate::message::transport::{TryReceive, Wait};

/// Polls before a waiting thread parks: some 20 us, about the cost of waking it.
const DEFAULT_SPINS: u32 = 400;

/// Wakes a thread that is parked.
#[derive(Debug)]
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks a thread: busy-polls, then parks; or polls without parking.
#[derive(Clone, Debug)]
pub struct Parker {
    waker: Waker,
    spins: u32,
    /// True if the thread never parks.
    polls: bool,
}

/// Polls after which a thread that never parks yields its core; they take some 15 us. With more threads than cores,
/// the thread that it waits for may need that core.
const POLLS_PER_YIELD: u32 = 256;

/// Counts the polls of one wait.
struct Spin<'a> {
    parker: &'a Parker,
    made: u32,
}

impl Spin<'_> {
    /// Returns whether to poll once more.
    #[inline]
    fn again(&mut self) -> bool {
        if self.parker.polls {
            self.made += 1;
            // No spin hint between polls: it takes longer than a poll.
            if self.made == POLLS_PER_YIELD {
                self.made = 0;
                std::thread::yield_now();
            }
            return true;
        }
        if self.made > 0 {
            std::hint::spin_loop();
        }
        let more = self.made < self.parker.spins;
        self.made += u32::from(more);
        more
    }
}

impl Parker {
    /// Makes a parker for the calling thread, which polls `spins` times before it parks.
    #[must_use]
    pub fn new(spins: u32) -> Self {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        Self { waker, spins, polls: false }
    }

    /// Makes a parker for a thread with a core of its own: it never parks, and yields the core only now and then.
    #[must_use]
    pub fn polling() -> Self {
        Self { polls: true, ..Self::new(u32::MAX) }
    }

    const fn spin(&self) -> Spin<'_> {
        Spin { parker: self, made: 0 }
    }

    /// Calls `ask` until it returns a value. After the spins, advances the engine and parks between calls.
    pub(crate) fn until<T>(
        &self,
        process: &mut Process,
        mut ask: impl FnMut(&mut Process) -> Option<T>,
    ) -> T {
        let mut spin = self.spin();
        while spin.again() {
            if let Some(answer) = ask(process) {
                return answer;
            }
        }
        loop {
            let before = process.engine.requests().moves();
            if let Some(answer) = ask(process) {
                return answer;
            }
            let done = process.engine.advance(Wait::Wake(&self.waker));
            // Progress made by this call wakes no waker: call `ask` again before parking.
            if done == 0 && process.engine.requests().moves() == before {
                std::thread::park();
            }
        }
    }

    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) const fn spins(&self) -> u32 {
        self.spins
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new(DEFAULT_SPINS)
    }
}

impl Process {
    /// Sends and waits until the send is complete.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    #[inline]
    pub fn send(
        &mut self,
        scope: &CommHandle,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: &[u8],
        parker: &Parker,
    ) -> Result<(), MessageError> {
        if let Some(outcome) = self.send_now(scope, mode, to, tag, bytes) {
            return Ok(outcome.result?);
        }
        let request = self.isend(scope, mode, to, tag, Load::Copy(bytes))?;
        let outcome = parker.until(self, |process| process.finish(request));
        Ok(outcome.result?)
    }

    /// Sends without a request; returns the outcome if the send is done at once.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        scope: &CommHandle,
        mode: Mode,
        to: Rank,
        tag: Tag,
        bytes: &[u8],
    ) -> Option<Outcome> {
        let to = scope.group().peer(to).ok()?;
        let operation = Operation::Send { mode, to, context: scope.context(), tag };
        self.engine.send_now(operation, bytes)
    }

    /// Receives a message and waits for it. If the receive fails, the error is in the outcome.
    ///
    /// # Errors
    /// Those of [`ireceive`](Self::ireceive).
    #[inline]
    pub fn receive(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
        mut load: Load<'_>,
        parker: &Parker,
    ) -> Result<Outcome, MessageError> {
        if let Some(outcome) = self.receive_now(scope, source, tag, &mut load, parker) {
            return Ok(outcome);
        }
        let request = self.ireceive(scope, source, tag, load)?;
        Ok(parker.until(self, |process| process.finish(request)))
    }

    /// Receives without a request, during the polls before parking.
    #[inline]
    fn receive_now(
        &mut self,
        scope: &CommHandle,
        source: Option<Rank>,
        tag: Option<Tag>,
        load: &mut Load<'_>,
        parker: &Parker,
    ) -> Option<Outcome> {
        let Load::Room { room, storage } = load else { return None };
        let source = source.map(|rank| scope.group().peer(rank)).transpose().ok()?;
        let pattern = Pattern { context: scope.context(), source, tag };
        let mut spin = parker.spin();
        while spin.again() {
            match self.engine.receive_now(&pattern, *room, storage) {
                TryReceive::Here(outcome) => return Some(outcome),
                TryReceive::NotYet => {}
                TryReceive::Refused => return None,
            }
        }
        None
    }
}
