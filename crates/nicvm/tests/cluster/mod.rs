//! A star of simulated hosts: node 0 receives, the others send.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::control;
use midplane_nicvm::coordination::{
    self, COORDINATION, COUNTERS, Coordination, CoordinationConfig,
};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

pub(crate) const RECEIVER: NodeId = NodeId(0);
const WARM_UP: Duration = Duration::from_millis(100);

/// The load that the senders offer, and the receiver's handling of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) message_bytes: usize,
    pub(crate) coordinated: bool,
    pub(crate) time: Duration,
    /// Messages under way at each sender.
    pub(crate) burst: usize,
    /// Number of senders that send; the others stay idle.
    pub(crate) active: u16,
    /// Time after the end in which sent messages may still arrive.
    pub(crate) drain: Duration,
    /// Buffers that the receiver posts.
    pub(crate) buffers: usize,
    /// Time for which the receiver keeps a message before it posts the buffer again.
    pub(crate) keeps: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            message_bytes: 10_240,
            coordinated: true,
            time: Duration::from_millis(500),
            burst: 100,
            active: u16::MAX,
            drain: Duration::from_secs(3),
            buffers: 64,
            keeps: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    pub(crate) sent: Vec<u64>,
    pub(crate) received: Vec<u64>,
    /// Those of them that arrived between a tenth of a second and the end.
    pub(crate) in_time: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) digest: u64,
    pub(crate) drops: u64,
    /// Largest occupancy of the switch's buffer before the receiver's link.
    pub(crate) peak: u32,
    /// Control messages of all links, those for leases among them, tokens received, tokens lost.
    pub(crate) counters: [u64; 4],
    /// Senders that have sent all their messages.
    pub(crate) finished: usize,
    /// Control-message counters of the receiver's unit.
    pub(crate) receiver: control::Counters,
}

impl Outcome {
    pub(crate) fn lost(&self) -> u64 {
        self.sent.iter().sum::<u64>() - self.received.iter().sum::<u64>()
    }

    pub(crate) fn loss(&self) -> f64 {
        self.lost() as f64 / self.sent.iter().sum::<u64>() as f64
    }

    pub(crate) fn goodput_mbps(&self) -> f64 {
        let bits = self.in_time.iter().sum::<u64>() as f64 * self.bytes as f64 * 8.0;
        bits / 1e6 / (self.seconds - WARM_UP.as_secs_f64())
    }

    /// Jain's index of the senders' shares.
    pub(crate) fn jain(&self) -> f64 {
        let shares: Vec<f64> = self.in_time.iter().map(|n| *n as f64).collect();
        let (sum, squares) =
            (shares.iter().sum::<f64>(), shares.iter().map(|x| x * x).sum::<f64>());
        sum * sum / (shares.len() as f64 * squares)
    }

    fn note(&mut self, from: NodeId, in_time: bool) {
        self.received[from.index() - 1] += 1;
        self.in_time[from.index() - 1] += u64::from(in_time);
    }

    /// Returns the control messages for each message sent, without those for leases.
    pub(crate) fn control_share(&self) -> f64 {
        (self.counters[0] - self.counters[1]) as f64 / self.sent.iter().sum::<u64>() as f64
    }
}

pub(crate) struct Cluster {
    pub(crate) senders: u16,
    pub(crate) topology: Topology,
    pub(crate) profile: NicProfile,
    pub(crate) config: CoordinationConfig,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
}

impl Cluster {
    /// 100 Mb/s Ethernet and a switch with 32 KiB a port.
    pub(crate) fn ethernet(senders: u16) -> Self {
        let link = LinkProfile::ethernet(LineRate::mbps(100), Duration::from_nanos(500));
        Self::star(senders, link, Buffer::Bytes(32 << 10), NicProfile::MODERN)
    }

    /// The paper's cluster: ATM at 155.52 Mb/s, coprocessors of 25 MHz, a switch with `cells` cells a port.
    pub(crate) fn atm(senders: u16, cells: u32) -> Self {
        let rate = LineRate::new(149_760_000).unwrap();
        let link = LinkProfile::atm(rate, Duration::from_nanos(500));
        Self::star(senders, link, Buffer::Cells(cells), NicProfile::SBA_200E)
    }

