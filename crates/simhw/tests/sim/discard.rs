//! Tests which pieces a full port drops, and what happens to the rest of a frame: tail drop, partial and early discard.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::Traffic;
use midplane_simhw::switch::{
    Buffer, Discard, DiscardPolicy, Output, Piece, SwitchProfile, discard,
};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

use crate::sim::harness::{A, B, C, RATE, Sending, at, scripted_world};

/// Runs four senders of 10 KB frames at twice the rate of the receiver's link.
fn incast(policy: DiscardPolicy, cells: u32, seed: u64) -> (Traffic, u32) {
    let link = LinkProfile::atm(RATE, Duration::from_nanos(500));
    let switch = SwitchProfile { discard: policy, ..SwitchProfile::new(Buffer::Cells(cells)) };
    let topology = Topology::star(5, link, switch);
    let mut rng = midplane_simhw::rng::Rng::new(seed, "incast");
    let mut scripts = vec![Vec::new()];
    for _ in 0..4 {
        // A frame's 214 cells take 907 us; the sender is idle half of the time.
        let mut now = 0;
        let script = (0..100).map(|_| {
            now += rng.between(900_000, 2_700_000);
            Sending { at: now, to: A, length: 10_000 }
        });
        scripts.push(script.collect());
    }
    let (mut world, _) = scripted_world(&topology, NicProfile::FREE, seed, scripts);
    world.run();
    (*world.traffic(), world.output(topology.downlink(A)).unwrap().peak())
}

/// Compares the frames that each policy delivers over some runs.
fn check_order(seeds: impl IntoIterator<Item = u64>) {
    let mut delivered = [0; 3];
    for seed in seeds {
        let policies = [DiscardPolicy::EARLY, DiscardPolicy::Partial, DiscardPolicy::Tail];
        for (sum, policy) in delivered.iter_mut().zip(policies) {
            *sum += incast(policy, 400, seed).0.delivered;
        }
    }
    let [early, partial, tail] = delivered;
    assert!(early >= partial && partial >= tail, "{delivered:?}");
    assert!(early > tail + tail / 10, "{delivered:?}");
}

#[test]
fn early_discard_carries_more_than_partial_and_that_more_than_tail_drop() {
    check_order(0..5);
}

/// Keeps three quarters of the buffer free.
#[derive(Debug)]
struct Quarter;

impl Discard for Quarter {
    fn admit(&mut self, _: &Piece, cost: u32, at: discard::Occupancy) -> Result<(), DropCause> {
        if at.used + cost <= at.capacity / 4 { Ok(()) } else { Err(DropCause::EarlyDiscard) }
    }
}

#[test]
fn a_rule_of_ones_own_decides_at_each_port_of_a_world() {
    let (traffic, peak) = incast(DiscardPolicy::Own(|| Box::new(Quarter)), 400, 1);
    assert_eq!(peak, 100);
    assert_eq!(traffic.drops.of(DropCause::BufferFull), 0, "{traffic:?}");
    assert!(traffic.drops.total() > 0);
    assert_eq!(incast(DiscardPolicy::Tail, 400, 1).1, 400);
}

/// Checks that three frames of 210 cells, admitted at the threshold, fit above it.
fn check_slack(seed: u64) {
    let policy = DiscardPolicy::Early { threshold: 200 };
    let (traffic, peak) = incast(policy, 1_100, seed);
    assert!(traffic.drops.of(DropCause::EarlyDiscard) > 0, "{traffic:?}");
    assert_eq!(traffic.drops.total(), traffic.drops.of(DropCause::EarlyDiscard));
    assert!(peak > 220 && peak <= 1_100);
}

