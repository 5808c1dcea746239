//! Tests up to eight nodes on four hosts, in virtual time: joins, crashes, restarts, partitions, leaving, nodes with
//! two addresses.

mod network;

use proptest::prelude::*;

use network::{Network, SECOND};

use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::{Choice, Effect, Load, Members, Target, choose};

/// Seconds after the last fault within which all nodes must have converged: the silence after which a peer counts as
/// lost, the longest wait of a dial, and two attempts to retire duplicates.
const BOUND: u64 = 45;

/// Runs a random sequence of faults; panics if a property fails.
fn check(seed: u64, has_thieves: bool) {
    let mut network = Network::new(seed, has_thieves);
    for _ in 0..12 {
        network.fault();
        let pause = network.rng.between(SECOND / 50, 4 * SECOND);
        network.run(pause);
    }
    network.heal();
    network.run(BOUND * SECOND);
    network.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn searching_nodes_know_exactly_the_live_nodes_from_new_seeds(seed: u64) {
        check(seed, false);
    }

    // The other half of 200 cases: both tests run in parallel.
    #[test]
    fn searching_nodes_know_exactly_the_live_nodes_from_more_new_seeds(seed: u64) {
        check(seed, false);
    }

    #[test]
    fn a_thief_of_a_name_gains_no_stream_from_new_seeds(seed: u64) {
        check(seed, true);
    }

    #[test]
    fn a_thief_of_a_name_gains_no_stream_from_more_new_seeds(seed: u64) {
        check(seed, true);
    }
}

// Regression: a node also waited for the name of a node without a file, and got it once the node that keeps its key was
// gone.
#[test]
fn a_node_that_waits_for_a_name_does_not_get_it_once_it_is_pinned() {
    check(10_292_366_097_890_286_991, true);
}

// Regression: the former node's session had ended, and the next one had brought no description when another node
// arrived.
#[test]
fn a_session_without_a_description_has_no_name() {
    [176, 63_360_322_455_477_687].into_iter().for_each(|seed| check(seed, true));
}

#[test]
fn the_same_seeds_as_always() {
    (0..20).for_each(|seed| check(seed, false));
    (0..20).for_each(|seed| check(seed, true));
}

#[test]
fn choices_take_the_best_rank_and_of_two_the_less_loaded() {
    let choice = |link, is_doubted, distance, streams| Choice {
        peer: link,
        link,
        rank: (is_doubted, distance),
        streams,
    };
    let choices = [choice(1, true, 0, 0), choice(2, false, 1, 9), choice(3, false, 1, 4)];
    assert_eq!(choose(&choices, 0), Some(1), "both picks are the same");
    assert_eq!(choose(&choices, 1 << 32), Some(2));
    assert_eq!(choose(&choices, 1), Some(2));
    assert_eq!(choose(&choices[..1], 7), Some(0), "a doubted one is better than none");
    assert_eq!(choose(&[], 7), None);
}

// Regression: the timer of the last dial before the end of a search was late, and the node kept requesting a past time.
#[test]
fn a_late_timer_after_the_end_of_a_search_leaves_nothing_that_is_due() {
    let target = Target::Address(([10, 0, 0, 7], 1).into());
    let mut members = Members::new(&names::hello(9, 50, "client"), None);
    members.handle_places(Instant::ZERO, &[target].into());
    members.seek(Instant::ZERO, Instant::from_nanos(60_000_000));
    assert_eq!(members.poll_effect(), Some(Effect::Dial(target)));
    members.handle_refused(Instant::ZERO, target);
    let due = members.poll_timeout().expect("it is dialed again");
    assert!(due < Instant::from_nanos(60_000_000));
    let late = Instant::from_nanos(60_000_001);
    members.handle_timeout(late, |_| Load::default());
    assert!(members.poll_timeout().is_none_or(|at| at > late));
}

// Regression: a node that was dialed at its address before it was listed on its host was never dialed there.
#[cfg(target_os = "linux")]
#[test]
fn a_node_of_this_host_known_over_udp_is_dialed_through_shared_memory() {
    let mut members = names::members();
    names::effects(&mut members);
    let (here, end) = (Target::Local(1), Instant::from_nanos(60 * SECOND));
    members.handle_places(Instant::ZERO, &[here].into());
    members.seek(Instant::ZERO, end);
    let mut now = Instant::ZERO;
    for failures in 0..10 {
        assert_eq!(names::effects(&mut members), [Effect::Dial(here)]);
        members.handle_refused(now, here);
        let again = members.poll_timeout().expect("it is dialed again");
        let pause = ((SECOND / 20) << failures).min(SECOND * 4 / 5);
        assert_eq!(again.nanos_since(now), pause, "after {failures} failures");
        now = again;
        members.handle_timeout(now, |_| Load::default());
    }
    members.handle_dialed(now, here, 2, TransportKind::Shm);
    members.handle_hello(now, 2, names::hello(1, 10, "kv"), None);
    assert_eq!(members.link_to(1, |_| Load::default()), Some(2));
    // The other node has dialed this one as well: that link is enough.
    members.handle_accepted(now, 3, TransportKind::Shm);
    members.handle_hello(now, 3, names::hello(1, 10, "kv"), None);
    names::effects(&mut members);
    members.handle_ended(now, 2);
    members.handle_timeout(now.plus_nanos(2 * SECOND), |_| Load::default());
    assert!(!names::effects(&mut members).contains(&Effect::Dial(here)));
}

#[test]
fn the_link_of_new_streams_is_a_slow_one_only_if_no_other_is_left() {
    let mut members = Members::new(&names::hello(9, 50, "client"), None);
    for link in [1, 2] {
        let address = ([10, 0, 0, link as u8], 1).into();
        members.handle_accepted(Instant::ZERO, link, TransportKind::Udp(address));
        members.handle_hello(Instant::ZERO, link, names::hello(7, 40, "service"), None);
    }
    let link_to = |members: &Members| members.link_to(7, |_| Load::default());
    let first = link_to(&members).unwrap();
    members.handle_answer(first, true);
    let second = link_to(&members).unwrap();
    assert_ne!(first, second);
    members.handle_answer(second, true);
    assert_eq!(link_to(&members), Some(first), "the better of two slow ones");
    assert_eq!(members.link_to(8, |_| Load::default()), None);
}

/// Returns the links of a node's service `kv`, with a load that is the same for all, and whether each is doubted.
fn chosen(members: &Members) -> Vec<(u64, bool)> {
    let choices = members.choices("kv", |_| Load::default());
    choices.iter().map(|choice| (choice.peer, choice.rank.0)).collect()
}

mod keys;
mod names;
