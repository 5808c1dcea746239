//! A stream to one process, and the packets in its buffers.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;

use super::ROOM;
use crate::message::carrier::Refusal;
use crate::message::envelope::{Envelope, LONGEST, Malformed, PLAIN};

/// Bytes of a packet's length.
const HEAD: usize = 4;
/// Bytes of the longest packet.
const MAX_PACKET: usize = HEAD + LONGEST + ROOM;
/// Unwritten bytes at which further packets are refused.
const MAX_UNWRITTEN: usize = 256 << 10;

/// A stream to one process, with its buffers.
#[derive(Debug)]
pub(super) struct Line<S> {
    stream: Option<S>,
    /// True once there was a stream.
    was_connected: bool,
    waker: Waker,
    /// Received bytes, from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// True once the stream has ended: there is nothing more to read.
    has_ended: bool,
    /// Bytes to be written, from `written` on.
    unwritten: Vec<u8>,
    written: usize,
    /// True if the stream may still hold written bytes in a buffer.
    is_unflushed: bool,
    /// True if a packet was refused because there was no room.
    has_refused: bool,
    /// True once nothing can be written any more.
    is_stopped: bool,
    /// True while it is listed among the lines that may have a packet.
    pub(super) is_listed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    /// Makes a line without a stream. `waker` is woken when [`pump`](Self::pump) is to be called.
    pub(super) const fn new(waker: Waker) -> Self {
        Self {
            stream: None,
            was_connected: false,
            waker,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            has_ended: false,
            unwritten: Vec::new(),
            written: 0,
            is_unflushed: false,
            has_refused: false,
            is_stopped: false,
            is_listed: false,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Replaces the stream with a new one.
    pub(super) fn connect(&mut self, stream: S) {
        self.disconnect();
        (self.stream, self.was_connected) = (Some(stream), true);
    }

    /// Drops the stream and all buffered bytes.
    pub(super) fn disconnect(&mut self) {
        self.stream = None;
        (self.start, self.end, self.has_ended) = (0, 0, false);
        self.unwritten.clear();
        (self.written, self.is_unflushed, self.is_stopped) = (0, false, false);
    }

    /// Queues a packet, and writes as much of it as the stream accepts at once.
    pub(super) fn post(&mut self, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        if self.stream.is_none() || self.is_stopped {
            return Err(if self.was_connected { Refusal::Lost } else { Refusal::Full });
        }
        if self.unwritten.len() - self.written >= MAX_UNWRITTEN {
            self.write();
            if self.unwritten.len() - self.written >= MAX_UNWRITTEN {
                self.has_refused = true;
                return Err(Refusal::Full);
            }
        }
        let mut bytes = [0; LONGEST];
        let size = envelope.emit(&mut bytes);
        let length = u32::try_from(size + payload.len()).expect("a packet is short").to_le_bytes();
        let parts = [&length[..], &bytes[..size], payload];
        let was_written = self.is_written();
        let mut done = if was_written { self.write_now(parts) } else { 0 };
        for part in parts {
            let skipped = done.min(part.len());
            self.unwritten.extend_from_slice(&part[skipped..]);
            done -= skipped;
        }
        if was_written && !self.is_flushed() {
            // A stream wakes its waker only after a write or a flush has returned pending.
            self.write();
        }
        Ok(())
    }

    /// Writes as much of a packet as the stream accepts at once; returns the number of bytes.
    fn write_now(&mut self, parts: [&[u8]; 3]) -> usize {
        self.unwritten.clear();
        self.written = 0;
        let Some(stream) = &mut self.stream else { return 0 };
        let slices = parts.map(IoSlice::new);
        let written = poll_once(&self.waker, |context| {
            Pin::new(&mut *stream).poll_write_vectored(context, &slices)
        });
        match written {
            Poll::Pending => 0,
            Poll::Ready(Ok(bytes)) => {
                self.is_unflushed = true;
                bytes
            }
            Poll::Ready(Err(_)) => {
                self.stop();
                0
            }
        }
    }

    /// Writes queued bytes, as many as the stream accepts; flushes the stream after the last one.
    fn write(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        while self.written < self.unwritten.len() {
            let rest = &self.unwritten[self.written..];
            match poll_once(&self.waker, |context| Pin::new(&mut *stream).poll_write(context, rest))
            {
                Poll::Pending => break,
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.written += bytes;
                    self.is_unflushed = true;
                }
                Poll::Ready(_) => {
                    self.stop();
                    return;
                }
            }
        }
        // At most as many bytes are moved as were written.
        if self.written >= self.unwritten.len() / 2 {
            self.unwritten.drain(..self.written);
            self.written = 0;
        }
        if self.unwritten.is_empty() && self.is_unflushed {
            match poll_once(&self.waker, |context| Pin::new(&mut *stream).poll_flush(context)) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.is_unflushed = false,
                Poll::Ready(Err(_)) => self.stop(),
            }
        }
    }

