//! Injects faults into the links of live NICs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::drops::DropCause;
use crate::fault::{Fault, FaultCounts, FaultError, FaultKind, Faults, Incident};
use crate::id::NodeId;
use crate::live::clock::Clock;
use crate::lock::lock;
use crate::rng::Rng;
use crate::sim::active_faults::{ActiveFaults, Damage};
use crate::time::{Instant, nanos};
use crate::topology::LinkId;

/// Injects faults into the links of live NICs, with the vocabulary of [`fault`](crate::fault).
///
/// Give one injector to the configurations of all NICs of a test. Each NIC applies the faults to received frames over
/// shared memory, and to received datagrams over UDP, before it decrypts or reassembles them. A damaged frame is
/// dropped, as its checksum would not match. Each frame that a fault discards is counted among the receiving NIC's
/// [drops](crate::nic::NicCounters::drops) under its cause. A frame to the own node crosses no link, and no fault
/// applies to it.
///
/// Each path, from one node to another, has a random stream of its own. The same seed gives the same faults for the
/// same sequence of frames on a path, independent of other paths. NICs in several processes need an injector each, with
/// the same seed.
///
/// Clones are handles of one injector, and faults may change at any time.
///
/// ```
/// use midplane_simhw::fault::Faults;
/// use midplane_simhw::id::NodeId;
/// use midplane_simhw::nic::FaultInjector;
/// use midplane_simhw::udp::UdpConfig;
///
/// let faults = FaultInjector::new(7);
/// faults.set(Faults { loss: 0.05, duplicate: 0.01, ..Faults::NONE })?;
/// let peers = vec!["127.0.0.1:7000".parse().unwrap(), "127.0.0.1:7001".parse().unwrap()];
/// let config = UdpConfig::new(NodeId(0), peers).faults(&faults);
/// // Start the NICs; then partition the nodes for a while.
/// faults.cut(NodeId(0), NodeId(1));
/// faults.heal(NodeId(0), NodeId(1));
/// # drop(config);
/// # Ok::<(), midplane_simhw::fault::FaultError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FaultInjector(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    seed: u64,
    /// When the injector was created: the times of scripts count from then.
    begun: Instant,
    faults: Faults,
    /// Partitioned pairs of nodes, each with the lower node first.
    partitions: BTreeSet<(NodeId, NodeId)>,
    script: Vec<Incident>,
    paths: BTreeMap<(NodeId, NodeId), Path>,
    fired: FaultCounts,
}

/// The faults on the path from one node to another.
#[derive(Debug)]
struct Path {
    rng: Rng,
    active: ActiveFaults,
    /// Arrival of the last frame that jitter has delayed.
    last_arrival: Instant,
}

/// The arrival time of a frame, or the cause for which a fault discards it.
pub(super) type Arrival = Result<Instant, DropCause>;

/// The outcome of the faults for a received frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fate {
    pub(super) frame: Arrival,
    /// The frame's copy, if it has one.
    pub(super) copy: Option<Arrival>,
}

impl Fate {
    const fn lost(cause: DropCause) -> Self {
        Self { frame: Err(cause), copy: None }
    }
}

impl FaultInjector {
    /// Creates an injector without faults, which draws from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            seed,
            begun: Clock::now(),
            faults: Faults::NONE,
            partitions: BTreeSet::new(),
            script: Vec::new(),
            paths: BTreeMap::new(),
            fired: FaultCounts::default(),
        })))
    }

    /// Sets the faults of the links from now on. [`Faults::jitter`] delays frames without changing their order.
    ///
    /// # Errors
    /// [`FaultError::Probability`]; the faults then stay as they were.
    pub fn set(&self, faults: Faults) -> Result<(), FaultError> {
        faults.check()?;
        lock(&self.0).faults = faults;
        Ok(())
    }

    /// Partitions two nodes: drops all frames between them.
    pub fn cut(&self, a: NodeId, b: NodeId) {
        lock(&self.0).partitions.insert((a.min(b), a.max(b)));
    }

    /// Ends the partition that [`FaultInjector::cut`] made between two nodes.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        lock(&self.0).partitions.remove(&(a.min(b), a.max(b)));
    }

    /// Schedules an incident; its time counts from the creation of the injector. The links are those of a
    /// [star](crate::topology::Topology::star): link 2 i leaves node i, link 2 i + 1 leads to it.
    ///
    /// # Errors
    /// [`FaultError`]; nothing is then scheduled.
    pub fn schedule(&self, incident: Incident) -> Result<(), FaultError> {
        check(&incident.fault)?;
        lock(&self.0).script.push(incident);
        Ok(())
    }

    /// Returns how often each kind of fault has had an effect. Jitter is not counted.
    #[must_use]
    pub fn fired(&self) -> FaultCounts {
        lock(&self.0).fired
    }

    /// Draws the fate of a frame that `to` has received from `from` at `now`.
    pub(super) fn judge(&self, now: Instant, from: NodeId, to: NodeId) -> Fate {
        lock(&self.0).judge(now, from, to)
    }
}

