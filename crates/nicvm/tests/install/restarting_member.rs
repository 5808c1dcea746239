//! Members that restart while a change is under way, after they have voted for it or before.

use std::time::Duration;

use midplane_nicvm::install::{INSTALLER, Installer, Policy};
use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::Status;
use proptest::prelude::*;

use super::cluster::Cluster;
use super::tally::TALLY;

/// Restarts a member `back_after` microseconds after it has crashed, `dies_after` microseconds after the beginning of a
/// change that another member coordinates. In the end no change is under way, all members run the same version, and
/// the next change is carried out.
fn survive_a_member(
    nodes: u16,
    (coordinator, member): (u16, u16),
    (dies_after, back_after): (u64, u64),
    loss: u32,
    seed: u64,
) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new(nodes, seed, false);
    let coordinator = coordinator % nodes;
    let member = (coordinator + 1 + member % (nodes - 1)) % nodes;
    prop_assert_eq!(cluster.install(0, b"A", Policy::Deactivate).status, Status::Done);
    cluster.pass(Duration::from_millis(50));
    let mut faults = Faults::NONE;
    faults.loss = f64::from(loss) / 100.0;
    cluster.world.set_faults(faults);
    cluster.begin(coordinator, TALLY, &[b'B'; 2_000]);
    cluster.pass(Duration::from_micros(dies_after));
    cluster.world.crash(NodeId(member));
    cluster.pass(Duration::from_micros(back_after));
    cluster.world.restart(NodeId(member));
    cluster.pass(Duration::from_secs(6));
    for node in (0..nodes).map(NodeId) {
        let unit = cluster.world.firmware(node);
        let is_changing = unit.extension::<Installer>(INSTALLER).unwrap().is_changing();
        prop_assert!(!is_changing, "{:?} still waits for the end of the change", node);
    }
    let versions = cluster.versions();
    prop_assert!(versions.iter().all(|version| *version == versions[0]), "{:?}", versions);
    let done = cluster.install(member, b"C", Policy::Deactivate);
    prop_assert_eq!((done.status, done.args[1]), (Status::Done, nodes.into()));
    Ok(())
}

#[test]
fn a_member_that_restarts_at_any_time_after_its_vote_blocks_no_later_change() {
    for (nodes, member) in [(2, 0), (4, 1), (5, 0)] {
        for dies_after in (10..160).step_by(5) {
            let survived = survive_a_member(nodes, (0, member), (dies_after, 1), 0, 0);
            survived.unwrap_or_else(|error| panic!("{nodes} nodes, {dies_after} us: {error}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The member may restart at any point, before the other members take it for dead or after.
    #[test]
    fn a_member_that_restarts_leaves_no_two_versions(
        nodes in 2..9_u16,
        coordinator in 0..9_u16,
        member in 0..9_u16,
        dies_after in prop_oneof![1..4_000_u64, 1..200_u64],
        back_after in prop_oneof![1..2_000_u64, 1..1_000_000_u64],
        loss in 0..4_u32,
        seed: u64,
    ) {
        survive_a_member(nodes, (coordinator, member), (dies_after, back_after), loss, seed)?;
    }
}
