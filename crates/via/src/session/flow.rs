//! One stream's state at one end: received bytes that were not read, and the credit of both directions.

use std::collections::VecDeque;
use std::task::Waker;

use super::due::Due;
use super::frame::Reason;
use super::own::{Own, Socket};

/// The initial window: bytes that a stream's sender may be ahead of its reader.
pub(super) const FIRST_WINDOW: u64 = 256 * 1024;
/// The smallest window in bytes: used while a session has committed its whole budget.
pub(super) const MIN_WINDOW: u64 = 4 * 1024;
/// The largest window in bytes.
pub(super) const MAX_WINDOW: u64 = 4 << 20;

/// A stream at one end.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) receive: Receive,
    pub(super) send: Send,
    /// Frames about the stream that the wire has not accepted yet.
    pub(super) due: Due,
    /// True if the stream is in the queue of streams with frames due.
    pub(super) is_queued: bool,
    /// Set once the peer or this node has ended the stream in both directions.
    pub(super) reset: Option<Reason>,
    /// True once the application has dropped the stream.
    pub(super) is_dropped: bool,
    /// True once the peer has accepted the stream, or if the peer has opened it and this node has accepted it.
    pub(super) is_accepted: bool,
    /// The connection that carries this stream alone.
    pub(super) own: Own,
}

/// The direction from the peer.
#[derive(Debug)]
pub(super) struct Receive {
    /// Received bytes that were not read, in the order of the stream.
    pub(super) held: Held,
    /// Number of bytes received over the session, and over the stream's own connection.
    pub(super) received: u64,
    pub(super) received_apart: u64,
    /// If the peer has moved the stream: the number of bytes that it has sent over both, once it writes no more.
    pub(super) end: Option<u64>,
    /// Bytes that were read or discarded.
    pub(super) consumed: u64,
    /// Bytes that the peer may send in all.
    pub(super) granted: u64,
    pub(super) window: u64,
    pub(super) is_finished: bool,
    pub(super) waker: Option<Waker>,
    /// True if the reader was woken to take long frames from the wire itself, and has kept up since.
    pub(super) reads_directly: bool,
}

/// The direction to the peer.
#[derive(Debug)]
pub(super) struct Send {
    /// Number of bytes sent over the session, and over the stream's own connection.
    pub(super) sent: u64,
    pub(super) sent_apart: u64,
    /// Bytes that may be sent in all.
    pub(super) limit: u64,
    /// True once the writer has waited with so many bytes sent that the stream moves, if it can.
    pub(super) is_long: bool,
    /// True once the application writes no more.
    pub(super) is_finished: bool,
    /// True once the frame with [`FIN`](super::frame::FIN) was sent.
    pub(super) fin_sent: bool,
    /// True once the peer reads no more.
    pub(super) is_stopped: bool,
    /// True if the writer is in the queue of those that wait for room on the wire.
    pub(super) awaits_room: bool,
    /// True if the writer was woken because there is room, and has not written since.
    pub(super) was_woken: bool,
    /// The last round in which the writer was woken, and the bytes that it may send although others wait. Its first write
    /// may come at any time. What that leaves is valid until two more rounds have begun; a write without room forfeits it.
    pub(super) share: (u64, usize),
    pub(super) waker: Option<Waker>,
}

impl Flow {
    /// Makes a stream on which the peer may send `window` bytes, and this end `limit`.
    pub(super) fn new(window: u64, limit: u64, is_accepted: bool) -> Self {
        Self {
            receive: Receive {
                held: Held::default(),
                received: 0,
                received_apart: 0,
                end: None,
                consumed: 0,
                granted: window,
                window,
                is_finished: false,
                waker: None,
                reads_directly: false,
            },
            send: Send {
                sent: 0,
                sent_apart: 0,
                limit,
                is_long: false,
                is_finished: false,
                fin_sent: false,
                is_stopped: false,
                awaits_room: false,
                was_woken: false,
                share: (0, 0),
                waker: None,
            },
            due: Due::default(),
            is_queued: false,
            reset: None,
            is_dropped: false,
            is_accepted,
            own: Own::None,
        }
    }

    /// Returns whether the peer's last bytes cross a connection that is still being made.
    pub(super) fn awaits_own(&self) -> bool {
        matches!(self.own, Own::Asked) && self.receive.end.is_some()
    }

    /// Takes the stream's own connection for its handle, once there is one.
    pub(super) fn take_own(&mut self) -> Option<Socket> {
        match std::mem::replace(&mut self.own, Own::Moved) {
            Own::Ready(socket) => Some(socket),
            other => {
                self.own = other;
                None
            }
        }
    }

