//! The receiver's side: estimates from the stamps of each sender, and the feedback to it.
//!
//! If messages go both ways, feedback is piggybacked on them. A frame of its own takes as much of a
//! link as a small message, and half of all frames would be feedback. If no message goes back to a
//! sender, its feedback leaves at once.

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

/// A sender, and true for its broadcasts.
type Key = (NodeId, bool);

/// Spans between two piggybacked feedbacks: the four groups of an estimate are then new ...
const REST_SPANS: u32 = 4;
/// ... and the spans that feedback waits for a message to be piggybacked on.
const HOLD_SPANS: u32 = 4;
/// Spans that a drain request lasts: each sender receives feedback in that time.
const DRAIN_SPANS: u32 = 8;

/// The estimator of one sender, and its pending feedback.
#[derive(Debug)]
struct Source {
    estimator: Estimator,
    feedbacks: u32,
    /// The newest sequence number and time in ticks, whole; frames carry the lower halves.
    newest: (u64, u64),
    /// The estimate that the sender does not have yet, and when the first such one was made.
    pending: Option<(Estimate, Instant)>,
    /// When the last feedback left.
    fed_at: Instant,
}

/// The estimators of all senders.
#[derive(Debug)]
pub(super) struct Sources {
    all: BTreeMap<Key, Source>,
    config: WarpConfig,
    /// When the next drain begins, and when the present one ends.
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

    /// Processes a stamped frame. If messages go back to its sender (`goes_back`), the feedback may
    /// wait for one.
    pub(super) fn handle_frame(&mut self, nic: &mut Context<'_>, header: &Header, goes_back: bool) {
        let now = nic.now();
        let key = (header.source, header.flags & BROADCAST != 0);
        let grouping = self.config.grouping();
        let source = self.all.entry(key).or_insert_with(|| Source {
            estimator: Estimator::new(grouping),
            feedbacks: 0,
            newest: (0, 0),
            pending: None,
            fed_at: Instant::ZERO,
        });
        if header.flags & ANEW != 0 {
            source.estimator.restart();
        }
        let stamp = stamp_of(header, &mut source.newest, now);
        let Some(estimate) = source.estimator.handle_arrival(stamp, now) else { return };
        let since = source.pending.map_or(now, |(_, since)| since);
        source.pending = Some((estimate, since));
        if !goes_back {
            self.send_feedback(nic, key);
        }
    }

    /// Returns the feedback for `node` to piggyback on a message that leaves now, if there is any.
    pub(super) fn ride(&mut self, node: NodeId, now: Instant) -> Option<[u8; FEEDBACK_BYTES]> {
        let earliest = self.earliest(self.all.get(&(node, false))?)?;
        if now >= earliest { self.feedback((node, false), now) } else { None }
    }

    /// Sends feedback that has waited for a message long enough.
    pub(super) fn handle_timeout(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        let waits = self.all.iter().filter_map(|(key, source)| Some((*key, self.due(source)?)));
        let due: Vec<Key> = waits.filter(|(_, at)| *at <= now).map(|(key, _)| key).collect();
        due.into_iter().for_each(|key| self.send_feedback(nic, key));
    }

    /// Returns when [`Sources::handle_timeout`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.all.values().filter_map(|source| self.due(source)).min()
    }

    /// Discards the estimates of `node`, whose clock and path may have changed. Its feedback keeps its
    /// numbers, because the node ignores lower ones if it has noticed no change.
    pub(super) fn forget(&mut self, node: NodeId) {
        let sources = self.all.iter_mut().filter(|((from, _), _)| *from == node);
        for (_, source) in sources {
            source.estimator = Estimator::new(self.config.grouping());
            source.newest = (0, 0);
            source.pending = None;
        }
    }

    /// Returns from when on a sender's feedback may be piggybacked.
    fn earliest(&self, source: &Source) -> Option<Instant> {
        let (_, since) = source.pending?;
        Some(since.max(source.fed_at + self.config.span * REST_SPANS))
    }

    /// Returns when the feedback leaves in a frame of its own.
    fn due(&self, source: &Source) -> Option<Instant> {
        self.earliest(source).map(|at| at + self.config.span * HOLD_SPANS)
    }

    /// Sends feedback in a frame of its own. Not by control message: those are acknowledged, on the
    /// very path that is congested. If the frame is lost, the next feedback replaces it.
    fn send_feedback(&mut self, nic: &mut Context<'_>, key: Key) {
        let Some(bytes) = self.feedback(key, nic.now()) else { return };
        let source = Bytes::Bytes(Payload::from(&bytes[..]));
        let flags = FEEDBACK | if key.1 { BROADCAST } else { 0 };
        let _ = nic.send_packet(&Packet { flags, source, ..Packet::to(key.0) });
    }

    fn feedback(&mut self, key: Key, now: Instant) -> Option<[u8; FEEDBACK_BYTES]> {
        let drain = self.is_draining(now);
        let source = self.all.get_mut(&key)?;
        let (estimate, _) = source.pending.take()?;
        source.fed_at = now;
        source.feedbacks = source.feedbacks.wrapping_add(1);
        let arrivals = source.estimator.arrivals();
        let mut feedback = Feedback::new(source.feedbacks, estimate, arrivals, now);
        feedback.drain = drain;
        Some(feedback.emit())
    }

    /// Returns true if feedback that leaves now requests a drain. All senders are asked at once,
    /// for as long as each of them takes to receive a feedback.
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

#[cfg(test)]
mod tests {
    use midplane_simhw::time::LineRate;

    use super::*;

    /// A one-sided loss: this node forgets a sender, which has noticed nothing.
    #[test]
    fn feedback_to_a_sender_that_was_forgotten_keeps_its_numbers() {
        let config = WarpConfig::new(&[NodeId(1)], LineRate::mbps(100), 16 << 10, 1);
        let estimate = Estimate {
            warp: 1.0,
            delay_ns: 1,
            min_delay_ns: 1,
            noise_ns: 0.0,
            newest: Instant::from_nanos(1),
            span_ns: 1,
            epoch: 0,
        };
        let now = Instant::from_nanos(2);
        let key = (NodeId(1), false);
        let mut sources = Sources::new(&config);
        let source = Source {
            estimator: Estimator::new(config.grouping()),
            feedbacks: 5_000,
            newest: (9, 9),
            pending: Some((estimate, now)),
            fed_at: Instant::ZERO,
        };
        sources.all.insert(key, source);
        sources.forget(NodeId(1));
        assert!(sources.feedback(key, now).is_none(), "an estimate of the old path");
        sources.all.get_mut(&key).expect("it is known").pending = Some((estimate, now));
        let feedback = sources.feedback(key, now).expect("an estimate is pending");
        assert_eq!(Feedback::parse(&feedback).expect("it is whole").sequence, 5_001);
    }
}
