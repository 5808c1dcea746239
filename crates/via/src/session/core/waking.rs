//! Wakes the tasks that wait for bytes, and those that wait for room.

use std::task::Waker;

use super::super::flow::{Flow, wait};
use super::super::frame::{Header, Kind, PIECE};
use super::Core;

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
        // A task that was woken earlier and has not written since may never write.
        self.served = 0;
        if self.awaiting_room.is_empty() || !self.wire.has_room() {
            return;
        }
        let mut most = self.wire.frames().max(1);
        let share = PIECE * (most / self.awaiting_room.len()).max(1);
        while most > 0
            && let Some(stream) = self.awaiting_room.pop_front()
        {
            let Some(flow) = self.flows.get_mut(&stream) else { continue };
            flow.send.awaits_room = false;
            if let Some(waker) = flow.send.waker.take() {
                flow.send.share = Some(share);
                self.served += 1;
                self.wakers.push(waker);
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
