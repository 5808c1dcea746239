//! The settings of a simulation, and its topology.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::fault::Faults;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::{HostProfile, NicProfile, Notice, Ringing};
use midplane_simhw::services::{DATAGRAM_FRAMING, MAX_DATAGRAM};
use midplane_simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

use super::alone::alone;
use super::trace::Plan;
use super::{Report, Sim, SimError};
use crate::NodeBuilder;

/// Default limit of a run: one hour of virtual time.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(3_600);

/// The environment variable that replays one seed.
const VARIABLE: &str = "MIDPLANE_SEED";

/// The shape of the network.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Star,
    /// Number of hosts in each rack, and the rate between racks.
    TwoTier(u16, LineRate),
    /// Number of hosts on the left, and the rate between the sides.
    Dumbbell(u16, LineRate),
}

type Configure = dyn Fn(&str, NodeBuilder) -> NodeBuilder + Send + Sync;

/// Configures the nodes of the hosts.
#[derive(Clone)]
pub(super) struct Nodes(Arc<Configure>);

impl Nodes {
    /// Configures the node of the host with this name.
    pub(super) fn configure(&self, host: &str, node: NodeBuilder) -> NodeBuilder {
        (self.0)(host, node)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

/// Configures a [`Sim`]; every setting has a default.
#[derive(Clone, Debug)]
#[must_use = "`build` makes a simulation, `check` and `swarm` run one"]
pub struct SimBuilder {
    pub(super) seed: u64,
    shape: Shape,
    rate: LineRate,
    latency: Duration,
    port_buffer: u32,
    discard: DiscardPolicy,
    pub(super) faults: Faults,
    nic: NicProfile,
    pub(super) host: HostProfile,
    pub(super) nodes: Nodes,
    pub(super) limit: Duration,
    trace: Option<PathBuf>,
}

impl Default for SimBuilder {
    fn default() -> Self {
        Self {
            seed: 1,
            shape: Shape::Star,
            rate: LineRate::mbps(1_000),
            latency: Duration::from_micros(10),
            port_buffer: 256 << 10,
            discard: DiscardPolicy::Tail,
            faults: Faults::NONE,
            nic: NicProfile::FREE,
            host: HostProfile::FREE,
            nodes: Nodes(Arc::new(|_, node| node)),
            limit: DEFAULT_LIMIT,
            trace: None,
        }
    }
}

impl SimBuilder {
    /// Sets the seed of all random draws. Default: 1. `MIDPLANE_SEED` of the environment overrides it.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the rate of the hosts' links in megabits per second, at least 1. Default: 1,000.
    pub fn link_mbps(mut self, mbps: u64) -> Self {
        self.rate = LineRate::mbps(mbps.max(1));
        self
    }

    /// Sets the propagation delay of each link, in one direction. Default: 10 us. A round trip through one switch takes four.
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Sets the bytes that each port of a switch buffers. Default: 256 KiB.
    pub const fn port_buffer(mut self, bytes: u32) -> Self {
        self.port_buffer = bytes;
        self
    }

    /// Sets the rule by which a full port drops packets, which may be [one of your own](DiscardPolicy::Own). Default: it
    /// drops the arriving packet.
    pub const fn discard(mut self, policy: DiscardPolicy) -> Self {
        self.discard = policy;
        self
    }

    /// Loses each packet with this probability, from 0 to 1, during the whole run. Default: 0.
    pub const fn loss(mut self, probability: f64) -> Self {
        self.faults.loss = probability;
        self
    }

    /// Delays each packet by a random time of at most this. Default: zero.
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.faults.jitter = most;
        self
    }

    /// Places the hosts in racks of this many, in the order in which they are added. Each rack has a switch, with a
    /// link of `trunk_mbps` to the switch between the racks.
    pub fn two_tier(mut self, hosts_per_rack: u16, trunk_mbps: u64) -> Self {
        self.shape = Shape::TwoTier(hosts_per_rack.max(1), LineRate::mbps(trunk_mbps.max(1)));
        self
    }

    /// Places the first `left` hosts at one switch and the others at a second one, with a link of `trunk_mbps` between them.
    pub fn dumbbell(mut self, left: u16, trunk_mbps: u64) -> Self {
        self.shape = Shape::Dumbbell(left, LineRate::mbps(trunk_mbps.max(1)));
        self
    }

    /// Charges the costs of a NIC, such as [`NicProfile::MODERN`]. Default: none.
    pub const fn nics(mut self, profile: NicProfile) -> Self {
        self.nic = profile;
        self
    }

    /// Charges the costs of a host, such as those of
    /// [`Machine::ETHERNET_25G`](midplane_simhw::profile::Machine::ETHERNET_25G). Default: none. Sockets are a
    /// kernel's, so two settings of the profile are replaced: a call enters the kernel, and a received packet raises an
    /// interrupt. Copies, and the time of a host's own code, are not charged.
    pub const fn hosts(mut self, profile: HostProfile) -> Self {
        self.host =
            HostProfile { ringing: Ringing::SystemCall, notice: Notice::Interrupt, ..profile };
        self
    }

    /// Configures the node of each host, at its start and at each restart. `configure` gets the host's name and a
    /// builder with all defaults. The settings of a simulated host are applied afterwards: name, address, transport,
    /// and the places of the other hosts.
    ///
    /// ```
    /// # use midplane::Sim;
    /// // The client grants tokens to its senders.
    /// let sims = Sim::builder().nodes(|host, node| match host {
    ///     "client-1" => node.receive_tokens(),
    ///     _ => node,
    /// });
    /// # drop(sims);
    /// ```
    pub fn nodes(
        mut self,
        configure: impl Fn(&str, NodeBuilder) -> NodeBuilder + Send + Sync + 'static,
    ) -> Self {
        self.nodes = Nodes(Arc::new(configure));
        self
    }

    /// Limits the virtual time of a run. Default: [`DEFAULT_LIMIT`].
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Traces each run into files of this folder, named after the test's thread and the seed. `MIDPLANE_TRACE` of the
    /// environment overrides it. Default: no trace.
    pub fn trace(mut self, folder: impl Into<PathBuf>) -> Self {
        self.trace = Some(folder.into());
        self
    }

    /// Creates a simulation without hosts.
    ///
    /// # Panics
    /// If `MIDPLANE_SEED` of the environment is not a seed. [`SimBuilder::check`] and [`SimBuilder::swarm`] panic as
    /// well.
    #[must_use]
    pub fn build(self) -> Sim {
        let seed = Self::replayed().unwrap_or(self.seed);
        self.build_with(seed)
    }

    pub(super) fn build_with(self, seed: u64) -> Sim {
        Sim {
            trace: Plan::of_run(seed, self.trace.as_deref()),
            config: self,
            seed,
            specs: Vec::new(),
            script: Vec::new(),
            cluster: None,
            started: (0, 0),
        }
    }

    /// Runs the simulation that `set_up` adds twice, each time on a new thread, and compares the digests. `set_up` must
    /// create all state that its hosts share. A run that fails is run once more, and its last 10 s are
    /// [traced](SimBuilder::trace).
    ///
    /// # Errors
    /// [`SimError`] of either run; [`SimError::Nondeterministic`] if the digests differ.
    pub fn check(self, set_up: impl Fn(&mut Sim) + Sync) -> Result<Report, SimError> {
        let seed = Self::replayed().unwrap_or(self.seed);
        let once = |plan: Option<Plan>| {
            alone(seed, || {
                let mut sim = self.clone().build_with(seed);
                sim.trace = sim.trace.or(plan);
                set_up(&mut sim);
                sim.run()
            })
        };
        let first = once(None).map_err(|error| error.traced(seed, |plan| once(Some(plan))))?;
        if first.digest != once(None)?.digest {
            return Err(SimError::Nondeterministic { seed });
        }
        Ok(first)
    }

    /// Returns the seed that the environment requests to replay, if any.
    pub(super) fn replayed() -> Option<u64> {
        let text = std::env::var(VARIABLE).ok()?;
        match text.parse() {
            Ok(seed) => Some(seed),
            Err(_) => {
                panic!("{VARIABLE} is {text:?}: set it to a seed, a number from 0 to 2^64 - 1")
            }
        }
    }

    /// Returns the network of this many hosts.
    pub(super) fn topology(&self, hosts: u16) -> Topology {
        let link =
            |rate| LinkProfile { rate, propagation: self.latency, framing: DATAGRAM_FRAMING };
        let mut profile = SwitchProfile::new(Buffer::Bytes(self.port_buffer));
        profile.discard = self.discard;
        let mut topology = Topology::new();
        let first = topology.add_switch(profile);
        match self.shape {
            Shape::Star => {
                for _ in 0..hosts {
                    topology.add_host(first, link(self.rate));
                }
            }
            Shape::TwoTier(of_rack, trunk) => {
                let mut rack = first;
                for host in 0..hosts {
                    if host % of_rack == 0 {
                        rack = topology.add_switch(profile);
                        topology.add_trunk(first, rack, link(trunk));
                    }
                    topology.add_host(rack, link(self.rate));
                }
            }
            Shape::Dumbbell(left, trunk) => {
                let second = topology.add_switch(profile);
                topology.add_trunk(first, second, link(trunk));
                for host in 0..hosts {
                    let switch = if host < left { first } else { second };
                    topology.add_host(switch, link(self.rate));
                }
            }
        }
        topology
    }

    pub(super) const fn nic(&self) -> NicProfile {
        let mut nic = self.nic;
        nic.mtu = MAX_DATAGRAM;
        nic
    }
}
