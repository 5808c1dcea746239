//! Requests: one communication each, from the moment that it is built until its outcome is taken.
//!
//! ```text
//! Built --start--> Waiting --it leaves, or is posted--> Active --> Done --take--> Built
//! ```
//!
//! The table is what both layers share: the lower layer moves requests forward, the upper one reads
//! their states, takes outcomes and marks what is to be cancelled.

use std::task::Waker;

use bytes::Bytes;
use thiserror::Error;

use super::bell::{Deferred, Guard};
use super::envelope::{Context, Peer, Tag};
use super::matching::{Arrival, Key, Pattern, PostedId};

/// The source of what was received from nobody.
pub const NOBODY: Peer = Peer(u32::MAX);

/// Names a request; a stale name is recognised.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Request {
    slot: u32,
    generation: u32,
}

impl Request {
    /// As a handle in an envelope; never 0.
    #[must_use]
    pub const fn to_handle(self) -> u64 {
        self.slot as u64 | (self.generation as u64) << 32
    }

    /// What [`Request::to_handle`] made. Any number is some name: the table says whether it lives.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub const fn from_handle(handle: u64) -> Self {
        Self { slot: handle as u32, generation: (handle >> 32) as u32 }
    }
}

/// When a send is complete (MPI 1.1, section 3.4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// When its bytes are the sender's no longer: copied, or handed to the receiver.
    #[default]
    Standard,
    /// At once: the bytes are copied into room that was attached for it.
    Buffered,
    /// When its receive has begun.
    Synchronous,
    /// As standard; the sender vouches that the receive is posted. A breach is counted, not punished.
    Ready,
}

/// What a request does, each time that it is started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Sends a message.
    Send {
        /// When it is complete.
        mode: Mode,
        /// To whom.
        to: Peer,
        /// In which context.
        context: Context,
        /// With which tag.
        tag: Tag,
    },
    /// Receives the first message that the pattern asks for.
    Receive(Pattern),
    /// Receives a message that a probe has taken out of the queue; once.
    Claimed(Key),
    /// A send to nobody, or a receive from nobody: done as soon as it is started. The upper layer
    /// keeps such requests from the lower one.
    Nothing,
}

/// What a request is started with.
#[derive(Debug)]
pub enum Load<'a> {
    /// A message to send, copied if it cannot leave at once.
    Copy(&'a [u8]),
    /// A message to send.
    Bytes(Bytes),
    /// Room for a message of at most `room` bytes. `storage` is used where it is large enough, so
    /// that whoever hands the same one in again allocates nothing; what is in it does not matter.
    Room {
        /// Most bytes that the receive takes.
        room: usize,
        /// Where they may go.
        storage: Vec<u8>,
    },
}

impl Load<'_> {
    /// Room for any message, in storage that the lower layer finds.
    #[must_use]
    pub const fn anything() -> Self {
        Self::Room { room: usize::MAX, storage: Vec::new() }
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Not started, or its outcome taken.
    Built,
    /// A send of which nothing has left yet.
    Waiting,
    /// Under way, or a receive that is posted.
    Active,
    /// Its outcome can be taken.
    Done,
}

/// Which message a request was about.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Who sent it.
    pub source: Peer,
    /// Its tag.
    pub tag: Tag,
    /// Bytes that were delivered.
    pub length: usize,
}

/// Why a request did not do what it was for.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// The receive got the beginning of the message; the sender knows nothing of it.
    #[error("the message has {length} bytes, more than the {room} there is room for")]
    Truncated {
        /// Bytes of the message.
        length: usize,
        /// Most that the receive took.
        room: usize,
    },
    /// It was cancelled before it met its counterpart: nothing was sent or received.
    #[error("cancelled before it met its counterpart")]
    Cancelled,
    /// The other process is gone; of a send, nobody knows whether it was received.
    #[error("process {0} is gone")]
    PeerLost(Peer),
    /// The other process was killed or has ended, and was started again: this was for the former one. Messages
    /// may be sent to the new one.
    #[error("process {0} was started again; the one that this was for is gone")]
    PeerRestarted(Peer),
    /// The receiver's memory for messages that it does not expect is full, and the configuration
    /// says to refuse then: nothing was sent.
    #[error(
        "process {0} has no memory left for messages that it does not expect; have it post receives first"
    )]
    Refused(Peer),
    /// Of a collective operation: another process has left it before it had ended, because it failed there or
    /// was dropped. No further one can be carried out over that communicator.
    #[error("another process has left the collective operation; go on with another communicator")]
    Abandoned,
    /// The lower layer was finalised first.
    #[error("the message layer was finalised")]
    Finalized,
}

