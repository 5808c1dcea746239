//! A job in virtual time whose processes talk over Virtual Interfaces: sends with immediate data, writes
//! and reads of each other's memory, at all levels of reliability.
#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod talk;

pub(crate) mod interfaces;
pub(crate) mod interfaces_context;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use interfaces::{Interfaces, PortControl, RankPort};
use interfaces_context::InterfacesContext;
use midplane_gang::firmware::Gang;
use midplane_gang::names::JobId;
use midplane_gang::port_suspender::PortSuspender;
use midplane_gang::process::SuspendHandle;
use midplane_gang::{GANG, GangConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::PortOptions;
use midplane_simhw::profile::{DmaCost, NicProfile};
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::attributes::{Address, Discriminator, Reliability, ViAttributes};
use midplane_via::checkpointer::Checkpointer;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::nic::Nic;

pub(crate) use talk::{Program, Totals};

pub(crate) const PORT_SUSPENDER: u16 = 1_024;
pub(crate) const ARRIVAL_WATCHER: u16 = 1_050;
pub(crate) const CHECKPOINTER: u16 = 1_100;
const MTU: usize = 600;

pub(crate) const BAD: Faults = Faults {
    loss: 0.02,
    duplicate: 0.02,
    reorder: 0.05,
    delay: Duration::from_micros(30),
    ..Faults::NONE
};

pub(crate) const ALL: &[Reliability] =
    &[Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: u16,
    pub(crate) nodes: u16,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// Messages of each process over each of its interfaces.
    pub(crate) count: u32,
    /// True if processes also read and write each other's memory.
    pub(crate) rdma: bool,
    pub(crate) levels: &'static [Reliability],
    /// Longest time between two preemptions.
    pub(crate) slice: Duration,
    /// The NICs' transfers into host memory.
    pub(crate) scatter: DmaCost,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            ranks: 2,
            nodes: 2,
            seed: 1,
            faults: Faults::NONE,
            count: 60,
            rdma: false,
            levels: &[Reliability::ReliableDelivery],
            slice: Duration::from_micros(120),
            scatter: NicProfile::MODERN.scatter,
        }
    }
}

pub(crate) fn world(plan: &Plan) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(1 << 20));
    let topology = Topology::star(plan.nodes, link, switch);
    // Messages have several frames, and few frames are on the line when their process is suspended.
    let profile = NicProfile { mtu: MTU, scatter: plan.scatter, ..NicProfile::MODERN };
    let mut world = World::new(&topology, profile, plan.seed, |_, _| {
        let mut unit = Unit::default();
        let config = GangConfig::default().port_suspender(PortId(PORT_SUSPENDER));
        unit.install(GANG, Gang::new(config.arrival_watcher(PortId(ARRIVAL_WATCHER)))).unwrap();
        let config = ViaConfig::default().dead_after(Duration::from_millis(500));
        unit.install(VIA, Via::new(config.checkpointer(PortId(CHECKPOINTER)))).unwrap();
        unit
    });
    world.set_faults(plan.faults);
    world
}

pub(crate) fn attributes(reliability: Reliability) -> ViAttributes {
    ViAttributes {
        reliability,
        rdma_write: true,
        rdma_read: reliability.is_reliable(),
        ..ViAttributes::default()
    }
}

fn name(from: u16, to: u16, level: Reliability) -> Discriminator {
    Discriminator::new(format!("{from}>{to} {}", level as u8).as_bytes()).unwrap()
}

