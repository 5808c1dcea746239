//! A peer of an endpoint: what is to be sent to it, and the stream that it is sending.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::IoSlice;

use midplane_simhw::shm::RingSender;

use crate::completion::{Class, Entry};
use crate::matching::Matched;
use crate::memory::{Buffer, MAX_PARTS};
use crate::record::{Head, Kind};
use crate::region::Regions;

/// Most bytes of a stream in one record: the receiver copies one out while the sender copies the next in.
const CHUNK: usize = 8 * 1024;
/// Bytes of messages that a peer may send before they are asked for; each counts [`ENTRY`] in addition.
pub(crate) const WINDOW: usize = 4 << 20;
/// Bytes that an unexpected message counts besides its payload.
pub(crate) const ENTRY: usize = 128;
/// Bytes after which a part of the window is returned.
const RETURNED: usize = WINDOW / 8;
/// Records that may wait besides streams; more are caused only by a peer that does not read its ring.
const MAX_CONTROL: usize = 1 << 16;

/// The state of the way to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// No rings yet.
    Unconnected,
    /// The rings with that key carry what is sent.
    Open(usize),
    /// It ended with this error.
    Lost(c_int),
}

/// The bytes of a stream.
#[derive(Debug)]
pub(crate) enum Content {
    Lent(Buffer),
    Copied(Box<[u8]>),
    Region { key: u64, address: u64, length: usize },
}

impl Content {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Lent(buffer) => buffer.len(),
            Self::Copied(bytes) => bytes.len(),
            Self::Region { length, .. } => *length,
        }
    }
}

/// An operation that is to complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) class: Class,
    pub(crate) reports: bool,
    pub(crate) entry: Entry,
}

/// The step after a stream has been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Nothing,
    /// The operation completes.
    Complete(Finish),
    /// It completes once the receiver has confirmed the stream.
    Confirm(Finish),
}

/// A stream to be sent, of one record or several.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(crate) head: Head,
    pub(crate) content: Content,
    sent: usize,
    has_begun: bool,
    pub(crate) end: End,
}

/// The error of a region that was removed while a peer reads it.
#[derive(Debug)]
pub(crate) struct RegionGone;

impl Departure {
    pub(crate) const fn new(head: Head, content: Content, end: End) -> Self {
        Self { head, content, sent: 0, has_begun: false, end }
    }

    /// Returns the bytes that are sent.
    pub(crate) const fn sent(&self) -> usize {
        self.sent
    }

    /// Returns the record that fails the peer's read, whose region is gone, in place of the rest of the stream.
    pub(crate) const fn cut(&self, error: c_int) -> Head {
        let error = error.unsigned_abs();
        if self.has_begun {
            Head::new(Kind::Cut, 0, 0, error as u64)
        } else {
            Head::new(Kind::ReadFailed, 0, error as usize, self.head.words[1])
        }
    }

    /// Copies the caller's bytes, so that the caller may use its memory again.
    pub(crate) fn keep(&mut self) {
        if let Content::Lent(buffer) = self.content {
            self.content = Content::Copied(buffer.to_vec().into());
        }
    }

    /// Sends as much as the ring takes; returns whether all is sent.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        ring: &mut RingSender,
        regions: &Regions,
    ) -> Result<bool, RegionGone> {
        loop {
            let head = if self.has_begun { Head::new(Kind::More, 0, 0, 0) } else { self.head };
            let part = (self.content.len() - self.sent).min(CHUNK);
            if ring.room().is_none_or(|room| room < head.prefix_bytes() + part) {
                return Ok(false);
            }
            self.push(ring, &head, part, regions)?;
            (self.sent, self.has_begun) = (self.sent + part, true);
            if self.sent == self.content.len() {
                return Ok(true);
            }
        }
    }

    #[inline]
    fn push(
        &self,
        ring: &mut RingSender,
        head: &Head,
        part: usize,
        regions: &Regions,
    ) -> Result<(), RegionGone> {
        let [one, other] = head.prefix.map(u64::to_le_bytes);
        let mut slices = [IoSlice::new(&[]); 2 + MAX_PARTS];
        for (slice, bytes) in slices.iter_mut().zip([&one, &other]).take(head.count) {
            *slice = IoSlice::new(bytes);
        }
        let region;
        let rest = &mut slices[head.count..];
        let count = match &self.content {
            Content::Lent(buffer) => buffer.gather(self.sent, part, rest),
            Content::Copied(bytes) => {
                rest[0] = IoSlice::new(&bytes[self.sent..self.sent + part]);
                1
            }
            Content::Region { key, address, .. } => {
                let address = address + self.sent as u64;
                region = regions.readable(*key, address, part).ok_or(RegionGone)?;
                region.gather(0, part, rest)
            }
        };
        ring.push(head.words, &slices[..head.count + count]);
        Ok(())
    }
}

