//! A peer of an endpoint: the records to send to it, and the stream that it is sending.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::IoSlice;

use midplane_simhw::shm::RingSender;

use crate::completion::{Class, Entry};
use crate::matching::Matched;
use crate::memory::{Buffer, MAX_PARTS};
use crate::record::{Head, Kind};
use crate::region::Regions;

/// Most bytes of a stream in one record: the receiver copies one record out while the sender copies the next one in.
const CHUNK: usize = 8 * 1024;
/// Most bytes of eager messages that a peer may have unreceived; each message counts [`ENTRY`] in addition.
pub(crate) const WINDOW: usize = 4 << 20;
/// Bytes counted for an unexpected message in addition to its payload.
pub(crate) const ENTRY: usize = 128;
/// Freed bytes after which they are returned to the peer's window.
const RETURNED: usize = WINDOW / 8;
/// Most operations of a peer that wait for an answer: a read's data, or a confirmation.
pub(crate) const MAX_REQUESTS: usize = 1 << 15;
/// Most answers to a peer that may wait. Only a peer that exceeds [`MAX_REQUESTS`] causes more.
const MAX_ANSWERS: usize = 2 * MAX_REQUESTS;
/// Most records that may wait in addition to streams. A peer causes fewer by its messages whose RTS has arrived.
const MAX_CONTROL: usize = 1 << 20;

/// The state of the connection to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// There are no rings yet.
    Unconnected,
    /// The connection is open, over the rings with this key.
    Open(usize),
    /// The connection ended with this error.
    Lost(c_int),
}

/// The bytes of a stream.
#[derive(Debug)]
pub(crate) enum Content {
    Borrowed(Buffer),
    Copied(Box<[u8]>),
    Region { key: u64, address: u64, length: usize },
}

impl Content {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Borrowed(buffer) => buffer.len(),
            Self::Copied(bytes) => bytes.len(),
            Self::Region { length, .. } => *length,
        }
    }
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) class: Class,
    pub(crate) reports: bool,
    pub(crate) entry: Entry,
}

/// The action after a stream was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Nothing,
    /// Completes the operation.
    Complete(Finish),
    /// Completes the operation when the receiver has confirmed the stream.
    Confirm(Finish),
    /// Counts a peer's read of the region with this key, which is answered.
    Serve(u64),
    /// A peer's operation is answered.
    Answer,
}

