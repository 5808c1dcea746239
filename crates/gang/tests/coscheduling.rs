//! A job that answers requests from outside, next to two that compute: a request that arrives while it is suspended
//! wakes it, within its share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::job::scheduler::{open_scheduler, start_daemons};
use midplane_gang::channel::geometry::Geometry;
use midplane_gang::daemon::{Costs, DaemonConfig, Mode, Start};
use midplane_gang::firmware::Gang;
use midplane_gang::port_suspender::{ARRIVAL_WATCHER, PORT_SUSPENDER};
use midplane_gang::process::SuspendHandle;
use midplane_gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane_gang::{GANG, GangConfig};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::PortOptions;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

/// Nodes of the cluster; the clients are on one more.
const NODES: u16 = 4;
const REQUESTS: usize = 200;
const SLICE: Duration = Duration::from_millis(100);
const VISIT: Duration = Duration::from_millis(10);
const COMPUTES: u32 = 0;
const SERVES: u32 = 1;
/// The server's port, and the clients'.
const SERVER: PortId = PortId(7);

/// Observations of a run.
#[derive(Default)]
struct Seen {
    is_over: AtomicBool,
    /// Time from each request to its answer.
    responses: Mutex<Vec<Duration>>,
    /// Shares of the whole time, of the ranks of the jobs that compute.
    shares: Mutex<Vec<f64>>,
}

async fn serve(host: SimHost, own: SuspendHandle, seen: Arc<Seen>) {
    let mut port = host.open_port_with(PortOptions::default().number(SERVER)).unwrap();
    own.add_port(SERVER);
    let memory = port.register(64).unwrap();
    while !seen.is_over.load(Ordering::Relaxed) {
        port.submit(&messages::receive(memory.whole(), 0)).unwrap();
        let request = port.completion().await.unwrap();
        port.submit(&messages::send(request.node, SERVER, memory.whole(), 0)).unwrap();
        port.completion().await.unwrap();
    }
}

async fn compute(host: SimHost, own: SuspendHandle, seen: Arc<Seen>) {
    let began = host.now();
    while !seen.is_over.load(Ordering::Relaxed) {
        host.sleep_until(host.now() + Duration::from_millis(1)).await;
    }
    let whole = Duration::from_nanos(host.now().nanos_since(began));
    let ran = whole.saturating_sub(own.suspended_time(host.now()));
    seen.shares.lock().unwrap().push(ran.as_secs_f64() / whole.as_secs_f64());
}

/// Sends one request after the other, with a pause after each answer.
async fn ask(host: SimHost, pause: Duration, seen: Arc<Seen>) {
    let mut port = host.open_port_with(PortOptions::default().number(SERVER)).unwrap();
    let (memory, answer) = (port.register(64).unwrap(), port.register(64).unwrap());
    let mut rng = host.rng("clients");
    // By then the server has had its first turn.
    host.sleep_until(Instant::from_nanos(400_000_000)).await;
    for number in 0..=REQUESTS {
        if number == REQUESTS {
            // The last request ends the server.
            seen.is_over.store(true, Ordering::Relaxed);
        }
        let began = host.now();
        port.submit(&messages::receive(answer.whole(), 1)).unwrap();
        port.submit(&messages::send(NodeId(0), SERVER, memory.whole(), 0)).unwrap();
        while port.completion().await.unwrap().cookie != 1 {}
        if number < REQUESTS {
            let took = Duration::from_nanos(host.now().nanos_since(began));
            seen.responses.lock().unwrap().push(took);
        }
        let micros = rng.below(2 * pause.as_micros() as u64);
        host.sleep_until(host.now() + Duration::from_micros(micros)).await;
    }
}

fn world() -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(256 << 10));
    let topology = Topology::star(NODES + 1, link, switch);
    World::new(&topology, NicProfile::MODERN, 3, |_, _| {
        let mut unit = Unit::default();
        let config = GangConfig::default().port_suspender(PORT_SUSPENDER);
        unit.install(GANG, Gang::new(config.arrival_watcher(ARRIVAL_WATCHER))).unwrap();
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit
    })
}

/// Response times, sorted, and the mean share of the time that a computing job had.
struct Outcome {
    responses: Vec<Duration>,
    share: f64,
}

impl Outcome {
    fn mean(&self) -> Duration {
        self.responses.iter().sum::<Duration>() / REQUESTS as u32
    }

    fn longest(&self) -> Duration {
        self.responses[REQUESTS - 1]
    }
}

/// Runs two jobs that compute and one that serves clients, which wait for `pause` on average between two requests.
fn run(early_wakeup: Duration, pause: Duration) -> Outcome {
    let mut world = world();
    let seen = Arc::new(Seen::default());
    // The costs of the paper's processes (section 5).
    let costs = Costs {
        stop: Duration::from_micros(20),
        resume: Duration::from_micros(20),
        ..Costs::default()
    };
    let (mode, geometry) = (Mode::Resident, Geometry::SMALL);
    let config = DaemonConfig {
        nodes: NODES,
        arity: 2,
        mode,
        geometry,
        channels: 1,
        costs,
        local_rings: false,
    };
    let of_ranks = Arc::clone(&seen);
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, own| {
        let seen = Arc::clone(&of_ranks);
        Box::pin(async move {
            match (launch.program, descriptor.rank().0) {
                (SERVES, 0) => serve(host, own, seen).await,
                (SERVES, _) => {}
                _ => compute(host, own, seen).await,
            }
        })
    });
    start_daemons(&mut world, config, &start);
    let clients = ask(world.host(NodeId(NODES)), pause, Arc::clone(&seen));
    world.spawn(NodeId(NODES), clients);
    let host = world.host(NodeId(0));
    let task = async move {
        let scheduler_config = SchedulerConfig {
            slice: SLICE,
            phases: Phases::Two,
            preempt_when_alone: PreemptWhenAlone::Never,
            early_wakeup,
        };
        let programs = [COMPUTES, COMPUTES, SERVES];
        let mut scheduler =
            open_scheduler(host, (config, start), scheduler_config, &programs).await;
        scheduler.run().await.unwrap();
        assert!(scheduler.jobs().values().all(|job| job.is_complete), "{:?}", scheduler.jobs());
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
    let mut responses = seen.responses.lock().unwrap().clone();
    responses.sort();
    let shares = seen.shares.lock().unwrap();
    Outcome { responses, share: shares.iter().sum::<f64>() / shares.len() as f64 }
}

/// Prints the numbers of the documentation.
#[test]
fn requests_for_a_suspended_job_are_answered_early_and_others_keep_their_share() {
    for pause_ms in [20, 60, 200] {
        let pause = Duration::from_millis(pause_ms);
        let [woken, waiting] = [VISIT, Duration::ZERO].map(|early| run(early, pause));
        let [first, second] = [&woken, &waiting].map(|outcome| {
            let share = 100.0 * outcome.share;
            format!("{:?}, at most {:?}, others {share:.2} %", outcome.mean(), outcome.longest())
        });
        println!("a request every {pause:?}: woken {first}; in turn {second}");
        // Wake-ups cost the other jobs only the switches, two for each.
        assert!(woken.share > 0.97 * waiting.share, "{first}; {second}");
        assert!(2 * woken.mean() < waiting.mean(), "{first}; {second}");
        // If requests arrive more often than the job's share allows, the job must wait.
        let is_within_share = pause_ms > 20;
        assert!(!is_within_share || woken.longest() < 2 * VISIT + VISIT / 2, "{first}");
        assert!(!is_within_share || 8 * woken.mean() < waiting.mean(), "{first}; {second}");
    }
}
