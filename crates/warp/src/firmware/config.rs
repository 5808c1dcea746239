//! What the extension is told.

use std::time::Duration;

use midplane_nicvm::coordination::LeadTrim;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::LineRate;

use crate::control::ControlConfig;
use crate::estimate::Grouping;

/// Bytes that every sender may have in the gate: enough that a late timer costs no rate.
const DEPTH_FRAMES: u64 = 2;
/// Most rate, in rates of the line: more than one, so that a queue shows where the line is full.
const CEILING: f64 = 1.25;
/// Least rate, in rates of the line, unless set.
const FLOOR: f64 = 1.0 / 16.0;
/// Time between two drains unless set: senders that have joined meanwhile find the empty path's delay.
const DEFAULT_DRAIN_EVERY: Duration = Duration::from_secs(2);

/// Where a node sends, and how much it may keep in queues.
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
    /// A node that sends to `destinations`, over links of `rate`. `queue` bytes are to stand before
    /// the slowest link, of which this node, one of `senders`, may keep its part: half of a
    /// switch's buffer is a good choice.
    ///
    /// # Panics
    /// If there are no senders, or the queue is empty.
    #[must_use]
    pub fn new(destinations: &[NodeId], rate: LineRate, queue: u32, senders: u16) -> Self {
        assert!(queue > 0 && senders > 0, "senders share a queue");
        // The target's own delay is most of the feedback delay; a quarter of it is a group.
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

    /// Time that a group of stamps covers, in nanoseconds of the sender's clock.
    pub const fn span(&mut self, span: Duration) -> &mut Self {
        self.span = span;
        self
    }

    /// The least rate of each way, in rates of the line; a sixteenth unless set. All senders together
    /// should leave most of the line to others, or a queue that those keep full never drains.
    ///
    /// # Panics
    /// If it is not above zero, or above one.
    pub fn floor(&mut self, share: f64) -> &mut Self {
        assert!(share > 0.0 && share <= 1.0, "a floor is a share of the line");
        self.floor = share;
        self
    }

    /// Time between two drains; 2 s unless set. None at all with [`Duration::MAX`], where senders find
    /// the way empty now and then by themselves.
    pub const fn drain_every(&mut self, every: Duration) -> &mut Self {
        self.drain_every = every;
        self
    }

    /// Also paces the frames of other extensions to these destinations, sender coordination's
    /// among them; off unless set. They carry no stamps: an empty frame a span does, all the time, or
    /// fewer where that would be more than an eighth of the rate.
    pub const fn paces_others(&mut self, does: bool) -> &mut Self {
        self.paces_others = does;
        self
    }

    /// Also sends to [`NodeId::EVERYBODY`], where the destinations are who answers; off unless set.
    pub const fn broadcast(&mut self, does: bool) -> &mut Self {
        self.broadcasts = does;
        self
    }

    /// Steers the early release of tokens for the way to `destination`: where a hand-over too early
    /// leaves a queue there, tokens are released later, and earlier again where none is seen. The
    /// same word is given to sender coordination
    /// ([`CoordinationConfig::trim_lead`](midplane_nicvm::coordination::CoordinationConfig::trim_lead)).
    pub fn steer_lead(&mut self, destination: NodeId, trim: LeadTrim) -> &mut Self {
        self.trims.push((destination, trim));
        self
    }

    pub(super) fn trim_to(&self, destination: NodeId) -> Option<LeadTrim> {
        self.trims.iter().find(|(to, _)| *to == destination).map(|(_, trim)| trim.clone())
    }

    /// The first drain comes early: senders often start together, into each other's queue.
    pub(super) const fn first_drain(&self) -> Duration {
        Duration::from_nanos(64 * nanos_of(self.span))
    }

    pub(super) const fn grouping(&self) -> Grouping {
        Grouping::new(nanos_of(self.span), 4)
    }

    pub(super) fn control(&self, frame_bytes: u64) -> ControlConfig {
        let line = self.rate.bits_per_second() as f64 / 8.0;
        // A frame each four times the target's delay: rarer, there is nothing to control by.
        let floor = frame_bytes as f64 / (16.0 * self.span.as_secs_f64());
        let floor = floor.min(line * self.floor);
        let mut config = ControlConfig::new(self.backlog, floor, CEILING * line);
        config.first_delay(self.span * 4).is_always_used(self.paces_others);
        config
    }

    pub(super) const fn depth(&self, frame_bytes: u64) -> u64 {
        DEPTH_FRAMES * frame_bytes
    }
}

const fn nanos_of(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
