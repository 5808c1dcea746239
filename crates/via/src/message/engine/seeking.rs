//! Messages that wait at their sender: hints, questions for them, and answers.

use super::arrivals::Breach;
use super::hinted::Place;
use super::peer::Link;
use super::seeks::{Offer, Seeker};
use super::{Arrived, Core, ENTRY, MAX_LENGTH};
use crate::message::envelope::{Envelope, Kind, Marks, Peer, Tag};
use crate::message::matching::{Key, Pattern, PostedId, UnexpectedMessage};
use crate::message::request::{Failure, Operation, Request, Status};
use crate::message::transport::{Claim, Probe};

/// Bits of `sequence` in [`Kind::Sought`]: more messages that match wait; any messages wait.
const MORE_SUCH: u32 = 1;
const MORE: u32 = 2;

/// Answers to notices of a process that may wait when it sends a hint of a notice, in addition to as many as its window
/// holds messages. A process that sends more such hints without receiving the answers violates the protocol.
const MOST_NOTICES: usize = 1024;

/// Entries of a queue of questions, beyond twice the posted receives, at which receives no longer posted are removed.
const STALE: usize = 64;

impl Core {
    /// Handles a hint: matches the message with a receive that waits for it, or stores only its key.
    pub(super) fn on_hint(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        bytes: usize,
    ) -> Result<(), Breach> {
        if bytes != 0 || envelope.from == 0 || envelope.length as usize > MAX_LENGTH {
            return Err(Breach);
        }
        self.report_all_credit(from);
        let key = Key::of(envelope);
        if key.is_notice() {
            let most = self.config.window / ENTRY + MOST_NOTICES;
            if self.link(from).is_some_and(|link| link.noticed >= most) {
                return Err(Breach);
            }
            self.leave(key);
            self.answer(from, Kind::Cts, Marks::NONE, (envelope.from, 0), 0);
            return Ok(());
        }
        let first = self.matching.first_posted(key);
        let link = self.link_mut(from).ok_or(Breach)?;
        // The answer to an open question covers this message as well.
        if first.is_some() && link.seeks.asking.is_none() {
            self.counters.expected += 1;
            let (sender, length) = (envelope.from, envelope.length);
            self.accept(&Offer { key, sender, length, any_tag: false });
            return Ok(());
        }
        link.seeks.forgotten.add(key);
        link.seeks.missed |= first.is_some();
        self.hinting.insert(from);
        self.counters.unexpected += 1;
        self.counters.ready_too_early += u64::from(envelope.marks.contains(Marks::READY));
        self.requests.note_move();
        Ok(())
    }

    /// Matches a message that waits at its sender with the first receive that accepts it.
    fn accept(&mut self, offer: &Offer) {
        let (arrival, receive) = self.matching.arrive(offer.key);
        if let Some(receive) = receive {
            let message = offer.arrived();
            self.meet(receive, UnexpectedMessage { key: offer.key, arrival, message });
        }
    }

    /// Asks the senders whose hints match on behalf of a receive that was just posted.
    pub(super) fn seek(&mut self, receive: Request, pattern: &Pattern, posted: PostedId) {
        let asked = |peer: &Peer| pattern.source.is_none_or(|source| source == *peer);
        let peers: Vec<_> = self.hinting.iter().copied().filter(asked).collect();
        for peer in peers {
            if self.link(peer).is_some_and(|link| link.seeks.forgotten.accepts(pattern)) {
                self.enqueue(peer, posted.stamp(), receive);
                self.ask(peer);
            }
        }
    }

    fn enqueue(&mut self, peer: Peer, stamp: u64, receive: Request) {
        let most = 2 * self.matching.posted_len() + STALE;
        let Self { links, requests, .. } = self;
        let Some(link) = links.get_mut(peer.0 as usize) else { return };
        let queue = &mut link.seeks.queue;
        queue.insert(stamp, receive);
        if queue.len() > most {
            let posted = |stamp, receive| {
                let record = requests.get(receive);
                record.and_then(|record| record.posted).is_some_and(|p| p.stamp() == stamp)
            };
            queue.retain(|stamp, receive| posted(*stamp, *receive));
        }
    }

    fn is_posted(&self, (stamp, receive): (u64, Request)) -> bool {
        let posted = self.requests.get(receive).and_then(|record| record.posted);
        posted.is_some_and(|posted| posted.stamp() == stamp)
    }

    /// Asks a sender on behalf of its earliest posted receive; one question at a time.
    fn ask(&mut self, peer: Peer) {
        loop {
            let Some(link) = self.link_mut(peer).filter(|link| !link.lost) else { return };
            if link.seeks.asking.is_some() {
                return;
            }
            let Some((stamp, receive)) = link.seeks.queue.pop_first() else { break };
            let pattern = match self.requests.get(receive).map(|record| record.operation) {
                Some(Operation::Receive(pattern)) if self.is_posted((stamp, receive)) => pattern,
                _ => continue,
            };
            return self.question(peer, Seeker { pattern, receive: Some((stamp, receive)) });
        }
        let quiet = self.link(peer).is_none_or(|link| link.seeks.is_quiet());
        if quiet {
            self.hinting.remove(&peer);
        }
    }

