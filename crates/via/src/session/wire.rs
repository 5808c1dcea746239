//! Wires carry the frames between two processes in order, each once, or report that they have broken.

use std::io::{self, IoSlice};

use midplane_simhw::shm::rings::{RingPair, WakeSet};
use midplane_simhw::shm::{Corrupt, Record};
use tokio::io::ReadBuf;

use super::frame::{Incoming, PIECE};
use super::piped::Piped;

/// The connection of a session.
#[derive(Debug)]
pub(super) enum Wire {
    Ring(Ring),
    Piped(Piped),
    /// A dial that was not answered yet.
    Dialing(Dialing),
    /// The session has ended.
    Closed,
}

/// The attempts of a dial that are under way.
#[derive(Debug)]
pub(super) struct Dialing {
    /// The wire once the peer answers over UDP; `None` if it has failed, or was not tried.
    pub(super) udp: Option<Piped>,
    /// True if TCP is tried, or will be.
    pub(super) is_tcp_open: bool,
}

/// The processor that the peer of a session last used, relative to this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Peer {
    /// It waits for a wake-up, or its processor is unknown.
    Parked,
    /// It polls, or has work, on the processor of this process: it runs once this process yields.
    Here,
    /// It was on another processor.
    Elsewhere,
}

/// A wire of shared memory.
#[derive(Debug)]
pub(super) struct Ring {
    pair: RingPair,
    /// The next record, once it was peeked, and how much of it has been read.
    current: Option<(Record, usize)>,
    /// True if a record was pushed since the peer was last woken.
    needs_flush: bool,
}

impl Wire {
    pub(super) const fn ring(pair: RingPair) -> Self {
        Self::Ring(Ring { pair, current: None, needs_flush: false })
    }

    /// Adds the wake-ups by the peer to a set; over UDP, the driver's turn receives them.
    pub(super) fn watch(&self, wakes: &WakeSet, number: u64) -> io::Result<()> {
        match self {
            Self::Ring(ring) => wakes.add(number, &ring.pair),
            _ => Ok(()),
        }
    }

    /// Returns the most bytes of the next frame's payload; `None` if no frame is accepted now.
    pub(super) fn room(&mut self) -> Option<usize> {
        match self {
            Self::Ring(ring) => Some(ring.pair.sender.room()?.min(PIECE)),
            Self::Piped(piped) => piped.room(),
            Self::Dialing(_) | Self::Closed => None,
        }
    }

    /// Returns whether the longest frame has room. Writers that wait are woken only then, not for each short
    /// frame.
    pub(super) fn has_room(&mut self) -> bool {
        let longest = self.longest();
        self.room().is_some_and(|room| room >= longest)
    }

