//! A peer on another host: the endpoint's rings on one side, a pipe on the other.

use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use midplane_simhw::shm::Record;
use midplane_simhw::shm::rings::RingPair;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, PipeId};
use midplane_via::wire::pipe::Pipe;

use super::frames::{HEAD, head, parse};

/// Records of one peer that are copied before the next peer's.
const TURN: usize = 64;
/// Most bytes taken from a pipe that are not yet records in a ring.
const READ_AHEAD: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) pipe: PipeId,
    /// The other ends of the endpoint's rings; `None` until the peer has sent its number.
    pub(super) rings: Option<RingPair>,
    /// Bytes from the pipe that are not yet in the ring.
    pub(super) incoming: Vec<u8>,
    /// True if the endpoint has closed its ends, or the peer has sent an invalid record.
    pub(super) has_left: bool,
    /// True once the pipe is being closed.
    is_closing: bool,
    /// True once the pipe has ended.
    pub(super) has_ended: bool,
}

pub(super) fn lock(endpoint: &Mutex<Endpoint>) -> MutexGuard<'_, Endpoint> {
    endpoint.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(super) const fn new(pipe: PipeId, rings: Option<RingPair>) -> Self {
        let (has_left, is_closing, has_ended) = (false, false, false);
        Self { pipe, rings, incoming: Vec::new(), has_left, is_closing, has_ended }
    }

    /// Returns whether the peer has sent its number, and is not known to the endpoint. If there were no rings for it, the
    /// link has left: its later bytes are no number.
    pub(super) const fn is_new(&self) -> bool {
        self.rings.is_none() && !self.has_left && self.incoming.len() >= 8
    }

    /// Copies in both directions; returns whether there was anything to copy.
    pub(super) fn pump(&mut self, endpoint: &Mutex<Endpoint>, now: Instant) -> bool {
        let is_busy = self.send(endpoint) | self.read(endpoint) | self.deliver();
        let is_drained =
            self.rings.as_ref().is_none_or(|rings| !matches!(rings.receiver.peek(), Ok(Some(_))));
        // The close of a pipe that dials would end it before its bytes are sent.
        let is_dialing = || {
            let dials = |pipe: &Pipe| !pipe.is_established() && pipe.ended().is_none();
            lock(endpoint).peek(self.pipe).is_some_and(dials)
        };
        if self.has_left && is_drained && !self.is_closing && !is_dialing() {
            self.is_closing = true;
            match lock(endpoint).pipe(self.pipe) {
                Some(pipe) => pipe.close(now),
                None => self.has_ended = true,
            }
            return true;
        }
        is_busy
    }

    /// Copies records of the endpoint into the pipe.
    fn send(&mut self, endpoint: &Mutex<Endpoint>) -> bool {
        let Some(rings) = &mut self.rings else { return false };
        let (mut has_any, mut bytes) = (false, Vec::new());
        for _ in 0..TURN {
            let Ok(Some(record)) = rings.receiver.peek() else { break };
            let mut endpoint = lock(endpoint);
            let room = endpoint.peek(self.pipe).map_or(0, |pipe| pipe.room());
            // Bytes for an ended pipe are dropped.
            if room < HEAD + record.length && !self.has_ended {
                break;
            }
            bytes.resize(record.length, 0);
            rings.receiver.read(0, &mut bytes);
            if let Some(pipe) = endpoint.pipe(self.pipe) {
                pipe.write(&[IoSlice::new(&head(record)), IoSlice::new(&bytes)]);
            }
            drop(endpoint);
            if rings.receiver.advance(record) {
                rings.wake();
            }
            has_any = true;
        }
        has_any
    }

    /// Takes bytes from the pipe.
    fn read(&mut self, endpoint: &Mutex<Endpoint>) -> bool {
        let mut endpoint = lock(endpoint);
        let before = self.incoming.len();
        while self.incoming.len() < READ_AHEAD {
            let readable = endpoint.peek(self.pipe).map_or(&[][..], |pipe| pipe.readable());
            let taken = readable.len().min(READ_AHEAD - self.incoming.len());
            if taken == 0 {
                break;
            }
            self.incoming.extend_from_slice(&readable[..taken]);
            if let Some(pipe) = endpoint.pipe(self.pipe) {
                pipe.consume(taken);
            }
        }
        self.incoming.len() > before
    }

    /// Publishes complete records.
    fn deliver(&mut self) -> bool {
        let Some(rings) = &mut self.rings else { return false };
        let mut done = 0;
        loop {
            let record = match parse(&self.incoming[done..]) {
                Ok(Some(record)) => record,
                Ok(None) => break,
                // No correct peer sends this, so nothing more is read from the peer.
                Err(_) => {
                    self.has_left = true;
                    break;
                }
            };
            let end = done + HEAD + record.length;
            let Some(payload) = self.incoming.get(done + HEAD..end) else { break };
            if rings.sender.room().is_none_or(|room| room < record.length) {
                break;
            }
            rings.sender.push(record.words, &[IoSlice::new(payload)]);
            done = end;
        }
        self.incoming.drain(..done);
        if done > 0 && rings.sender.must_wake() {
            rings.wake();
        }
        done > 0
    }

    /// Returns the length of the complete record that waits for space in the ring, if there is one.
    fn blocked(&self) -> Option<usize> {
        let Record { length, .. } = parse(&self.incoming).ok().flatten()?;
        let is_whole = self.incoming.len() >= HEAD + length;
        (self.rings.is_some() && is_whole).then_some(length)
    }

    /// Returns whether the link can be removed: its pipe has ended, and all received records are delivered, or the
    /// endpoint has left.
    pub(super) fn is_over(&self, endpoint: &Mutex<Endpoint>) -> bool {
        let is_read =
            || lock(endpoint).peek(self.pipe).is_none_or(|pipe| pipe.readable().is_empty());
        self.has_ended && (self.has_left || (self.blocked().is_none() && is_read()))
    }

    /// Requests wake-ups for copying in both directions; returns `false` if there is work already.
    pub(super) fn park(&mut self, endpoint: &Mutex<Endpoint>) -> bool {
        let blocked = self.blocked();
        let Some(rings) = &mut self.rings else { return true };
        if rings.receiver.park() {
            rings.wake();
        }
        if let Some(length) = blocked {
            rings.sender.await_room();
            if rings.sender.room().is_some_and(|room| room >= length) {
                return false;
            }
        }
        let Ok(Some(record)) = rings.receiver.peek() else { return true };
        let room = lock(endpoint).peek(self.pipe).map_or(0, |pipe| pipe.room());
        room < HEAD + record.length && !self.has_ended
    }
}