#[test]
fn after_early_discard_with_slack_no_partial_frame_leaves() {
    (0..3).for_each(check_slack);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]
    #[test]
    fn policies_keep_their_order_from_new_seeds(seeds: [u64; 5]) {
        check_order(seeds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn with_slack_no_partial_frame_leaves_from_new_seeds(seed: u64) {
        check_slack(seed);
    }
}

/// A discard policy that drops the pieces in `lost`: each is a frame's number at this port, and whether its last or its
/// second piece.
#[derive(Debug)]
struct Surgeon {
    lost: Vec<(usize, bool)>,
    seen: Vec<u32>,
}

impl Discard for Surgeon {
    fn admit(&mut self, piece: &Piece, _: u32, _: discard::Occupancy) -> Result<(), DropCause> {
        if piece.index == 0 {
            self.seen.push(piece.frame);
        }
        let number = self.seen.iter().rposition(|frame| *frame == piece.frame).unwrap();
        if self.lost.contains(&(number, piece.last)) && (piece.last || piece.index == 1) {
            return Err(DropCause::BufferFull);
        }
        Ok(())
    }
}

#[test]
fn a_port_can_have_its_own_policy() {
    let rule = Surgeon { lost: vec![(0, true)], seen: Vec::new() };
    let queue = Box::<midplane_simhw::switch::Fifo>::default();
    let mut output = Output::new(RATE, Buffer::Cells(10), queue, Box::new(rule));
    let piece = |index, last| Piece { frame: 3, index, last, bytes: 53 };
    assert!(output.accept(at(0), piece(0, false)).unwrap().is_some());
    assert!(output.accept(at(0), piece(1, false)).unwrap().is_none());
    assert_eq!(output.accept(at(0), piece(2, true)), Err(DropCause::BufferFull));
    assert_eq!((output.used(), output.drops().total()), (2, 1));
}

#[test]
fn a_lost_last_cell_takes_exactly_the_next_frame_of_its_source_with_it() {
    // Frames of two cells, 4,240 ns each, and a port that holds two. C's cells arrive 2,000 ns before those of B's
    // third frame: the second of them takes the space that B's last cell would have had.
    let link = LinkProfile::atm(RATE, Duration::ZERO);
    let topology = Topology::star(3, link, SwitchProfile::new(Buffer::Cells(2)));
    let frame = |at| Sending { at, to: A, length: 40 };
    let of_b = (0..6).map(|number| frame(number * 100_000)).collect();
    let of_c = vec![frame(200_000 - 2_000), frame(320_000)];
    let (mut world, log) =
        scripted_world(&topology, NicProfile::FREE, 1, vec![Vec::new(), of_b, of_c]);
    world.run();
    let of = |source| log.entries().into_iter().filter(move |frame| frame.source == source);
    assert_eq!(of(B).map(|frame| frame.sequence).collect::<Vec<_>>(), [0, 1, 4, 5]);
    assert_eq!(of(C).count(), 2);
    let drops = world.traffic().drops;
    assert_eq!((drops.of(DropCause::Incomplete), drops.of(DropCause::Merged)), (1, 1));
}

#[test]
fn frames_of_several_sources_interleave_at_a_receiver_without_harm() {
    // With two switches, the cells of A and B share the trunk and interleave at C's port.
    let link = LinkProfile::atm(RATE, Duration::from_nanos(100));
    let fast = LinkProfile::atm(LineRate::mbps(400), Duration::from_nanos(100));
    let roomy = SwitchProfile::new(Buffer::Cells(100_000));
    let mut topology = Topology::new();
    let (left, right) = (topology.add_switch(roomy), topology.add_switch(roomy));
    topology.add_trunk(left, right, fast);
    topology.add_host(left, link);
    topology.add_host(left, link);
    topology.add_host(right, link);
    let script: Vec<_> = (0..20).map(|n| Sending { at: n * 50_000, to: C, length: 900 }).collect();
    let scripts = vec![script.clone(), script];
    let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, scripts);
    world.run();
    assert_eq!(world.traffic().drops.total(), 0);
    assert_eq!(log.entries().len(), 40);
}

proptest! {
    #[test]
    fn no_policy_admits_what_does_not_fit_and_partial_discard_keeps_frames_apart(
        policy in prop_oneof![
            Just(DiscardPolicy::Tail), Just(DiscardPolicy::Partial), Just(DiscardPolicy::EARLY)],
        buffer in prop_oneof![(1_u32..40).prop_map(Buffer::Cells), (53_u32..2_000).prop_map(Buffer::Bytes)],
        steps in proptest::collection::vec((0_u32..4, any::<bool>(), 0_u64..10_000), 1..300),
    ) {
        let profile = SwitchProfile { discard: policy, ..SwitchProfile::new(buffer) };
        let mut output = Output::from_profile(RATE, &profile);
        let (Buffer::Cells(bound) | Buffer::Bytes(bound)) = buffer;
        let mut now = 0;
        let mut free = None;
        let mut frames = [(0_u32, 0_u16, false); 4];
        for (source, last, gap) in steps {
            now += gap;
            while let Some(ends) = free.filter(|ends| *ends <= at(now)) {
                free = output.next(ends).map(|departure| departure.ends);
            }
            let (number, index, broken) = &mut frames[source as usize];
            let piece = Piece { frame: *number * 4 + source, index: *index, last, bytes: 53 };
            match output.accept(at(now), piece) {
                Ok(departure) => {
                    let kept = policy == DiscardPolicy::Tail || !*broken || last;
                    prop_assert!(kept, "a middle piece of a broken frame was kept");
                    free = free.or_else(|| departure.map(|departure| departure.ends));
                }
                Err(_) => *broken = true,
            }
            *index += 1;
            if last {
                (*number, *index, *broken) = (*number + 1, 0, false);
            }
            prop_assert!(output.used() <= output.peak() && output.peak() <= bound);
        }
    }
}

#[test]
fn a_policy_forgets_frames_whose_end_is_lost_elsewhere() {
    let mut rule = DiscardPolicy::Partial.build();
    let full = discard::Occupancy { used: 10, capacity: 10 };
    let empty = discard::Occupancy { used: 0, capacity: 10 };
    let piece = |frame, index| Piece { frame, index, last: false, bytes: 53 };
    // Far more frames than the rule remembers, none of which ends here.
    for frame in 0..100_000 {
        assert_eq!(rule.admit(&piece(frame, 0), 1, full), Err(DropCause::BufferFull));
    }
    assert!(rule.admit(&piece(0, 1), 1, empty).is_ok(), "the oldest are forgotten");
    assert_eq!(rule.admit(&piece(99_999, 1), 1, empty), Err(DropCause::PartialDiscard));
    rule.forget(99_999);
    assert!(rule.admit(&piece(99_999, 2), 1, empty).is_ok());
}
