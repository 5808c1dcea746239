//! Nothing is lost, doubled or reordered over any preemptions, whatever the network does.

mod job;

use job::{Report, Run, Way, run};
use midplane_simhw::fault::Faults;
use proptest::prelude::*;
use std::time::Duration;

fn digests(report: &Report) -> Vec<Vec<u64>> {
    report.progress.iter().map(|progress| progress.digests.clone()).collect()
}

#[test]
fn a_job_that_is_never_preempted_comes_to_its_end() {
    run(Run { way: Way::Never, ..Run::default() });
}

#[test]
fn both_ways_of_preempting_change_nothing_that_is_received() {
    let base = Run { count: 100, slice: Duration::from_micros(40), ..Run::default() };
    let never = run(Run { way: Way::Never, ..base });
    for way in [Way::Resident, Way::Copy] {
        let report = run(Run { way, ..base });
        assert!(report.preemptions > 20, "{}", report.preemptions);
        assert_eq!(digests(&report), digests(&never));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_in_a_bad_network(
        seed in 0_u64..1_000_000, ranks in 1_u16..6, nodes in 1_u16..5, resident: bool,
    ) {
        let faults = Faults {
            loss: 0.02, duplicate: 0.02, reorder: 0.05, delay: Duration::from_micros(30),
            ..Faults::NONE
        };
        let way = if resident { Way::Resident } else { Way::Copy };
        run(Run { ranks, nodes, seed, faults, way, count: 20, ..Run::default() });
    }

    #[test]
    fn freezing_takes_at_most_two_round_trips_without_loss(
        seed in 0_u64..1_000_000, ranks in 2_u16..5, nodes in 2_u16..4,
    ) {
        let report = run(Run { ranks, nodes, seed, count: 10, ..Run::default() });
        // One small frame there and its answer back take 13 us on this network; queues of FIFOs that
        // are as small as here add some.
        prop_assert!(report.longest_freeze < Duration::from_micros(40), "{:?}", report.longest_freeze);
    }
}
