//! Runs a discovery on a simulated path with an MTU, losses and a round trip.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const V4: usize = 28;

/// A path, the discovery that runs on it, and the peer's acknowledgements in flight.
struct Path {
    machine: Discovery,
    now: Instant,
    /// Bytes of the longest datagram that the path carries; 0 if it carries none.
    carries: usize,
    /// Percentage of datagrams lost in each direction.
    loss: u64,
    round_trip: u64,
    rng: Rng,
    answers: VecDeque<(Instant, u32)>,
    acknowledged: BTreeSet<usize>,
    sizes: Vec<(u32, usize)>,
    longest_full: usize,
}

impl Path {
    fn new(limit: usize, carries: usize) -> Self {
        Self {
            machine: Discovery::new(V4, limit),
            now: Instant::from_nanos(SECOND),
            carries,
            loss: 0,
            round_trip: MILLISECOND,
            rng: Rng::new(1, "path"),
            answers: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            sizes: Vec::new(),
            longest_full: 0,
        }
    }

    fn is_lost(&mut self, bytes: usize) -> bool {
        bytes > self.carries || self.rng.between(0, 99) < self.loss
    }

    /// Sends probes as the driver does after each call, and schedules their answers. Checks that no datagram longer
    /// than a confirmed one is used.
    fn settle(&mut self) {
        while let Some((number, bytes)) = self.machine.poll_transmit(self.now) {
            assert!(bytes <= self.machine.limit, "a probe of {bytes} is past the limit");
            self.sizes.push((number, bytes));
            if !self.is_lost(bytes) && !self.is_lost(60) {
                self.answers.push_back((self.now.plus_nanos(self.round_trip), number));
            }
        }
        let usable = self.machine.usable();
        assert!(
            usable <= BASE_BYTES || self.acknowledged.contains(&usable),
            "{usable} unconfirmed"
        );
    }

    /// Sends a full datagram every 5 ms, for `nanos`.
    fn run(&mut self, nanos: u64) {
        let end = self.now.plus_nanos(nanos);
        while self.now < end {
            let full = self.machine.usable();
            self.longest_full = self.longest_full.max(full);
            self.machine.on_sent(self.now, full);
            self.settle();
            let tick = self.now.plus_nanos(5 * MILLISECOND);
            loop {
                let answer = self.answers.front().map_or(Instant::FAR_FUTURE, |(at, _)| *at);
                let next = answer.min(self.machine.poll_timeout());
                if next > tick {
                    break;
                }
                self.now = self.now.max(next);
                if answer <= next {
                    let (_, number) = self.answers.pop_front().unwrap();
                    let size = self.sizes.iter().rev().find(|(known, _)| *known == number);
                    self.acknowledged.insert(size.unwrap().1);
                    self.machine.handle_probed(self.now, number);
                } else {
                    self.machine.handle_timeout(self.now);
                }
                self.settle();
            }
            self.now = tick;
        }
    }

