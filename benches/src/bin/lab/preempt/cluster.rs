//! The paper's cluster in virtual time, with a daemon per node, and the job that it runs.
//!
//! A daemon takes time to stop, save, restore and resume ([`Costs::paper`]), and for its messages on the NICs. Its own work
//! takes none, so a switch is shorter than the paper's.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::channel::{Channel, Descriptor};
use midplane::gang::daemon::{Costs, Daemon, DaemonConfig, Launch, Start};
use midplane::gang::firmware::Gang;
use midplane::gang::process::SuspendHandle;
use midplane::gang::schedule::{Request, RoundRobin};
use midplane::gang::scheduler::{Scheduler, Submission, Switch};
use midplane::gang::scheduler_core::{PreemptWhenAlone, SchedulerConfig};
use midplane::gang::tree::DEFAULT_ARITY;
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::time::Instant;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane_benches::anchors::pm::mpi::MpiCarrier;
use midplane_benches::anchors::pm::processor::Processor;
use midplane_nas::{self as nas, Cg, Class, Ep, Ft, Kernel, Pace, Verdict};

use super::slowdown::Case;
use crate::nas_rank::Name;

/// The paper's machine, and the floating-point operations per second of one processor. The paper has no figure for them:
/// a quarter of the one operation a cycle that a PentiumPro can begin is an estimate.
const MACHINE: Machine = Machine::PM_MYRINET;
const PER_SECOND: f64 = 50e6;

/// Virtual time: operations take virtual time of their process's processor.
struct VirtualTime {
    processor: Processor,
    /// False if operations take virtual time alone.
    computes: bool,
}

impl Pace for VirtualTime {
    async fn work(&self, operations: u64) {
        self.processor.charge(Duration::from_secs_f64(operations as f64 / PER_SECOND));
        self.processor.idle().await;
    }

    fn computes(&self) -> bool {
        self.computes
    }
}

/// Result of one rank.
#[derive(Clone, Debug)]
struct Ended {
    began: Instant,
    at: Instant,
    verdict: Verdict,
}

pub(crate) struct Outcome {
    pub(crate) switches: Vec<Switch>,
    /// Time from the begin of the first rank to the end of the last.
    pub(crate) took: Duration,
    pub(crate) verdict: Verdict,
}

type Results = Arc<Mutex<Vec<Ended>>>;

async fn kernel<K: Kernel>(
    host: &SimHost,
    class: Class,
    ranks: u16,
    descriptor: Descriptor,
    pace: &VirtualTime,
) -> Verdict {
    let channel = Channel::attach(host, descriptor).await.expect("the daemon has opened it");
    let engine = Engine::new(MpiCarrier::new(channel, pace.processor.clone()), Config::default());
    let world = Communicator::world(engine, ranks.into()).expect("all ranks are there");
    let verdict = nas::run::<K>(class, &world, pace).await.expect("the ranks fit the kernel");
    world.finalize().await;
    verdict
}

/// Runs one rank of a job.
async fn rank(
    host: SimHost,
    launch: Launch,
    descriptor: Descriptor,
    suspend_handle: SuspendHandle,
    Case { kernel: name, class, computes, .. }: Case,
    results: Results,
) {
    let began = host.now();
    let processor = Processor::new(host.clone(), suspend_handle);
    let pace = VirtualTime { processor, computes };
    let verdict = match name {
        Name::Ep => kernel::<Ep>(&host, class, launch.ranks, descriptor, &pace).await,
        Name::Cg => kernel::<Cg>(&host, class, launch.ranks, descriptor, &pace).await,
        Name::Ft => kernel::<Ft>(&host, class, launch.ranks, descriptor, &pace).await,
    };
    let ended = Ended { began, at: host.now(), verdict };
    results.lock().expect("no task panics with it locked").push(ended);
}

/// Runs a job with a rank on each node, in slices of `slice`, until all its ranks have ended.
pub(crate) fn run(case: Case, slice: Duration, seed: u64) -> Outcome {
    let Case { ranks: nodes, mode, phases, .. } = case;
    let machine = MACHINE;
    let mut world = World::new(&machine.topology(nodes), machine.nic, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default())).expect("its number is free");
        unit
    });
    world.set_digesting(false);
    world.set_hosts(machine.host);
    let message = Geometry::PM.message.min(machine.nic.mtu as u32);
    let config = DaemonConfig {
        nodes,
        arity: DEFAULT_ARITY,
        mode: mode.into(),
        geometry: Geometry { message, ..Geometry::PM },
        channels: 1,
        costs: Costs::paper(&machine.host),
        local_rings: false,
    };
    let results = Results::default();
    let ends = Arc::clone(&results);
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, suspend_handle| {
        Box::pin(rank(host, launch, descriptor, suspend_handle, case, Arc::clone(&ends)))
    });
    for node in (1..nodes).map(NodeId) {
        let (host, start) = (world.host(node), Arc::clone(&start));
        world.spawn(node, async move {
            let daemon = Daemon::open(host, config, start).await.expect("the NIC is up");
            daemon.serve().await.expect("the NIC stays up");
        });
    }
    let host = world.host(NodeId(0));
    let scheduler_config = SchedulerConfig {
        slice,
        phases,
        preempt_when_alone: PreemptWhenAlone::Always,
        early_wakeup: Duration::ZERO,
    };
    let task = async move {
        let root = Daemon::open(host, config, start).await.expect("the NIC is up");
        let mut scheduler =
            Scheduler::new(root, Box::new(RoundRobin::new(nodes)), scheduler_config);
        let request = Request { nodes, weight: 1 };
        scheduler.client().submit(Submission { request, ranks: nodes, program: 0 });
        scheduler.run().await.expect("the NIC stays up");
        scheduler.switches().cloned().collect()
    };
    let ran = world.block_on(NodeId(0), task);
    let switches = ran.expect("the scheduler ends once the jobs have");
    let ended = std::mem::take(&mut *results.lock().expect("no task panics with it locked"));
    let began = ended.iter().map(|ended| ended.began).min().expect("a job has ranks");
    let last = ended.iter().max_by_key(|ended| ended.at).expect("a job has ranks");
    let took = Duration::from_nanos(last.at.nanos_since(began));
    Outcome { switches, took, verdict: last.verdict.clone() }
}

#[cfg(test)]
mod tests {
    use midplane::gang::scheduler::Phases;

    use super::*;
    use crate::preempt::arguments::Mode;

    /// Runs a kernel of class S on 8 nodes.
    fn run_of(kernel: Name, computes: bool) -> Outcome {
        let (class, ranks, slice_ms, seed) = (Class::S, 8, 10.0, 1);
        let (mode, phases) = (Mode::Copy, Phases::Four);
        let case = Case { kernel, class, ranks, slice_ms, mode, phases, seed, computes };
        run(case, Duration::from_millis(10), 1)
    }

    #[test]
    fn a_modelled_kernel_takes_as_long_as_a_computed_one_switch_by_switch() {
        for kernel in [Name::Ep, Name::Cg, Name::Ft] {
            let [computed, modelled] = [true, false].map(|computes| run_of(kernel, computes));
            assert!(computed.verdict.verified && !modelled.verdict.verified, "{kernel:?}");
            assert_eq!(computed.took, modelled.took, "{kernel:?}");
            assert!(computed.switches.len() > 3, "{kernel:?}: {}", computed.switches.len());
            assert_eq!(computed.switches, modelled.switches, "{kernel:?}");
        }
    }
}
