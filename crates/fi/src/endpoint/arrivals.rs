//! Records from peers: each is checked as a whole before it changes anything.

use midplane_simhw::shm::{Corrupt, Record, RingReceiver};

use super::{Domain, Pair, Requested, State, TURN};
use crate::abi::constants::{EACCES, REMOTE_CQ_DATA, REMOTE_WRITE, RMA};
use crate::completion::{Class, Entry};
use crate::matching::{Body, Envelope, Kind as Tagging};
use crate::peer::{Content, Departure, ENTRY, End, Inbound, Target, WINDOW};
use crate::record::{CONFIRM, HAS_DATA, Head, Kind, parse};
use crate::region::Regions;

/// Most messages of one peer whose RTS has arrived and that wait for a receive.
const MAX_ANNOUNCED: usize = 1 << 20;

/// A record from a peer.
pub(super) struct Arrival<'a> {
    pub(super) peer: usize,
    pub(super) flags: u64,
    pub(super) length: usize,
    pub(super) second: u64,
    /// Bytes of the payload.
    pub(super) bytes: usize,
    pub(super) from: &'a RingReceiver,
}

impl Arrival<'_> {
    /// Reads the first `count` words of the payload, at most two.
    #[inline]
    pub(super) fn prefix(&self, count: usize) -> Result<[u64; 2], Corrupt> {
        let mut bytes = [0; 16];
        if self.bytes < 8 * count {
            return Err(Corrupt);
        }
        if count > 0 {
            self.from.read(0, &mut bytes[..8 * count]);
        }
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }

    /// Reads `count` words, and the message's data if it has any. Also returns the total number of words read.
    #[inline]
    fn prefix_and_data(&self, count: usize) -> Result<([u64; 2], Option<u64>, usize), Corrupt> {
        let has_data = self.flags & HAS_DATA != 0;
        let all = count + usize::from(has_data);
        let words = self.prefix(all)?;
        Ok((words, has_data.then(|| words[count]), all))
    }
}

impl State {
    /// Handles at most a batch of records from a peer; returns whether there were any. While the queue of received
    /// messages is full, stops at a record that may need an entry in it.
    #[inline]
    pub(super) fn receive(
        &mut self,
        pair: &mut Pair,
        domain: &mut Domain<'_>,
    ) -> Result<bool, Corrupt> {
        let mut has_any = false;
        let is_full = self.bindings.is_full(domain.out);
        for _ in 0..TURN {
            let Some(record) = pair.rings.receiver.peek()? else {
                if pair.has_ended {
                    return Err(Corrupt);
                }
                break;
            };
            if is_full && self.may_complete_receive(pair.peer, record) {
                break;
            }
            has_any = true;
            self.on_record(pair.peer, record, &pair.rings.receiver, domain)?;
            if pair.rings.receiver.advance(record) {
                pair.rings.wake();
            }
        }
        Ok(has_any)
    }

    /// Returns whether handling a record may need an entry in the queue of received messages.
    fn may_complete_receive(
        &self,
        peer: usize,
        Record { words: [first, second], .. }: Record,
    ) -> bool {
        let Some((kind, flags, _)) = parse(first) else { return false };
        match kind {
            Kind::Tagged | Kind::Plain => true,
            Kind::Write => flags & HAS_DATA != 0,
            Kind::Data => {
                let requested =
                    usize::try_from(second).ok().and_then(|key| self.requested.get(key));
                matches!(requested, Some((_, Requested::Receive(_))))
            }
            Kind::More => {
                let target = self.peers[peer].inbound.as_ref().map(|inbound| &inbound.target);
                let needs_none = |target: &Target| {
                    matches!(
                        target,
                        Target::Read(..)
                            | Target::Region { data: None, .. }
                            | Target::Refused
                            | Target::Discard
                    )
                };
                !target.is_none_or(needs_none)
            }
            _ => false,
        }
    }