    fn is_found(&self) -> bool {
        let most = self.carries.min(self.machine.limit);
        let usable = self.machine.usable();
        usable <= most && usable + GRAIN >= most
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any path and with losses, discovery finds the path's length and never uses a longer datagram.
    #[test]
    fn the_length_of_a_path_is_found_under_loss(
        carries in BASE_BYTES..66_000, limit in BASE_BYTES..66_000, loss in 0_u64..20, seed: u64,
    ) {
        let mut path = Path::new(limit, carries);
        (path.loss, path.rng) = (loss, Rng::new(seed, "path"));
        let mut found = false;
        for _ in 0..120 {
            path.run(10 * SECOND);
            prop_assert!(path.machine.usable() <= carries.max(BASE_BYTES));
            found |= path.is_found();
            if found {
                break;
            }
        }
        prop_assert!(found, "{} of {}", path.machine.usable(), carries.min(limit));
    }

    /// If a path shrinks, discovery finds a length that fits within seconds.
    #[test]
    fn a_black_hole_is_found_and_left(
        before in 1_300_usize..9_000, after in BASE_BYTES..9_000, loss in 0_u64..10, seed: u64,
    ) {
        prop_assume!(after < before);
        let mut path = Path::new(9_000, before);
        path.run(30 * SECOND);
        prop_assert!(path.is_found());
        path.acknowledged.retain(|bytes| *bytes <= before);
        (path.carries, path.loss, path.rng) = (after, loss, Rng::new(seed, "path"));
        for _ in 0..60 {
            path.run(SECOND);
            if path.machine.usable() <= after {
                break;
            }
        }
        prop_assert!(path.machine.usable() <= after, "{} of {after}", path.machine.usable());
    }
}

#[test]
fn an_interface_that_is_the_path_takes_two_round_trips() {
    for limit in [65_507, 1_472] {
        let mut path = Path::new(limit, limit);
        path.run(4 * MILLISECOND);
        assert_eq!((path.machine.usable(), path.machine.phase()), (limit, Phase::Complete));
        assert_eq!(path.sizes, [(0, BASE_BYTES), (1, limit)]);
    }
}

#[test]
fn a_path_of_a_common_length_behind_a_longer_interface_is_found_exactly() {
    for mtu in COMMON_MTUS {
        let mut path = Path::new(9_001 - V4, mtu - V4);
        path.run(10 * SECOND);
        assert_eq!(path.machine.usable(), mtu - V4);
    }
}

#[test]
fn without_full_datagrams_nothing_is_probed() {
    let mut path = Path::new(9_000, 9_000);
    path.machine.on_sent(path.now, BASE_BYTES - 1);
    path.settle();
    assert!(path.sizes.is_empty());
    assert_eq!(path.machine.poll_timeout(), Instant::FAR_FUTURE);
}

#[test]
fn lost_data_below_the_longest_length_starts_at_most_one_confirmation_a_second() {
    let mut path = Path::new(1_472, 1_472);
    path.run(4 * MILLISECOND);
    let begin = path.sizes.len();
    for _ in 0..3_000 {
        path.now = path.now.plus_nanos(MILLISECOND);
        path.machine.on_sent_again(path.now, 1_300);
        while let Some((number, bytes)) = path.machine.poll_transmit(path.now) {
            path.sizes.push((number, bytes));
            path.machine.handle_probed(path.now, number);
        }
    }
    let sizes: Vec<_> = path.sizes[begin..].iter().map(|(_, bytes)| *bytes).collect();
    assert!(
        (2..=3).contains(&sizes.len()) && sizes.iter().all(|bytes| *bytes == 1_472),
        "{sizes:?}"
    );
}

#[test]
fn lost_data_finds_a_path_that_carries_less_than_the_base_length() {
    let mut path = Path::new(1_472, 1_000);
    path.machine.on_sent(path.now, 1_100);
    path.settle();
    assert!(path.sizes.is_empty(), "it is not lost yet");
    path.machine.on_sent_again(path.now, 1_100);
    path.settle();
    while path.machine.poll_timeout() < Instant::FAR_FUTURE {
        path.now = path.machine.poll_timeout();
        path.machine.handle_timeout(path.now);
        path.settle();
    }
    assert_eq!(path.machine.usable(), MIN_BYTES);
}

#[test]
fn a_path_of_less_than_the_base_length_carries_the_least() {
    let mut path = Path::new(1_472, 900);
    path.run(SECOND);
    assert_eq!((path.machine.usable(), path.machine.phase()), (MIN_BYTES, Phase::Error));
    // The path grows: discovery tries the base length again, and then longer ones.
    path.carries = 1_472;
    path.run(10 * SECOND);
    assert_eq!(path.machine.usable(), 1_472);
}

#[test]
fn a_peer_that_is_unreachable_for_a_moment_does_not_shrink_datagrams() {
    let mut path = Path::new(1_472, 1_472);
    path.run(SECOND);
    path.carries = 0;
    path.run(2 * SECOND);
    assert_eq!(path.machine.usable(), 1_472);
    path.carries = 1_472;
    path.run(10 * SECOND);
    assert_eq!((path.machine.usable(), path.machine.phase()), (1_472, Phase::Complete));
}

#[test]
fn a_peer_that_was_unreachable_for_long_is_probed_again() {
    let mut path = Path::new(1_472, 1_472);
    path.run(SECOND);
    path.carries = 0;
    path.run(100 * SECOND);
    assert_eq!(path.machine.phase(), Phase::Error);
    path.carries = 1_472;
    path.run(40 * SECOND);
    assert_eq!(path.machine.usable(), 1_472);
}

#[test]
fn a_round_trip_of_seconds_is_no_loss() {
    let mut path = Path::new(1_472, 1_472);
    path.round_trip = 2 * SECOND;
    path.run(60 * SECOND);
    assert_eq!(path.machine.usable(), 1_472);
}

#[test]
fn a_length_that_the_interface_refuses_is_not_tried_before_the_next_search() {
    let mut path = Path::new(9_000, 9_000);
    path.run(SECOND);
    assert_eq!(path.machine.usable(), 9_000);
    path.machine.handle_refused(path.now, 9_000);
    path.settle();
    assert_eq!(path.machine.usable(), BASE_BYTES);
    path.run(10 * SECOND);
    assert_eq!(path.machine.usable(), 8_999);
    path.machine.handle_refused(path.now, 600);
    assert_eq!(path.machine.usable(), MIN_BYTES);
}

/// Regression: no longer datagram was tried again on the connection.
#[test]
fn an_interface_whose_mtu_was_lowered_for_a_moment_is_used_in_full_again() {
    let mut path = Path::new(1_472, 1_472);
    // Searches upwards become rare on an old path.
    path.run(1_000 * SECOND);
    path.machine.handle_refused(path.now, 1_400);
    path.settle();
    path.run(SECOND);
    assert_eq!(path.machine.usable(), 1_399);
    path.run(10 * SECOND);
    assert_eq!(path.machine.usable(), 1_472);
}

#[test]
fn an_interface_that_takes_more_is_followed_at_the_next_search() {
    let mut path = Path::new(1_472, 8_972);
    path.run(SECOND);
    assert_eq!(path.machine.usable(), 1_472);
    while !path.machine.is_raising(path.now) {
        path.run(5 * MILLISECOND);
    }
    path.machine.set_limit(8_972);
    path.run(SECOND);
    assert_eq!(path.machine.usable(), 8_972);
}

#[test]
fn unexpected_answers_are_ignored() {
    let mut path = Path::new(9_000, 9_000);
    path.run(SECOND);
    for number in [0, 1, 7, u32::MAX] {
        path.machine.handle_probed(path.now, number);
        path.settle();
    }
    assert_eq!(path.machine.usable(), 9_000);
}
