//! Frames over a byte pipe: their encoding, and reading them as they arrive.
//!
//! A frame is its payload's length and its two words, eight bytes each, little-endian, then the payload. A long
//! frame is read in fragments, as its bytes arrive.

use std::io::IoSlice;
use std::sync::Arc;

use midplane_simhw::shm::Corrupt;
use tokio::io::ReadBuf;

use super::byte_pipe::{BytePipe, Held, Pipes};
use super::frame::{FIN, Header, Incoming, Kind, MAX_CONTROL, PIECE};
use super::line::Line;
use crate::wire::buffer;
use crate::wire::endpoint::PipeId;

/// Bytes of a frame before its payload.
const HEAD: usize = 24;

/// A wire over UDP, or over TCP.
#[derive(Debug)]
pub(super) struct Piped {
    pipe: BytePipe,
    head: [u8; HEAD],
    /// Bytes of the head received.
    received: usize,
    /// The frame whose head was received.
    frame: Option<Frame>,
}

/// A frame that is being read.
#[derive(Debug)]
struct Frame {
    words: [u64; 2],
    /// Bytes of its payload that were not read.
    left: usize,
    /// Bytes of the peeked fragment, and how many of them were not read.
    fragment: Option<(usize, usize)>,
    /// The payload of a frame that is not data: it is handled as a whole.
    whole: Option<Vec<u8>>,
}

impl Piped {
    pub(super) const fn new(pipes: Arc<Pipes>, id: PipeId) -> Self {
        Self::over(BytePipe::Udp(pipes, id))
    }

    pub(super) const fn over_line(line: Arc<Line>) -> Self {
        Self::over(BytePipe::Tcp(line))
    }

    const fn over(pipe: BytePipe) -> Self {
        Self { pipe, head: [0; HEAD], received: 0, frame: None }
    }

    /// Returns whether it uses this connection over UDP.
    pub(super) fn is_over_pipe(&self, id: PipeId) -> bool {
        matches!(self.pipe, BytePipe::Udp(_, own) if own == id)
    }

    /// Returns whether the system has taken nothing for a second although bytes wait; only over TCP.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(&self.pipe, BytePipe::Tcp(line) if line.buffers().is_stuck)
    }

    /// Returns the bytes that may be written now, heads of frames included.
    pub(super) fn free_bytes(&self) -> usize {
        self.pipe.hold().room()
    }

    pub(super) fn room(&self) -> Option<usize> {
        let room = self.free_bytes().checked_sub(HEAD)?;
        (room >= MAX_CONTROL).then(|| room.min(PIECE))
    }

    pub(super) fn push(&self, words: [u64; 2], parts: &[IoSlice<'_>]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.pipe.hold().write_all(&head(length, words), parts);
    }

    /// Makes pushed frames visible to the peer. Over UDP, the driver's turn sends them.
    pub(super) fn flush(&self) {
        if let BytePipe::Tcp(line) = &self.pipe {
            line.flush();
        }
    }

    /// Returns whether the peer has acknowledged all bytes, or, over TCP, the system has taken them.
    pub(super) fn is_flushed(&self) -> bool {
        match self.pipe.hold() {
            Held::Udp(endpoint, id) => {
                endpoint.peek(id).is_none_or(|pipe| pipe.ended().is_some() || pipe.is_flushed())
            }
            Held::Tcp(_, buffers) => buffers.is_flushed(),
        }
    }

    pub(super) fn peek(&mut self) -> Result<Option<Incoming>, Corrupt> {
        let Self { pipe, frame, .. } = self;
        let mut held = pipe.hold();
        if frame.is_none() {
            let Some(words) = read_head(&mut held, &mut self.head, &mut self.received) else {
                return Ok(None);
            };
            *frame = Some(Frame::new(words)?);
        }
        let Some(frame) = frame else { return Ok(None) };
        if frame.fragment.is_none() && !frame.peek(&mut held) {
            return Ok(None);
        }
        let Some((length, left)) = frame.fragment else { return Ok(None) };
        let mut words = frame.words;
        if frame.left > left {
            words[0] &= !(u64::from(FIN) << 8);
        }
        Ok(Some(Incoming { words, length, left }))
    }

    /// Reads the next bytes of the peeked fragment; ends the fragment with the last of them.
    pub(super) fn read(&mut self, out: &mut [u8]) {
        self.take(out.len(), fill(out));
    }

    /// Appends the next `length` bytes of the peeked fragment to `out`; ends the fragment with the last of
    /// them.
    pub(super) fn append(&mut self, length: usize, out: &mut ReadBuf<'_>) {
        self.take(length, |bytes| buffer::append(bytes, out));
    }

    fn take(&mut self, length: usize, mut each: impl FnMut(&[u8])) {
        let Some(frame) = &mut self.frame else { return };
        let Some((_, left)) = &mut frame.fragment else { return };
        match &frame.whole {
            Some(whole) => each(&whole[whole.len() - *left..][..length]),
            None => self.pipe.hold().take(length, each),
        }
        *left -= length;
        frame.left -= length;
        if *left == 0 {
            self.end_fragment();
        }
    }

    /// Ends the peeked fragment, read or not.
    pub(super) fn skip(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        if let Some((_, left)) = frame.fragment {
            if frame.whole.is_none() {
                self.pipe.hold().take(left, |_| {});
            }
            frame.left -= left;
        }
        self.end_fragment();
    }

    fn end_fragment(&mut self) {
        if let Some(frame) = &mut self.frame {
            frame.fragment = None;
            if frame.left == 0 {
                self.frame = None;
            }
        }
    }
}