impl State {
    fn judge(&mut self, now: Instant, from: NodeId, to: NodeId) -> Fate {
        let Self { seed, begun, faults, partitions, script, paths, fired } = self;
        let path = paths.entry((from, to)).or_insert_with(|| Path::new(*seed, from, to));
        let elapsed = Instant::from_nanos(now.nanos_since(*begun));
        path.update_incidents(script, elapsed);
        let is_cut = partitions.contains(&(from.min(to), from.max(to)));
        if is_cut {
            fired.add(FaultKind::Partition);
        }
        let fate = if is_cut || path.active.is_cut(from, to) {
            Fate::lost(DropCause::Partition)
        } else {
            let fate = path.draw(faults, now, fired);
            path.apply_incidents(elapsed, (from, to), fate)
        };
        *fired += std::mem::take(&mut path.active.fired);
        fate
    }
}

impl Path {
    fn new(seed: u64, from: NodeId, to: NodeId) -> Self {
        let mut rng = Rng::new(seed, &format!("faults {from} {to}"));
        let active = ActiveFaults::new(rng.next_u64());
        Self { rng, active, last_arrival: Instant::ZERO }
    }

    /// Draws the faults that have a rate.
    fn draw(&mut self, faults: &Faults, now: Instant, fired: &mut FaultCounts) -> Fate {
        let late = self.rng.between(0, nanos(faults.jitter));
        let at = now.plus_nanos(late).max(self.last_arrival);
        self.last_arrival = at;
        let Some(drawn) = faults.draw(&mut self.rng) else {
            fired.add(FaultKind::Loss);
            return Fate::lost(DropCause::LinkLoss);
        };
        let mut count = |kind, is_so| {
            if is_so {
                fired.add(kind)
            }
        };
        count(FaultKind::Corrupt, drawn.is_corrupt);
        count(FaultKind::Reorder, drawn.delay.is_some());
        count(FaultKind::Duplicate, drawn.copy.is_some());
        let at_its_time = at.plus_nanos(drawn.delay.unwrap_or(0));
        // As in virtual time, the copy of a damaged frame is whole.
        let frame = if drawn.is_corrupt { Err(DropCause::Corrupt) } else { Ok(at_its_time) };
        Fate { frame, copy: drawn.copy.map(|delay| Ok(at.plus_nanos(delay))) }
    }

    /// Begins the incidents that are active at `elapsed`, and ends the others.
    fn update_incidents(&mut self, script: &[Incident], elapsed: Instant) {
        for (index, incident) in script.iter().enumerate() {
            let is_on = incident.at <= elapsed && elapsed < incident.at + incident.lasts;
            if !is_on {
                self.active.end(index);
            } else if !self.active.is_active(index) {
                self.active.begin(index, incident.fault, incident.at);
            }
        }
    }

    /// Applies the active incidents to a frame and its copy.
    fn apply_incidents(
        &mut self,
        elapsed: Instant,
        (from, to): (NodeId, NodeId),
        fate: Fate,
    ) -> Fate {
        let Self { active, last_arrival, .. } = self;
        // As in virtual time, a lost frame meets no incident, and the copy of a damaged frame is whole.
        if active.is_none() || fate.frame == Err(DropCause::LinkLoss) {
            return fate;
        }
        let (up, down) = (LinkId(2 * u32::from(from.0)), LinkId(2 * u32::from(to.0) + 1));
        let held_up = active.held_up(from, to);
        let copy = fate.copy.or_else(|| active.is_doubled(from).then_some(Ok(*last_arrival)));
        let mut cross = |at: Instant| {
            let late = active.late(up) + active.late(down);
            match active.on_piece(elapsed, up).or_else(|| active.on_piece(elapsed, down)) {
                Some(Damage::Lost(cause) | Damage::Spoilt(cause)) => Err(cause),
                None => Ok(at.plus_nanos(late)),
            }
        };
        let frame = fate.frame.and_then(|at| cross(at.plus_nanos(held_up)));
        Fate { frame, copy: copy.map(|copy| copy.and_then(&mut cross)) }
    }
}

/// Checks that live NICs support a fault, and that its probabilities are valid.
fn check(fault: &Fault) -> Result<(), FaultError> {
    match fault {
        Fault::Loss { .. }
        | Fault::BurstLoss { .. }
        | Fault::Corrupt { .. }
        | Fault::Truncate { .. }
        | Fault::Duplicate { .. }
        | Fault::Reorder { .. }
        | Fault::DelaySpike { .. }
        | Fault::SlowPair { .. }
        | Fault::Flap { .. }
        | Fault::OneWay { .. }
        | Fault::Partition { .. } => fault.check_probabilities(),
        _ => Err(FaultError::Unsupported(fault.kind())),
    }
}

#[cfg(test)]
#[path = "injector/tests.rs"]
mod tests;