    /// Returns the most bytes of a frame's payload.
    pub(super) fn longest(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.pair.sender.most().min(PIECE),
            _ => PIECE,
        }
    }

    /// Returns the number of longest frames that there is room for.
    pub(super) fn frames(&mut self) -> usize {
        match self {
            Self::Ring(ring) => {
                let sender = &mut ring.pair.sender;
                sender.free_bytes() / sender.most().min(PIECE)
            }
            Self::Piped(piped) => piped.free_bytes() / PIECE,
            Self::Dialing(_) | Self::Closed => 0,
        }
    }

    /// Sends a frame, whose payload is no longer than [`Wire::room`] returned.
    pub(super) fn push(&mut self, words: [u64; 2], parts: &[IoSlice<'_>]) {
        match self {
            Self::Ring(ring) => {
                ring.pair.sender.push(words, parts);
                ring.needs_flush = true;
            }
            Self::Piped(piped) => piped.push(words, parts),
            Self::Dialing(_) | Self::Closed => {}
        }
    }

    /// Returns the next frame. The one before must have been read or skipped.
    pub(super) fn peek(&mut self) -> Result<Option<Incoming>, Corrupt> {
        match self {
            Self::Ring(ring) => ring.peek(),
            Self::Piped(piped) => piped.peek(),
            Self::Dialing(_) | Self::Closed => Ok(None),
        }
    }

    /// Reads the next bytes of the peeked frame; ends the frame with the last of them.
    pub(super) fn read(&mut self, out: &mut [u8]) {
        match self {
            Self::Ring(ring) => ring.read(out),
            Self::Piped(piped) => piped.read(out),
            Self::Dialing(_) | Self::Closed => {}
        }
    }

    /// Appends the next `length` bytes of the peeked frame to `out`; ends the frame with the last of them.
    pub(super) fn append(&mut self, length: usize, out: &mut ReadBuf<'_>) {
        match self {
            Self::Ring(ring) => ring.append(length, out),
            Self::Piped(piped) => piped.append(length, out),
            Self::Dialing(_) | Self::Closed => {}
        }
    }

    /// Ends the peeked frame, read or not.
    pub(super) fn skip(&mut self) {
        match self {
            Self::Ring(ring) => ring.skip(),
            Self::Piped(piped) => piped.skip(),
            Self::Dialing(_) | Self::Closed => {}
        }
    }

    /// Makes pushed frames visible to the peer: once for a batch of frames. Over UDP, the driver's turn sends
    /// them.
    pub(super) fn flush(&mut self) {
        match self {
            Self::Ring(ring) => {
                if std::mem::take(&mut ring.needs_flush) && ring.pair.sender.must_wake() {
                    ring.pair.wake();
                }
            }
            Self::Piped(piped) => piped.flush(),
            Self::Dialing(_) | Self::Closed => {}
        }
    }

    /// Returns whether all pushed frames have left this process.
    pub(super) fn is_flushed(&self) -> bool {
        match self {
            Self::Piped(piped) => piped.is_flushed(),
            Self::Ring(_) | Self::Dialing(_) | Self::Closed => true,
        }
    }

    /// Requests a wake-up once there is room; [`Wire::room`] must be called again afterwards. Over UDP, the wake-up
    /// comes without a request.
    pub(super) fn await_room(&self) {
        if let Self::Ring(ring) = self {
            ring.pair.sender.await_room();
        }
    }

    /// Requests a wake-up by the next frame. Returns `true`, and requests none, if there is a frame already.
    pub(super) fn park(&mut self) -> bool {
        match self {
            Self::Ring(ring) => ring.park(),
            // The next poll finds violations of the protocol.
            Self::Piped(piped) => !matches!(piped.peek(), Ok(None)),
            Self::Dialing(_) | Self::Closed => false,
        }
    }

    /// Starts to poll on `processor`, so that the peer need not wake this side. Returns where the peer polls.
    pub(super) fn unpark(&self, processor: usize) -> Peer {
        let Self::Ring(ring) = self else { return Peer::Parked };
        ring.pair.receiver.unpark();
        ring.pair.sender.publish_processor(processor);
        match ring.pair.receiver.processor() {
            Some(other) if other != processor => Peer::Elsewhere,
            Some(_) if !ring.pair.sender.is_parked() => Peer::Here,
            _ => Peer::Parked,
        }
    }
}

impl Ring {
    fn peek(&mut self) -> Result<Option<Incoming>, Corrupt> {
        if self.current.is_none() {
            self.current = self.pair.receiver.peek()?.map(|record| (record, 0));
        }
        Ok(self.current.map(|(record, read)| Incoming {
            words: record.words,
            length: record.length,
            left: record.length - read,
        }))
    }

    fn read(&mut self, out: &mut [u8]) {
        let Some((_, read)) = &self.current else { return };
        self.pair.receiver.read(*read, out);
        self.has_read(out.len());
    }

    fn append(&mut self, length: usize, out: &mut ReadBuf<'_>) {
        let Some((_, read)) = &self.current else { return };
        self.pair.receiver.append(*read, length, out);
        self.has_read(length);
    }

    fn has_read(&mut self, bytes: usize) {
        let Some((record, read)) = &mut self.current else { return };
        *read += bytes;
        if *read >= record.length {
            self.skip();
        }
    }

    fn skip(&mut self) {
        if let Some((record, _)) = self.current.take()
            && self.pair.receiver.advance(record)
        {
            self.pair.wake();
        }
    }

    fn park(&mut self) -> bool {
        if self.pair.receiver.park() {
            self.pair.wake();
        }
        let has_frame = self.current.is_some() || !matches!(self.pair.receiver.peek(), Ok(None));
        if has_frame {
            self.pair.receiver.unpark();
        }
        has_frame
    }
}
