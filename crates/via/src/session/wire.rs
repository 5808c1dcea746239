//! What carries the frames between two processes: in order, each once, or not at all once it has broken.

use std::io::IoSlice;

use midplane_simhw::shm::rings::RingPair;
use midplane_simhw::shm::{Corrupt, Record};

/// Bytes of the longest frame on a ring: short enough that the peer reads one while the next is written.
const PIECE: usize = 32 * 1024;

/// One way to one peer.
#[derive(Debug)]
pub(super) enum Wire {
    Ring(Ring),
    /// The session has ended.
    Closed,
}

/// The next frame, and what of its payload has not been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) words: [u64; 2],
    /// Bytes of its payload.
    pub(super) length: usize,
    /// Bytes of it that have not been read.
    pub(super) left: usize,
}

/// A wire of shared memory.
#[derive(Debug)]
pub(super) struct Ring {
    pair: RingPair,
    /// The next record, once it was seen, and how much of it has been read.
    current: Option<(Record, usize)>,
    /// Something was pushed since the peer was last woken.
    has_news: bool,
}

impl Wire {
    pub(super) const fn ring(pair: RingPair) -> Self {
        Self::Ring(Ring { pair, current: None, has_news: false })
    }

    /// Bytes of payload that the next frame may have; `None` if no frame is taken now.
    pub(super) fn room(&mut self) -> Option<usize> {
        let Self::Ring(ring) = self else { return None };
        Some(ring.pair.sender.room()?.min(PIECE))
    }

    /// Sends a frame, whose payload is no longer than [`Wire::room`] has said.
    pub(super) fn push(&mut self, words: [u64; 2], parts: &[IoSlice<'_>]) {
        let Self::Ring(ring) = self else { return };
        ring.pair.sender.push(words, parts);
        ring.has_news = true;
    }

    /// The next frame. The one before must have been read or skipped.
    pub(super) fn peek(&mut self) -> Result<Option<Incoming>, Corrupt> {
        let Self::Ring(ring) = self else { return Ok(None) };
        if ring.current.is_none() {
            ring.current = ring.pair.receiver.peek()?.map(|record| (record, 0));
        }
        Ok(ring.current.map(|(record, read)| Incoming {
            words: record.words,
            length: record.length,
            left: record.length - read,
        }))
    }

    /// Reads the next bytes of the frame that was seen; ends it with the last of them.
    pub(super) fn read(&mut self, out: &mut [u8]) {
        let Self::Ring(ring) = self else { return };
        let Some((record, read)) = &mut ring.current else { return };
        ring.pair.receiver.read(*read, out);
        *read += out.len();
        if *read >= record.length {
            self.skip();
        }
    }

    /// Ends the frame that was seen, read or not.
    pub(super) fn skip(&mut self) {
        let Self::Ring(ring) = self else { return };
        if let Some((record, _)) = ring.current.take()
            && ring.pair.receiver.advance(record)
        {
            ring.pair.wake();
        }
    }

    /// Makes the peer see what was pushed: once for a batch of frames.
    pub(super) fn flush(&mut self) {
        let Self::Ring(ring) = self else { return };
        if std::mem::take(&mut ring.has_news) && ring.pair.sender.must_wake() {
            ring.pair.wake();
        }
    }

    /// Asks for a wake-up once there is room; [`Wire::room`] must be asked again.
    pub(super) fn await_room(&self) {
        let Self::Ring(ring) = self else { return };
        ring.pair.sender.await_room();
    }

    /// Asks for a wake-up by the next frame. Whether there is one already, and none comes.
    pub(super) fn park(&mut self) -> bool {
        let Self::Ring(ring) = self else { return false };
        if ring.pair.receiver.park() {
            ring.pair.wake();
        }
        let has_frame = ring.current.is_some() || !matches!(ring.pair.receiver.peek(), Ok(None));
        if has_frame {
            ring.pair.receiver.unpark();
        }
        has_frame
    }

    /// Polls from now on, on `processor`: needs no wake-ups. Whether the peer ran on another processor when it last told.
    pub(super) fn unpark(&self, processor: usize) -> bool {
        let Self::Ring(ring) = self else { return false };
        ring.pair.receiver.unpark();
        ring.pair.sender.publish_processor(processor);
        ring.pair.receiver.processor().is_some_and(|other| other != processor)
    }
}
