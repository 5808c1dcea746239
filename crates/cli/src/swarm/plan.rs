//! Draws a topology, settings of the firmware, a load and faults from a seed.

use std::ops::Range;
use std::time::Duration;

use midplane::nicvm::control::ControlConfig;
use midplane::nicvm::coordination::{CoordinationConfig, Hold, Lead, LinkConfig};
use midplane::simhw::fault::{Chaos, Fault, FaultKind, Incident};
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::rng::Rng;
use midplane::simhw::switch::{Buffer, DiscardPolicy, Forwarding, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;

/// Receiver of coordinated messages, and witness of its link.
pub(crate) const CENTRE: NodeId = NodeId(0);

/// Faults after which a frame may leave its NIC much later than the firmware has estimated.
const STALLS: [FaultKind; 5] = [
    FaultKind::DmaStall,
    FaultKind::NicMemory,
    FaultKind::Overrun,
    FaultKind::RateChange,
    FaultKind::SlowClock,
];

/// Everything that a seed decides.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) topology: Topology,
    pub(crate) profile: NicProfile,
    pub(crate) control: ControlConfig,
    pub(crate) coordination: Option<CoordinationConfig>,
    /// Destinations of coordinated messages.
    pub(crate) receivers: Vec<NodeId>,
    /// Lease of the tokens.
    pub(crate) lease: Duration,
    /// Bytes of the longest message.
    pub(crate) longest: u64,
    /// Longest pause of a sender between two commands.
    pub(crate) pause: Duration,
    /// Time from the start to the end of all faults.
    pub(crate) trouble: Duration,
    pub(crate) script: Vec<Incident>,
    /// True if accesses to memory may fail, and commands may be damaged.
    pub(crate) damages: bool,
    /// True if doorbells may be lost. Otherwise nothing rings twice, and a command that is not handled stays so.
    pub(crate) rings_again: bool,
    /// True if a frame may leave its NIC much later than the firmware has estimated.
    pub(crate) stalls: bool,
    /// True if coordinated senders may leave.
    pub(crate) leaves: bool,
    /// True if senders post coordinated messages only: peers then notice late that they are cut off.
    pub(crate) terse: bool,
}

/// Returns the kinds of faults that firmware, extensions and applications must survive.
fn survivable(coordinated: bool) -> Vec<FaultKind> {
    let all = FaultKind::ALL.iter().copied();
    all.filter(|kind| match kind {
        // Nothing above the hardware can recover a completion that was not written.
        FaultKind::CompletionLost => false,
        // Leases tolerate clocks that drift, but not clocks that step.
        FaultKind::ClockStep => !coordinated,
        _ => true,
    })
    .collect()
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "swarm");
        let topology = topology(&mut rng);
        let coordinated = rng.chance(0.6);
        let mut trouble = Duration::from_millis(rng.between(40, 200));
        // In a calm cluster senders leave; in a split one, little else happens.
        let calm = coordinated && rng.chance(0.15);
        let splits = coordinated && !calm && rng.chance(0.5);
        let few = splits && rng.chance(0.5);
        let kinds = kinds(&mut rng, coordinated);
        let has = |of: &[FaultKind]| of.iter().any(|kind| kinds.contains(kind));
        let damages = has(&[FaultKind::DmaError, FaultKind::Unpinned, FaultKind::CommandDamaged]);
        let rings_again = damages || has(&[FaultKind::DoorbellLost, FaultKind::DoorbellQueue]);
        let stalls = has(&STALLS);
        let chaos = Chaos {
            kinds,
            incidents: if calm || few { 0 } else { rng.between(0, 25) as usize },
            within: trouble,
            longest: Duration::from_millis(rng.between(1, 80)),
            delay: Duration::from_micros([10, 200, 3_000][rng.below(3) as usize]),
            ppm: 400,
        };
        let (least, most) = if splits { (15, 80) } else { (30, 120) };
        let dead_after = Duration::from_millis(rng.between(least, most));
        let control = control(&mut rng, dead_after, calm);
        let profile = profile(&mut rng);
        let long = coordinated && rng.chance(0.4);
        let lease =
            Duration::from_millis(if long { rng.between(40, 200) } else { rng.between(5, 30) });
        let terse = coordinated && rng.chance(0.3);
        let shared = coordinated && topology.hosts() > 2 && rng.chance(0.3);
        let receivers = [CENTRE, NodeId(1)][..1 + usize::from(shared)].to_vec();
        let coordination =
            coordinated.then(|| coordination(&mut rng, topology.hosts(), lease, &receivers));
        let mut script = chaos.script(&topology, seed);
        if long && !calm {
            script.extend(cuts(&mut rng, &topology, trouble, lease));
        }
        for _ in 0..2 * u32::from(splits) {
            let lasts = dead_after..dead_after + lease * 2;
            script.extend(split(&mut rng, &topology, trouble, lasts));
            trouble += dead_after + lease * 2;
        }
        script.sort_by_key(|incident| incident.at);
        Self {
            seed,
            profile,
            control,
            coordination,
            longest: [64, 2_000, 9_000][rng.below(3) as usize],
            pause: pause(&mut rng, terse),
            trouble,
            script,
            damages,
            rings_again,
            stalls,
            leaves: calm,
            terse,
            receivers,
            lease,
            topology,
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.topology.hosts()).map(NodeId)
    }
}

