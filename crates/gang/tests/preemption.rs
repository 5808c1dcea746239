//! No message is lost, duplicated or reordered over any number of preemptions, on a faulty network.

use crate::job::{Preemption, Report, Run, TIGHT, open, places, run, world};
use midplane_gang::channel::Channel;
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::context::{
    ChannelContext, NetworkContext, PeerState, ReceivedMessage, SentMessage,
};
use midplane_gang::controller::{ContextOptions, Controller};
use midplane_gang::names::{Epoch, JobId, Rank};
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
fn a_job_that_is_never_preempted_ends() {
    run(Run { way: Preemption::Never, ..Run::default() });
}

#[test]
fn all_ways_of_preempting_change_nothing_that_is_received() {
    let base = Run { count: 100, slice: Duration::from_micros(40), ..Run::default() };
    let never = run(Run { way: Preemption::Never, ..base });
    for way in [Preemption::Resident, Preemption::Copy, Preemption::CopyAhead] {
        let report = run(Run { way, ..base });
        assert!(report.preemptions > 20, "{}", report.preemptions);
        assert_eq!(digests(&report), digests(&never));
    }
}

const BAD: Faults = Faults {
    loss: 0.02,
    duplicate: 0.02,
    reorder: 0.05,
    delay: Duration::from_micros(30),
    ..Faults::NONE
};

/// A sender that a saved context refuses for the first time does not change that context.
fn check_saved_context(seed: u64) {
    let (ranks, nodes) = (3, 2);
    let way = Preemption::CopyAhead;
    run(Run { ranks, nodes, seed, faults: BAD, way, count: 20, ..Run::default() });
}

#[test]
fn a_context_that_is_saved_while_others_run_stays_as_it_is() {
    (163_500..163_600).for_each(check_saved_context);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn a_context_that_is_saved_stays_as_it_is_from_new_seeds(seed in 0_u64..1 << 60) {
        check_saved_context(seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_in_a_bad_network(
        seed in 0_u64..1_000_000, ranks in 1_u16..6, nodes in 1_u16..5, way in 0_usize..3,
    ) {
        let faults = BAD;
        let way = [Preemption::Resident, Preemption::Copy, Preemption::CopyAhead][way];
        run(Run { ranks, nodes, seed, faults, way, count: 20, ..Run::default() });
    }

    #[test]
    fn freezing_takes_at_most_two_round_trips_without_loss(
        seed in 0_u64..1_000_000, ranks in 2_u16..5, nodes in 2_u16..4,
    ) {
        let report = run(Run { ranks, nodes, seed, count: 10, ..Run::default() });
        // A small frame and its answer take 13 us on this network; queues of FIFOs as small as these add some.
        prop_assert!(report.longest_freeze < Duration::from_micros(40), "{:?}", report.longest_freeze);
    }
}

#[test]
fn a_forgotten_context_runs_only_after_it_is_restored() {
    let mut world = world(1, 1, Faults::NONE);
    let host = world.host(NodeId(0));
    let task = async move {
        let place = places(1, 1)[0];
        let mut controller = Controller::open(&host, place.channel, TIGHT, true).unwrap();
        let (job, rank, places) = (JobId(1), Rank(0), vec![place]);
        let context = controller.open_context(ContextOptions { job, rank, places }).await.unwrap();
        let saved = controller.save(context, false).await.unwrap();
        controller.forget(context).await.unwrap();
        assert!(controller.start(context, Epoch(1)).await.is_err(), "the NIC knows nothing of it");
        assert!(controller.forget(context).await.is_err(), "it is forgotten");
        controller.restore(context, &saved).await.unwrap();
        controller.start(context, Epoch(1)).await.unwrap();
        assert!(controller.forget(context).await.is_err(), "it runs");
    };
    world.block_on(NodeId(0), task).unwrap();
}

/// Tests that the message names the number of ranks, and no saved context.
#[test]
fn a_job_with_too_many_ranks_for_one_request_is_refused_with_their_number() {
    let mut world = world(1, 1, Faults::NONE);
    let host = world.host(NodeId(0));
    let task = async move {
        let place = places(1, 1)[0];
        let mut controller = Controller::open(&host, place.channel, TIGHT, true).unwrap();
        let (job, rank, places) = (JobId(1), Rank(0), vec![place; 40_000]);
        let options = ContextOptions { job, rank, places };
        let error = controller.open_context(options).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("40000 ranks") && !text.contains("saved"), "{text}");
    };
    world.block_on(NodeId(0), task).unwrap();
}

/// Frames that a context has handed to the line before its suspension still leave. They must be few: a slice as short
/// as a burst would otherwise be spent on the previous one's frames.
#[test]
fn a_suspended_context_has_three_messages_on_the_line_at_most() {
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

/// The empty message lies before the space that the next message, too long for it, leaves free at the ring's end.
#[test]
fn a_message_without_bytes_takes_no_room_in_a_cut() {
    let lengths = [(456, 0_usize), (512, 200), (712, 200), (912, 64), (976, 8)];
    let sent = |(position, length)| SentMessage {
        to: Rank(0),
        position,
        length: length as u32,
        taken: false,
        bytes: vec![7; length].into(),
    };
    let received = |(position, length)| ReceivedMessage {
        from: Rank(0),
        position,
        bytes: vec![7; length].into(),
    };
    let cut = |send: &[(u64, usize)], receive: &[(u64, usize)]| {
        let (waiting, held) = (send.len() as u32, receive.len() as u32);
        let peer = PeerState {
            rank: Rank(0),
            acked: held,
            next: held + waiting,
            expected: held,
            refusals: 0,
        };
        let only = ChannelContext {
            send: send.iter().copied().map(sent).collect(),
            receive: receive.iter().copied().map(received).collect(),
            receive_tail: 984,
            peers: vec![peer],
            ..ChannelContext::fresh(Rank(0), TIGHT)
        };
        NetworkContext { job: JobId(1), epoch: Epoch(1), ranks: vec![only] }
    };
    cut(&lengths, &[]).validate().unwrap();
    cut(&[], &lengths).validate().unwrap();
    let overlap = [(456, 8), (512, 200), (712, 200), (912, 64), (976, 8)];
    cut(&overlap, &[]).validate().unwrap_err();
    cut(&[], &overlap).validate().unwrap_err();
    // Regression: the detection of deadlocks added to such a position, and overflowed.
    cut(&[(u64::MAX - 7, 8)], &[]).validate().unwrap_err();
}