    #[inline]
    fn on_record(
        &mut self,
        peer: usize,
        record: Record,
        from: &RingReceiver,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let Record { words: [first, second], length: bytes } = record;
        let (kind, flags, length) = parse(first).ok_or(Corrupt)?;
        let arrival = Arrival { peer, flags, length, second, bytes, from };
        match kind {
            Kind::Tagged => self.on_message(&arrival, Tagging::Tagged, domain),
            Kind::Plain => self.on_message(&arrival, Tagging::Plain, domain),
            Kind::TaggedRts => self.on_announcement(&arrival, Tagging::Tagged, domain),
            Kind::PlainRts => self.on_announcement(&arrival, Tagging::Plain, domain),
            Kind::More => {
                let inbound = self.peers[peer].inbound.take().ok_or(Corrupt)?;
                self.fill(inbound, &arrival, 0, domain)
            }
            Kind::Cut => self.on_cut(&arrival, domain),
            Kind::Data => self.on_data(&arrival, domain),
            Kind::Write => self.on_write(&arrival, domain),
            Kind::Read => self.on_read(&arrival, domain.regions),
            Kind::Atomic => self.on_atomic(&arrival, domain),
            Kind::Cts => self.on_cts(&arrival),
            Kind::Ack => self.on_ack(&arrival, domain),
            Kind::Nack => {
                let finish = self.peers[peer].take_unconfirmed().ok_or(Corrupt)?;
                let error = i32::try_from(second).map_err(|_| Corrupt)?.max(1);
                self.fail(finish, error, domain.out);
                Ok(())
            }
            Kind::ReadFailed => self.on_read_failed(&arrival, domain),
            Kind::Credit => {
                let peer = &mut self.peers[peer];
                peer.window += length;
                if peer.window > WINDOW { Err(Corrupt) } else { Ok(()) }
            }
        }
    }

    #[inline]
    fn on_message(
        &mut self,
        arrival: &Arrival<'_>,
        kind: Tagging,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let (_, data, words) = arrival.prefix_and_data(0)?;
        let Arrival { peer, length, second: tag, .. } = *arrival;
        let envelope = Envelope { kind, peer, tag, data, length };
        let target = match self.matching.arrive(envelope, self.source(peer)) {
            Some(matched) => {
                self.free(peer, length + ENTRY);
                Target::Receive(matched)
            }
            None => {
                let occupied = &mut self.peers[peer].occupied;
                *occupied += length + ENTRY;
                if *occupied > WINDOW {
                    return Err(Corrupt);
                }
                let body = Body::Here(vec![0; length], false);
                Target::Unexpected(self.matching.keep(envelope, body))
            }
        };
        self.release_multis(domain.out);
        let confirms = arrival.flags & CONFIRM != 0;
        let inbound = Inbound { target, length, done: 0, confirms };
        self.begin(inbound, arrival, words, domain)
    }

    fn on_announcement(
        &mut self,
        arrival: &Arrival<'_>,
        kind: Tagging,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let ([handle, _], data, _) = arrival.prefix_and_data(1)?;
        let Arrival { peer, length, second: tag, .. } = *arrival;
        let envelope = Envelope { kind, peer, tag, data, length };
        match self.matching.arrive(envelope, self.source(peer)) {
            Some(matched) => self.ask(handle, matched),
            None => {
                self.peers[peer].announced += 1;
                if self.peers[peer].announced > MAX_ANNOUNCED {
                    return Err(Corrupt);
                }
                self.matching.keep(envelope, Body::Announced(handle));
            }
        }
        self.release_multis(domain.out);
        if self.peers[peer].is_flooded() { Err(Corrupt) } else { Ok(()) }
    }

    fn on_cts(&mut self, arrival: &Arrival<'_>) -> Result<(), Corrupt> {
        let [receiver, _] = arrival.prefix(1)?;
        let handle = usize::try_from(arrival.second).map_err(|_| Corrupt)?;
        let announced = self.announced.get(handle).ok_or(Corrupt)?;
        if announced.peer != arrival.peer || arrival.length > announced.content.len() {
            return Err(Corrupt);
        }
        let announced = self.announced.remove(handle);
        self.send_announced(announced, arrival.length, receiver);
        Ok(())
    }

