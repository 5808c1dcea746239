//! A background job that has to make room, and ends elsewhere without having lost a message.
//!
//! In virtual time: the daemons that run real processes take no checkpoints of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::channel::{Channel, Descriptor, SendError};
use midplane::gang::checkpoint::Checkpoint;
use midplane::gang::controller::Controller;
use midplane::gang::firmware::Gang;
use midplane::gang::names::{ChannelId, JobId, Place, Rank};
use midplane::gang::network::Network;
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use serde::{Deserialize, Serialize};

const RANKS: u16 = 4;
/// Messages that each rank sends around the ring, and what each costs to make.
const COUNT: u32 = 2_000;
const WORK: Duration = Duration::from_micros(20);
/// When the other job comes, as a part of what this one takes alone.
const COMES: f64 = 0.6;
/// A job that takes longer than this is stuck.
const LIMIT: Instant = Instant::from_nanos(10_000_000_000);

/// What a rank has done so far; changed in the same turn as its channel.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct Progress {
    sent: u32,
    received: u32,
    /// Everything that was received, in its order.
    digest: u64,
}

/// How a leg ended.
struct Leg {
    took: Duration,
    progress: Vec<Progress>,
    cut: Option<Checkpoint>,
}

/// Milliseconds to the job's end: moved, and begun anew.
///
/// # Errors
/// One line: a message was lost, or the checkpoint was no good.
pub(crate) fn measure(seed: u64) -> Result<(f64, f64), String> {
    let alone = leg(seed, 0, None, None)?;
    let comes = alone.took.mul_f64(COMES);
    let first = leg(seed, 0, None, Some(comes))?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let there = folder.path().join("checkpoint");
    let cut = first.cut.ok_or("there is no checkpoint")?;
    cut.write_to(&there).map_err(|error| error.to_string())?;
    let back = Checkpoint::read_from(&there).map_err(|error| error.to_string())?;
    let second = leg(seed + 1, RANKS, Some(&back), None)?;
    if second.progress != alone.progress {
        return Err("a message was lost, doubled or overtaken".into());
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok((ms(first.took + second.took), ms(comes + alone.took)))
}

/// Runs the job on the nodes from `node` on, from where it was, until it ends or is cut.
fn leg(
    seed: u64,
    node: u16,
    from: Option<&Checkpoint>,
    cut: Option<Duration>,
) -> Result<Leg, String> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let topology = Topology::star(2 * RANKS, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let mut world = World::new(&topology, NicProfile::MODERN, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default())).expect("its number is free");
        unit
    });
    let hosts = (node..node + RANKS).map(|node| world.host(NodeId(node))).collect();
    let progress = match from {
        Some(saved) => saved.processes.iter().map(|bytes| serde_json::from_slice(bytes)).collect(),
        None => Ok(vec![Progress::default(); usize::from(RANKS)]),
    };
    let progress: Vec<Progress> = progress.map_err(|error| error.to_string())?;
    let job = Job {
        hosts,
        progress: progress.into_iter().map(|one| Arc::new(Mutex::new(one))).collect(),
        from: from.cloned(),
        cut,
    };
    let ended: Arc<Mutex<Option<Result<Leg, String>>>> = Arc::default();
    let place = Arc::clone(&ended);
    world.spawn(NodeId(node), async move {
        let result = job.run().await;
        *place.lock().expect("nobody panics with it") = Some(result);
    });
    let taken = || ended.lock().expect("nobody panics with it").take();
    while world.now() < LIMIT {
        if let Some(result) = taken() {
            return result;
        }
        world.run_until(world.now() + Duration::from_micros(100));
    }
    Err("the job is stuck".into())
}

struct Job {
    hosts: Vec<SimHost>,
    progress: Vec<Arc<Mutex<Progress>>>,
    from: Option<Checkpoint>,
    cut: Option<Duration>,
}

impl Job {
    async fn run(self) -> Result<Leg, String> {
        let text = |error: midplane::gang::controller::ControlError| error.to_string();
        let host = self.hosts[0].clone();
        let begun = host.now();
        let mut network = self.open().await?;
        if let Some(saved) = &self.from {
            network.restore(&saved.network).await.map_err(text)?;
        }
        network.run(&host).await.map_err(text)?;
        for ((held, host), progress) in network.ranks().iter().zip(&self.hosts).zip(&self.progress)
        {
            let descriptor = held.controller.descriptor(held.context);
            let task = ring(host.clone(), descriptor, Arc::clone(progress));
            host.spawn(held.reins.hold(task));
        }
        let until = self.cut.map_or(LIMIT, |cut| begun + cut);
        let has_ended =
            |network: &Network| network.ranks().iter().all(|held| held.reins.has_ended());
        while host.now() < until && !has_ended(&network) {
            host.sleep_until((host.now() + WORK).min(until)).await;
        }
        let mut cut = None;
        if self.cut.is_some() {
            network.freeze(&host).await.map_err(text)?;
            let network = network.save(true).await.map_err(text)?;
            let bytes = |one: &Progress| serde_json::to_vec(one).expect("plain data");
            let processes = self.seen().iter().map(bytes).collect();
            cut = Some(Checkpoint { network, processes, program: "ring".into() });
        }
        let took = Duration::from_nanos(host.now().nanos_since(begun));
        Ok(Leg { took, progress: self.seen(), cut })
    }

    fn seen(&self) -> Vec<Progress> {
        self.progress.iter().map(|one| one.lock().expect("nobody panics with it").clone()).collect()
    }

    async fn open(&self) -> Result<Network, String> {
        let place = |host: &SimHost| Place { node: host.node(), channel: ChannelId(0) };
        let places: Vec<Place> = self.hosts.iter().map(place).collect();
        let mut controllers = Vec::new();
        for host in &self.hosts {
            let opened = Controller::open(host, ChannelId(0), Geometry::PM, false);
            controllers.push(opened.map_err(|error| error.to_string())?);
        }
        let opened = Network::open(JobId(1), &places, controllers).await;
        opened.map_err(|error| error.to_string())
    }
}

/// One rank: computes, sends to the next one, and takes what has come from the one before.
async fn ring(host: SimHost, descriptor: Descriptor, progress: Arc<Mutex<Progress>>) {
    let Ok(mut channel) = Channel::attach(&host, descriptor).await else { return };
    let next = Rank((channel.rank().0 + 1) % channel.ranks());
    loop {
        let mut full = true;
        {
            let mut done = progress.lock().expect("nobody panics with it");
            while let Some((_, bytes)) = channel.try_receive() {
                done.received += 1;
                for byte in bytes {
                    done.digest = (done.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
                }
            }
            if done.sent == COUNT && done.received == COUNT {
                break;
            }
            if done.sent < COUNT {
                match channel.try_send(next, &done.sent.to_le_bytes()) {
                    Ok(()) => {
                        done.sent += 1;
                        full = false;
                    }
                    Err(SendError::Full) => {}
                    // Whoever waits for the job says that it is stuck.
                    Err(_) => return,
                }
            }
        }
        if full {
            if channel.room().await.is_err() {
                return;
            }
        } else {
            host.sleep_until(host.now() + WORK).await;
        }
    }
    // What was sent is yet to be taken by the next.
    while !channel.is_flushed() {
        if channel.room().await.is_err() {
            return;
        }
    }
}
