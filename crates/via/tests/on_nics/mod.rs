//! Communicators whose collective operations the NICs carry out: the same results as by hosts.

mod failures;
mod live_fabrics;
mod progress;
mod steps;

use std::time::Duration;

use crate::pair;
use crate::pair::Setting;
use crate::pair::job;
use midplane_nicvm::collective::{COLLECTIVES, CollectiveCounters, Collectives};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::World as Fabric;
use midplane_via::message::collective::Operation;
use midplane_via::rdma::RdmaConfig;
use proptest::prelude::*;
use steps::{Step, take};

/// Makes a world all of whose NICs are of one group.
fn fabric(setting: Setting) -> Fabric<Unit> {
    let members: Vec<NodeId> = (0..setting.nodes).map(NodeId).collect();
    pair::world_with(setting, move |_, unit| {
        unit.install(COLLECTIVES, Collectives::new(members.clone())).unwrap();
    })
}

fn counters(fabric: &Fabric<Unit>, node: u16) -> CollectiveCounters {
    let unit = fabric.firmware(NodeId(node));
    unit.extension::<Collectives>(COLLECTIVES).unwrap().counters()
}

/// Takes the steps of each group at once, one group after the other, by NICs and by hosts.
fn check(size: u16, groups: &[Vec<Step>], seed: u64, faults: Faults, late: u64) {
    let setting = Setting { nodes: size, seed, faults, ..Setting::default() };
    let mut fabric = fabric(setting);
    let shared = groups.to_vec();
    let config = RdmaConfig::default().area(16_384).descriptors(12);
    job::run_in(&mut fabric, size, config, move |world, host| {
        let groups = shared.clone();
        async move {
            let nics = world.on_nics(&host).await.unwrap();
            let mut rng = host.rng("late");
            for (at, group) in groups.iter().enumerate() {
                host.sleep_until(host.now().plus_nanos(rng.below(late))).await;
                let by_nics = take(&nics, at, group).await;
                host.sleep_until(host.now().plus_nanos(rng.below(late))).await;
                let by_hosts = take(&world, at, group).await;
                assert_eq!(by_nics, by_hosts, "{at}: {group:?}");
            }
        }
    });
    let expected = groups.iter().flatten().map(|step| step.by_nics(size.into())).sum::<u64>();
    for node in 0..size {
        let counters = counters(&fabric, node);
        let of_interest = (counters.done, counters.failed, counters.malformed);
        assert_eq!(of_interest, (expected, 0, 0), "{node}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn nics_and_hosts_give_every_process_the_same_results_despite_loss(
        size in 1..8_u16,
        groups in prop::collection::vec(prop::collection::vec(steps::step(), 1..4), 1..6),
        seed: u64,
        loss in 0..5_u32,
        late in 1..300_000_u64,
    ) {
        let loss = f64::from(loss) / 100.0;
        let faults = Faults { loss, duplicate: loss / 2.0, reorder: loss, ..Faults::NONE };
        check(size, &groups, seed, faults, late);
    }
}

#[test]
fn a_broadcast_too_long_for_nics_goes_by_hosts() {
    let most = 1 << 20;
    let lengths = [most - 1, most, most + 1];
    let steps = lengths.map(|length| vec![Step::Broadcast { root: 1, length }]);
    check(3, &steps, 1, Faults::NONE, 1_000);
}

#[test]
fn operations_that_just_fit_go_by_nics_at_once() {
    for length in [0, 84, 85] {
        check(3, &[vec![Step::Broadcast { root: 2, length }]], 1, Faults::NONE, 1_000);
    }
    for words in [0, 11, 12] {
        let operation = Operation::Sum;
        check(3, &[vec![Step::AllReduce { operation, words }]], 1, Faults::NONE, 1_000);
        check(5, &[vec![Step::AddFloats { root: 1, words }]], 1, Faults::NONE, 1_000);
    }
}

#[test]
fn communicators_made_of_one_on_nics_go_by_hosts() {
    let setting = Setting { nodes: 4, ..Setting::default() };
    let mut fabric = fabric(setting);
    job::run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        // Both calls agree by one operation of the NICs each.
        let same = nics.duplicate().await.unwrap();
        let half = nics.split(Some(nics.rank().0 % 2), 0).await.unwrap().unwrap();
        for _ in 0..5 {
            same.barrier().await.unwrap();
            half.barrier().await.unwrap();
        }
        // A clone is the same one.
        nics.clone().barrier().await.unwrap();
        // Ranks leave before others have received the end of their last operation.
        host.sleep_until(host.now() + Duration::from_micros(u64::from(world.rank().0) * 50)).await;
        nics.barrier().await.unwrap();
    });
    for node in 0..4 {
        assert_eq!((counters(&fabric, node).done, counters(&fabric, node).failed), (4, 0));
    }
}