/// Draws up to 12 of the survivable kinds: a run with few kinds of faults reaches deeper states than one with all.
fn kinds(rng: &mut Rng, coordinated: bool) -> Vec<FaultKind> {
    let mut kinds = survivable(coordinated);
    for _ in 0..kinds.len() - rng.between(1, 12) as usize {
        kinds.swap_remove(rng.below(kinds.len() as u64) as usize);
    }
    kinds
}

/// Draws the settings of control messages.
fn control(rng: &mut Rng, dead_after: Duration, calm: bool) -> ControlConfig {
    // A sender that leaves reports it in one message, which a full queue would refuse.
    let queue = if calm { 4_096 } else { rng.between(4, 200) as usize };
    let window = rng.between(1, 32) as u16;
    ControlConfig::default().dead_after(dead_after).window(window).queue(queue)
}

fn profile(rng: &mut Rng) -> NicProfile {
    let profiles = [NicProfile::FREE, NicProfile::MODERN, NicProfile::MODERN, NicProfile::SBA_200E];
    let mtu = [800, 1_424, 65_400][rng.below(3) as usize];
    NicProfile { mtu, ..profiles[rng.below(4) as usize] }
}

/// Draws the longest pause of a sender.
fn pause(rng: &mut Rng, terse: bool) -> Duration {
    let micros = if terse { [300, 2_000, 40_000] } else { [30, 300, 2_000] };
    Duration::from_micros(micros[rng.below(3) as usize])
}

fn topology(rng: &mut Rng) -> Topology {
    let rate = LineRate::mbps([100, 150, 1_000][rng.below(3) as usize]);
    let propagation = Duration::from_nanos(rng.between(0, 20_000));
    let atm = rng.chance(0.3);
    let link = if atm {
        LinkProfile::atm(rate, propagation)
    } else {
        LinkProfile::ethernet(rate, propagation)
    };
    let buffer = if atm {
        Buffer::Cells(rng.between(300, 2_000) as u32)
    } else {
        Buffer::Bytes(rng.between(16 << 10, 128 << 10) as u32)
    };
    let discards = [DiscardPolicy::Tail, DiscardPolicy::Partial, DiscardPolicy::EARLY];
    let forwarding = if rng.chance(0.3) {
        Forwarding::CutThrough { header: 32 }
    } else {
        Forwarding::StoreAndForward
    };
    let profile = SwitchProfile {
        latency: Duration::from_nanos(rng.between(0, 5_000)),
        forwarding,
        discard: discards[rng.below(3) as usize],
        ..SwitchProfile::new(buffer)
    };
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..rng.between(1, 2)).map(|_| topology.add_switch(profile)).collect();
    if let [a, b] = switches[..] {
        topology.add_trunk(a, b, link);
    }
    for _ in 0..rng.between(2, 6) {
        topology.add_host(switches[rng.below(switches.len() as u64) as usize], link);
    }
    topology
}