/// Opens all processes' NICs, and connects each even rank with each odd one at each level.
pub(crate) async fn connect(hosts: &[SimHost], plan: &Plan) -> Vec<Arc<Mutex<Program>>> {
    let mut programs = Vec::new();
    for rank in 0..plan.ranks {
        let host = &hosts[usize::from(rank)];
        let nic = Nic::open(host, PortOptions::default()).await.unwrap();
        programs.push(Program::new(nic, rank, (plan.seed, plan.count, plan.rdma)));
    }
    let mut tickets = Vec::new();
    for rank in 0..plan.ranks {
        for peer in (0..plan.ranks).filter(|peer| peer % 2 != rank % 2) {
            for level in plan.levels {
                let program = &mut programs[usize::from(rank)];
                let vi = program.nic.create_vi(attributes(*level)).await.unwrap();
                program.add(vi, peer, *level);
                let to = Address {
                    node: hosts[usize::from(peer)].node(),
                    discriminator: name(peer, rank, *level),
                };
                let local = name(rank, peer, *level);
                let ticket = program.nic.connect_peer(vi, to, local, None).unwrap();
                tickets.push((rank, ticket));
            }
        }
    }
    for (rank, ticket) in tickets {
        programs[usize::from(rank)].nic.finish(&ticket).await.unwrap();
    }
    for program in &mut programs {
        let spare = program.nic.create_vi(attributes(Reliability::ReliableDelivery)).await;
        program.spare = Some(spare.unwrap());
    }
    let windows: Vec<_> = programs.iter().map(Program::windows).collect();
    for program in &mut programs {
        program.learn(&windows);
    }
    programs.into_iter().map(|program| Arc::new(Mutex::new(program))).collect()
}

/// Creates the [`Interfaces`] of all processes; `hosts` are their hosts, rank by rank.
pub(crate) fn hold(hosts: &[SimHost], programs: &[Arc<Mutex<Program>>]) -> Interfaces {
    let mut nodes: Vec<&SimHost> = hosts.iter().collect();
    nodes.sort_by_key(|host| host.node());
    nodes.dedup_by_key(|host| host.node());
    let holds = nodes.iter().map(|host| PortControl {
        port_suspender: PortSuspender::open(*host, PortId(PORT_SUSPENDER)).unwrap(),
        checkpointer: Checkpointer::open(*host, PortId(CHECKPOINTER)).unwrap(),
    });
    let held = hosts.iter().zip(programs).map(|(host, program)| RankPort {
        hold: nodes.iter().position(|node| node.node() == host.node()).unwrap(),
        port: program.lock().unwrap().nic.port(),
        suspend_handle: SuspendHandle::new(),
    });
    Interfaces::new(JobId(1), holds.collect(), held.collect())
}

/// Starts the processes of all ranks.
pub(crate) fn start(hosts: &[SimHost], held: &Interfaces, programs: &[Arc<Mutex<Program>>]) {
    for ((host, held), program) in hosts.iter().zip(held.ranks()).zip(programs) {
        let (own, program) = (host.clone(), Arc::clone(program));
        host.spawn(held.suspend_handle.hold(async move {
            loop {
                let pause = program.lock().unwrap().step();
                let Some(nanos) = pause else { break };
                own.sleep_until(own.now().plus_nanos(nanos)).await;
            }
        }));
    }
}

/// Runs a task to its end; if it never ends, panics with `shown`.
pub(crate) fn finish<T: Send + 'static>(
    world: &mut World<Unit>,
    shown: impl Fn() -> String,
    task: impl Future<Output = T> + Send + 'static,
) -> T {
    let done = Arc::new(Mutex::new(None));
    let place = Arc::clone(&done);
    world.spawn(NodeId(0), async move {
        let value = task.await;
        *place.lock().unwrap() = Some(value);
    });
    let limit = Instant::from_nanos(5_000_000_000);
    while done.lock().unwrap().is_none() && world.now() < limit {
        world.run_until(world.now().plus_nanos(1_000_000));
    }
    let value = done.lock().unwrap().take();
    value.unwrap_or_else(|| panic!("it never ends: {}", shown()))
}

/// Encodes a context, as bytes or as text, and decodes it.
pub(crate) fn handed_on(saved: &InterfacesContext, as_text: bool) -> InterfacesContext {
    match as_text {
        true => serde_json::from_str(&serde_json::to_string(saved).unwrap()).unwrap(),
        false => InterfacesContext::from_bytes(&saved.to_bytes()).unwrap(),
    }
}

/// Describes the progress of all processes, for error messages.
pub(crate) fn describe(programs: &[Arc<Mutex<Program>>]) -> String {
    programs.iter().map(|program| program.lock().unwrap().describe()).collect()
}