/// What came of a request.
#[derive(Debug)]
pub struct Outcome {
    /// Which message it was about.
    pub status: Status,
    /// Whether it did what it was for.
    pub result: Result<(), Failure>,
    /// Of a receive: the bytes, in the storage handed in or in another. Of a send: empty.
    pub bytes: Vec<u8>,
}

/// A receive that has met an announced message: `filled` of `wanted` bytes are here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) peer: Peer,
    pub(super) filled: usize,
    pub(super) wanted: usize,
    /// Bytes of the whole message.
    pub(super) length: usize,
}

/// What the table knows of a request.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) operation: Operation,
    pub(super) state: State,
    /// A send's message, while it may still have to leave.
    pub(super) bytes: Bytes,
    pub(super) storage: Vec<u8>,
    pub(super) room: usize,
    pub(super) posted: Option<PostedId>,
    pub(super) transfer: Option<Transfer>,
    pub(super) arrival: Arrival,
    pub(super) status: Status,
    pub(super) result: Result<(), Failure>,
    /// Nobody will take the outcome.
    pub(super) orphan: bool,
    /// What it receives goes back into the queue.
    pub(super) undo: bool,
    /// Bytes of the attached buffer that it holds until it is done.
    pub(super) attached: usize,
    waker: Option<Waker>,
    /// Released once it has ended and nobody will take its outcome.
    guard: Option<Guard>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    live: bool,
    record: Record,
}

/// All requests of one process.
#[derive(Debug, Default)]
pub struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
    marked: Vec<Request>,
    completed: usize,
    attached: usize,
    moves: u32,
    /// Wakers that are woken and dropped once whoever owns this table holds no lock.
    pub(super) deferred: Deferred,
}

impl Requests {
    /// No requests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new request, not started.
    #[inline]
    pub fn insert(&mut self, operation: Operation) -> Request {
        let slot = self.free.pop().unwrap_or_else(|| self.grow(operation));
        let Slot { generation, live, record } = &mut self.slots[slot as usize];
        *live = true;
        record.operation = operation;
        record.state = State::Built;
        record.result = Ok(());
        record.orphan = false;
        record.undo = false;
        Request { slot, generation: *generation }
    }

    #[cold]
    fn grow(&mut self, operation: Operation) -> u32 {
        let record = Record {
            operation,
            state: State::Built,
            bytes: Bytes::new(),
            storage: Vec::new(),
            room: 0,
            posted: None,
            transfer: None,
            arrival: Arrival::default(),
            status: Status::default(),
            result: Ok(()),
            orphan: false,
            undo: false,
            attached: 0,
            waker: None,
            guard: None,
        };
        self.slots.push(Slot { generation: 1, live: false, record });
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests")
    }

    /// Forgets a request; `false` if it was forgotten before.
    #[inline]
    pub fn remove(&mut self, request: Request) -> bool {
        let Some(slot) = self.slots.get_mut(request.slot as usize) else { return false };
        if slot.generation != request.generation || !slot.live {
            return false;
        }
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        let record = &mut slot.record;
        self.deferred.discard(record.waker.take());
        self.deferred.release(record.guard.take());
        if !record.bytes.is_empty() {
            record.bytes = Bytes::new();
        }
        if record.storage.capacity() > 0 {
            record.storage = Vec::new();
        }
        record.posted = None;
        record.transfer = None;
        self.free.push(request.slot);
        true
    }

    #[inline]
    pub(super) fn get(&self, request: Request) -> Option<&Record> {
        let slot = self.slots.get(request.slot as usize)?;
        (slot.generation == request.generation && slot.live).then_some(&slot.record)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, request: Request) -> Option<&mut Record> {
        let slot = self.slots.get_mut(request.slot as usize)?;
        (slot.generation == request.generation && slot.live).then_some(&mut slot.record)
    }

