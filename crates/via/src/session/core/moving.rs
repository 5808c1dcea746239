//! Streams that move from the session's wire to a connection of their own.

use std::cmp::Ordering;
use std::task::Waker;

use super::super::flow::{Flow, wait};
use super::super::frame::Reason;
use super::super::own::{Own, Socket};
use super::Core;

impl Core {
    /// Has a connection made for a stream, if that was not done before.
    pub(super) fn ask_to_move(&mut self, stream: u32) {
        if self.may_move && self.reserve_move(stream) {
            self.moving.push(stream);
        }
    }

    /// Reserves a stream for a connection that is being made; returns whether it may have one.
    pub(in crate::session) fn reserve_move(&mut self, stream: u32) -> bool {
        let can_move = self.can_move(stream);
        if let Some(flow) = self.flows.get_mut(&stream).filter(|_| can_move) {
            flow.own = Own::Asked;
        }
        can_move
    }

    /// Returns whether a stream may get a connection of its own.
    fn can_move(&self, stream: u32) -> bool {
        self.flows.get(&stream).is_some_and(|flow| {
            let is_open = flow.is_accepted && !flow.is_dropped && flow.reset.is_none();
            let is_used = flow.may_write() || !flow.receive.is_finished;
            is_open && is_used && matches!(flow.own, Own::None)
        })
    }

    /// Moves a stream to its own connection: the next write uses it, and reads once the bytes before have arrived. Returns
    /// the connection if there is no such stream any longer.
    pub(in crate::session) fn move_stream(
        &mut self,
        stream: u32,
        socket: Socket,
    ) -> Option<Socket> {
        let is_open = |flow: &&mut Flow| !flow.is_dropped && !flow.own.has_moved();
        let Some(flow) = self.flows.get_mut(&stream).filter(is_open) else { return Some(socket) };
        flow.own = Own::Ready(socket);
        if std::mem::take(&mut flow.send.awaits_room) {
            self.awaiting_room.retain(|waiting| *waiting != stream);
        }
        self.wakers.extend(flow.take_wakers());
        self.counted.moved += 1;
        None
    }

    /// Handles that a connection could not be made. If the peer has moved the stream already, its bytes are lost.
    pub(in crate::session) fn on_move_failed(&mut self, stream: u32) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.own = Own::Failed;
            self.wakers.extend(flow.take_wakers());
        }
        self.reset_if_cut(stream);
    }

    /// Resets a stream whose last bytes the peer has sent over a connection that this end does not have.
    pub(super) fn reset_if_cut(&mut self, stream: u32) {
        let is_cut = |flow: &Flow| {
            let is_moved = flow.receive.end.is_some() && !flow.receive.is_finished;
            is_moved && matches!(flow.own, Own::Failed)
        };
        if self.flows.get(&stream).is_some_and(is_cut) {
            self.reset(stream, Reason::Dropped);
        }
    }

    /// Compares the number of bytes that the peer has sent over the session before a stream has moved with the number of
    /// those that were read. It is less if the peer's number contradicts what has arrived.
    pub(in crate::session) fn compare_moved(&self, stream: u32, number: u64) -> Ordering {
        let Some(flow) = self.flows.get(&stream) else { return Ordering::Less };
        let receive = &flow.receive;
        let is_last = receive.end.is_some();
        if number < receive.received || is_last && number != receive.received {
            return Ordering::Less;
        }
        number.cmp(&receive.consumed)
    }

    /// Has the writer of a stream with its own connection woken once the peer reads no more, or the stream has ended.
    pub(in crate::session) fn await_room(&mut self, stream: u32, waker: &Waker) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            wait(&mut flow.send.waker, waker, &mut self.replaced);
        }
    }
}
