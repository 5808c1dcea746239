//! Frames over a byte pipe: how they stand one behind the other, and how they are read as they come.
//!
//! A frame is its payload's length and its two words, eight bytes each, little-endian, then the payload. A long one is
//! read in fragments, as its bytes come.

use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use midplane_simhw::shm::Corrupt;

use super::core::MOST_CONTROL;
use super::frame::{FIN, Header, Kind};
use super::wire::{Incoming, PIECE};
use crate::wire::endpoint::{Endpoint, PipeId};
use crate::wire::socket::Clock;

/// Bytes of a frame before its payload.
const HEAD: usize = 24;

/// The connections over UDP of a process.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) endpoint: Mutex<Endpoint>,
    /// Connections whose sessions have ended: to be closed.
    pub(super) closing: Mutex<Vec<PipeId>>,
    pub(super) clock: Clock,
}

impl Pipes {
    pub(super) fn endpoint(&self) -> MutexGuard<'_, Endpoint> {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn closing(&self) -> MutexGuard<'_, Vec<PipeId>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wire over UDP.
#[derive(Debug)]
pub(super) struct Piped {
    pipes: Arc<Pipes>,
    id: PipeId,
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    come: usize,
    /// The frame whose head has come.
    frame: Option<Frame>,
}

/// A frame that is being read.
#[derive(Debug)]
struct Frame {
    words: [u64; 2],
    /// Bytes of its payload that were not read.
    left: usize,
    /// Of the fragment that was seen: its bytes, and those that were not read.
    fragment: Option<(usize, usize)>,
    /// The payload of a frame that is no data, which is handled as a whole.
    whole: Option<Vec<u8>>,
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.pipes.closing().push(self.id);
    }
}

impl Piped {
    pub(super) const fn new(pipes: Arc<Pipes>, id: PipeId) -> Self {
        Self { pipes, id, head: [0; HEAD], come: 0, frame: None }
    }

    pub(super) fn room(&self) -> Option<usize> {
        let endpoint = self.pipes.endpoint();
        let room = endpoint.peek(self.id)?.room().checked_sub(HEAD)?;
        (room >= MOST_CONTROL).then(|| room.min(PIECE))
    }

    pub(super) fn push(&self, words: [u64; 2], parts: &[IoSlice<'_>]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut head = [0; HEAD];
        for (bytes, word) in
            head.as_chunks_mut::<8>().0.iter_mut().zip([length as u64, words[0], words[1]])
        {
            *bytes = word.to_le_bytes();
        }
        if let Some(pipe) = self.pipes.endpoint().pipe(self.id) {
            // There was room; another thread may have found a loss since, which takes room away.
            pipe.write_all(&[IoSlice::new(&head)]);
            pipe.write_all(parts);
        }
    }

    pub(super) fn peek(&mut self) -> Result<Option<Incoming>, Corrupt> {
        let pipes = Arc::clone(&self.pipes);
        let mut endpoint = pipes.endpoint();
        if self.frame.is_none() && !self.read_head(&mut endpoint)? {
            return Ok(None);
        }
        let Some(frame) = &mut self.frame else { return Ok(None) };
        if frame.fragment.is_none() && !frame.see(&mut endpoint, self.id) {
            return Ok(None);
        }
        let Some((length, left)) = frame.fragment else { return Ok(None) };
        let mut words = frame.words;
        if frame.left > left {
            words[0] &= !(u64::from(FIN) << 8);
        }
        Ok(Some(Incoming { words, length, left }))
    }

    /// Reads the head of the next frame; whether all of it has come.
    fn read_head(&mut self, endpoint: &mut Endpoint) -> Result<bool, Corrupt> {
        while self.come < HEAD {
            let Some(count) = take(endpoint, self.id, &mut self.head[self.come..]) else {
                return Ok(false);
            };
            self.come += count;
        }
        self.come = 0;
        let (words, _) = self.head.as_chunks::<8>();
        let [length, first, second] = [words[0], words[1], words[2]].map(u64::from_le_bytes);
        let words = [first, second];
        let is_data = Header::parse(words).ok_or(Corrupt)?.kind == Kind::Data;
        let most = if is_data { PIECE } else { MOST_CONTROL };
        let left = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(Corrupt)?;
        self.frame = Some(Frame { words, left, fragment: None, whole: (!is_data).then(Vec::new) });
        Ok(true)
    }

    pub(super) fn read(&mut self, out: &mut [u8]) {
        let Some(frame) = &mut self.frame else { return };
        let Some((_, left)) = &mut frame.fragment else { return };
        match &frame.whole {
            Some(whole) => out.copy_from_slice(&whole[whole.len() - *left..][..out.len()]),
            None => {
                let mut endpoint = self.pipes.endpoint();
                let mut read = 0;
                while read < out.len() {
                    let Some(count) = take(&mut endpoint, self.id, &mut out[read..]) else { break };
                    read += count;
                }
            }
        }
        *left -= out.len();
        frame.left -= out.len();
        if *left == 0 {
            self.end_fragment();
        }
    }

    /// Ends the fragment that was seen, read or not.
    pub(super) fn skip(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        if let Some((_, left)) = frame.fragment {
            if frame.whole.is_none() {
                let mut endpoint = self.pipes.endpoint();
                if let Some(pipe) = endpoint.pipe(self.id) {
                    pipe.consume(left);
                }
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
    /// Sees the part of the payload that was received: a fragment of data, or the whole of anything else. Returns whether
    /// there is any.
    fn see(&mut self, endpoint: &mut Endpoint, id: PipeId) -> bool {
        let Some(whole) = &mut self.whole else {
            let come = endpoint.peek(id).map_or(0, |pipe| pipe.readable().len()).min(self.left);
            let is_any = come > 0 || self.left == 0;
            self.fragment = is_any.then_some((come, come));
            return is_any;
        };
        while whole.len() < self.left {
            let start = whole.len();
            whole.resize(self.left, 0);
            let count = take(endpoint, id, &mut whole[start..]);
            whole.truncate(start + count.unwrap_or(0));
            if count.is_none() {
                return false;
            }
        }
        self.fragment = Some((self.left, self.left));
        true
    }
}

/// Takes bytes that have come; `None` if there are none.
fn take(endpoint: &mut Endpoint, id: PipeId, out: &mut [u8]) -> Option<usize> {
    let count = endpoint.peek(id)?.readable().len().min(out.len());
    if count == 0 {
        return None;
    }
    let pipe = endpoint.pipe(id)?;
    out[..count].copy_from_slice(&pipe.readable()[..count]);
    pipe.consume(count);
    Some(count)
}
