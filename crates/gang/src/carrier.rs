//! Carries the messages of `midplane-via` over a channel, as MPI ran on PM.
//!
//! A packet is one message of the channel: its envelope, followed by its payload. There are two other messages. An
//! empty message means that its sender has closed its carrier. A message of one byte means that all earlier messages
//! of its sender are stale.

use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};

use midplane_simhw::region::Payload;
use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::envelope::{Envelope, LONGEST, Peer};
use midplane_via::message::transport::InitError;

use crate::channel::{Channel, PublishedWait, SendError};
use crate::names::Rank;
use crate::wait::{News, WaitState};

/// Message that marks the end of a sender's stale packets. Every packet is longer.
const END_OF_PAST: &[u8] = b"!";

/// Carries packets over a channel. The number of a peer is its rank.
#[derive(Debug)]
pub struct ChannelCarrier {
    channel: Channel,
    /// True if the packet that `poll` returned last still occupies the receive FIFO or ring.
    lent: bool,
    /// True if a packet was refused for lack of room, or the caller waits until all packets are accepted.
    wants_room: bool,
    connected: Vec<Peer>,
    lost: VecDeque<Peer>,
    is_closed: bool,
    /// Ranks whose packets are stale until their [`END_OF_PAST`] arrives.
    stale: BTreeSet<Rank>,
    /// Ranks to which [`END_OF_PAST`] has not been sent yet.
    unmarked: BTreeSet<Rank>,
    /// True if the carrier publishes the waits of its message layer.
    publishes: bool,
    /// The wait that is published at present.
    published: Option<PublishedWait>,
}

impl ChannelCarrier {
    /// Creates a carrier, which must be the channel's only user.
    #[must_use]
    pub const fn new(channel: Channel) -> Self {
        Self {
            channel,
            lent: false,
            wants_room: false,
            connected: Vec::new(),
            lost: VecDeque::new(),
            is_closed: false,
            stale: BTreeSet::new(),
            unmarked: BTreeSet::new(),
            publishes: false,
            published: None,
        }
    }

    /// Publishes a wait ([`WaitState::Message`]) whenever the process's message layer waits for a message, so that the
    /// daemon can detect deadlocks.
    ///
    /// Use this only in programs that do nothing else while they wait for a message: no other tasks or threads compute
    /// or send, and no timers or other inputs exist.
    #[must_use]
    #[doc(hidden)]
    pub fn publish_waits(self) -> Self {
        Self { publishes: true, ..self }
    }

    /// Creates a carrier over a restored channel whose ranks all start anew. Packets that were sent before the restore
    /// are dropped.
    #[must_use]
    #[doc(hidden)]
    pub fn restored(channel: Channel) -> Self {
        let others: BTreeSet<Rank> =
            (0..channel.ranks()).map(Rank).filter(|rank| *rank != channel.rank()).collect();
        Self { stale: others.clone(), unmarked: others, ..Self::new(channel) }
    }

    fn send(&mut self, to: Rank, parts: [&[u8]; 2]) -> Result<(), SendError> {
        if self.unmarked.contains(&to) {
            self.channel.try_send(to, END_OF_PAST)?;
            self.unmarked.remove(&to);
        }
        self.channel.try_send_parts(to, parts)
    }

    /// Drops the next message if it is stale. Returns whether it was.
    fn drop_stale(&mut self, from: Rank) -> bool {
        let is_stale = self.stale.contains(&from);
        if is_stale {
            let is_end =
                self.channel.peek().is_some_and(|(_, bytes)| bytes.to_vec() == END_OF_PAST);
            self.channel.consume();
            if is_end {
                self.stale.remove(&from);
            }
        }
        is_stale
    }

    fn take_back(&mut self) {
        if std::mem::take(&mut self.lent) {
            self.channel.consume();
        }
    }

    /// Reports all connected peers as lost, because the channel is closed.
    fn lose_all(&mut self) {
        self.lost.extend(self.connected.drain(..));
    }
}

fn rank(peer: Peer) -> Option<Rank> {
    u16::try_from(peer.0).ok().map(Rank)
}

impl Carrier for ChannelCarrier {
    fn own(&self) -> Peer {
        Peer(self.channel.rank().0.into())
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        let ranks = u32::from(self.channel.ranks());
        if let Some(unknown) = peers.iter().find(|peer| peer.0 >= ranks) {
            return Err(InitError::Unknown(*unknown));
        }
        for peer in peers {
            if *peer != self.own() && !self.connected.contains(peer) {
                self.connected.push(*peer);
            }
        }
        Ok(())
    }

    fn room(&self) -> usize {
        (self.channel.message_bytes() as usize).saturating_sub(LONGEST)
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        self.published = None;
        let Some(to) = rank(to).filter(|_| !self.is_closed) else { return Err(Refusal::Lost) };
        let mut head = [0; LONGEST];
        let length = envelope.emit(&mut head);
        match self.send(to, [&head[..length], payload]) {
            Ok(()) => Ok(()),
            Err(SendError::Full) => {
                self.wants_room = true;
                Err(Refusal::Full)
            }
            Err(_) => Err(Refusal::Lost),
        }
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        self.published = None;
        self.take_back();
        loop {
            if let Some(peer) = self.lost.pop_front() {
                return Some(Event::Lost(peer));
            }
            let (from, length) = self.channel.peek().map(|(from, bytes)| (from, bytes.len()))?;
            if self.drop_stale(from) {
                continue;
            }
            let peer = Peer(from.0.into());
            let mut head = [0; LONGEST];
            let (_, bytes) = self.channel.peek()?;
            let read = bytes.copy_to(&mut head);
            let envelope = Envelope::parse(&head[..read]).ok().filter(|_| length > 0);
            let Some(envelope) = envelope else {
                // The peer has closed its carrier, or has sent no valid packet. In either case, no more packets of the
                // peer are expected.
                self.channel.consume();
                self.connected.retain(|other| *other != peer);
                self.lost.push_back(peer);
                continue;
            };
            let begin = envelope.emit(&mut head);
            self.lent = true;
            let (_, bytes) = self.channel.peek()?;
            let payload: Payload<'_> = bytes.slice(begin.min(length)..length)?;
            return Some(Event::Packet { from: peer, envelope, payload });
        }
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.take_back();
        if !self.lost.is_empty() || self.channel.has_message() {
            return false;
        }
        let until = if self.wants_room { News::Either } else { News::Message };
        let mut context = Context::from_waker(waker);
        match self.channel.poll_ready(&mut context, until) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => {
                self.wants_room = false;
                false
            }
            Poll::Ready(Err(_)) => {
                if self.connected.is_empty() {
                    return true;
                }
                self.lose_all();
                false
            }
        }
    }

    fn arm_wakeup_for(&mut self, waker: &Waker, missing: &dyn Fn() -> Option<Peer>) -> bool {
        self.published = None;
        let is_armed = self.arm_wakeup(waker);
        // If room also wakes the process, it does not wait for messages alone, so nothing is published.
        if self.publishes && is_armed && !self.wants_room {
            let from = missing().and_then(rank);
            self.published = Some(self.channel.publish(WaitState::Message { from }));
        }
        is_armed
    }

    fn is_flushed(&mut self) -> bool {
        let flushed = self.channel.is_flushed();
        self.wants_room |= !flushed;
        flushed
    }

    fn close(&mut self) {
        self.take_back();
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        for peer in std::mem::take(&mut self.connected) {
            if let Some(to) = rank(peer) {
                // If the FIFO is full, the peer learns of the end only when the scheduler ends the job.
                let _ = self.send(to, [&[], &[]]);
            }
        }
    }
}
