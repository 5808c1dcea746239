//! Preempts jobs in random clusters, and counts lost, duplicated and reordered messages.

mod chatter;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::gang::channel::geometry::{FifoSize, Geometry};
use midplane::gang::context::NetworkContext;
use midplane::gang::controller::{ControlError, Controller};
use midplane::gang::firmware::Gang;
use midplane::gang::names::{ChannelAddress, ChannelId, JobId};
use midplane::gang::network::Network;
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::Faults;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::rng::Rng;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use serde::Serialize;

use super::slowdown;
use crate::report;
use chatter::{Account, chatter};

/// Preemptions of one random cluster before the next is drawn.
const OF_ONE_CLUSTER: u64 = 400;
/// Virtual time after which a cluster counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// Results over all clusters.
#[derive(Clone, Debug, Default, Serialize)]
struct Tally {
    preemptions: u64,
    clusters: u64,
    /// Preemptions that copied all FIFOs out, to bytes and back; in every other one some ranks still ran.
    copied: u64,
    /// Preemptions with messages in a FIFO, and the number of those messages.
    with_messages: u64,
    in_transit: u64,
    messages: u64,
    bytes: u64,
    lost: u64,
    doubled: u64,
    reordered: u64,
    damaged: u64,
    longest_freeze_us: f64,
    /// Clusters that did not finish, with their seeds and the reasons.
    stuck: Vec<String>,
}

impl Tally {
    fn holds(&self) -> bool {
        [self.lost, self.doubled, self.reordered, self.damaged] == [0; 4] && self.stuck.is_empty()
    }
}

#[derive(Serialize)]
struct Document {
    seed: u64,
    soak: Tally,
}

/// One random cluster.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    seed: u64,
    nodes: u16,
    ranks: u16,
    copies: bool,
    faults: Faults,
    geometry: Geometry,
    /// Longest slice in nanoseconds.
    slice: u64,
}

impl Cluster {
    /// Draws a cluster with FIFOs so small that some are full at any time.
    fn random(seed: u64) -> Self {
        let mut dice = Rng::new(seed, "cluster");
        let message = 8 * dice.between(4, 40) as u32;
        let mut fifo = || FifoSize {
            messages: dice.between(1, 12) as u32,
            bytes: message * dice.between(1, 6) as u32,
        };
        let geometry = Geometry { send: fifo(), receive: fifo(), message };
        let bad = |dice: &mut Rng, most: f64| most * dice.unit();
        let faults = match dice.chance(0.5) {
            true => Faults::NONE,
            false => Faults {
                loss: bad(&mut dice, 0.03),
                duplicate: bad(&mut dice, 0.03),
                corrupt: bad(&mut dice, 0.02),
                reorder: bad(&mut dice, 0.08),
                delay: Duration::from_nanos(dice.between(0, 60_000)),
                jitter: Duration::from_nanos(dice.between(0, 1_000)),
            },
        };
        Self {
            seed,
            nodes: dice.between(1, 4) as u16,
            ranks: dice.between(2, 6) as u16,
            copies: dice.chance(0.5),
            faults,
            geometry,
            slice: dice.between(1_000, 120_000),
        }
    }

    fn places(&self) -> Vec<ChannelAddress> {
        let place = |rank| ChannelAddress {
            node: NodeId(rank % self.nodes),
            channel: ChannelId(rank / self.nodes),
        };
        (0..self.ranks).map(place).collect()
    }

    fn world(&self) -> World<Unit> {
        let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
        let switch = SwitchProfile::new(Buffer::Bytes(256 << 10));
        let topology = Topology::star(self.nodes, link, switch);
        let mut world = World::new(&topology, NicProfile::MODERN, self.seed, |_, _| {
            let mut unit = Unit::default();
            let gang = Gang::new(GangConfig::default().channels(16));
            unit.install(GANG, gang).expect("its number is free");
            unit
        });
        world.set_digesting(false);
        world.set_faults(self.faults);
        world
    }

