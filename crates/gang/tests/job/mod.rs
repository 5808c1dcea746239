//! A job in virtual time: ranks that send each other numbered messages, and a task that preempts them.

pub(crate) mod network;
pub(crate) mod scheduler;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::channel::{Channel, Descriptor, SendError};
use midplane_gang::context::NetworkContext;
use midplane_gang::controller::Controller;
use midplane_gang::firmware::Gang;
use midplane_gang::names::{ChannelAddress, ChannelId, JobId, Rank};
use midplane_gang::{GANG, GangConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use network::Network;

/// FIFOs that are full most of the time.
pub(crate) const TIGHT: Geometry = Geometry {
    send: FifoSize { messages: 7, bytes: 512 },
    receive: FifoSize { messages: 5, bytes: 512 },
    message: 200,
};

pub(crate) fn world(nodes: u16, seed: u64, faults: Faults) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(256 << 10));
    let topology = Topology::star(nodes, link, switch);
    let mut world = World::new(&topology, NicProfile::MODERN, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default().channels(16))).unwrap();
        unit
    });
    world.set_faults(faults);
    world
}

/// Returns the ranks' places: rank r is on node r modulo `nodes`, on the next channel there.
pub(crate) fn places(ranks: u16, nodes: u16) -> Vec<ChannelAddress> {
    let place =
        |rank| ChannelAddress { node: NodeId(rank % nodes), channel: ChannelId(rank / nodes) };
    (0..ranks).map(place).collect()
}

pub(crate) async fn open(
    world: &[SimHost],
    job: JobId,
    places: &[ChannelAddress],
    geometry: Geometry,
    shared: bool,
) -> Network {
    let controller = |place: &ChannelAddress| {
        let host = &world[place.node.index()];
        Controller::open(host, place.channel, geometry, shared).unwrap()
    };
    Network::open(job, places, places.iter().map(controller).collect()).await.unwrap()
}

/// The progress of a rank, which changes in the same turn as its channel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Progress {
    /// Messages sent to each rank.
    pub(crate) sent: Vec<u32>,
    /// Messages received from each rank.
    pub(crate) received: Vec<u32>,
    /// A digest of the messages received from each sender, in order.
    pub(crate) digests: Vec<u64>,
    pub(crate) dice: u64,
}

impl Progress {
    pub(crate) fn new(ranks: u16, seed: u64) -> Self {
        let ranks = usize::from(ranks);
        Self { sent: vec![0; ranks], received: vec![0; ranks], digests: vec![0; ranks], dice: seed }
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % below
    }
}

/// Returns message `number` from one rank to another.
pub(crate) fn message(from: u16, to: u16, number: u32, most: u32) -> Vec<u8> {
    let seed = u64::from(from) << 48 | u64::from(to) << 32 | u64::from(number);
    let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let length = (mixed >> 40) % u64::from(most + 1);
    let mut bytes = Vec::with_capacity(length as usize);
    for at in 0..length {
        bytes.push((mixed.wrapping_mul(at + 1) >> 56) as u8);
    }
    bytes
}

/// Sends `count` messages to each rank, itself too, in a random order, and receives as many.
pub(crate) async fn chatter(
    host: SimHost,
    descriptor: Descriptor,
    progress: Arc<Mutex<Progress>>,
    count: u32,
) {
    let mut channel = Channel::attach(&host, descriptor).await.unwrap();
    let (own, ranks, most) = (channel.rank().0, channel.ranks(), channel.message_bytes());
    loop {
        let pause = {
            let mut done = progress.lock().unwrap();
            while let Some((from, bytes)) = channel.try_receive() {
                let number = done.received[from.index()];
                assert_eq!(
                    bytes,
                    message(from.0, own, number, most),
                    "{number} from {from} to {own}"
                );
                done.received[from.index()] += 1;
                for byte in bytes {
                    let digest = &mut done.digests[from.index()];
                    *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
                }
                if done.roll(8) == 0 {
                    break;
                }
            }
            let open: Vec<u16> =
                (0..ranks).filter(|to| done.sent[usize::from(*to)] < count).collect();
            if open.is_empty() && done.received.iter().all(|received| *received == count) {
                break;
            }
            let mut full = open.is_empty();
            if !open.is_empty() {
                let to = open[done.roll(open.len() as u64) as usize];
                let number = done.sent[usize::from(to)];
                match channel.try_send(Rank(to), &message(own, to, number, most)) {
                    Ok(()) => done.sent[usize::from(to)] += 1,
                    Err(SendError::Full) => full = true,
                    Err(other) => panic!("{other}"),
                }
            }
            match full {
                true => None,
                false => Some(done.roll(3000)),
            }
        };
        match pause {
            None => channel.room().await.unwrap(),
            Some(nanos) => host.sleep_until(host.now().plus_nanos(nanos)).await,
        }
    }
    // Waits until the receivers have taken all sent messages.
    while !channel.is_flushed() {
        channel.room().await.unwrap();
    }
}

