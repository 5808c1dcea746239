//! Sends, writes and reads: from the call to the last byte in the ring.

use std::ffi::c_int;

use midplane_simhw::shm::rings::RingPair;

use super::{Announced, Domain, Endpoint, Requested, State};
use crate::abi::constants::{
    EACCES, EAGAIN, EINVAL, EMSGSIZE, MSG, READ, REMOTE_READ, RMA, SEND, TAGGED, WRITE,
};
use crate::completion::{Class, Entry};
use crate::matching;
use crate::memory::Buffer;
use crate::peer::{Content, Departure, ENTRY, End, Finish, Link, MAX_REQUESTS, RegionGone};
use crate::record::{CONFIRM, HAS_DATA, Head, Kind, MAX_LENGTH};
use crate::region::Regions;

/// Most bytes of an eager message. A longer one would be copied twice if it arrived before its receive.
const EAGER: usize = 64 * 1024;
/// Most streams that may wait for a peer's ring, and most messages whose RTS waits for a CTS.
const MAX_WAITING: usize = 16 * 1024;
const MAX_ANNOUNCED: usize = 1 << 19;

/// The fields of a message to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) kind: matching::Kind,
    pub(crate) tag: u64,
}

/// The effect of an operation on its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Message(Message),
    Write { key: u64, address: u64 },
    Read { key: u64, address: u64 },
}

/// An operation on the caller's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    /// The peer's address in the address vector.
    pub(crate) to: u64,
    pub(crate) transfer: Transfer,
    pub(crate) buffer: Buffer,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    /// True if the operation has an entry in its queue.
    pub(crate) reports: bool,
    /// True if the caller may change the bytes as soon as the call returns.
    pub(crate) is_injected: bool,
    pub(crate) completes: Completes,
}

/// The event at which a send completes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Completes {
    /// The caller may reuse its bytes.
    Sent,
    /// The receiver's process has the message, in a receive's buffer or in the provider's memory.
    Delivered,
    /// A receive has matched the message and has its bytes.
    Matched,
}

impl Post {
    fn finish(&self) -> Finish {
        let (class, flags) = match self.transfer {
            Transfer::Message(Message { kind: matching::Kind::Tagged, .. }) => {
                (Class::Send, SEND | TAGGED)
            }
            Transfer::Message(_) => (Class::Send, SEND | MSG),
            Transfer::Write { .. } => (Class::Write, WRITE | RMA),
            Transfer::Read { .. } => (Class::Read, READ | RMA),
        };
        let length = if class == Class::Read { self.buffer.len() } else { 0 };
        let entry = Entry { length, ..Entry::of(self.context, flags) };
        Finish { class, reports: self.reports, entry }
    }

    /// Returns whether the peer answers the operation, by data or a confirmation.
    fn is_answered(&self) -> bool {
        !matches!(self.transfer, Transfer::Message(_)) || self.completes != Completes::Sent
    }

    const fn flags(&self) -> u64 {
        if self.data.is_some() { HAS_DATA } else { 0 }
    }

    fn content(&self) -> Content {
        if self.is_injected {
            Content::Copied(self.buffer.to_vec().into())
        } else {
            Content::Borrowed(self.buffer)
        }
    }
}

fn with_data(head: Head, data: Option<u64>) -> Head {
    data.map_or(head, |data| head.with(data))
}