    fn on_data(&mut self, arrival: &Arrival<'_>, domain: &mut Domain<'_>) -> Result<(), Corrupt> {
        let requested = self.take_requested(arrival)?;
        let (target, expected) = match requested {
            Requested::Receive(matched) => {
                let expected = matched.envelope.length.min(matched.buffer.len());
                (Target::Receive(matched), expected)
            }
            Requested::Read(buffer, finish) => (Target::Read(buffer, finish), buffer.len()),
            Requested::Discard => (Target::Discard, 0),
        };
        let confirms = arrival.flags & CONFIRM != 0;
        let inbound = Inbound { target, length: arrival.length, done: 0, confirms };
        if arrival.length != expected {
            self.abandon(inbound, domain.out);
            return Err(Corrupt);
        }
        self.begin(inbound, arrival, 0, domain)
    }

    fn on_cut(&mut self, arrival: &Arrival<'_>, domain: &mut Domain<'_>) -> Result<(), Corrupt> {
        let error = i32::try_from(arrival.second).map_err(|_| Corrupt)?.max(1);
        match self.peers[arrival.peer].inbound.take() {
            Some(Inbound { target: Target::Read(_, finish), .. }) => {
                self.fail(finish, error, domain.out);
                Ok(())
            }
            other => {
                self.peers[arrival.peer].inbound = other;
                Err(Corrupt)
            }
        }
    }

    fn take_requested(&mut self, arrival: &Arrival<'_>) -> Result<Requested, Corrupt> {
        let handle = usize::try_from(arrival.second).map_err(|_| Corrupt)?;
        if self.requested.get(handle).is_none_or(|(peer, _)| *peer != arrival.peer) {
            return Err(Corrupt);
        }
        let (_, requested) = self.requested.remove(handle);
        if matches!(requested, Requested::Read(..)) {
            self.peers[arrival.peer].requests -= 1;
        }
        Ok(requested)
    }

    fn on_write(&mut self, arrival: &Arrival<'_>, domain: &mut Domain<'_>) -> Result<(), Corrupt> {
        let ([address, _], data, words) = arrival.prefix_and_data(1)?;
        let Arrival { second: key, length, .. } = *arrival;
        let target = match domain.regions.writable(key, address, length) {
            Some(_) => Target::Region { key, address, data },
            None => Target::Refused,
        };
        let inbound = Inbound { target, length, done: 0, confirms: true };
        self.begin(inbound, arrival, words, domain)
    }

    fn on_read(&mut self, arrival: &Arrival<'_>, regions: &Regions) -> Result<(), Corrupt> {
        let [address, handle] = arrival.prefix(2)?;
        let Arrival { peer, second: key, length, .. } = *arrival;
        if regions.readable(key, address, length).is_some() {
            let head = Head::new(Kind::Data, 0, length, handle);
            let content = Content::Region { key, address, length };
            self.peers[peer].answer_with(Departure::new(head, content, End::Serve(key)));
        } else {
            self.peers[peer].fail_read(handle, EACCES);
        }
        self.list(peer);
        if self.peers[peer].is_flooded() { Err(Corrupt) } else { Ok(()) }
    }

    fn on_ack(&mut self, arrival: &Arrival<'_>, domain: &mut Domain<'_>) -> Result<(), Corrupt> {
        for _ in 0..arrival.second {
            let finish = self.peers[arrival.peer].take_unconfirmed().ok_or(Corrupt)?;
            self.bindings.complete(domain.out, finish.class, finish.reports, finish.entry);
        }
        Ok(())
    }

