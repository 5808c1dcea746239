//! Messages over Virtual Interfaces over shared memory: two NICs, whose tasks park and are woken.
#![cfg(target_os = "linux")]

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::LiveHost;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type World = Communicator;

async fn join(host: LiveHost, config: RdmaConfig) -> World {
    use midplane_simhw::host::Host as _;
    let own = Peer(host.node().0.into());
    let carrier = RdmaCarrier::open(&host, own, &[NodeId(0), NodeId(1)], config).await.unwrap();
    Communicator::world(Engine::new(carrier, Config::default()), 2).unwrap()
}

/// Runs both ranks on a runtime with two threads. A lost wake-up ends in the time limit.
fn run<F>(test: &str, config: RdmaConfig, program: impl Fn(World) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let name = format!("midplane-rdma-{test}-{}", std::process::id());
    runtime.block_on(async {
        let nic = |node| {
            let mut unit = Unit::default();
            unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
            ShmNic::start(ShmConfig::new(&name, NodeId(node), 2), unit).unwrap()
        };
        let nics = [nic(0), nic(1)];
        for nic in &nics {
            nic.meet().await;
        }
        let (first, second) = futures_util::future::join(
            tokio::spawn(join(nics[0].host(), config)),
            tokio::spawn(join(nics[1].host(), config)),
        )
        .await;
        let tasks = [first.unwrap(), second.unwrap()].map(|world| {
            let program = program(world.clone());
            tokio::spawn(async move {
                program.await;
                world.barrier().await.unwrap();
                world.finalize().await;
            })
        });
        for task in tasks {
            let ended = tokio::time::timeout(Duration::from_secs(30), task).await;
            ended.expect("no rank waits for ever").unwrap();
        }
        for nic in nics {
            nic.shutdown().await;
        }
    });
}

/// Sends and receives as one of two processes, which share one core and have four messages of 1 MiB under way each.
/// Returns the bytes of payload that this process has sent.
async fn exchange_on_one_core(name: String, own: u16, calls: u32) -> u64 {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
    let nic = ShmNic::start(ShmConfig::new(&name, NodeId(own), 2), unit).unwrap();
    nic.meet().await;
    let world = join(nic.host(), RdmaConfig::default()).await;
    let callers = (0..4).map(|caller| {
        let (world, other) = (world.clone(), Rank(1 - u32::from(own)));
        tokio::spawn(async move {
            let (there, back) = (Tag(2 * caller), Tag(2 * caller + 1));
            for _ in 0..calls {
                if own == 0 {
                    let answer = world.ireceive(other, back).unwrap();
                    world.send(other, there, vec![7; 1 << 20]).await.unwrap();
                    assert_eq!(answer.await.unwrap().bytes.len(), 1 << 20);
                } else {
                    let received = world.receive(other, there).await.unwrap();
                    world.send(other, back, received.bytes).await.unwrap();
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    world.barrier().await.unwrap();
    world.finalize().await;
    let sent = nic.counters().bytes_sent;
    nic.shutdown().await;
    sent
}

/// Each of the processes is silent for whole time slices. That counts as no loss: hardly any byte is sent twice.
#[test]
fn processes_that_share_a_core_resend_hardly_anything() {
    const CALLS: u32 = 10;
    let name = format!("midplane-rdma-core-{}", std::process::id());
    let mut core = CpuSet::new();
    let all = sched_getaffinity(None).unwrap();
    core.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    let processes: Vec<_> = (0..2)
        .map(|own| {
            let name = name.clone();
            std::thread::spawn(move || {
                sched_setaffinity(None, &core).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(exchange_on_one_core(name, own, CALLS))
            })
        })
        .collect();
    let needed = u64::from(4 * CALLS) << 20;
    for process in processes {
        let sent = process.join().unwrap();
        assert!(sent < needed * 5 / 4, "{sent} bytes for {needed}");
    }
}

fn text(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + number * 7) as u8).collect()
}

#[test]
fn messages_of_all_sizes_come_back_as_they_were() {
    run("echo", RdmaConfig::default(), |world| async move {
        for (number, length) in [0, 1, 64, 4096, 8193, 65_536, 1 << 20].into_iter().enumerate() {
            if world.rank() == Rank(0) {
                world.send(Rank(1), Tag(1), text(number, length)).await.unwrap();
                let back = world.receive(Rank(1), Tag(2)).await.unwrap();
                assert!(back.bytes == text(number, length), "{length} bytes");
            } else {
                let received = world.receive(Rank(0), Tag(1)).await.unwrap();
                world.send(Rank(0), Tag(2), received.bytes).await.unwrap();
            }
        }
    });
}

/// With little credit, and a side that pauses now and then, both sides park and are woken many times.
#[test]
fn a_flood_with_little_credit_never_stalls() {
    let config = RdmaConfig::default().area(4096).descriptors(8);
    run("flood", config, |world| async move {
        for number in 0..2_000 {
            if world.rank() == Rank(0) {
                world.send(Rank(1), Tag(7), text(number, 100)).await.unwrap();
            } else {
                let received = world.receive(Rank(0), Tag(7)).await.unwrap();
                assert!(received.bytes == text(number, 100), "message {number}");
            }
            if number % 400 == 399 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
}

/// The rank that ends first leaves at once: its messages arrive before its loss is reported.
#[test]
fn messages_of_a_rank_that_leaves_arrive() {
    for round in 0..30 {
        run(&format!("leaving-{round}"), RdmaConfig::default(), |world| async move {
            let peer = Rank(1 - world.rank().0);
            for number in 0..20 {
                let to = (peer, Tag(1));
                let received =
                    world.send_receive(to, text(number, 64), peer, Tag(1)).await.unwrap();
                assert!(received.bytes == text(number, 64), "message {number}");
            }
        });
    }
}