impl Endpoint {
    /// Starts an operation.
    ///
    /// # Errors
    /// A positive error of libfabric; the operation then has no completion. After `EAGAIN`, repeat it after some
    /// progress.
    #[inline]
    pub(crate) fn post(&mut self, post: &Post, domain: &mut Domain<'_>) -> Result<(), c_int> {
        let is_answered = post.is_answered();
        let peer = self.admit(post.to, is_answered)?;
        if post.buffer.len() > MAX_LENGTH {
            return Err(EMSGSIZE);
        }
        self.state.peers[peer].requests += usize::from(is_answered);
        let mut departure = match post.transfer {
            Transfer::Message(message) => self.state.message(peer, post, message),
            Transfer::Write { key, address } => {
                let head = Head::new(Kind::Write, post.flags(), post.buffer.len(), key);
                let head = with_data(head.with(address), post.data);
                Departure::new(head, Content::Borrowed(post.buffer), End::Confirm(post.finish()))
            }
            Transfer::Read { key, address } => {
                let requested = Requested::Read(post.buffer, post.finish());
                let handle = self.state.requested.insert((peer, requested));
                let head = Head::new(Kind::Read, 0, post.buffer.len(), key).with(address);
                Departure::new(head.with(handle as u64), Content::Copied([].into()), End::Nothing)
            }
        };
        if self.try_depart(peer, &mut departure, domain) {
            return Ok(());
        }
        if post.is_injected {
            departure.keep();
        }
        self.state.enqueue(peer, departure);
        Ok(())
    }

    /// Returns the peer with this number in the address vector, if it accepts one more operation. `is_answered` is true
    /// if the peer has to answer it.
    #[inline]
    pub(super) fn admit(&mut self, to: u64, is_answered: bool) -> Result<usize, c_int> {
        let number = self.state.route(to)?;
        let peer = &self.state.peers[number];
        if let Link::Lost(code) = peer.link {
            return Err(code);
        }
        if peer.departures.len() >= MAX_WAITING
            || self.state.announced.len() >= MAX_ANNOUNCED
            || (is_answered && peer.requests >= MAX_REQUESTS)
        {
            return Err(EAGAIN);
        }
        Ok(number)
    }

    /// Sends a stream now, or queues it until the peer's ring has space.
    pub(super) fn depart(
        &mut self,
        peer: usize,
        mut departure: Departure,
        domain: &mut Domain<'_>,
    ) {
        if !self.try_depart(peer, &mut departure, domain) {
            self.state.enqueue(peer, departure);
        }
    }

    /// Sends as much of a stream as the ring has space for, unless other streams wait. Returns whether all of it was
    /// sent.
    #[inline]
    fn try_depart(
        &mut self,
        peer: usize,
        departure: &mut Departure,
        domain: &mut Domain<'_>,
    ) -> bool {
        if !self.state.peers[peer].has_work()
            && let Link::Open(key) = self.state.peers[peer].link
        {
            let rings = &mut self.pairs[key].rings;
            // The stream of a send reads no region, so it can't fail.
            let is_sent = departure.advance(&mut rings.sender, domain.regions).unwrap_or(false);
            if rings.sender.must_wake() {
                rings.wake();
            }
            if self.pairs[key].is_remote
                && let Some(network) = &mut self.network
            {
                network.send_now();
            }
            if is_sent {
                self.state.finish(peer, departure.end, domain);
                return true;
            }
        }
        false
    }
}

impl State {
    /// Returns the peer with this number in the address vector.
    #[inline]
    fn route(&mut self, to: u64) -> Result<usize, c_int> {
        let index = usize::try_from(to).map_err(|_| EINVAL)?;
        match self.routes.get(index) {
            Some(Some((_, Some(peer)))) => Ok(*peer),
            Some(Some((address, None))) => Ok(self.peer_of(address.endpoint)),
            _ => Err(EINVAL),
        }
    }