    /// How far a request is; `None` if there is no such request any more.
    #[must_use]
    #[inline]
    pub fn state(&self, request: Request) -> Option<State> {
        self.get(request).map(|record| record.state)
    }

    /// What a request does.
    #[must_use]
    pub fn operation(&self, request: Request) -> Option<Operation> {
        self.get(request).map(|record| record.operation)
    }

    /// Status and result of a request that is done; it stays as it is.
    #[must_use]
    pub fn peek(&self, request: Request) -> Option<(Status, Result<(), Failure>)> {
        let record = self.get(request)?;
        (record.state == State::Done).then_some((record.status, record.result))
    }

    /// The outcome of a request that is done; it can be started again.
    #[inline]
    pub fn take(&mut self, request: Request) -> Option<Outcome> {
        let record = self.get_mut(request).filter(|record| record.state == State::Done)?;
        record.state = State::Built;
        let bytes = std::mem::take(&mut record.storage);
        Some(Outcome { status: record.status, result: record.result, bytes })
    }

    /// Asks for a request to be cancelled; the lower layer decides at its next
    /// [`advance`](super::progression::Progression::advance) whether it still can.
    pub fn cancel(&mut self, request: Request) {
        let state = self.state(request);
        if matches!(state, Some(State::Waiting | State::Active)) {
            self.marked.push(request);
        }
    }

    /// Has `waker` woken when the request is done; now if it is.
    pub(super) fn wake_when_done(&mut self, request: Request, waker: &Waker) {
        let Some(record) = self.get_mut(request).filter(|record| record.state != State::Done)
        else {
            return self.deferred.wake(waker.clone());
        };
        if !record.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            let former = record.waker.replace(waker.clone());
            self.deferred.discard(former);
        }
    }

    /// Has a request hold something until it is forgotten.
    #[cfg(feature = "service")]
    pub(super) fn guard(&mut self, request: Request, guard: Guard) {
        match self.get_mut(request) {
            Some(record) => record.guard = Some(guard),
            None => self.deferred.release(Some(guard)),
        }
    }

    /// Bytes of the attached buffer that sends under way hold.
    #[must_use]
    pub const fn attached(&self) -> usize {
        self.attached
    }

    /// Completes a request for [`Operation::Nothing`], or one that needs nothing more, with no
    /// message.
    pub(super) fn finish(&mut self, request: Request, length: usize) {
        let status = Status { source: NOBODY, tag: Tag(0), length };
        self.complete(request, status, Ok(()));
    }

    /// A count that wraps: it changes whenever a message has come before its receive, a request is
    /// done, or everything for a process has left. Who watches for such things looks again then.
    #[must_use]
    pub const fn moves(&self) -> u32 {
        self.moves
    }

    pub(super) const fn note_move(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// Lets a send hold `bytes` of the attached buffer until it is done.
    pub(super) fn hold_attached(&mut self, request: Request, bytes: usize) {
        if let Some(record) = self.get_mut(request) {
            record.attached = bytes;
            self.attached += bytes;
        }
    }

    /// A request is done: wakes who waits; forgets an orphan.
    #[inline]
    pub(super) fn complete(
        &mut self,
        request: Request,
        status: Status,
        result: Result<(), Failure>,
    ) {
        let Some(record) = self.get_mut(request) else { return };
        record.state = State::Done;
        record.status = status;
        record.result = result;
        record.posted = None;
        record.transfer = None;
        let waker = record.waker.take();
        let (orphan, attached) = (record.orphan, std::mem::take(&mut record.attached));
        if !record.bytes.is_empty() {
            record.bytes = Bytes::new();
        }
        if let Some(waker) = waker {
            self.deferred.wake(waker);
        }
        self.attached -= attached;
        self.completed += 1;
        self.note_move();
        if orphan {
            self.remove(request);
        }
    }

    /// Requests that became done since they were taken last.
    pub(super) const fn completed(&self) -> usize {
        self.completed
    }

    /// The same, and they are taken.
    pub(super) fn take_completed(&mut self) -> usize {
        std::mem::take(&mut self.completed)
    }

    pub(super) fn take_marked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.marked)
    }

    pub(super) fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// All requests, by their slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Request, &Record)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.live).map(|(index, slot)| {
            (Request { slot: index as u32, generation: slot.generation }, &slot.record)
        })
    }
}
