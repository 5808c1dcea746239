//! What is read of others' stamps, and how they are told.
//!
//! Where messages go both ways feedback rides on them: a frame of its own takes as much of a link as a
//! small message, and half of all frames would be feedback. Who sends nothing back is told at once.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::Packet;
use midplane_simhw::frame::Header;
use midplane_simhw::hardware::Source as Bytes;
use midplane_simhw::id::NodeId;
use midplane_simhw::region::Payload;
use midplane_simhw::time::{Instant, nanos};

use super::ticks::stamp_of;
use super::{ANEW, BROADCAST, FEEDBACK, WarpConfig};
use crate::estimate::{Estimate, Estimator};
use crate::feedback::{FEEDBACK_BYTES, Feedback};

/// A sender, and whether it sent to everybody.
type Key = (NodeId, bool);

/// Spans between two feedbacks that ride on messages: the four groups of an estimate are then new ...
const REST_SPANS: u32 = 4;
/// ... and the spans that feedback waits for a message to ride on.
const HOLD_SPANS: u32 = 4;
/// Spans between two drains' ends: each sender has feedback to hear one by.
const DRAIN_SPANS: u32 = 8;

/// What is read of one sender's stamps.
#[derive(Debug)]
struct Source {
    estimator: Estimator,
    feedbacks: u32,
    /// The sender's stamps as they were last, whole: what travels is their lower half.
    newest: (u64, u64),
    /// What it has not been told, and since when.
    news: Option<(Estimate, Instant)>,
    /// When it was told last.
    told: Instant,
}

/// All senders that were heard of.
#[derive(Debug)]
pub(super) struct Sources {
    all: BTreeMap<Key, Source>,
    config: WarpConfig,
    /// When the next drain begins, and until when the present one is asked for.
    drain_at: Instant,
    drain_until: Instant,
}

impl Sources {
    pub(super) fn new(config: &WarpConfig) -> Self {
        Self {
            all: BTreeMap::new(),
            config: config.clone(),
            drain_at: Instant::ZERO,
            drain_until: Instant::ZERO,
        }
    }

    /// A stamped frame has come; where messages go back to its sender, what it tells may wait for one.
    pub(super) fn handle_frame(&mut self, nic: &mut Context<'_>, header: &Header, goes_back: bool) {
        let now = nic.now();
        let key = (header.source, header.flags & BROADCAST != 0);
        let grouping = self.config.grouping();
        let source = self.all.entry(key).or_insert_with(|| Source {
            estimator: Estimator::new(grouping),
            feedbacks: 0,
            newest: (0, 0),
            news: None,
            told: Instant::ZERO,
        });
        if header.flags & ANEW != 0 {
            source.estimator.restart();
        }
        let stamp = stamp_of(header, &mut source.newest, now);
        let Some(estimate) = source.estimator.handle_arrival(stamp, now) else { return };
        let since = source.news.map_or(now, |(_, since)| since);
        source.news = Some((estimate, since));
        if !goes_back {
            self.tell(nic, key);
        }
    }

    /// The feedback for `node` that is to ride on a message that leaves now, if there is any.
    pub(super) fn ride(&mut self, node: NodeId, now: Instant) -> Option<[u8; FEEDBACK_BYTES]> {
        let earliest = self.earliest(self.all.get(&(node, false))?)?;
        if now >= earliest { self.feedback((node, false), now) } else { None }
    }

    /// Tells those who have waited for long enough.
    pub(super) fn handle_timeout(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        let waits = self.all.iter().filter_map(|(key, source)| Some((*key, self.due(source)?)));
        let due: Vec<Key> = waits.filter(|(_, at)| *at <= now).map(|(key, _)| key).collect();
        due.into_iter().for_each(|key| self.tell(nic, key));
    }

    /// When [`Sources::handle_timeout`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.all.values().filter_map(|source| self.due(source)).min()
    }

    /// A sender's clock and path are others from now on.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.all.retain(|(from, _), _| *from != node);
    }

    /// From when on a sender's feedback may ride.
    fn earliest(&self, source: &Source) -> Option<Instant> {
        let (_, since) = source.news?;
        Some(since.max(source.told + self.config.span * REST_SPANS))
    }

    /// When it goes by itself.
    fn due(&self, source: &Source) -> Option<Instant> {
        self.earliest(source).map(|at| at + self.config.span * HOLD_SPANS)
    }

    /// In a frame of its own. Not by control message: those are acknowledged, on the very way that is
    /// full. One that is lost is followed by the next.
    fn tell(&mut self, nic: &mut Context<'_>, key: Key) {
        let Some(bytes) = self.feedback(key, nic.now()) else { return };
        let source = Bytes::Bytes(Payload::from(&bytes[..]));
        let flags = FEEDBACK | if key.1 { BROADCAST } else { 0 };
        let _ = nic.send_packet(&Packet { flags, source, ..Packet::to(key.0) });
    }

    fn feedback(&mut self, key: Key, now: Instant) -> Option<[u8; FEEDBACK_BYTES]> {
        let drain = self.is_draining(now);
        let source = self.all.get_mut(&key)?;
        let (estimate, _) = source.news.take()?;
        source.told = now;
        source.feedbacks = source.feedbacks.wrapping_add(1);
        let arrivals = source.estimator.arrivals();
        let mut feedback = Feedback::new(source.feedbacks, estimate, arrivals, now);
        feedback.drain = drain;
        Some(feedback.emit())
    }

    /// Whether feedback of now asks for a drain: all senders at once, for as long as each of them
    /// has feedback to hear it by.
    fn is_draining(&mut self, now: Instant) -> bool {
        if self.config.drain_every == Duration::MAX {
            return false;
        }
        if self.drain_at == Instant::ZERO {
            self.drain_at = now + self.config.first_drain();
        }
        if now >= self.drain_at {
            self.drain_at = now + self.config.drain_every;
            self.drain_until = now.plus_nanos(nanos(self.config.span * DRAIN_SPANS));
        }
        now < self.drain_until
    }
}
