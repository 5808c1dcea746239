//! Wakes the tasks that wait for bytes, and those that wait for room.

use std::task::Waker;

use super::super::flow::{Flow, Send, wait};
use super::super::frame::{Header, Kind};
use super::Core;

/// The wake-ups of one turn because there is room: their number in the session, and how many writers were woken.
#[derive(Debug, Default)]
pub(super) struct Round {
    number: u64,
    writers: usize,
}

impl Round {
    /// Returns the most bytes that a writer may send now; `is_alone` if no other waits for room. Writers that have waited
    /// come first: one that has had its share waits while the others of its round may still run, and one without a share
    /// waits behind those that wait.
    pub(super) const fn share(&self, send: &Send, is_alone: bool) -> usize {
        let (number, left) = send.share;
        if is_alone && !(number == self.number && self.writers > 1) {
            usize::MAX
        } else if send.was_woken || number + 1 >= self.number {
            left
        } else {
            0
        }
    }
}

impl Core {
    /// Takes the wakers of a turn, in the order in which they are called. On a runtime of several threads, the task that is
    /// woken last runs first.
    pub(in crate::session) fn take_wakers(&mut self, is_current_thread: bool) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.wakers);
        if !is_current_thread {
            wakers.reverse();
        }
        wakers
    }

    /// Has the task woken once the stream has bytes, or has ended.
    pub(in crate::session) fn await_bytes(&mut self, stream: u32, waker: &Waker) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            wait(&mut flow.receive.waker, waker, &mut self.replaced);
        }
    }

    /// Wakes the writers that have waited longest for room, as many as there is room for, and divides the room among
    /// them.
    pub(in crate::session) fn wake_writers(&mut self) {
        if self.awaiting_room.is_empty() || !self.wire.has_room() {
            return;
        }
        let mut most = self.wire.frames().max(1);
        let share = self.wire.longest() * (most / self.awaiting_room.len()).max(1);
        self.round = Round { number: self.round.number + 1, writers: 0 };
        while most > 0
            && let Some(stream) = self.awaiting_room.pop_front()
        {
            let Some(flow) = self.flows.get_mut(&stream) else { continue };
            if !std::mem::replace(&mut flow.send.awaits_room, false) || !flow.may_write() {
                continue;
            }
            flow.send.was_woken = true;
            flow.send.share = (self.round.number, share);
            self.round.writers += 1;
            // Credit may have woken the writer already.
            self.wakers.extend(flow.send.waker.take());
            most -= 1;
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