/// Returns all bytes of the memory that the processes have registered.
fn memory(programs: &[Arc<Mutex<Program>>]) -> Vec<Vec<u8>> {
    let of = |program: &Arc<Mutex<Program>>| -> Vec<u8> {
        let program = program.lock().unwrap();
        let all = program.talks.iter().flat_map(|talk| &talk.memory);
        all.flat_map(|memory| {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes).unwrap();
            bytes
        })
        .collect()
    };
    programs.iter().map(of).collect()
}

/// Runs a job like [`run`], with interfaces that stay on their NICs: while the job is suspended, nothing of it is sent,
/// received, written or completed. Returns each process's totals, and the number of preemptions.
pub(crate) fn run_resident(plan: Plan) -> (Vec<Totals>, u32) {
    let mut world = world(&plan);
    let hosts: Vec<SimHost> = (0..plan.ranks).map(|rank| world.host(NodeId(rank))).collect();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&shown);
    let task = async move {
        let programs = connect(&hosts, &plan).await;
        place.lock().unwrap().clone_from(&programs);
        let mut held = hold(&hosts, &programs);
        start(&hosts, &held, &programs);
        let (host, mut dice) = (hosts[0].clone(), Rng::new(plan.seed, "preemptions"));
        let mut preemptions = 0;
        while !held.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            let pause = dice.between(1, plan.slice.as_nanos() as u64);
            host.sleep_until(host.now().plus_nanos(pause)).await;
            held.freeze(&host).await.unwrap();
            let (saved, bytes) = (held.save(false).await.unwrap(), memory(&programs));
            let pause = dice.between(1, 4 * plan.slice.as_nanos() as u64);
            host.sleep_until(host.now().plus_nanos(pause)).await;
            assert_eq!(held.save(false).await.unwrap(), saved, "the NICs went on");
            assert!(memory(&programs) == bytes, "memory of a suspended process was written");
            held.run(&host).await.unwrap();
            preemptions += 1;
        }
        let totals = programs.iter().map(|program| program.lock().unwrap().totals());
        (totals.collect(), preemptions)
    };
    let show = move || describe(&shown.lock().unwrap());
    finish(&mut world, show, task)
}

/// Runs a job on one rank a node. With `preempt`, the job is repeatedly suspended, saved, forgotten, restored there and
/// resumed. Returns each process's totals, and the number of preemptions.
pub(crate) fn run(plan: Plan, preempt: bool) -> (Vec<Totals>, u32) {
    let mut world = world(&plan);
    let hosts: Vec<SimHost> = (0..plan.ranks).map(|rank| world.host(NodeId(rank))).collect();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&shown);
    let task = async move {
        let programs = connect(&hosts, &plan).await;
        place.lock().unwrap().clone_from(&programs);
        let mut held = hold(&hosts, &programs);
        start(&hosts, &held, &programs);
        let (host, mut dice) = (hosts[0].clone(), Rng::new(plan.seed, "preemptions"));
        let mut preemptions = 0;
        while !held.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            let pause = dice.between(1, plan.slice.as_nanos() as u64);
            host.sleep_until(host.now().plus_nanos(pause)).await;
            if preempt {
                held.freeze(&host).await.unwrap();
                let saved = held.save(true).await.unwrap();
                let empty = held.save(false).await.unwrap();
                assert!(empty.ranks.iter().all(|rank| rank.vis.is_empty()), "they were forgotten");
                let back = handed_on(&saved, dice.chance(0.1));
                assert_eq!(back, saved);
                held.restore(&back, None).await.unwrap();
                assert_eq!(held.save(false).await.unwrap(), saved, "saved again, it is the same");
                // Pauses for longer than the frames on the line need, as during other jobs' slices.
                let pause = dice.between(0, 4 * plan.slice.as_nanos() as u64);
                host.sleep_until(host.now().plus_nanos(pause)).await;
                held.run(&host).await.unwrap();
                preemptions += 1;
            }
        }
        let totals = programs.iter().map(|program| program.lock().unwrap().totals());
        (totals.collect(), preemptions)
    };
    let show = move || describe(&shown.lock().unwrap());
    finish(&mut world, show, task)
}