    /// Runs the cluster for `preemptions` preemptions, then until every message has arrived.
    fn run(self, preemptions: u64, tally: &Arc<Mutex<Tally>>) {
        let mut world = self.world();
        let hosts: Vec<SimHost> = (0..self.nodes).map(|node| world.host(NodeId(node))).collect();
        let account = Arc::new(Mutex::new(Account::new(self.ranks)));
        let (known, done) = (Arc::clone(&account), Arc::new(Mutex::new(None)));
        let (place, shared) = (Arc::clone(&done), Arc::clone(tally));
        world.spawn(NodeId(0), async move {
            let outcome = self.preempt(&hosts, &known, preemptions, &shared).await;
            *place.lock().expect("nobody panics with it") = Some(outcome);
        });
        let take = || done.lock().expect("nobody panics with it").take();
        let (until, mut outcome) = (Instant::ZERO + PATIENCE, None);
        while outcome.is_none() && world.now() < until {
            world.run_until(world.now().plus_nanos(1_000_000));
            outcome = take();
        }
        let stuck = match outcome {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some("it never ends".to_owned()),
        };
        let account = account.lock().expect("nobody panics with it");
        let mut tally = tally.lock().expect("nobody panics with it");
        tally.stuck.extend(stuck.map(|why| format!("seed {}: {why}", self.seed)));
        tally.clusters += 1;
        tally.messages += account.received();
        tally.bytes += account.bytes;
        tally.lost += account.lost();
        tally.doubled += account.doubled;
        tally.reordered += account.reordered;
        tally.damaged += account.damaged;
    }

    async fn preempt(
        self,
        hosts: &[SimHost],
        account: &Arc<Mutex<Account>>,
        preemptions: u64,
        tally: &Mutex<Tally>,
    ) -> Result<(), ControlError> {
        let (host, places) = (&hosts[0], self.places());
        let controller = |place: &ChannelAddress| {
            Controller::open(&hosts[place.node.index()], place.channel, self.geometry, self.copies)
        };
        let controllers = places.iter().map(controller).collect::<Result<_, _>>()?;
        let mut network = Network::open(JobId(1), &places, controllers).await?;
        network.run(host).await?;
        for (held, place) in network.ranks().iter().zip(&places) {
            let host = hosts[place.node.index()].clone();
            let descriptor = held.controller.descriptor(held.context);
            let program = chatter(host.clone(), descriptor, Arc::clone(account), self.seed);
            host.spawn(held.suspend_handle.hold(program));
        }
        let mut dice = Rng::new(self.seed, "preemptions");
        for number in 0..preemptions {
            host.sleep_until(host.now().plus_nanos(dice.between(1, self.slice))).await;
            self.preempt_once(host, &mut network, number, tally).await?;
        }
        account.lock().expect("nobody panics with it").sending = false;
        while !network.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            host.sleep_until(host.now().plus_nanos(20_000)).await;
        }
        Ok(())
    }

    async fn preempt_once(
        self,
        host: &SimHost,
        network: &mut Network,
        number: u64,
        tally: &Mutex<Tally>,
    ) -> Result<(), ControlError> {
        let before = host.now();
        let mut freeze_us = 0.0;
        let ahead = match self.copies && number % 2 == 1 {
            true => Some(network.leave(host).await?),
            false => {
                network.freeze(host).await?;
                freeze_us = host.now().nanos_since(before) as f64 / 1e3;
                None
            }
        };
        let cut = network.save(self.copies).await?;
        cut.validate().map_err(|_| ControlError::Saved("the cut is not consistent"))?;
        if ahead.is_some_and(|ahead| ahead != cut) {
            return Err(ControlError::Saved("it changed after it was saved"));
        }
        if self.copies {
            let bytes = cut.to_bytes().map_err(|_| ControlError::Saved("it is no bytes"))?;
            let back = NetworkContext::from_bytes(&bytes);
            network.restore(&back.map_err(|_| ControlError::Saved("it is not read"))?).await?;
        }
        network.run(host).await?;
        let held = cut.in_transit().count() as u64;
        let mut tally = tally.lock().expect("nobody panics with it");
        tally.preemptions += 1;
        tally.copied += u64::from(self.copies);
        tally.with_messages += u64::from(held > 0);
        tally.in_transit += held;
        tally.longest_freeze_us = tally.longest_freeze_us.max(freeze_us);
        Ok(())
    }
}

/// Runs random clusters on all processors, for `preemptions` preemptions in total.
pub(crate) fn run(seed: u64, preemptions: u64, json: bool) -> ExitCode {
    let bar = slowdown::progress(preemptions as usize);
    let clusters = preemptions.div_ceil(OF_ONE_CLUSTER);
    let (next, total) = (AtomicU64::new(0), Arc::new(Mutex::new(Tally::default())));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= clusters {
                return;
            }
            let count = OF_ONE_CLUSTER.min(preemptions - number * OF_ONE_CLUSTER);
            Cluster::random(seed.wrapping_add(number)).run(count, &total);
            bar.inc(count);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    bar.finish_and_clear();
    let soak = std::mem::take(&mut *total.lock().expect("nobody panics with it"));
    let holds = soak.holds();
    report::conclude(json, &Document { seed, soak }, holds)
}
