//! Messages over Virtual Interfaces over shared memory: two NICs, whose tasks park and are woken.
#![cfg(target_os = "linux")]

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::shm::{ShmConfig, ShmHost, ShmNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::process::Process;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};

type World = Communicator<Engine<RdmaCarrier>>;

async fn join(host: ShmHost, config: RdmaConfig) -> World {
    use midplane_simhw::host::Host as _;
    let own = Peer(host.node().0.into());
    let carrier = RdmaCarrier::open(&host, own, &[NodeId(0), NodeId(1)], config).await.unwrap();
    let (process, scope) = Process::new(Engine::new(carrier, Config::default()), 2).unwrap();
    Communicator::world(process, scope)
}

/// Runs both ranks on a runtime with two threads. A wake-up that is lost ends in the time limit.
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
            ended.expect("nobody waits for ever").unwrap();
        }
        for nic in nics {
            nic.shutdown().await;
        }
    });
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
                let came = world.receive(Rank(0), Tag(1)).await.unwrap();
                world.send(Rank(0), Tag(2), came.bytes).await.unwrap();
            }
        }
    });
}

/// Little credit, and a side that rests now and then: both park, and are woken, many times.
#[test]
fn a_flood_with_little_credit_is_never_stuck() {
    let config = RdmaConfig::default().area(4096).descriptors(8);
    run("flood", config, |world| async move {
        for number in 0..2_000 {
            if world.rank() == Rank(0) {
                world.send(Rank(1), Tag(7), text(number, 100)).await.unwrap();
            } else {
                let came = world.receive(Rank(0), Tag(7)).await.unwrap();
                assert!(came.bytes == text(number, 100), "message {number}");
            }
            if number % 400 == 399 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
}

/// Whoever comes to its end first leaves at once: what it has sent arrives before it is missed.
#[test]
fn who_leaves_first_takes_nothing_with_it() {
    for round in 0..30 {
        run(&format!("leaving-{round}"), RdmaConfig::default(), |world| async move {
            let peer = Rank(1 - world.rank().0);
            for number in 0..20 {
                let to = (peer, Tag(1));
                let came = world.send_receive(to, text(number, 64), peer, Tag(1)).await.unwrap();
                assert!(came.bytes == text(number, 64), "message {number}");
            }
        });
    }
}