/// The way in which a run is preempted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Preemption {
    Never,
    Resident,
    Copy,
    /// Each rank is saved before those after it are stopped.
    CopyAhead,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) ranks: u16,
    pub(crate) nodes: u16,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    pub(crate) count: u32,
    pub(crate) way: Preemption,
    pub(crate) geometry: Geometry,
    /// Longest time between two preemptions.
    pub(crate) slice: Duration,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            ranks: 4,
            nodes: 3,
            seed: 1,
            faults: Faults::NONE,
            count: 30,
            way: Preemption::Copy,
            geometry: TIGHT,
            slice: Duration::from_micros(80),
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) progress: Vec<Progress>,
    pub(crate) preemptions: u32,
    pub(crate) longest_freeze: Duration,
}

/// Starts all ranks' processes.
pub(crate) fn start(
    hosts: &[SimHost],
    network: &Network,
    places: &[ChannelAddress],
    progress: &[Arc<Mutex<Progress>>],
    count: u32,
) {
    for ((held, place), progress) in network.ranks().iter().zip(places).zip(progress) {
        let host = hosts[place.node.index()].clone();
        let descriptor = held.controller.descriptor(held.context);
        let program = chatter(host.clone(), descriptor, Arc::clone(progress), count);
        host.spawn(held.suspend_handle.hold(program));
    }
}

/// Preempts a job once, and resumes it; returns the time that the freeze took.
async fn preempt_once(
    host: &SimHost,
    network: &mut Network,
    run: &Run,
    dice: &mut Rng,
) -> Duration {
    let shared = run.way != Preemption::Resident;
    let before = host.now();
    let ahead = match run.way {
        Preemption::CopyAhead => Some(network.leave(host).await.unwrap()),
        _ => {
            network.freeze(host).await.unwrap();
            None
        }
    };
    let took = Duration::from_nanos(host.now().nanos_since(before));
    let cut = network.save(shared).await.unwrap();
    cut.validate().unwrap();
    if let Some(ahead) = &ahead {
        assert_eq!(*ahead, cut, "it changed after it was saved");
    }
    if run.way == Preemption::Resident {
        // The NICs continue for other jobs, but not for this one.
        host.sleep_until(host.now().plus_nanos(dice.between(1, 2 * run.slice.as_nanos() as u64)))
            .await;
        let later = network.save(false).await.unwrap();
        assert_eq!(later, cut, "it changed while it was suspended");
    }
    if shared {
        let back = NetworkContext::from_bytes(&cut.to_bytes().unwrap()).unwrap();
        assert_eq!(back, cut);
        network.restore(&back).await.unwrap();
    }
    network.run(host).await.unwrap();
    took
}

pub(crate) fn run(run: Run) -> Report {
    let mut world = world(run.nodes, run.seed, run.faults);
    let hosts: Vec<SimHost> = (0..run.nodes).map(|node| world.host(NodeId(node))).collect();
    let places = places(run.ranks, run.nodes);
    let progress: Vec<_> = (0..run.ranks)
        .map(|rank| Arc::new(Mutex::new(Progress::new(run.ranks, run.seed + u64::from(rank)))))
        .collect();
    let shown = progress.clone();
    let preemptor = async move {
        let host = hosts[0].clone();
        let shared = matches!(run.way, Preemption::Copy | Preemption::CopyAhead);
        let mut network = open(&hosts, JobId(1), &places, run.geometry, shared).await;
        network.run(&host).await.unwrap();
        start(&hosts, &network, &places, &progress, run.count);
        let mut dice = Rng::new(run.seed, "preemptions");
        let (mut preemptions, mut longest) = (0, Duration::ZERO);
        let most = run.slice.as_nanos() as u64;
        while !network.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            host.sleep_until(host.now().plus_nanos(dice.between(1, most))).await;
            if run.way == Preemption::Never {
                continue;
            }
            longest = longest.max(preempt_once(&host, &mut network, &run, &mut dice).await);
            preemptions += 1;
        }
        (preemptions, longest)
    };
    let limit = Instant::from_nanos(60_000_000_000);
    let done = Arc::new(Mutex::new(None));
    let place = Arc::clone(&done);
    world.spawn(NodeId(0), async move {
        *place.lock().unwrap() = Some(preemptor.await);
    });
    while done.lock().unwrap().is_none() && world.now() < limit {
        world.run_until(world.now().plus_nanos(1_000_000));
    }
    let (preemptions, longest_freeze) =
        done.lock().unwrap().take().unwrap_or_else(|| panic!("it never ends: {shown:?}"));
    let progress = shown.iter().map(|progress| progress.lock().unwrap().clone()).collect();
    Report { progress, preemptions, longest_freeze }
}