    fn on_read_failed(
        &mut self,
        arrival: &Arrival<'_>,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let error = i32::try_from(arrival.length).map_err(|_| Corrupt)?.max(1);
        match self.take_requested(arrival)? {
            Requested::Read(_, finish) => self.fail(finish, error, domain.out),
            Requested::Receive(matched) => self.fail_receive(&matched, error, domain.out),
            Requested::Discard => {}
        }
        Ok(())
    }

    /// Begins a stream whose bytes follow the first `words` words of the payload.
    #[inline]
    fn begin(
        &mut self,
        inbound: Inbound,
        arrival: &Arrival<'_>,
        words: usize,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        if self.peers[arrival.peer].inbound.is_some() {
            self.abandon(inbound, domain.out);
            return Err(Corrupt);
        }
        self.fill(inbound, arrival, 8 * words, domain)
    }

    /// Stores the bytes of a record from `skip` on.
    #[inline]
    fn fill(
        &mut self,
        mut inbound: Inbound,
        arrival: &Arrival<'_>,
        skip: usize,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let (done, part, from) = (inbound.done, arrival.bytes - skip, arrival.from);
        if part > inbound.length - done {
            self.abandon(inbound, domain.out);
            return Err(Corrupt);
        }
        match &mut inbound.target {
            Target::Receive(matched) => {
                let part = part.min(matched.buffer.len().saturating_sub(done));
                matched.buffer.fill(done, part, |at, bytes| from.read(skip + at, bytes));
            }
            Target::Read(buffer, _) => {
                buffer.fill(done, part, |at, bytes| from.read(skip + at, bytes));
            }
            Target::Unexpected(key) => {
                let message = self.matching.messages.get_mut(*key);
                if let Some(Body::Here(bytes, _)) = message.map(|message| &mut message.body) {
                    from.read(skip, &mut bytes[done..done + part]);
                }
            }
            Target::Region { key, address, .. } => {
                match domain.regions.writable(*key, *address + done as u64, part) {
                    Some(buffer) => {
                        buffer.fill(0, part, |at, bytes| from.read(skip + at, bytes));
                    }
                    None => inbound.target = Target::Refused,
                }
            }
            Target::Refused | Target::Discard => {}
        }
        inbound.done += part;
        if inbound.done < inbound.length {
            self.peers[arrival.peer].inbound = Some(inbound);
            return Ok(());
        }
        self.arrived(arrival.peer, inbound, domain)
    }

    /// Handles the end of a stream.
    #[inline]
    fn arrived(
        &mut self,
        peer: usize,
        inbound: Inbound,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        if inbound.confirms {
            let sender = &mut self.peers[peer];
            if matches!(inbound.target, Target::Refused) {
                sender.refuse(EACCES);
            } else {
                sender.confirm();
            }
            if sender.is_flooded() {
                self.abandon(inbound, domain.out);
                return Err(Corrupt);
            }
            self.list(peer);
        }
        match inbound.target {
            Target::Receive(matched) => self.deliver(&matched, domain.out),
            Target::Read(_, finish) => {
                self.bindings.complete(domain.out, finish.class, finish.reports, finish.entry);
            }
            Target::Unexpected(key) => self.complete_unexpected(key, domain.out),
            Target::Region { key, data, .. } => {
                let entry = Entry {
                    length: inbound.length,
                    data: data.unwrap_or(0),
                    source: self.source(peer),
                    ..Entry::of(0, RMA | REMOTE_WRITE | REMOTE_CQ_DATA)
                };
                self.serve(key, Class::RemoteWrite, data.is_some(), entry, domain);
            }
            Target::Refused | Target::Discard => {}
        }
        Ok(())
    }

    /// Completes a peer's operation on a region; also counts it in the region's counter.
    pub(super) fn serve(
        &self,
        key: u64,
        class: Class,
        reports: bool,
        entry: Entry,
        domain: &mut Domain<'_>,
    ) {
        if let Some(counter) = domain.regions.counter(key, class) {
            domain.out.count(counter);
        }
        self.bindings.complete(domain.out, class, reports, entry);
    }
}