    fn star(senders: u16, link: LinkProfile, buffer: Buffer, profile: NicProfile) -> Self {
        let nodes: Vec<NodeId> = (1..=senders).map(NodeId).collect();
        let mut config = CoordinationConfig::star(&[RECEIVER], &nodes);
        config = config.genesis(true);
        Self {
            senders,
            topology: Topology::star(senders + 1, link, SwitchProfile::new(buffer)),
            profile,
            config,
            seed: 1,
            faults: Faults::NONE,
        }
    }

    pub(crate) fn world(&self) -> World<Unit> {
        let config = self.config.clone();
        World::new(&self.topology, self.profile, self.seed, move |_, _| {
            let mut unit = Unit::default();
            unit.install(MESSAGES, Messages::new()).unwrap();
            unit.install(COORDINATION, Coordination::new(config.clone()).unwrap()).unwrap();
            unit
        })
    }

    pub(crate) fn run(&self, load: Load) -> Outcome {
        self.run_in(self.world(), load)
    }

    pub(crate) fn run_in(&self, mut world: World<Unit>, load: Load) -> Outcome {
        world.set_faults(self.faults);
        let senders = usize::from(self.senders);
        let outcome = Arc::new(Mutex::new(Outcome {
            sent: vec![0; senders],
            received: vec![0; senders],
            in_time: vec![0; senders],
            bytes: load.message_bytes as u64,
            seconds: load.time.as_secs_f64(),
            ..Outcome::default()
        }));
        world.spawn(RECEIVER, receive(world.host(RECEIVER), load, Arc::clone(&outcome)));
        for sender in 1..=self.senders.min(load.active) {
            let host = world.host(NodeId(sender));
            world.spawn(NodeId(sender), send(host, load, Arc::clone(&outcome)));
        }
        world.run_until(Instant::ZERO + load.time + load.drain);
        let mut outcome = outcome.lock().unwrap().clone();
        outcome.digest = world.digest();
        outcome.drops = world.traffic().drops.total();
        outcome.receiver = *world.firmware(RECEIVER).control_counters().unwrap();
        outcome.peak = world.output(self.topology.downlink(RECEIVER)).unwrap().peak();
        outcome
    }
}

async fn send(host: SimHost, load: Load, outcome: Arc<Mutex<Outcome>>) {
    let mut port = host.open_port().unwrap();
    let region = port.register(load.message_bytes).unwrap();
    let end = Instant::ZERO + load.time;
    // Senders do not start at the same instant, because no clocks agree that well.
    let start = host.rng("start").below(1_000_000);
    host.sleep_until(Instant::from_nanos(start)).await;
    let command = if load.coordinated {
        coordination::send(RECEIVER, PortId(0), region.whole(), 0)
    } else {
        messages::send(RECEIVER, PortId(0), region.whole(), 0)
    };
    let mut under_way = 0;
    loop {
        while under_way < load.burst && host.now() < end {
            port.post(&command).unwrap();
            under_way += 1;
        }
        port.ring();
        if under_way == 0 {
            break;
        }
        let completion = port.completion().await.unwrap();
        assert_eq!(completion.status, Status::Done);
        outcome.lock().unwrap().sent[host.node().index() - 1] += 1;
        under_way -= 1;
    }
    port.submit(&Command { opcode: COUNTERS, ..coordination::receive(region.whole(), 0) }).unwrap();
    let counted = port.completion().await.unwrap();
    let mut outcome = outcome.lock().unwrap();
    outcome.finished += 1;
    for (sum, count) in outcome.counters.iter_mut().zip(counted.args) {
        *sum += count;
    }
}

async fn receive(host: SimHost, load: Load, outcome: Arc<Mutex<Outcome>>) {
    let mut port = host.open_port().unwrap();
    let regions: Vec<_> =
        (0..load.buffers).map(|_| port.register(load.message_bytes).unwrap()).collect();
    let receive = |at: usize| {
        let region = regions[at].whole();
        if load.coordinated {
            coordination::receive(region, at as u64)
        } else {
            messages::receive(region, at as u64)
        }
    };
    for at in 0..regions.len() {
        port.post(&receive(at)).unwrap();
    }
    port.ring();
    while let Ok(completion) = port.completion().await {
        let in_time =
            host.now() >= Instant::ZERO + WARM_UP && host.now() <= Instant::ZERO + load.time;
        outcome.lock().unwrap().note(completion.node, in_time);
        if load.keeps > Duration::ZERO {
            host.sleep_until(host.now() + load.keeps).await;
        }
        port.submit(&receive(completion.cookie as usize)).unwrap();
    }
}