    /// Handles the end of the peer's direction. If it has sent bytes over a connection of the stream's own, `end` is the
    /// number of all its bytes.
    pub(super) fn on_end(&mut self, end: u64) {
        self.due.credit = false;
        let is_moved = end > 0 && !self.is_dropped;
        self.receive.end = is_moved.then_some(end);
        self.receive.is_finished |= !is_moved;
        self.has_received_apart(0);
    }

    /// Counts bytes that were received over the stream's own connection; detects the end.
    pub(super) fn has_received_apart(&mut self, bytes: u64) {
        let receive = &mut self.receive;
        receive.received_apart += bytes;
        receive.is_finished |= receive.end == Some(receive.received + receive.received_apart);
    }

    /// Returns the bytes that the peer may send or has sent, and that the application has not read.
    pub(super) const fn committed(&self) -> u64 {
        self.receive.granted - self.receive.consumed
    }

    /// Returns whether the stream's reader takes a frame of `bytes` from the wire itself. The reader either waits for
    /// bytes, and its waker is put into `wakers`; or it was woken before. Short frames cost less if one task takes all
    /// of them in a row.
    pub(super) fn is_left_to_reader(&mut self, bytes: usize, wakers: &mut Vec<Waker>) -> bool {
        if bytes < LONG || !self.is_accepted || self.is_dropped || self.reset.is_some() {
            return false;
        }
        self.receive.reads_directly |= self.receive.waker.is_some();
        wakers.extend(self.receive.waker.take());
        self.receive.reads_directly
    }

    /// Returns whether the writer may send bytes, now or later.
    pub(super) const fn may_write(&self) -> bool {
        let is_over = self.send.is_finished || self.send.is_stopped || self.is_dropped;
        !is_over && self.reset.is_none()
    }

    /// Returns whether neither end needs the stream any longer.
    pub(super) fn is_over(&self) -> bool {
        let is_done = self.receive.is_finished && self.send.fin_sent;
        self.is_dropped && self.due.is_none() && (is_done || self.reset.is_some())
    }

    /// Returns whether bytes may still cross the stream: false once both directions have ended and the application has
    /// read all bytes, although it may hold the stream.
    pub(super) fn is_in_use(&self) -> bool {
        let is_done = self.receive.is_finished && self.send.fin_sent;
        let is_ended = self.reset.is_some() || (is_done && self.receive.held.is_empty());
        !is_ended || !self.due.is_none()
    }

    /// Takes the wakers of the tasks that read and write.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        [self.receive.waker.take(), self.send.waker.take()].into_iter().flatten()
    }
}

/// Stores the waker of a waiting task. Puts the former one into `replaced`, because dropping a waker may drop other
/// objects.
pub(super) fn wait(slot: &mut Option<Waker>, waker: &Waker, replaced: &mut Vec<Waker>) {
    if !slot.as_ref().is_some_and(|waiting| waiting.will_wake(waker)) {
        replaced.extend(slot.replace(waker.clone()));
    }
}

/// Bytes in the order of their arrival, in pieces; a piece is freed once it was read.
#[derive(Debug, Default)]
pub(super) struct Held {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were read.
    read: usize,
}

/// Least bytes of a frame that its reader takes from the wire itself.
const LONG: usize = 16 << 10;

/// Least capacity of a piece in bytes, so that short frames share one.
const PIECE: usize = 4_096;

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds `length` bytes, which `fill` writes.
    pub(super) fn add(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        let fits = |piece: &&mut Vec<u8>| piece.capacity() - piece.len() >= length;
        let piece = match self.pieces.back_mut().filter(fits) {
            Some(piece) => piece,
            None => {
                self.pieces.push_back(Vec::with_capacity(length.max(PIECE)));
                self.pieces.back_mut().expect("a piece was just added")
            }
        };
        let start = piece.len();
        piece.resize(start + length, 0);
        fill(&mut piece[start..]);
    }

    /// Returns the next bytes that are contiguous in memory.
    pub(super) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece[self.read..])
    }

    /// Consumes the first `count` bytes of [`Held::front`].
    pub(super) fn consume(&mut self, count: usize) {
        self.read += count;
        if self.pieces.front().is_some_and(|piece| self.read >= piece.len()) {
            self.pieces.pop_front();
            self.read = 0;
        }
    }

    /// Discards all bytes; returns how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let bytes: usize = self.pieces.iter().map(Vec::len).sum::<usize>() - self.read;
        *self = Self::default();
        bytes as u64
    }
}
