//! The configuration of the extension.

use std::time::Duration;

use midplane_nicvm::coordination::LeadTrim;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::LineRate;

use crate::control::ControlConfig;
use crate::estimate::Grouping;

/// Frames of credit that a gate holds: enough that a late timer costs no rate.
const DEPTH_FRAMES: u64 = 2;
/// The highest rate, in line rates; above one, so that a queue forms where the line is full.
const CEILING: f64 = 1.25;
/// The lowest rate, in line rates, unless set.
const FLOOR: f64 = 1.0 / 16.0;
/// Time between two drains, unless set. In a drain, senders that joined since can measure the empty
/// path.
const DEFAULT_DRAIN_EVERY: Duration = Duration::from_secs(2);

/// The destinations of a node, and the share of the queue that it may use.
#[derive(Clone, Debug)]
pub struct WarpConfig {
    pub(super) destinations: Vec<NodeId>,
    pub(super) rate: LineRate,
    pub(super) floor: f64,
    pub(super) backlog: f64,
    pub(super) span: Duration,
    pub(super) drain_every: Duration,
    pub(super) paces_others: bool,
    pub(super) broadcasts: bool,
    pub(super) trims: Vec<(NodeId, LeadTrim)>,
}

impl WarpConfig {
    /// Configures a node that sends to `destinations` over links of `rate`.
    ///
    /// `queue` is the target for the queue before the slowest link, in bytes. This node, one of
    /// `senders`, may keep an equal share of it. Half of a switch's buffer is a good choice.
    ///
    /// # Panics
    /// If there are no senders, or the queue is empty.
    #[must_use]
    pub fn new(destinations: &[NodeId], rate: LineRate, queue: u32, senders: u16) -> Self {
        assert!(
            queue > 0 && senders > 0,
            "the queue must be above 0 bytes, and the senders at least 1"
        );
        // The target queue's delay is most of the feedback delay; a group covers a quarter of it.
        let delay = rate.nanos_for(queue.into());
        Self {
            destinations: destinations.to_vec(),
            rate,
            floor: FLOOR,
            backlog: f64::from(queue) / f64::from(senders),
            span: Duration::from_nanos((delay / 4).max(1_000)),
            drain_every: DEFAULT_DRAIN_EVERY,
            paces_others: false,
            broadcasts: false,
            trims: Vec::new(),
        }
    }

    /// Sets the time that a group of stamps covers, by the sender's clock; a quarter of the target
    /// queue's delay unless set; at least 1 us.
    #[must_use]
    pub const fn span(mut self, span: Duration) -> Self {
        self.span = if span.as_nanos() < 1_000 { Duration::from_micros(1) } else { span };
        self
    }

    /// Sets the lowest rate to each destination, in line rates; a sixteenth unless set. All senders
    /// together should leave most of the line to other traffic, or a queue that this traffic keeps
    /// full never drains.
    ///
    /// # Panics
    /// If `share` is not above zero, or above one.
    #[must_use]
    pub fn floor(mut self, share: f64) -> Self {
        assert!(
            share > 0.0 && share <= 1.0,
            "the floor must be above 0 and at most 1: a share of the line rate"
        );
        self.floor = share;
        self
    }

    /// Sets the time between two drains; 2 s unless set. With [`Duration::MAX`] there are none, for
    /// senders that find the path empty now and then anyway.
    #[must_use]
    pub const fn drain_every(mut self, every: Duration) -> Self {
        self.drain_every = every;
        self
    }

    /// Also paces the frames of other extensions to these destinations, among them those of sender
    /// coordination; off unless set.
    ///
    /// Those frames carry no stamps, so Warp sends an empty stamped frame every span. If those
    /// would be more than an eighth of the rate, it sends fewer.
    #[must_use]
    pub const fn paces_others(mut self, does: bool) -> Self {
        self.paces_others = does;
        self
    }

    /// Also sends to [`NodeId::BROADCAST`], with feedback from all destinations; off unless set.
    #[must_use]
    pub const fn broadcast(mut self, does: bool) -> Self {
        self.broadcasts = does;
        self
    }

    /// Controls the early release of tokens for the path to `destination`. If a token released too
    /// early leaves a queue there, tokens are released later; without a queue, earlier again. Pass
    /// the same `trim` to sender coordination
    /// ([`CoordinationConfig::trim_lead`](midplane_nicvm::coordination::CoordinationConfig::trim_lead)).
    #[must_use]
    #[doc(hidden)]
    pub fn adapt_lead(mut self, destination: NodeId, trim: LeadTrim) -> Self {
        self.trims.push((destination, trim));
        self
    }

    pub(super) fn trim_to(&self, destination: NodeId) -> Option<LeadTrim> {
        self.trims.iter().find(|(to, _)| *to == destination).map(|(_, trim)| trim.clone())
    }

    /// Returns the time until the first drain. It is short, since senders often start together,
    /// into each other's queue.
    pub(super) const fn first_drain(&self) -> Duration {
        Duration::from_nanos(64 * nanos_of(self.span))
    }

    pub(super) const fn grouping(&self) -> Grouping {
        Grouping::new(nanos_of(self.span), 4)
    }

    pub(super) fn control(&self, frame_bytes: u64) -> ControlConfig {
        let line = self.rate.bits_per_second() as f64 / 8.0;
        // At least one frame in 16 spans, four times the target queue's delay: with fewer there is
        // too little feedback.
        let floor = frame_bytes as f64 / (16.0 * self.span.as_secs_f64());
        let floor = floor.min(line * self.floor);
        let mut config = ControlConfig::new(self.backlog, floor, CEILING * line);
        config = config.first_delay(self.span * 4).is_always_used(self.paces_others);
        config
    }

    pub(super) const fn depth(&self, frame_bytes: u64) -> u64 {
        DEPTH_FRAMES * frame_bytes
    }
}

const fn nanos_of(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
