//! Virtual Interfaces lose, duplicate and reorder nothing over any number of preemptions: suspended, saved, forgotten
//! by their NICs, passed on as bytes, restored and resumed.

use crate::vis::{ALL, BAD, Plan, run, run_resident};
use midplane_simhw::fault::Faults;
use midplane_simhw::profile::DmaCost;
use midplane_via::attributes::Reliability;
use proptest::prelude::*;

#[test]
fn sends_over_a_reliable_pair_end_as_without_preemption() {
    let plan = Plan::default();
    let (never, none) = run(plan, false);
    let (often, preemptions) = run(plan, true);
    assert_eq!((none, often), (0, never));
    assert!(preemptions > 10, "{preemptions}");
}

#[test]
fn writes_and_reads_end_as_without_preemption() {
    let levels = &[Reliability::ReliableDelivery, Reliability::ReliableReception];
    let plan = Plan { rdma: true, levels, ..Plan::default() };
    let (never, _) = run(plan, false);
    let (often, preemptions) = run(plan, true);
    assert_eq!(often, never);
    assert!(preemptions > 20, "{preemptions}");
}

#[test]
fn nics_do_nothing_for_a_suspended_job_whose_interfaces_stay_on_them() {
    for (seed, faults) in [(1, Faults::NONE), (2, BAD)] {
        let plan = Plan { seed, levels: ALL, rdma: true, count: 25, ..Plan::default() };
        let (never, _) = run(plan, false);
        let (kept, preemptions) = run_resident(Plan { faults, ..plan });
        assert_eq!(kept, never);
        assert!(preemptions > 20, "{preemptions}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_in_a_bad_network(
        seed in 0_u64..1_000_000, ranks in 2_u16..5, rdma: bool, byte_ps in 80_u32..100_000,
    ) {
        let scatter = DmaCost { setup_ns: 300, byte_ps };
        let plan = Plan { ranks, nodes: ranks, rdma, levels: ALL, count: 15, ..Plan::default() };
        let plan = Plan { seed, scatter, ..plan };
        let (never, _) = run(plan, false);
        prop_assert_eq!(run(Plan { faults: BAD, ..plan }, true).0, never);
    }
}