impl Frame {
    /// Makes a frame from its head: its payload's length, and its words.
    fn new([length, first, second]: [u64; 3]) -> Result<Self, Corrupt> {
        let words = [first, second];
        let is_data = Header::parse(words).ok_or(Corrupt)?.kind == Kind::Data;
        let most = if is_data { PIECE } else { MAX_CONTROL };
        let left = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(Corrupt)?;
        Ok(Self { words, left, fragment: None, whole: (!is_data).then(Vec::new) })
    }

    /// Peeks the received part of the payload: a fragment of data, or the whole payload of any other frame.
    /// Returns whether there is one.
    fn peek(&mut self, held: &mut Held<'_>) -> bool {
        let Some(whole) = &mut self.whole else {
            let received = held.readable_bytes().min(self.left);
            let is_any = received > 0 || self.left == 0;
            self.fragment = is_any.then_some((received, received));
            return is_any;
        };
        while whole.len() < self.left {
            let start = whole.len();
            whole.resize(self.left, 0);
            let count = take(held, &mut whole[start..]);
            whole.truncate(start + count.unwrap_or(0));
            if count.is_none() {
                return false;
            }
        }
        self.fragment = Some((self.left, self.left));
        true
    }
}

/// Makes the head of a frame.
fn head(length: usize, words: [u64; 2]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let all = [length as u64, words[0], words[1]];
    for (bytes, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(all) {
        *bytes = word.to_le_bytes();
    }
    head
}

/// Reads the head of the next frame; returns `None` if it has not arrived completely.
fn read_head(held: &mut Held<'_>, head: &mut [u8; HEAD], received: &mut usize) -> Option<[u64; 3]> {
    while *received < HEAD {
        *received += take(held, &mut head[*received..])?;
    }
    *received = 0;
    let (words, _) = head.as_chunks::<8>();
    Some([words[0], words[1], words[2]].map(u64::from_le_bytes))
}

/// Takes received bytes; returns `None` if there are none.
fn take(held: &mut Held<'_>, out: &mut [u8]) -> Option<usize> {
    let count = held.readable_bytes().min(out.len());
    if count == 0 {
        return None;
    }
    held.take(count, fill(out));
    Some(count)
}

/// Returns a function that copies one part after the other into `out`.
fn fill(mut out: &mut [u8]) -> impl FnMut(&[u8]) {
    move |bytes| {
        let (now, later) = std::mem::take(&mut out).split_at_mut(bytes.len());
        buffer::copy(bytes, now);
        out = later;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::CHANGED;
    use super::super::tests::take_outgoing;
    use super::*;

    #[test]
    fn the_bytes_of_a_frame_on_a_pipe_never_change() {
        let line = Arc::new(Line::default());
        let mut wire = Piped::over_line(Arc::clone(&line));
        let header = Header { flags: FIN, ..Header::new(Kind::Data, 5, 0) };
        wire.push(header.words(), &[IoSlice::new(b"by"), IoSlice::new(b"tes")]);
        let mut golden = vec![5, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([4, 1, 0, 0, 5, 0, 0, 0]);
        golden.extend([0; 8]);
        golden.extend(b"bytes");
        assert_eq!(take_outgoing(&line), golden, "{CHANGED}");
        line.buffers().incoming.write(&golden);
        let incoming = wire.peek().unwrap().unwrap();
        assert_eq!((incoming.words, incoming.left), (header.words(), 5), "{CHANGED}");
        let mut read = [0; 5];
        wire.read(&mut read);
        assert_eq!(&read, b"bytes");
    }
}
