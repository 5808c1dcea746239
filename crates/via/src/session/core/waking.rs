//! Wakes the tasks that wait for bytes, and those that wait for room.

use std::task::Waker;

use super::super::flow::{Flow, Send, wait};
use super::super::frame::{Header, Kind};
use super::Core;

/// Calls of [`Core::wake_writers`] after which a round is over, although a task that was woken has not written: it may
/// never write.
const MAX_AGE: u32 = 16;

/// The writers that were woken together because there is room. Others write after them.
#[derive(Debug, Default)]
pub(super) struct Round {
    number: u64,
    /// Writers that have not written since.
    awaited: usize,
    age: u32,
}

impl Round {
    /// Returns whether all writers have written, or have had their time; counts the calls.
    const fn is_over(&mut self) -> bool {
        self.age += 1;
        self.awaited == 0 || self.age > MAX_AGE
    }

    const fn begin(&mut self) {
        *self = Self { number: self.number + 1, awaited: 0, age: 0 };
    }

    const fn add(&mut self, send: &mut Send, share: usize) {
        send.was_woken = true;
        send.share = (self.number, share);
        self.awaited += 1;
    }

    /// Returns the most bytes that a writer may send now; `is_alone` if no other waits. What is left of a share can be
    /// sent in the next round, too.
    pub(super) const fn share(&self, send: &Send, is_alone: bool) -> usize {
        match send.share {
            (number, share) if number + 1 >= self.number && share > 0 => share,
            _ if is_alone && self.awaited == 0 => usize::MAX,
            _ => 0,
        }
    }

    /// Handles the end of a write of `bytes`. Returns whether the writer was woken for it because there is room.
    pub(super) const fn on_written(&mut self, send: &mut Send, bytes: usize) -> bool {
        let was_woken = std::mem::replace(&mut send.was_woken, false);
        if was_woken && send.share.0 == self.number {
            self.awaited = self.awaited.saturating_sub(1);
        }
        send.share.1 = if bytes == 0 { 0 } else { send.share.1.saturating_sub(bytes) };
        was_woken
    }
}

impl Core {
    /// Has the task woken once the stream has bytes, or has ended.
    pub(in crate::session) fn await_bytes(&mut self, stream: u32, waker: &Waker) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            wait(&mut flow.receive.waker, waker, &mut self.replaced);
        }
    }

    /// Wakes the writers that have waited longest for room, as many as there is room for, and divides the room among
    /// them.
    pub(in crate::session) fn wake_writers(&mut self) {
        if self.awaiting_room.is_empty() || !self.wire.has_room() || !self.round.is_over() {
            return;
        }
        let mut most = self.wire.frames().max(1);
        let share = self.wire.longest() * (most / self.awaiting_room.len()).max(1);
        self.round.begin();
        while most > 0
            && let Some(stream) = self.awaiting_room.pop_front()
        {
            let Some(flow) = self.flows.get_mut(&stream) else { continue };
            flow.send.awaits_room = false;
            // Credit may have woken the writer already.
            self.wakers.extend(flow.send.waker.take());
            if flow.may_write() {
                self.round.add(&mut flow.send, share);
                most -= 1;
            }
        }
    }

    /// Wakes the task that waits for the bytes of the next frame and can read them from the wire; returns
    /// whether there is one.
    ///
    /// A task that waits for the acceptance of its stream reads nothing: bytes that arrive earlier are held.
    pub(in crate::session) fn wake_reader(&mut self) -> bool {
        let Ok(Some(incoming)) = self.wire.peek() else { return false };
        let Some(header) = Header::parse(incoming.words) else { return false };
        let is_read = |flow: &&mut Flow| header.kind == Kind::Data && flow.is_accepted;
        let flow = self.flows.get_mut(&header.stream).filter(is_read);
        let waker = flow.and_then(|flow| {
            let waker = flow.receive.waker.take()?;
            flow.receive.reads_directly = true;
            Some(waker)
        });
        let found = waker.is_some();
        self.wakers.extend(waker);
        found
    }
}
