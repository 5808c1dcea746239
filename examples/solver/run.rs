//! One run: what it is, how it is carried out, and what came of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::medium::MediumProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::sim::World;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use midplane::warp::firmware::{WARP, Warp, WarpConfig};
use midplane::warp::gate::Gate;
use midplane::warp::iterate::matrix::Linear;
use midplane::warp::iterate::partition;
use serde::Serialize;

use crate::arguments::{Control, Fabric, Medium, Transport};
use crate::rank::{Job, PORT, Rank};

/// Rate of the cable, or of each link.
const RATE: LineRate = LineRate::mbps(10);
/// Bytes that are to wait for the cable, of all ranks together: a dozen full messages.
const QUEUE: u32 = 16 << 10;
/// Bytes of the messages of the others.
const BACKGROUND_BYTES: usize = 1_000;

/// What a run is, repeated in its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) fabric: Fabric,
    pub(crate) medium: Medium,
    pub(crate) control: Control,
    pub(crate) buffer: u16,
    pub(crate) transport: Transport,
    pub(crate) ranks: u16,
    pub(crate) unknowns: usize,
    pub(crate) background: f64,
    pub(crate) tolerance: f64,
    pub(crate) update_us: u32,
    pub(crate) seed: u64,
    #[serde(skip)]
    pub(crate) limit: Duration,
}

/// What is counted over all ranks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Messages of updates that were handed to a NIC, and that arrived.
    pub(crate) sent: u64,
    pub(crate) messages: u64,
    /// Updates that arrived.
    pub(crate) updates: u64,
    /// Sweeps.
    pub(crate) iterations: u64,
    /// Rank 0's relative residual over time, in seconds.
    pub(crate) trace: Vec<(f64, f64)>,
    /// Rank 0's Lambda over time.
    pub(crate) lambda: Vec<(f64, f64)>,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    #[serde(flatten)]
    pub(crate) setting: Setting,
    /// Until the answer was found, or time was up.
    pub(crate) seconds: f64,
    /// Messages of updates that arrived, over all ranks.
    pub(crate) messages: u64,
    /// Updates that arrived each second, over all ranks.
    pub(crate) updates_per_s: f64,
    /// Sweeps of all ranks.
    pub(crate) iterations: u64,
    /// Of the answer, or of what rank 0 had last: the 2-norm of b - A x over that of b.
    pub(crate) residual: f64,
    /// The answer's relative 2-norm against the solution, which is known: all ones.
    pub(crate) error: Option<f64>,
    /// Whether an answer was found and checked.
    pub(crate) converged: bool,
    /// The share of messages that were handed to a NIC and never arrived.
    pub(crate) loss: f64,
    #[serde(skip)]
    pub(crate) trace: Vec<(f64, f64)>,
    #[serde(skip)]
    pub(crate) lambda: Vec<(f64, f64)>,
}

type Gates = BTreeMap<NodeId, BTreeMap<NodeId, Gate>>;

impl Setting {
    /// Ranks, and two nodes of others' traffic.
    const fn nodes(&self) -> u16 {
        self.ranks + if self.background > 0.0 { 2 } else { 0 }
    }

    fn topology(&self) -> Topology {
        match self.medium {
            Medium::Cable => Topology::shared(self.nodes(), MediumProfile::ETHERNET_10),
            Medium::Switch => {
                let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
                Topology::star(self.nodes(), link, SwitchProfile::new(Buffer::Bytes(32 << 10)))
            }
        }
    }

    fn firmware(&self, node: NodeId, gates: &Mutex<Gates>) -> Unit {
        let ranks = (0..self.ranks).map(NodeId);
        let others: Vec<NodeId> = ranks.filter(|rank| *rank != node).collect();
        // Each way from rank to rank is paced by itself; on a cable all of them share one queue.
        let ways = match self.medium {
            Medium::Cable => self.ranks * self.ranks.saturating_sub(1),
            Medium::Switch => self.ranks.saturating_sub(1),
        };
        let config = WarpConfig::new(&others, RATE, QUEUE, ways.max(1));
        let (warp, own) = Warp::new(config);
        gates.lock().expect("nothing panics while it holds this lock").insert(node, own);
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).expect("it is the first");
        unit.install(WARP, warp).expect("it is the only one of its number");
        unit
    }
}

