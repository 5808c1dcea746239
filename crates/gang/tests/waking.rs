//! A job that answers requests from outside, next to two that compute: woken early, or waiting for its turn.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::job::scheduler::{open_scheduler, start_daemons};
use crate::job::world;
use midplane_gang::channel::geometry::Geometry;
use midplane_gang::daemon::{Costs, DaemonConfig, Mode, Start};
use midplane_gang::names::JobId;
use midplane_gang::scheduler::SchedulerClient;
use midplane_gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;
use midplane_simhw::time::Instant;

const NODES: u16 = 4;
const REQUESTS: usize = 60;
const SLICE: Duration = Duration::from_millis(100);
const VISIT: Duration = Duration::from_millis(10);
const SERVER: JobId = JobId(3);
const COMPUTES: u32 = 0;
const SERVES: u32 = 1;

/// Requests that have arrived, and the response times.
#[derive(Default)]
struct Requests {
    arrived: VecDeque<Instant>,
    waker: Option<Waker>,
    waits: Vec<Duration>,
}

type Shared = Arc<Mutex<Requests>>;

async fn serve(host: SimHost, requests: Shared) {
    poll_fn(|context| {
        let mut requests = requests.lock().unwrap();
        while let Some(at) = requests.arrived.pop_front() {
            requests.waits.push(host.now().since(at));
        }
        requests.waker = Some(context.waker().clone());
        if requests.waits.len() == REQUESTS { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn compute(host: SimHost, requests: Shared) {
    while requests.lock().unwrap().waits.len() < REQUESTS {
        host.sleep_until(host.now() + Duration::from_millis(1)).await;
    }
}

/// Sends the requests of the clients of the job that serves: each request wakes it.
async fn ask(host: SimHost, requests: Shared, client: SchedulerClient) {
    let mut rng = host.rng("clients");
    for _ in 0..REQUESTS {
        let pause = Duration::from_micros(30_000 + rng.below(60_000));
        host.sleep_until(host.now() + pause).await;
        let waker = {
            let mut requests = requests.lock().unwrap();
            requests.arrived.push_back(host.now());
            requests.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        client.wake(SERVER);
    }
}

/// Returns the response times, sorted.
fn waits(early_wakeup: Duration) -> Vec<Duration> {
    let mut world = world(NODES, 3, Faults::NONE);
    let requests = Shared::default();
    let config = DaemonConfig {
        nodes: NODES,
        arity: 2,
        mode: Mode::Resident,
        geometry: Geometry::SMALL,
        channels: 1,
        costs: Costs::default(),
        local_rings: false,
    };
    let of_ranks = Arc::clone(&requests);
    let start: Start<SimHost> = Arc::new(move |host, launch, descriptor, _| {
        let requests = Arc::clone(&of_ranks);
        Box::pin(async move {
            match (launch.program, descriptor.rank().0) {
                (SERVES, 0) => serve(host, requests).await,
                _ => compute(host, requests).await,
            }
        })
    });
    start_daemons(&mut world, config, &start);
    let (host, clients) = (world.host(NodeId(0)), Arc::clone(&requests));
    let task = async move {
        let scheduler_config = SchedulerConfig {
            slice: SLICE,
            phases: Phases::Two,
            preempt_when_alone: PreemptWhenAlone::Always,
            early_wakeup,
        };
        let programs = [COMPUTES, COMPUTES, SERVES];
        let mut scheduler =
            open_scheduler(host.clone(), (config, start), scheduler_config, &programs).await;
        let client = scheduler.client();
        host.spawn(ask(host.clone(), clients, client));
        scheduler.run().await.unwrap();
    };
    world.block_on(NodeId(0), task).expect("it comes to its end");
    let mut waits = requests.lock().unwrap().waits.clone();
    waits.sort();
    waits
}

#[test]
fn a_job_that_is_woken_answers_within_two_visits_and_waits_for_its_turn_otherwise() {
    let [woken, waiting] = [VISIT, Duration::ZERO].map(waits);
    let half = REQUESTS / 2;
    println!("median, longest: woken {:?} {:?}", woken[half], woken[REQUESTS - 1]);
    println!("median, longest: in its turn {:?} {:?}", waiting[half], waiting[REQUESTS - 1]);
    assert!(woken[REQUESTS - 1] < 2 * VISIT + Duration::from_millis(1), "{woken:?}");
    assert!(waiting[REQUESTS - 1] > SLICE, "{waiting:?}");
    assert!(10 * woken[half] < waiting[half], "{woken:?} {waiting:?}");
}