    /// Creates the stream of an eager message, or of an RTS.
    #[inline]
    fn message(&mut self, number: usize, post: &Post, message: Message) -> Departure {
        let Message { kind, tag } = message;
        let (peer, length) = (&mut self.peers[number], post.buffer.len());
        let (eager, announcement) = match kind {
            matching::Kind::Tagged => (Kind::Tagged, Kind::TaggedRts),
            matching::Kind::Plain => (Kind::Plain, Kind::PlainRts),
        };
        let confirms = post.completes != Completes::Sent;
        if post.completes != Completes::Matched && length <= EAGER && length + ENTRY <= peer.window
        {
            peer.window -= length + ENTRY;
            let (flag, end) = if confirms {
                (CONFIRM, End::Confirm(post.finish()))
            } else {
                (0, End::Complete(post.finish()))
            };
            let head = with_data(Head::new(eager, post.flags() | flag, length, tag), post.data);
            return Departure::new(head, Content::Borrowed(post.buffer), end);
        }
        let (content, finish) = (post.content(), post.finish());
        let announced = Announced { peer: number, content, finish, confirms };
        let handle = self.announced.insert(announced) as u64;
        let head = Head::new(announcement, post.flags(), length, tag).with(handle);
        Departure::new(with_data(head, post.data), Content::Copied([].into()), End::Nothing)
    }

    fn enqueue(&mut self, peer: usize, departure: Departure) {
        self.peers[peer].departures.push_back(departure);
        self.list(peer);
    }

    /// Sends the first `length` bytes of a message whose CTS has arrived.
    pub(super) fn send_announced(&mut self, announced: Announced, length: usize, receiver: u64) {
        let Announced { peer, content, finish, confirms } = announced;
        let content = match content {
            Content::Borrowed(buffer) => Content::Borrowed(buffer.slice(0, length)),
            Content::Copied(bytes) => Content::Copied(bytes[..length].into()),
            region @ Content::Region { .. } => region,
        };
        let (flags, end) =
            if confirms { (CONFIRM, End::Confirm(finish)) } else { (0, End::Complete(finish)) };
        let head = Head::new(Kind::Data, flags, length, receiver);
        self.enqueue(peer, Departure::new(head, content, end));
    }

    fn finish(&mut self, peer: usize, end: End, domain: &mut Domain<'_>) {
        match end {
            End::Nothing => {}
            End::Complete(finish) => {
                self.bindings.complete(domain.out, finish.class, finish.reports, finish.entry);
            }
            End::Confirm(finish) => self.peers[peer].unconfirmed.push_back(finish),
            End::Answer => self.peers[peer].on_answered(),
            End::Serve(key) => {
                self.peers[peer].on_answered();
                let entry = Entry::of(0, RMA | REMOTE_READ);
                self.serve(key, Class::RemoteRead, false, entry, domain);
            }
        }
    }

    /// Sends a peer's waiting records, as far as its ring has space. Returns whether any was sent.
    pub(super) fn flush(
        &mut self,
        number: usize,
        rings: &mut RingPair,
        domain: &mut Domain<'_>,
    ) -> bool {
        let mut has_any = false;
        while self.flush_control(number, rings, domain.regions, &mut has_any) {
            let Some(departure) = self.peers[number].departures.front_mut() else { break };
            let before = departure.sent();
            let advanced = departure.advance(&mut rings.sender, domain.regions);
            has_any |= advanced.as_ref().is_ok_and(|is_sent| *is_sent) || departure.sent() > before;
            if matches!(advanced, Ok(false)) {
                break;
            }
            let Some(departure) = self.peers[number].departures.pop_front() else { break };
            match advanced {
                Ok(_) => self.finish(number, departure.end, domain),
                // This record is now the answer.
                Err(RegionGone) => self.peers[number].control.push_back(departure.cut(EACCES)),
            }
        }
        if has_any && rings.sender.must_wake() {
            rings.wake();
        }
        has_any
    }

    /// Sends the records that precede streams; returns whether all were sent.
    fn flush_control(
        &mut self,
        number: usize,
        rings: &mut RingPair,
        regions: &Regions,
        has_any: &mut bool,
    ) -> bool {
        while let Some(head) = self.peers[number].control.front() {
            let mut departure = Departure::new(*head, Content::Copied([].into()), End::Nothing);
            if !departure.advance(&mut rings.sender, regions).unwrap_or(false) {
                return false;
            }
            *has_any = true;
            let is_answer = head.is_answer();
            self.peers[number].control.pop_front();
            if is_answer {
                self.peers[number].on_answered();
            }
        }
        true
    }
}
