//! The state of one stream at one end.

use std::io;
use std::task::Waker;

use tokio::time::Instant;

use super::frame::{Frame, Kind};
use super::{PIECE, WINDOW};
use crate::endpoint::PeerId;
use crate::order::Order;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: PeerId,
    /// The peer's number of the stream; `None` until the peer has accepted it.
    pub(super) remote: Option<u64>,
    /// The number of the next frame to the peer.
    next: u32,
    /// Bytes that may be sent before the peer returns credit.
    credit: usize,
    received: Order<(Frame, Vec<u8>)>,
    /// When the next frame in order was found missing.
    pub(super) missing_since: Option<Instant>,
    /// Received bytes, of which the first `read` were read.
    incoming: Vec<u8>,
    read: usize,
    /// Number of bytes read whose credit was not returned.
    pub(super) owed: usize,
    /// True if the acceptance of the stream was not sent to the peer yet.
    pub(super) owes_accept: bool,
    /// True if the peer has ended its side.
    pub(super) is_ended: bool,
    /// True if this end has ended its side.
    pub(super) is_finished: bool,
    pub(super) failed: Option<io::ErrorKind>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) heard_at: Instant,
}

/// Wakers to be woken when no lock is held.
pub(super) type Wakes = Vec<Waker>;

/// Replaces the waker of a waiting task.
pub(super) fn register(slot: &mut Option<Waker>, waker: &Waker, wakes: &mut Wakes) {
    if slot.as_ref().is_none_or(|known| !known.will_wake(waker)) {
        wakes.extend(slot.replace(waker.clone()));
    }
}

impl Connection {
    pub(super) fn new(peer: PeerId, remote: Option<u64>, now: Instant) -> Self {
        Self {
            peer,
            remote,
            next: 0,
            credit: WINDOW,
            received: Order::default(),
            missing_since: None,
            incoming: Vec::new(),
            read: 0,
            owed: 0,
            owes_accept: false,
            is_ended: false,
            is_finished: false,
            failed: None,
            reader: None,
            writer: None,
            heard_at: now,
        }
    }

    pub(super) fn on_accept(&mut self, remote: u64, wakes: &mut Wakes) {
        if self.remote.is_none() {
            self.remote = Some(remote);
            wakes.extend(self.writer.take());
        }
    }

    /// Returns whether the peer has answered, and not fallen silent since.
    pub(super) const fn is_alive(&self) -> bool {
        self.remote.is_some() && self.failed.is_none()
    }

    /// Handles frames with numbers, as far as they are next in order.
    pub(super) fn on_ordered(
        &mut self,
        frame: Frame,
        payload: &[u8],
        now: Instant,
        wakes: &mut Wakes,
    ) {
        if !self.received.insert(frame.number, (frame, payload.to_vec()), now)
            || self.received.is_overfull()
        {
            return self.fail(io::ErrorKind::InvalidData, wakes);
        }
        while let Some((frame, payload)) = self.received.next_whole() {
            self.missing_since = None;
            let is_right = match frame.kind {
                Kind::Data => self.on_data(&payload),
                Kind::Credit => self.on_credit(frame.value, wakes),
                Kind::Reset => return self.fail(io::ErrorKind::ConnectionReset, wakes),
                _ => {
                    self.is_ended = true;
                    true
                }
            };
            if !is_right {
                return self.fail(io::ErrorKind::InvalidData, wakes);
            }
        }
        if self.received.is_waiting() {
            self.missing_since.get_or_insert(now);
        }
        wakes.extend(self.reader.take());
    }

    /// Handles the number of the peer's next frame: all frames before it were sent.
    pub(super) fn on_number(&mut self, number: u32, now: Instant) {
        if self.received.lacks_before(number) {
            self.missing_since.get_or_insert(now);
        }
    }

    /// Stores received bytes; returns `false` if the peer had no credit for them, or had ended its side.
    fn on_data(&mut self, bytes: &[u8]) -> bool {
        let is_within = self.readable().len() + self.owed + bytes.len() <= WINDOW;
        let is_right = is_within && !self.is_ended && bytes.len() <= PIECE;
        if is_right {
            self.incoming.extend_from_slice(bytes);
        }
        is_right
    }

    fn on_credit(&mut self, bytes: u64, wakes: &mut Wakes) -> bool {
        let credit = usize::try_from(bytes).ok().and_then(|bytes| self.credit.checked_add(bytes));
        let Some(credit) = credit.filter(|credit| *credit <= WINDOW) else { return false };
        self.credit = credit;
        wakes.extend(self.writer.take());
        true
    }

    pub(super) fn readable(&self) -> &[u8] {
        &self.incoming[self.read..]
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.read += bytes;
        self.owed += bytes;
        if self.read == self.incoming.len() {
            self.incoming.clear();
            self.read = 0;
        } else if self.read >= PIECE {
            self.incoming.drain(..self.read);
            self.read = 0;
        }
    }

    /// Returns how many bytes may be sent in the next frame.
    pub(super) fn room(&self) -> usize {
        if self.remote.is_some() { self.credit.min(PIECE) } else { 0 }
    }

    /// Creates the next numbered frame; call [`Connection::on_sent`] once it was sent.
    pub(super) fn frame(&self, kind: Kind, value: u64) -> Option<Frame> {
        Some(Frame { to: self.remote?, number: self.next, kind, value })
    }

    /// Records that the next frame was sent, with this many bytes of data.
    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.next = self.next.wrapping_add(1);
        self.credit -= bytes;
    }

    pub(super) fn fail(&mut self, why: io::ErrorKind, wakes: &mut Wakes) {
        self.failed.get_or_insert(why);
        wakes.extend(self.reader.take());
        wakes.extend(self.writer.take());
    }

    /// Returns whether credit should be returned to the peer.
    pub(super) fn owes_credit(&self) -> bool {
        self.owed >= WINDOW / 2 && !self.is_ended && self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_that_overtakes_data_follows_it() {
        let (now, mut wakes) = (Instant::now(), Vec::new());
        let mut connection = Connection::new(PeerId(0), Some(7), now);
        let frame = |number, kind| Frame { to: 7, number, kind, value: 0 };
        connection.on_ordered(frame(2, Kind::Reset), &[], now, &mut wakes);
        connection.on_ordered(frame(1, Kind::Data), b"last", now, &mut wakes);
        assert_eq!((connection.failed, connection.readable()), (None, &b""[..]));
        connection.on_ordered(frame(0, Kind::Data), b"first ", now, &mut wakes);
        assert_eq!(connection.readable(), b"first last");
        assert_eq!(connection.failed, Some(io::ErrorKind::ConnectionReset));
    }
}
