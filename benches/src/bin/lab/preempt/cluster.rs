//! A simulated cluster with a daemon per node, and the jobs that it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::gang::agenda::{AgendaConfig, WithItself};
use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::channel::{Channel, Descriptor};
use midplane::gang::daemon::{Costs, Daemon, DaemonConfig, Launch, Mode, Start};
use midplane::gang::firmware::Gang;
use midplane::gang::names::JobId;
use midplane::gang::nas::{self, Cg, Class, Ep, Ft, Kernel, Verdict, VirtualTime};
use midplane::gang::process::Reins;
use midplane::gang::schedule::{Request, RoundRobin};
use midplane::gang::scheduler::{Phases, Scheduler, Submission, Switch};
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::{Attachment, Machine};
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::Instant;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::process::Process;

use super::arguments::{KernelName, MachineName};

/// A cluster and its scheduling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) machine: MachineName,
    pub(crate) nodes: u16,
    pub(crate) arity: u16,
    pub(crate) mode: Mode,
    pub(crate) phases: Phases,
    pub(crate) slice: Duration,
    pub(crate) seed: u64,
}

/// Program of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Kernel(KernelName, Class),
    /// No work for so many milliseconds of its own time, on two ranks.
    Idle(u64),
}

/// Result of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) began: Instant,
    pub(crate) at: Instant,
    pub(crate) verdict: Option<Verdict>,
}

pub(crate) struct Outcome {
    pub(crate) switches: Vec<Switch>,
    pub(crate) ended: BTreeMap<(JobId, u16), Ended>,
}

impl Outcome {
    /// Returns the time from the begin of the job's first rank to the end of its last.
    pub(crate) fn took(&self, job: JobId) -> Duration {
        let of_job = || self.ended.iter().filter(|((of, _), _)| *of == job).map(|(_, ended)| ended);
        let began = of_job().map(|ended| ended.began).min().unwrap_or(Instant::ZERO);
        let last = of_job().map(|ended| ended.at).max().unwrap_or(Instant::ZERO);
        Duration::from_nanos(last.nanos_since(began))
    }
}

type Results = Arc<Mutex<BTreeMap<(JobId, u16), Ended>>>;

async fn kernel<K: Kernel>(
    host: &SimHost,
    class: Class,
    ranks: u16,
    descriptor: Descriptor,
    pace: &VirtualTime<SimHost>,
) -> Verdict {
    let channel = Channel::attach(host, descriptor).await.expect("the daemon has opened it");
    let engine = Engine::new(ChannelCarrier::new(channel), Config::default());
    let (process, scope) = Process::new(engine, ranks.into()).expect("all ranks are there");
    let world = Communicator::world(process, scope);
    let verdict = nas::run::<K, _>(class, &world, pace).await.expect("the ranks fit the kernel");
    world.finalize().await;
    verdict
}

/// Runs one rank of a job.
async fn rank(
    host: SimHost,
    launch: Launch,
    descriptor: Descriptor,
    reins: Reins,
    (program, per_second): (Program, f64),
    results: Results,
) {
    let (began, rank) = (host.now(), descriptor.rank().0);
    let pace = VirtualTime::new(host.clone(), reins, per_second);
    let verdict = match program {
        Program::Kernel(name, class) => Some(match name {
            KernelName::Ep => kernel::<Ep>(&host, class, launch.ranks, descriptor, &pace).await,
            KernelName::Cg => kernel::<Cg>(&host, class, launch.ranks, descriptor, &pace).await,
            KernelName::Ft => kernel::<Ft>(&host, class, launch.ranks, descriptor, &pace).await,
        }),
        Program::Idle(milliseconds) => {
            nas::Pace::work(&pace, milliseconds * (per_second / 1e3) as u64).await;
            None
        }
    };
    let ended = Ended { began, at: host.now(), verdict };
    results.lock().expect("nobody panics with it").insert((launch.job, rank), ended);
}

