use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use midplane::{Sim, sim::SimError, time};
use replicated_kv::{Disk, REPLICAS, Store, serve};
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

/// The history of one key. A run of a client is a thread of its own: what it had begun when it crashed may still happen.
type History = LinearizabilityTester<u64, Register<u32>>;

#[derive(Default)]
struct Histories {
    keys: BTreeMap<u8, History>,
    runs: u64,
}

impl Histories {
    fn of(&mut self, key: u8) -> &mut History {
        self.keys.entry(key).or_insert_with(|| History::new(Register(0)))
    }
}

/// Adds three replicas, and three clients that read and write two keys; the last to end checks the history of each.
fn cluster(sim: &mut Sim, stale: bool) {
    for name in REPLICAS {
        let disk = Disk::default();
        sim.host(name, move |node| {
            let disk = disk.clone();
            async move {
                let _serving = serve(&node, disk)?;
                std::future::pending().await
            }
        });
    }
    let histories = Arc::new(Mutex::new(Histories::default()));
    for client in 0..3 {
        let histories = histories.clone();
        sim.client(move |node| {
            let histories = histories.clone();
            async move {
                let run = {
                    let mut histories = histories.lock().unwrap();
                    histories.runs += 1;
                    histories.runs
                };
                let store = Store::new(&node, run, stale);
                for step in 0..12 {
                    time::sleep(Duration::from_millis(20 + 7 * client)).await;
                    let (key, number) = ((step % 2) as u8, (100 * run + step) as u32);
                    operate(&store, &histories, (run, key), (step % 3 == client).then_some(number))
                        .await;
                }
                for (key, history) in &histories.lock().unwrap().keys {
                    assert!(history.is_consistent(), "key {key} is not linearizable: {history:?}");
                }
                Ok(())
            }
        });
    }
}

/// Writes a number or reads, and records the begin and the end.
async fn operate(
    store: &Store,
    histories: &Mutex<Histories>,
    (run, key): (u64, u8),
    number: Option<u32>,
) {
    let begun = number.map_or(RegisterOp::Read, RegisterOp::Write);
    histories.lock().unwrap().of(key).on_invoke(run, begun).unwrap();
    let ended = match number {
        Some(number) => {
            store.put(key, number).await;
            RegisterRet::WriteOk
        }
        None => RegisterRet::ReadOk(store.get(key).await),
    };
    histories.lock().unwrap().of(key).on_return(run, ended).unwrap();
}

#[test]
fn a_read_from_one_replica_is_found_by_a_seed() {
    let found =
        Sim::builder().loss(0.01).swarm(200, Duration::from_secs(1), |sim| cluster(sim, true));
    println!("{found:?}");
    assert!(matches!(found, Err(SimError::Swarm { .. })));
}

#[test]
fn two_hundred_seeds_with_crashes_loss_and_partitions_are_linearizable() {
    Sim::builder()
        .loss(0.01)
        .swarm(200, Duration::from_secs(1), |sim| cluster(sim, false))
        .unwrap();
}

/// Runs seeds from a given one on for some seconds: `.ci/soak` sets both, as `SOAK_FIRST` and `SOAK_SECONDS`.
#[test]
#[ignore = "takes as long as SOAK_SECONDS says"]
fn soak() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = variable("SOAK_FIRST").expect("set SOAK_FIRST to the first seed");
    let seconds = variable("SOAK_SECONDS").expect("set SOAK_SECONDS to how long it runs");
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut packets, mut effects) = (first, 0, 0);
    while Instant::now() < end {
        let builder = Sim::builder().seed(seed).loss(0.01);
        let report = builder.swarm(1, Duration::from_secs(1), |sim| cluster(sim, false)).unwrap();
        (packets, effects) = (packets + report.sent, effects + report.faults.total());
        seed += 1;
    }
    println!("soak: {first} | {} | {packets} | {effects}", seed - first);
}
