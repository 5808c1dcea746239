//! Groups of members: simulated, in one process, or of processes here or on several hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use midplane::nicvm::collective::Operation as Combine;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::PortId;
use midplane::simhw::profile::Machine;
use midplane::simhw::time::Instant;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Rounds;
use super::member::{Plan, Times, play};
use crate::fleet::{self, Fabric, Meeting, Node, Part, live, take_part, text};
use crate::processes;

/// Time limits of a run in one process, and of one across processes; only a lost message makes a run last longer.
const LOST: Duration = Duration::from_secs(60);
const LOST_ACROSS: Duration = Duration::from_secs(300);
/// Time by which all simulated members have opened their ports.
const ALL_THERE: Instant = Instant::from_nanos(10_000_000);
/// Time for the last posted buffers to reach the NICs.
const POSTED: Duration = Duration::from_millis(20);
/// First port of the groups across processes, above the numbers that ports get when they are opened.
const PORTS: u16 = 16;
/// Seed of all random numbers.
const SEED: u64 = 1;
/// Words in one reduction.
const WORDS: usize = 11;

fn equip(unit: &mut Unit) {
    unit.install(VIA, Via::new(ViaConfig::default())).expect("the number is free");
}

/// A member of a group in this process; members of live groups begin and end together.
#[derive(Clone)]
struct Member {
    plan: Plan,
    gate: Option<Arc<Barrier>>,
}

impl Part for Member {
    type Outcome = Vec<Times>;

    fn equip(&self, unit: &mut Unit) {
        equip(unit);
    }

    async fn play<H: Host>(self, host: H) -> Result<Vec<Times>, String> {
        let Self { plan, gate } = self;
        let ready = async {
            let Some(gate) = &gate else { return host.sleep_until(ALL_THERE).await };
            gate.wait().await;
            host.sleep_until(host.now() + POSTED).await;
        };
        let times = play(&host, plan, ready).await?;
        if let Some(gate) = &gate {
            gate.wait().await;
        }
        Ok(times)
    }
}

/// Runs all rounds of all members in this process; returns the times of each member.
pub(crate) fn run(fabric: Fabric, plan: Plan) -> Result<Vec<Vec<Times>>, String> {
    if fabric == Fabric::Sim {
        let member = Member { plan, gate: None };
        return fleet::simulate(Machine::DVCM_ATM, plan.nodes, SEED, member);
    }
    live(LOST, async {
        let peers = processes::free_addresses(plan.nodes.into())?;
        let name = format!("midplane-collectives-{}", std::process::id());
        let gate = Some(Arc::new(Barrier::new(plan.nodes.into())));
        let mut members = JoinSet::new();
        for rank in 0..plan.nodes {
            let node = Node { fabric, rank, peers: peers.clone(), name: name.clone(), seed: SEED };
            members.spawn(take_part(node, Member { plan, gate: gate.clone() }));
        }
        let mut times = Vec::new();
        while let Some(ended) = members.join_next().await {
            times.push(ended.map_err(text)??);
        }
        Ok(times)
    })
}

/// A member that is a process, and measures its own times.
#[derive(Clone)]
struct Process {
    nodes: u16,
    plans: Vec<Plan>,
}

impl Part for Process {
    type Outcome = Vec<Rounds>;

    fn equip(&self, unit: &mut Unit) {
        equip(unit);
    }

    async fn play<H: Host>(self, host: H) -> Result<Vec<Rounds>, String> {
        let mut meeting = Meeting::new(&host, self.nodes).await?;
        let mut rounds = Vec::new();
        for (plan, port) in self.plans.into_iter().zip(PORTS..) {
            let plan = Plan { port: Some(PortId(port)), ..plan };
            meeting.barrier().await?;
            let times = play(&host, plan, host.sleep_until(host.now() + 3 * POSTED)).await?;
            // This member's times, by its own clock.
            let own = times.iter().map(|(_, begun, ended)| ended.nanos_since(*begun));
            let mut longest: Vec<u64> = own.collect();
            let mut sum = [longest.iter().sum::<u64>()];
            meeting.sum(&mut sum).await?;
            for part in longest.chunks_mut(WORDS) {
                meeting.combine(Combine::Max, part).await?;
            }
            let times = longest.into_iter().map(|nanos| nanos as f64 / 1e3).collect();
            let spent = sum[0] as f64 / 1e3 / (f64::from(plan.nodes) * f64::from(plan.rounds));
            rounds.push(Rounds { times, spent, for_root: None });
        }
        meeting.barrier().await?;
        Ok(rounds)
    }
}

/// Takes this process's part in all plans; every member returns the rounds.
pub(crate) fn run_across(
    rank: u16,
    peers: Vec<SocketAddr>,
    plans: Vec<Plan>,
) -> Result<Vec<Rounds>, String> {
    let part = Process { nodes: peers.len() as u16, plans };
    let (fabric, name) = (Fabric::Udp, String::new());
    live(LOST_ACROSS, take_part(Node { fabric, rank, peers, name, seed: SEED }, part))
}