    /// Gives up writing, after an error. Bytes that the process sent before can still be read.
    fn stop(&mut self) {
        self.is_stopped = true;
        self.unwritten.clear();
        (self.written, self.is_unflushed) = (0, false);
        self.waker.wake_by_ref();
    }

    /// Writes queued bytes, and reads once; returns whether more may be read at once.
    pub(super) fn pump(&mut self) -> bool {
        self.write();
        let Some(stream) = &mut self.stream else { return false };
        if self.has_ended {
            return false;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() - self.start < MAX_PACKET {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.is_empty() {
            self.buffer.resize(2 * MAX_PACKET, 0);
        }
        if self.end == self.buffer.len() {
            return false;
        }
        let mut room = ReadBuf::new(&mut self.buffer[self.end..]);
        let read =
            poll_once(&self.waker, |context| Pin::new(&mut *stream).poll_read(context, &mut room));
        let bytes = room.filled().len();
        self.end += bytes;
        match read {
            Poll::Pending => false,
            Poll::Ready(Ok(())) if bytes > 0 => true,
            Poll::Ready(_) => {
                self.has_ended = true;
                false
            }
        }
    }

    /// Returns the first packet in the buffer; `None` if it has not arrived completely.
    pub(super) fn packet(&self) -> Option<Result<(Envelope, &[u8]), Malformed>> {
        let bytes = &self.buffer[self.start..self.end];
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let length = u32::from_le_bytes(*head) as usize;
        if !(PLAIN..=LONGEST + ROOM).contains(&length) {
            return Some(Err(Malformed));
        }
        let packet = rest.get(..length)?;
        let parsed = Envelope::parse(packet).and_then(|envelope| {
            let payload = packet.get(envelope.size()..).filter(|payload| payload.len() <= ROOM);
            payload.map(|payload| (envelope, payload)).ok_or(Malformed)
        });
        Some(parsed)
    }

    /// Removes the first packet from the buffer.
    pub(super) fn advance(&mut self) {
        let head = self.buffer[self.start..self.end].first_chunk::<HEAD>();
        let length = head.map_or(0, |head| u32::from_le_bytes(*head) as usize);
        self.start = self.end.min(self.start + HEAD + length);
    }

    /// Returns whether nothing can be read any more.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether there is room again after a packet was refused. Returns true only once.
    pub(super) fn has_room_again(&mut self) -> bool {
        let has_room = self.unwritten.len() - self.written < MAX_UNWRITTEN;
        has_room && std::mem::take(&mut self.has_refused)
    }

    /// Returns whether the stream has taken and flushed all packets.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_written() && !self.is_unflushed
    }

    fn is_written(&self) -> bool {
        self.written == self.unwritten.len()
    }
}

/// Polls once, outside tokio's cooperative budget: a stream that has used the budget up would be polled again at once.
fn poll_once<T>(
    waker: &Waker,
    poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    pin!(unconstrained(std::future::poll_fn(poll))).poll(&mut Context::from_waker(waker))
}