    fn question(&mut self, peer: Peer, seeker: Seeker) {
        let envelope = Envelope {
            length: u32::from(seeker.pattern.tag.is_none()),
            tag: seeker.pattern.tag.unwrap_or(Tag(0)),
            kind: Kind::Seek,
            marks: Marks::NONE,
            source: self.own,
            context: seeker.pattern.context,
            sequence: 0,
            to: 0,
            from: seeker.receive.map_or(0, |(_, receive)| receive.to_handle()),
        };
        if let Some(link) = self.link_mut(peer) {
            link.seeks.asking = Some(seeker);
        }
        self.push_answer(peer, envelope);
    }

    /// Handles a question: offers the first message that waits here and matches.
    pub(super) fn on_seek(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        self.admit_question(from)?;
        let (context, own) = (envelope.context, self.own);
        let tag = (envelope.length == 0).then_some(envelope.tag);
        let link = self.link_mut(from).ok_or(Breach)?;
        let found = link.hinted.first(context, tag);
        if let Some(send) = found {
            link.hinted.put(send, Place::Offered);
        }
        let more_such = link.hinted.first(context, tag).is_some();
        let more = more_such || link.hinted.has_free();
        let record = found.and_then(|send| Some((send, self.requests.get(send)?)));
        let sent = record.and_then(|(send, record)| match record.operation {
            Operation::Send { tag, .. } => {
                Some((send.to_handle(), tag, record.message_bytes() as u32))
            }
            _ => None,
        });
        let (handle, tag, length) = sent.unwrap_or((0, envelope.tag, 0));
        let answer = Envelope {
            length,
            tag,
            kind: Kind::Sought,
            marks: if sent.is_some() { Marks::GRANTED } else { Marks::NONE },
            source: own,
            context,
            sequence: u32::from(more_such) * MORE_SUCH + u32::from(more) * MORE,
            to: envelope.from,
            from: handle,
        };
        self.push_answer(from, answer);
        Ok(())
    }

    /// Handles the answer to this process's question.
    pub(super) fn on_sought(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        let link = self.link_mut(from).ok_or(Breach)?;
        let Seeker { pattern, receive } = link.seeks.asking.take().ok_or(Breach)?;
        let handle = receive.map_or(0, |(_, receive)| receive.to_handle());
        let key = Key { source: from, ..Key::of(envelope) };
        let granted = envelope.marks.contains(Marks::GRANTED);
        let sound =
            envelope.from != 0 && pattern.accepts(key) && envelope.length as usize <= MAX_LENGTH;
        if envelope.to != handle || granted && !sound {
            return Err(Breach);
        }
        let forgotten = &mut link.seeks.forgotten;
        if envelope.sequence & MORE == 0 {
            forgotten.clear();
        } else if envelope.sequence & MORE_SUCH == 0 {
            forgotten.remove(&pattern);
        }
        if std::mem::take(&mut link.seeks.missed) {
            self.seek_missed(from, receive);
        }
        if granted {
            let (sender, length) = (envelope.from, envelope.length);
            let any_tag = pattern.tag.is_none();
            self.on_offer(from, &Offer { key, sender, length, any_tag }, receive);
        }
        self.requests.note_move();
        self.ask(from);
        Ok(())
    }

    /// Queues the receives that missed hints while a question was open, because they may have to ask as well.
    fn seek_missed(&mut self, from: Peer, asked: Option<(u64, Request)>) {
        let Some(link) = self.link(from) else { return };
        let concerned: Vec<_> = self
            .matching
            .posted()
            .filter(|(_, pattern, _)| pattern.source.is_none_or(|source| source == from))
            .filter(|(_, pattern, _)| link.seeks.forgotten.accepts(pattern))
            .map(|(posted, _, receive)| (posted.stamp(), receive))
            .filter(|posted| Some(*posted) != asked)
            .collect();
        for (stamp, receive) in concerned {
            self.enqueue(from, stamp, receive);
        }
    }

    /// Gives an offered message to the receive that asked, or to a probe.
    fn on_offer(&mut self, from: Peer, offer: &Offer, asked: Option<(u64, Request)>) {
        let first = self.matching.first_posted(offer.key);
        let Some(link) = self.link_mut(from) else { return };
        match first {
            Some((posted, _)) if !link.seeks.is_unsettled(posted) => return self.accept(offer),
            None if asked.is_none() => {
                link.seeks.found = Some(*offer);
                return;
            }
            // A receive posted earlier may match an earlier message: it asks first.
            Some(_) | None => {}
        }
        self.settle(from, offer.key, offer.sender, false);
        if let Some((stamp, receive)) = asked.filter(|asked| self.is_posted(*asked)) {
            self.enqueue(from, stamp, receive);
        }
    }

    /// Notifies a sender whether its offered message was taken.
    fn settle(&mut self, peer: Peer, key: Key, sender: u64, taken: bool) {
        let marks = if taken { Marks::GRANTED } else { Marks::NONE };
        if let Some(link) = self.link_mut(peer).filter(|link| !taken && !link.lost) {
            link.seeks.forgotten.add(key);
            self.hinting.insert(peer);
        }
        self.answer(peer, Kind::Settle, marks, (sender, 0), 0);
    }