/// The destination of the bytes of a stream from a peer.
#[derive(Debug)]
pub(crate) enum Target {
    Receive(Matched),
    /// An unexpected message.
    Unexpected(usize),
    /// The buffer of a read.
    Read(Buffer, Finish),
    /// Registered memory, and data for the receiver's queue.
    Region {
        key: u64,
        address: u64,
        data: Option<u64>,
    },
    /// Nowhere: no region that may be written is there.
    Refused,
    /// Nowhere: its message is discarded.
    Discard,
}

/// A stream that a peer is sending.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) target: Target,
    pub(crate) length: usize,
    pub(crate) done: usize,
    /// True if the peer waits for a confirmation.
    pub(crate) confirms: bool,
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its endpoint's number.
    pub(crate) endpoint: u64,
    /// Its address in the endpoint's address vector, or `ADDR_NOTAVAIL`.
    pub(crate) source: u64,
    pub(crate) link: Link,
    /// Rings with it that are open.
    pub(crate) pairs: usize,
    /// Bytes that may be sent to it unasked.
    pub(crate) window: usize,
    /// Bytes of its window that are to be returned.
    freed: usize,
    /// Bytes of its window that its unexpected messages occupy.
    pub(crate) occupied: usize,
    /// Its messages that were announced, and not asked for yet.
    pub(crate) announced: usize,
    pub(crate) control: VecDeque<Head>,
    pub(crate) departures: VecDeque<Departure>,
    /// Operations whose streams were sent, in order, and are not confirmed.
    pub(crate) unconfirmed: VecDeque<Finish>,
    pub(crate) inbound: Option<Inbound>,
    /// True if it is among the peers for which something waits.
    pub(crate) is_listed: bool,
}

impl Peer {
    pub(crate) const fn new(endpoint: u64, source: u64) -> Self {
        Self {
            endpoint,
            source,
            link: Link::Unconnected,
            pairs: 0,
            window: WINDOW,
            freed: 0,
            occupied: 0,
            announced: 0,
            control: VecDeque::new(),
            departures: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            inbound: None,
            is_listed: false,
        }
    }

    /// Returns bytes of the peer's window to it, a part of the window at a time. Returns whether a record now waits.
    pub(crate) fn free(&mut self, bytes: usize) -> bool {
        self.freed += bytes;
        let is_due = self.freed >= RETURNED;
        if is_due {
            self.control.push_back(Head::new(Kind::Credit, 0, std::mem::take(&mut self.freed), 0));
        }
        is_due
    }

    /// Confirms the peer's oldest stream that is not confirmed; confirmations in a row are one record.
    pub(crate) fn confirm(&mut self) {
        match self.control.back_mut() {
            Some(Head { words: [first, count], .. }) if *first == Kind::Ack as u64 => *count += 1,
            _ => self.control.push_back(Head::new(Kind::Ack, 0, 0, 1)),
        }
    }

    /// Refuses the peer's oldest stream that is not confirmed.
    pub(crate) fn refuse(&mut self, error: c_int) {
        self.control.push_back(Head::new(Kind::Nack, 0, 0, u64::from(error.unsigned_abs())));
    }

    /// Refuses a read of the peer, by its handle.
    pub(crate) fn fail_read(&mut self, handle: u64, error: c_int) {
        let error = error.unsigned_abs() as usize;
        self.control.push_back(Head::new(Kind::ReadFailed, 0, error, handle));
    }

    /// Returns whether more waits than a correct peer causes.
    pub(crate) fn is_flooded(&self) -> bool {
        self.control.len() > MAX_CONTROL || self.departures.len() > MAX_CONTROL
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.control.is_empty() || !self.departures.is_empty()
    }
}