/// A stream to send, of one or more records.
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

    /// Returns the number of bytes sent so far.
    pub(crate) const fn sent(&self) -> usize {
        self.sent
    }

    /// Returns the record that fails a peer's read whose region was removed. It replaces the rest of the stream.
    pub(crate) const fn cut(&self, error: c_int) -> Head {
        let error = error.unsigned_abs();
        if self.has_begun {
            Head::new(Kind::Cut, 0, 0, error as u64)
        } else {
            Head::new(Kind::ReadFailed, 0, error as usize, self.head.words[1])
        }
    }

    /// Copies the caller's bytes, so that the caller may reuse its memory.
    pub(crate) fn keep(&mut self) {
        if let Content::Borrowed(buffer) = self.content {
            self.content = Content::Copied(buffer.to_vec().into());
        }
    }

    /// Returns the head of the next record, and the number of the stream's bytes in it.
    #[inline]
    fn next(&self) -> (Head, usize) {
        let head = if self.has_begun { Head::new(Kind::More, 0, 0, 0) } else { self.head };
        (head, (self.content.len() - self.sent).min(CHUNK))
    }

    /// Sends as much as the ring has space for; returns whether all was sent.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        ring: &mut RingSender,
        regions: &Regions,
    ) -> Result<bool, RegionGone> {
        loop {
            let (head, part) = self.next();
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
            Content::Borrowed(buffer) => buffer.gather(self.sent, part, rest),
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
    /// The unexpected message with this key.
    Unexpected(usize),
    /// The buffer of a read.
    Read(Buffer, Finish),
    /// Registered memory; with data for the receiver's queue.
    Region {
        key: u64,
        address: u64,
        data: Option<u64>,
    },
    /// None: there is no writable region with this key and address.
    Refused,
    /// None: the message is discarded.
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

/// A peer of an endpoint.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The number of the peer's endpoint.
    pub(crate) endpoint: u64,
    /// The peer's address in the endpoint's address vector, or `ADDR_NOTAVAIL`.
    pub(crate) source: u64,
    pub(crate) link: Link,
    /// Number of open pairs of rings with the peer.
    pub(crate) pairs: usize,
    /// Bytes of eager messages that may be sent to the peer.
    pub(crate) window: usize,
    /// Bytes of the peer's window that are to be returned.
    freed: usize,
    /// Bytes of the peer's window that its unexpected messages occupy.
    pub(crate) occupied: usize,
    /// Number of the peer's messages whose RTS has arrived and whose CTS was not sent.
    pub(crate) announced: usize,
    pub(crate) control: VecDeque<Head>,
    pub(crate) departures: VecDeque<Departure>,
    /// Operations whose streams were sent and not confirmed, in order.
    pub(crate) unconfirmed: VecDeque<Finish>,
    pub(crate) inbound: Option<Inbound>,
    /// Number of operations that the peer has not answered, including those that wait to be sent.
    pub(crate) requests: usize,
    /// Number of answers to the peer that wait to be sent, as records or as streams.
    answers: usize,
    /// True if the peer is listed among those for which records wait.
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
            requests: 0,
            answers: 0,
            is_listed: false,
        }
    }

    /// Returns bytes of the peer's window, a part of the window at a time. Returns whether a record now waits.
    pub(crate) fn free(&mut self, bytes: usize) -> bool {
        self.freed += bytes;
        let is_due = self.freed >= RETURNED;
        if is_due {
            self.control.push_back(Head::new(Kind::Credit, 0, std::mem::take(&mut self.freed), 0));
        }
        is_due
    }

    /// Confirms the peer's oldest unconfirmed stream; consecutive confirmations share one record.
    pub(crate) fn confirm(&mut self) {
        match self.control.back_mut() {
            Some(Head { words: [first, count], .. }) if *first == Kind::Ack as u64 => *count += 1,
            _ => self.answer(Head::new(Kind::Ack, 0, 0, 1)),
        }
    }

    /// Refuses the peer's oldest unconfirmed stream.
    pub(crate) fn refuse(&mut self, error: c_int) {
        self.answer(Head::new(Kind::Nack, 0, 0, u64::from(error.unsigned_abs())));
    }

    /// Refuses a read by the peer, by its handle.
    pub(crate) fn fail_read(&mut self, handle: u64, error: c_int) {
        let error = error.unsigned_abs() as usize;
        self.answer(Head::new(Kind::ReadFailed, 0, error, handle));
    }

    fn answer(&mut self, head: Head) {
        self.answers += 1;
        self.control.push_back(head);
    }

    /// Answers an operation of the peer with a stream, which ends with [`End::Serve`] or [`End::Answer`].
    pub(crate) fn answer_with(&mut self, departure: Departure) {
        self.answers += 1;
        self.departures.push_back(departure);
    }

    /// Records that an answer was sent.
    pub(crate) const fn on_answered(&mut self) {
        self.answers -= 1;
    }

    /// Takes the oldest operation that waits for a confirmation.
    pub(crate) fn take_unconfirmed(&mut self) -> Option<Finish> {
        let finish = self.unconfirmed.pop_front()?;
        self.requests -= 1;
        Some(finish)
    }

    /// Removes everything that waits to be sent to a lost peer, or for its answer. Returns the streams and the operations.
    pub(crate) fn clear(&mut self) -> (VecDeque<Departure>, VecDeque<Finish>) {
        (self.requests, self.answers) = (0, 0);
        self.control.clear();
        (std::mem::take(&mut self.departures), std::mem::take(&mut self.unconfirmed))
    }

    /// Returns whether more records wait than a correct peer causes.
    pub(crate) fn is_flooded(&self) -> bool {
        self.answers > MAX_ANSWERS || self.control.len() > MAX_CONTROL
    }

    /// Returns the bytes of payload of the next record to send.
    pub(crate) fn needed(&self) -> usize {
        match (self.control.front(), self.departures.front()) {
            (Some(head), _) => head.prefix_bytes(),
            (None, Some(departure)) => {
                let (head, part) = departure.next();
                head.prefix_bytes() + part
            }
            (None, None) => 0,
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.control.is_empty() || !self.departures.is_empty()
    }
}