    /// Returns a message that a probe has found: it waits with its sender again.
    fn return_found(&mut self, peer: Peer) {
        let found = self.link_mut(peer).and_then(|link| link.seeks.found.take());
        if let Some(offer) = found {
            self.settle(peer, offer.key, offer.sender, false);
        }
    }

    /// Handles the receiver's decision to hold an offered message or to return it.
    pub(super) fn on_settle(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        let send = self.answered(from, envelope.to)?;
        let taken = envelope.marks.contains(Marks::GRANTED);
        let link = self.link_mut(from).ok_or(Breach)?;
        match link.hinted.place(send) {
            Some(Place::Offered) => {}
            Some(Place::Taken) if !taken => {}
            _ => return Err(Breach),
        }
        let place = if taken { Place::Taken } else { Place::Free };
        if link.hinted.put(send, place) && !taken {
            self.cancel_hinted(from, send);
        }
        Ok(())
    }

    /// Cancels a send whose message waits here, since its receiver does not have the message.
    pub(super) fn cancel_hinted(&mut self, to: Peer, send: Request) {
        let Some(link) = self.link_mut(to) else { return };
        match link.hinted.place(send) {
            Some(Place::Free) => {
                link.hinted.remove(send);
                let Some(record) = self.requests.get(send) else { return };
                // The recorded failure is the reason; without one, the send's owner cancelled it.
                let failure = record.result.err().unwrap_or(Failure::Cancelled);
                let status = Status { length: 0, ..record.status };
                self.complete(send, status, Err(failure));
            }
            Some(_) => link.hinted.set_cancelling(send, false),
            None => {}
        }
    }

    /// Drops a message that a probe has found and its sender withdraws; returns whether there was one.
    pub(super) fn drop_found(&mut self, from: Peer, sender: u64) -> bool {
        let Some(link) = self.link_mut(from) else { return false };
        let found = link.seeks.found.take_if(|offer| offer.sender == sender);
        found.is_some()
    }

    /// Takes the first matching message that probes have found. Returns messages to their sender if an earlier one of
    /// it may match.
    pub(super) fn take_found(&mut self, pattern: &Pattern) -> Option<UnexpectedMessage<Arrived>> {
        let offer = self.found(pattern, true)?;
        let link = self.link_mut(offer.key.source)?;
        link.seeks.found = None;
        let arrival = self.matching.next_arrival();
        Some(UnexpectedMessage { key: offer.key, arrival, message: offer.arrived() })
    }

    fn found(&mut self, pattern: &Pattern, returns: bool) -> Option<Offer> {
        let peers: Vec<_> = self.hinting.iter().copied().collect();
        for peer in peers {
            let found = self.link(peer).and_then(|link| link.seeks.found);
            let Some(offer) = found.filter(|offer| pattern.accepts(offer.key)) else { continue };
            if offer.is_first_of(pattern) {
                return Some(offer);
            }
            if returns {
                self.return_found(peer);
            }
        }
        None
    }

    /// Searches the messages that wait at their senders; asks the senders if the answer is not known yet.
    pub(super) fn probe_hinted(&mut self, pattern: &Pattern, claim: Claim) -> Option<Probe> {
        if self.hinting.is_empty() {
            return None;
        }
        if let Some(Offer { key, length, .. }) = self.found(pattern, false) {
            let length = length as usize;
            let claimed = (claim == Claim::Take).then(|| {
                let held = self.take_found(pattern).expect("the offer was just found");
                self.settle(key.source, key, held.message.sender, true);
                let request = self.requests.insert(Operation::Claimed(key));
                self.claimed.insert(request, held);
                request
            });
            return Some(Probe { key, length, claimed });
        }
        let asked = |peer: &Peer| pattern.source.is_none_or(|source| source == *peer);
        let peers: Vec<_> = self.hinting.iter().copied().filter(asked).collect();
        for peer in peers {
            let Some(Link { seeks, .. }) = self.link(peer) else { continue };
            let known = seeks.found.is_some_and(|offer| pattern.accepts(offer.key));
            // If another question is open, the caller probes again once it is answered.
            let free = seeks.asking.is_none() && seeks.queue.is_empty();
            if free && (known || seeks.forgotten.accepts(pattern)) {
                self.return_found(peer);
                self.question(peer, Seeker { pattern: *pattern, receive: None });
            }
        }
        None
    }

    /// Returns a claimed message that was not received.
    pub(super) fn unclaim(&mut self, held: UnexpectedMessage<Arrived>) {
        if !held.message.hinted {
            return self.put_back(held);
        }
        let peer = held.key.source;
        self.settle(peer, held.key, held.message.sender, false);
        self.seek_missed(peer, None);
        self.ask(peer);
        self.requests.note_move();
    }
}

impl Offer {
    fn arrived(&self) -> Arrived {
        let Self { sender, length, .. } = *self;
        Arrived { sender, length, hinted: true, ..Arrived::default() }
    }
}
