//! The same over shared memory, and over sockets that lose, duplicate and reorder datagrams.

use std::time::Duration;

use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_via::message::collective::Operation;
use midplane_via::message::group::Rank;
use midplane_via::rdma::RdmaConfig;
use tokio::task::JoinSet;

use crate::live::{World, over_udp, worlds};
use crate::on_nics::steps::{Step, take};

/// A limit on the machine's clock, which only a hang reaches.
const LIMIT: Duration = Duration::from_secs(60);

fn groups() -> Vec<Vec<Step>> {
    let operation = Operation::Sum;
    vec![
        vec![Step::Barrier],
        vec![Step::AllReduce { operation, words: 11 }, Step::Barrier],
        vec![Step::AddFloats { root: 1, words: 11 }],
        vec![
            Step::Broadcast { root: 2, length: 30_000 },
            Step::AllGather { lengths: vec![0, 84, 7] },
        ],
        vec![Step::Reduce { root: 1, operation, words: 3 }, Step::Gather { root: 0, length: 500 }],
        vec![Step::Broadcast { root: 0, length: 84 }, Step::AllGather { lengths: vec![1, 100] }],
    ]
}

/// Takes all steps by NICs and by hosts, several times.
async fn compare<H: Host>(world: World, host: H) {
    let nics = world.on_nics(&host).await.unwrap();
    for at in 0..20 {
        for group in groups() {
            let by_nics = take(&nics, at, &group).await;
            assert_eq!(by_nics, take(&world, at, &group).await, "{at}: {group:?}");
        }
    }
    // A rank may leave as soon as its own operation has ended.
    let sum = nics.all_reduce(&[1_u64], Operation::Sum).await.unwrap();
    assert_eq!(sum, [u64::from(world.size())]);
    drop(nics);
    world.barrier().await.unwrap();
    assert_eq!(world.broadcast(Rank(0), vec![1]).await.unwrap(), vec![1]);
    world.finalize().await;
}

async fn all<H: Host>(hosts: Vec<H>) {
    let mut tasks = JoinSet::new();
    for (world, host) in worlds(&hosts, RdmaConfig::default()).await.into_iter().zip(hosts) {
        tasks.spawn(compare(world, host));
    }
    tokio::time::timeout(LIMIT, tasks.join_all()).await.expect("all end");
}

#[cfg(target_os = "linux")]
#[test]
fn over_shared_memory() {
    for ranks in [2, 3] {
        crate::live::over_shm(ranks, all);
    }
}

#[test]
fn over_sockets_that_lose() {
    let faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };
    let faulty = over_udp(4, faults, all);
    assert!(faulty > 20, "only {faulty}");
}
