//! The table of a process's requests.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use super::super::bell::Deferred;
use super::super::envelope::Tag;
use super::super::group::Group;
use super::super::matching::Arrival;
use super::{Failure, NULL_PEER, Operation, Outcome, Record, Request, State, Status};

#[derive(Debug)]
struct Slot {
    generation: u32,
    live: bool,
    record: Record,
}

/// All requests of one process.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
    marked: Vec<Request>,
    completed: usize,
    attached: usize,
    moves: u32,
    /// Wakers that are woken or dropped once the owner of this table holds no lock.
    pub(in crate::message) deferred: Deferred,
}

impl Requests {
    /// Makes an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a request that is not started.
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
        record.heir = None;
        Request { slot, generation: *generation }
    }

    #[cold]
    fn grow(&mut self, operation: Operation) -> u32 {
        let record = Record {
            operation,
            state: State::Built,
            bytes: Bytes::new(),
            storage: Vec::new(),
            memory: None,
            in_use: false,
            delivered: 0,
            room: 0,
            posted: None,
            transfer: None,
            arrival: Arrival::default(),
            status: Status::default(),
            result: Ok(()),
            orphan: false,
            undo: false,
            heir: None,
            group: None,
            attached: 0,
            waker: None,
        };
        self.slots.push(Slot { generation: 1, live: false, record });
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests")
    }

    /// Declares that a receive from any source matches only messages of a group's members.
    pub(in crate::message) fn limit(&mut self, receive: Request, group: Arc<Group>) {
        if let Some(record) = self.get_mut(receive) {
            record.group = Some(group);
        }
    }

    /// Removes a request; returns `false` if it was removed before.
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
        if !record.bytes.is_empty() {
            record.bytes = Bytes::new();
        }
        if record.storage.capacity() > 0 {
            record.storage = Vec::new();
        }
        record.memory = None;
        record.posted = None;
        record.transfer = None;
        record.group = None;
        self.free.push(request.slot);
        true
    }

    #[inline]
    pub(in crate::message) fn get(&self, request: Request) -> Option<&Record> {
        let slot = self.slots.get(request.slot as usize)?;
        (slot.generation == request.generation && slot.live).then_some(&slot.record)
    }

    #[inline]
    pub(in crate::message) fn get_mut(&mut self, request: Request) -> Option<&mut Record> {
        let slot = self.slots.get_mut(request.slot as usize)?;
        (slot.generation == request.generation && slot.live).then_some(&mut slot.record)
    }

    /// Returns the state of a request; `None` if it was removed.
    #[must_use]
    #[inline]
    pub fn state(&self, request: Request) -> Option<State> {
        self.get(request).map(|record| record.state)
    }

    /// Returns the operation of a request; `None` if it was removed.
    #[must_use]
    pub fn operation(&self, request: Request) -> Option<Operation> {
        self.get(request).map(|record| record.operation)
    }

    /// Returns status and result of a request that is done; its outcome is not taken.
    #[must_use]
    pub fn peek(&self, request: Request) -> Option<(Status, Result<(), Failure>)> {
        let record = self.get(request)?;
        (record.state == State::Done).then_some((record.status, record.result))
    }

    /// Takes the outcome of a request that is done; it can then be started again.
    #[inline]
    pub fn take(&mut self, request: Request) -> Option<Outcome> {
        let record = self.get_mut(request).filter(|record| record.state == State::Done)?;
        record.state = State::Built;
        let bytes = std::mem::take(&mut record.storage);
        record.memory = None;
        Some(Outcome { status: record.status, result: record.result, bytes })
    }

    /// Copies the rest of a completed receive's message to the caller's memory.
    pub(in crate::message) fn deliver_rest(&mut self, request: Request, memory: &mut [u8]) {
        if let Some(record) = self.get_mut(request).filter(|record| record.state == State::Done) {
            record.deliver_stored(memory, record.status.length);
        }
    }

    /// Marks a request to be cancelled. At its next [`advance`](super::super::engine::Engine::advance), the
    /// engine decides whether that is still possible.
    pub fn cancel(&mut self, request: Request) {
        let state = self.state(request);
        if matches!(state, Some(State::Waiting | State::Active)) {
            self.marked.push(request);
        }
    }

    /// Wakes `waker` when the request is done; at once if it already is.
    pub(in crate::message) fn wake_when_done(&mut self, request: Request, waker: &Waker) {
        let Some(record) = self.get_mut(request).filter(|record| record.state != State::Done)
        else {
            return self.deferred.wake(waker.clone());
        };
        if !record.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            let former = record.waker.replace(waker.clone());
            self.deferred.discard(former);
        }
    }

    /// Returns the bytes of the attached buffer that sends in progress occupy.
    #[must_use]
    pub const fn attached(&self) -> usize {
        self.attached
    }

    /// Completes a request that has nothing left to do: one for [`Operation::Nothing`], or a buffered send.
    pub(in crate::message) fn finish(&mut self, request: Request, length: usize) {
        let status = Status { source: NULL_PEER, tag: Tag(0), length };
        self.complete(request, status, Ok(()));
    }

    /// Returns a counter that wraps. It changes whenever an unexpected message has arrived, a request is done,
    /// or the last packet for a process has left. Probes then search again.
    #[must_use]
    pub const fn moves(&self) -> u32 {
        self.moves
    }

    pub(in crate::message) const fn note_move(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// Reserves `bytes` of the attached buffer for a send until it is done, instead of those that it has reserved.
    pub(in crate::message) fn hold_attached(&mut self, request: Request, bytes: usize) {
        if let Some(record) = self.get_mut(request) {
            let before = std::mem::replace(&mut record.attached, bytes);
            self.attached = self.attached - before + bytes;
        }
    }

    /// Marks a request as done: wakes its waiter, and removes an orphan.
    #[inline]
    pub(in crate::message) fn complete(
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
        record.in_use = false;
        if matches!(record.operation, Operation::Send { .. }) {
            record.memory = None;
        }
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

    /// Returns how many requests completed since the last `take_completed`.
    pub(in crate::message) const fn completed(&self) -> usize {
        self.completed
    }

    /// Returns the count of [`Requests::completed`], and resets it to 0.
    pub(in crate::message) fn take_completed(&mut self) -> usize {
        std::mem::take(&mut self.completed)
    }

    pub(in crate::message) fn take_marked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.marked)
    }

    pub(in crate::message) fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// Iterates over all requests, by slot.
    pub(in crate::message) fn iter(&self) -> impl Iterator<Item = (Request, &Record)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.live).map(|(index, slot)| {
            (Request { slot: index as u32, generation: slot.generation }, &slot.record)
        })
    }
}
