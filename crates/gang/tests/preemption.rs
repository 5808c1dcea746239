//! Nothing is lost, doubled or reordered over any preemptions, whatever the network does.

mod job;

use job::{Report, Run, Way, open, places, run, world};
use midplane_gang::channel::Channel;
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::names::{JobId, Rank};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;
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

/// What a context has given to its line before it is stopped leaves all the same: it must be little, or slices as long
/// as a burst are spent on the last one's.
#[test]
fn what_a_stopped_context_had_on_the_line_is_three_messages_at_most() {
    const BULK: Geometry = Geometry {
        send: FifoSize { messages: 32, bytes: 64 << 10 },
        receive: FifoSize { messages: 64, bytes: 64 << 10 },
        message: 4096,
    };
    let mut world = world(2, 1, Faults::NONE);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let task = async move {
        let mut network = open(&hosts, JobId(1), &places(2, 2), BULK, false).await;
        network.run(&hosts[0]).await.unwrap();
        let descriptor = |rank: usize| {
            let held = &network.ranks()[rank];
            held.controller.descriptor(held.context)
        };
        let mut near = Channel::attach(&hosts[0], descriptor(0)).await.unwrap();
        let mut far = Channel::attach(&hosts[1], descriptor(1)).await.unwrap();
        for number in 0..12 {
            near.try_send(Rank(1), &[number; 4096]).unwrap();
        }
        // A message takes 33 us of the line: the first is under way.
        hosts[0].sleep_until(hosts[0].now() + Duration::from_micros(5)).await;
        network.freeze(&hosts[0]).await.unwrap();
        network.run(&hosts[0]).await.unwrap();
        let began = hosts[0].now();
        far.receive().await.unwrap();
        hosts[0].now().nanos_since(began)
    };
    let waited = world.block_on(NodeId(0), task).expect("it comes");
    assert!(waited < 4 * 34_000, "{waited} ns until the next slice's first message");
}