/// Carries a run out in virtual time.
///
/// # Errors
/// One line, if a rank failed.
pub(crate) fn simulate(setting: &Setting, problem: &Arc<Linear>) -> Result<Run, String> {
    let gates: Arc<Mutex<Gates>> = Arc::default();
    let (for_nics, given) = (setting.clone(), Arc::clone(&gates));
    let topology = setting.topology();
    let mut world = World::new(&topology, NicProfile::MODERN, setting.seed, move |node, _| {
        for_nics.firmware(node, &given)
    });
    let gates = std::mem::take(&mut *gates.lock().map_err(|_| "a NIC has failed".to_owned())?);
    let tally: Arc<Mutex<Tally>> = Arc::default();
    let job = Job {
        problem: Arc::clone(problem),
        ranges: partition(setting.unknowns, usize::from(setting.ranks)),
        control: setting.control,
        buffer: setting.buffer,
        tolerance: setting.tolerance,
        update_ns: u64::from(setting.update_us) * 1_000,
        limit: Instant::ZERO + setting.limit,
    };
    let rank = |world: &World<Unit>, node: NodeId| {
        Rank::new(world.host(node), job.clone(), gates[&node].clone(), Arc::clone(&tally))
    };
    for node in (1..setting.ranks).map(NodeId) {
        let rank = rank(&world, node)?;
        world.spawn(node, async move { drop(rank.work().await) });
    }
    if setting.background > 0.0 {
        let (from, to) = (NodeId(setting.ranks), NodeId(setting.ranks + 1));
        let (host, share) = (world.host(from), setting.background);
        world.spawn(from, async move { drop(disturb(host, to, share).await) });
    }
    let first = rank(&world, NodeId(0))?;
    let host = world.host(NodeId(0));
    let work = async move { (first.work().await, host.now()) };
    let ended = world.block_on(NodeId(0), work);
    let (answer, end) = ended.ok_or("nothing is left to happen")?;
    let tally = std::mem::take(&mut *tally.lock().map_err(|_| "a rank has failed".to_owned())?);
    Ok(report(setting, problem, answer?, end, tally))
}

fn report(
    setting: &Setting,
    problem: &Linear,
    answer: Option<Vec<f64>>,
    end: Instant,
    tally: Tally,
) -> Run {
    let seconds = end.as_nanos() as f64 / 1e9;
    let last = tally.trace.last().map_or(1.0, |(_, residual)| *residual);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let error = answer
        .as_ref()
        .map(|x| norm(&mut x.iter().map(|x| x - 1.0)) / norm(&mut x.iter().map(|_| 1.0)));
    let arrived = tally.messages.min(tally.sent);
    Run {
        setting: setting.clone(),
        seconds,
        messages: tally.messages,
        updates_per_s: tally.updates as f64 / seconds,
        iterations: tally.iterations,
        residual: answer.as_ref().map_or(last, |x| problem.relative_residual(x)),
        error,
        converged: answer.is_some(),
        loss: if tally.sent == 0 { 0.0 } else { 1.0 - arrived as f64 / tally.sent as f64 },
        trace: tally.trace,
        lambda: tally.lambda,
    }
}

/// Others' traffic: messages for nobody in particular, `share` of the cable's rate.
async fn disturb(host: impl Host, to: NodeId, share: f64) -> Result<(), String> {
    let mut port = host.open_port().map_err(|error| error.to_string())?;
    let memory = port.register(BACKGROUND_BYTES).map_err(|error| error.to_string())?;
    let mut rng = host.rng("background");
    let gap = RATE.nanos_for(BACKGROUND_BYTES as u64 + 114) as f64 / share;
    loop {
        // Gaps of an exponential law: arrivals that know nothing of each other.
        let wait = -(1.0 - rng.unit()).ln() * gap;
        host.sleep_until(host.now().plus_nanos(wait as u64)).await;
        while port.poll().is_some() {}
        if port.outstanding() < 64 {
            let command = messages::send(to, PORT, memory.whole(), 0);
            port.submit(&command).map_err(|error| error.to_string())?;
        }
    }
}