/// Gives the switch unlimited buffers, in place of Myrinet's back-pressure: it loses nothing either.
fn lossless(machine: Machine) -> Machine {
    let attachment = match machine.attachment {
        Attachment::Switched(link, switch) => {
            let buffer = Buffer::Bytes(1 << 30);
            Attachment::Switched(link, SwitchProfile { buffer, ..switch })
        }
        shared => shared,
    };
    let nic = midplane::simhw::profile::NicProfile { receive_memory: 8 << 20, ..machine.nic };
    Machine { attachment, nic, ..machine }
}

pub(crate) fn geometry(machine: &Machine) -> Geometry {
    Geometry { message: Geometry::PM.message.min(machine.nic.mtu as u32), ..Geometry::PM }
}

/// Returns the costs of the daemons' work on a machine.
pub(crate) fn costs(machine: MachineName) -> Costs {
    let host = machine.machine().host;
    match machine {
        MachineName::Pm => Costs::paper(&host),
        // One signal for stop and one for start; contexts are in ordinary memory, at the speed of a copy.
        MachineName::Today => Costs {
            stop: Duration::from_nanos((host.signal_ns + host.context_switch_ns).into()),
            resume: Duration::from_nanos((host.signal_ns + host.context_switch_ns).into()),
            save: Duration::from_micros(2),
            restore: Duration::from_micros(2),
            read_ps: host.copy.byte_ps,
            write_ps: host.copy.byte_ps,
        },
    }
}

/// Runs jobs, one rank per node, until all have ended. `programs` lists program, nodes and ranks.
pub(crate) fn run(setting: Setting, programs: &[(Program, u16, u16)]) -> Outcome {
    let machine = lossless(setting.machine.machine());
    let mut world =
        World::new(&machine.topology(setting.nodes), machine.nic, setting.seed, |_, _| {
            let mut unit = Unit::default();
            unit.install(GANG, Gang::new(GangConfig::default())).expect("its number is free");
            unit
        });
    world.set_digesting(false);
    world.set_hosts(machine.host);
    let config = DaemonConfig {
        nodes: setting.nodes,
        arity: setting.arity,
        mode: setting.mode,
        geometry: geometry(&machine),
        channels: 1,
        costs: costs(setting.machine),
    };
    let results = Results::default();
    let (ends, known) = (Arc::clone(&results), programs.to_vec());
    let per_second = setting.machine.per_second();
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, reins| {
        let (program, ..) = known[launch.program as usize];
        let results = Arc::clone(&ends);
        Box::pin(rank(host, launch, descriptor, reins, (program, per_second), results))
    });
    for node in 1..setting.nodes {
        let (host, start) = (world.host(NodeId(node)), Arc::clone(&start));
        world.spawn(NodeId(node), async move {
            let daemon = Daemon::open(host, config, start).await.expect("the NIC is up");
            daemon.serve().await.expect("the NIC stays up");
        });
    }
    let (host, programs) = (world.host(NodeId(0)), programs.to_vec());
    let Setting { slice, phases, .. } = setting;
    let agenda =
        AgendaConfig { slice, phases, with_itself: WithItself::Always, visit: Duration::ZERO };
    let task = async move {
        let root = Daemon::open(host, config, start).await.expect("the NIC is up");
        let policy = Box::new(RoundRobin::new(setting.nodes));
        let mut scheduler = Scheduler::new(root, policy, agenda);
        for (number, (_, nodes, ranks)) in (0..).zip(programs) {
            let request = Request { nodes, weight: 1 };
            scheduler.front().submit(Submission { request, ranks, program: number });
        }
        scheduler.run().await.expect("the NIC stays up");
        scheduler.switches().to_vec()
    };
    let ran = world.block_on(NodeId(0), task);
    let switches = ran.expect("the scheduler ends once the jobs have");
    let ended = std::mem::take(&mut *results.lock().expect("nobody panics with it"));
    Outcome { switches, ended }
}