/// Draws cuts between two nodes, in one direction or both, that last about as long as a lease: a holder, or a sender
/// that supports it, misses the changes of the others.
fn cuts(rng: &mut Rng, topology: &Topology, trouble: Duration, lease: Duration) -> Vec<Incident> {
    let hosts = u64::from(topology.hosts());
    let cut = |_| {
        let from = rng.below(hosts);
        let to = NodeId(((from + rng.between(1, hosts - 1)) % hosts) as u16);
        let from = NodeId(from as u16);
        let fault = if rng.chance(0.4) {
            Fault::OneWay { from, to }
        } else {
            Fault::Partition { from, to }
        };
        let at = Instant::from_nanos(rng.below(trouble.as_nanos() as u64));
        let lasts = Duration::from_nanos(rng.between(1_000_000, lease.as_nanos() as u64 * 2));
        Incident { at, lasts, fault }
    };
    (0..6).map(cut).collect()
}

/// Draws a split at `at` of the nodes into two groups, which lasts long enough that they declare each other dead. Half
/// of the splits end for all pairs of nodes at once, the others for each at a time of its own: a sender may then
/// receive messages from a holder that it has declared dead.
fn split(
    rng: &mut Rng,
    topology: &Topology,
    at: Duration,
    lasts: Range<Duration>,
) -> Vec<Incident> {
    let nodes: Vec<NodeId> = (0..topology.hosts()).map(NodeId).collect();
    let alone = rng.chance(0.5).then(|| rng.below(nodes.len() as u64) as usize);
    let is_apart =
        |at: usize, rng: &mut Rng| alone.map_or_else(|| rng.chance(0.5), |one| one == at);
    let apart: Vec<bool> = (0..nodes.len()).map(|at| is_apart(at, rng)).collect();
    let draw = |rng: &mut Rng| {
        Duration::from_nanos(
            rng.between(lasts.start.as_nanos() as u64, lasts.end.as_nanos() as u64),
        )
    };
    let shared = rng.chance(0.5).then(|| draw(rng));
    let mut incidents = Vec::new();
    for (from, to) in nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to))) {
        if apart[from.index()] && !apart[to.index()] {
            let lasts = shared.unwrap_or_else(|| draw(rng));
            let at = Instant::ZERO + at;
            incidents.push(Incident { at, lasts, fault: Fault::Partition { from, to } });
        }
    }
    incidents
}

/// Draws the settings of senders that share the link to the first receiver. Of two, the second is behind another link.
fn coordination(
    rng: &mut Rng,
    hosts: u16,
    lease: Duration,
    receivers: &[NodeId],
) -> CoordinationConfig {
    let senders = |but: NodeId| (1..hosts).map(NodeId).filter(|node| *node != but).collect();
    let mut config = CoordinationConfig::new();
    let mut links = Vec::new();
    for receiver in receivers {
        let link =
            LinkConfig { number: receiver.0, witness: *receiver, senders: senders(*receiver) };
        links.push(receiver.0);
        config = config.link(link).route(*receiver, links.clone());
    }
    let buffers = rng.chance(0.5) && receivers.len() == 1;
    config = config.lease(lease).genesis(rng.chance(0.7)).buffers(buffers);
    config = config.hold([Hold::Message, Hold::Auto, Hold::Bytes(20_000)][rng.below(3) as usize]);
    if rng.chance(0.3) {
        config = config.lead(Lead::Off);
    }
    // Senders then report tokens as lost whose messages are only late, and peers long before those are declared dead.
    if rng.chance(0.5) {
        config = config.request_timeout(Duration::from_millis(rng.between(2, 12)));
    }
    config
}
