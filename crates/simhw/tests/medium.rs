//! Tests properties of a shared medium, for every load and number of stations.

use std::collections::BTreeMap;

use midplane_simhw::medium::{Medium, MediumProfile, Outcome};
use midplane_simhw::switch::Piece;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

const ETHERNET: MediumProfile = MediumProfile::ETHERNET_10;
/// Nanoseconds of a byte at 10 Mb/s.
const BYTE: u64 = 800;
const PROPAGATION: u64 = 2_000;
const GAP: u64 = 9_600;
const SLOT: u64 = 51_200;
/// An Ethernet frame of 1,500 bytes of IP, with preamble and gap.
const FULL: u32 = 1538;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn piece(frame: u32, bytes: u32) -> Piece {
    Piece { frame, index: 0, last: true, bytes }
}

fn medium(stations: usize, seed: u64) -> Medium {
    Medium::new(ETHERNET, stations, seed, "cable")
}

/// Returns all outcomes by `until`.
fn run(medium: &mut Medium, until: Instant) -> Vec<Outcome> {
    std::iter::from_fn(|| medium.poll(until)).collect()
}

/// Returns the interval in which a piece was on the cable, at its sender's position.
fn on_cable(outcome: &Outcome) -> Option<(u64, u64)> {
    let Outcome::Passed { piece, sent, .. } = outcome else { return None };
    let bytes = u64::from(piece.bytes.saturating_sub(12).max(72));
    Some((sent.as_nanos() - bytes * BYTE, sent.as_nanos()))
}

#[test]
fn a_lone_station_sends_at_once_and_a_gap_apart() {
    let mut medium = medium(3, 1);
    for frame in 0..3 {
        medium.submit(at(5), 1, at(5), piece(frame, FULL), false);
    }
    let ends: Vec<u64> = run(&mut medium, Instant::FAR_FUTURE)
        .iter()
        .map(|outcome| on_cable(outcome).unwrap().1)
        .collect();
    let frame = u64::from(FULL - 12) * BYTE;
    assert_eq!(ends, [5 + frame, 5 + 2 * frame + GAP, 5 + 3 * frame + 2 * GAP]);
    assert_eq!(medium.stats().collisions, 0);
}

#[test]
fn a_station_that_senses_another_waits_for_its_end_and_a_gap() {
    let mut medium = medium(2, 1);
    medium.submit(at(0), 0, at(0), piece(0, FULL), false);
    medium.submit(at(PROPAGATION), 1, at(PROPAGATION), piece(1, FULL), false);
    let outcomes = run(&mut medium, Instant::FAR_FUTURE);
    let (first, second) = (on_cable(&outcomes[0]).unwrap(), on_cable(&outcomes[1]).unwrap());
    assert_eq!(second.0, first.1 + PROPAGATION + GAP);
    assert_eq!(medium.stats().collisions, 0);
}

#[test]
fn stations_that_begin_within_the_propagation_delay_collide_and_both_pass_later() {
    let mut medium = medium(2, 1);
    medium.submit(at(0), 0, at(0), piece(0, FULL), false);
    medium.submit(at(1_999), 1, at(1_999), piece(1, FULL), false);
    let outcomes = run(&mut medium, Instant::FAR_FUTURE);
    assert_eq!(outcomes.iter().filter_map(on_cable).count(), 2);
    assert!(medium.stats().collisions >= 2);
    // Preamble and jam of the first station take 9.6 us. No piece passes that began before that.
    assert!(on_cable(&outcomes[0]).unwrap().0 >= 9_600);
}

#[test]
fn a_short_piece_is_filled_up_to_the_least_frame() {
    let mut medium = medium(1, 1);
    medium.submit(at(0), 0, at(0), piece(0, 40), false);
    let outcomes = run(&mut medium, Instant::FAR_FUTURE);
    assert_eq!(on_cable(&outcomes[0]), Some((0, 72 * BYTE)));
}

#[test]
fn after_sixteen_collisions_a_piece_is_given_up() {
    // With so many stations, the backoff's range of 1,024 slots is crowded for a long time.
    let mut medium = medium(400, 1);
    for station in 0..400 {
        for frame in 0..5 {
            let frame = (station * 5 + frame) as u32;
            medium.submit(at(0), station, at(0), piece(frame, 84), false);
        }
    }
    let outcomes = run(&mut medium, Instant::FAR_FUTURE);
    assert_eq!(outcomes.len(), 2_000);
    let given_up = outcomes.iter().filter(|o| matches!(o, Outcome::GivenUp { .. })).count();
    assert!(given_up > 0);
    assert_eq!(medium.stats().given_up, given_up as u64);
}

#[test]
fn urgent_pieces_pass_those_that_have_not_begun() {
    let mut medium = medium(1, 1);
    for frame in 0..3 {
        medium.submit(at(0), 0, at(0), piece(frame, FULL), false);
    }
    medium.submit(at(1), 0, at(1), piece(9, 200), true);
    let order: Vec<u32> = run(&mut medium, Instant::FAR_FUTURE)
        .iter()
        .map(|(Outcome::Passed { piece, .. } | Outcome::GivenUp { piece, .. })| piece.frame)
        .collect();
    assert_eq!(order, [0, 9, 1, 2]);
}

/// Returns the fraction of time that a medium carries frames, with stations that always have one to send.
fn utilisation(stations: usize, bytes: u32) -> f64 {
    let mut medium = medium(stations, 1);
    for station in 0..stations {
        for frame in 0..2_000 {
            medium.submit(at(0), station, at(0), piece(frame, bytes), false);
        }
    }
    let until = 100_000_000;
    run(&mut medium, at(until));
    medium.stats().busy_ns as f64 / until as f64
}

/// Boggs, Mogul and Kent ("Measured capacity of an Ethernet: myths and reality", 1988) measured more than 90 % with
/// long frames for any number of stations, and less with short ones.
#[test]
fn a_saturated_ethernet_carries_the_measured_share() {
    for stations in [2, 5, 24] {
        let (long, short) = (utilisation(stations, FULL), utilisation(stations, 84));
        assert!((0.9..0.995).contains(&long), "{stations}: {long}");
        assert!(short < long - 0.1 && short > 0.5, "{stations}: {short}");
    }
}

prop_compose! {
    fn any_load()(
        stations in 1_usize..12,
        pieces in proptest::collection::vec((0_usize..12, 0_u64..300_000, 20_u32..FULL, any::<bool>()), 1..80),
    ) -> (usize, Vec<(usize, u64, u32, bool)>) {
        (stations, pieces)
    }
}

proptest! {
    #[test]
    fn pieces_that_pass_never_overlap_and_none_is_lost(
        (stations, load) in any_load(), seed: u64,
    ) {
        let mut medium = medium(stations, seed);
        let (mut now, mut outcomes) = (0, Vec::new());
        for (frame, (station, gap, bytes, urgent)) in (0_u32..).zip(&load) {
            now += gap;
            outcomes.extend(run(&mut medium, at(now)));
            medium.submit(at(now), station % stations, at(now), piece(frame, *bytes), *urgent);
            let waiting: usize = (0..stations).map(|station| medium.waiting(station)).sum();
            prop_assert_eq!(waiting + outcomes.len(), frame as usize + 1);
        }
        outcomes.extend(run(&mut medium, Instant::FAR_FUTURE));
        prop_assert_eq!(outcomes.len(), load.len());
        let mut passed: Vec<_> = outcomes.iter().filter_map(on_cable).collect();
        passed.sort_unstable();
        for pair in passed.windows(2) {
            // Two pieces of one station are a gap apart; those of two stations, a gap apart at each other's position.
            prop_assert!(pair[1].0 >= pair[0].1 + GAP, "{:?}", pair);
        }
        prop_assert_eq!(medium.stats().passed, passed.len() as u64);
        prop_assert_eq!(medium.next_due(), None);
    }

    #[test]
    fn ordinary_pieces_of_a_station_stay_in_order((stations, load) in any_load(), seed: u64) {
        let mut medium = medium(stations, seed);
        let (mut now, mut outcomes) = (0, Vec::new());
        for (frame, (station, gap, bytes, _)) in (0_u32..).zip(&load) {
            now += gap;
            outcomes.extend(run(&mut medium, at(now)));
            medium.submit(at(now), station % stations, at(now), piece(frame, *bytes), false);
        }
        outcomes.extend(run(&mut medium, Instant::FAR_FUTURE));
        let mut last = BTreeMap::new();
        for Outcome::Passed { station, piece, .. } | Outcome::GivenUp { station, piece } in outcomes {
            let before = last.insert(station, piece.frame);
            prop_assert!(before.is_none_or(|before| before < piece.frame));
        }
    }

    #[test]
    fn two_stations_resolve_a_collision_within_its_slots(seed: u64, lead in 0..PROPAGATION) {
        let mut medium = medium(2, seed);
        medium.submit(at(0), 0, at(0), piece(0, FULL), false);
        medium.submit(at(lead), 1, at(lead), piece(1, FULL), false);
        let outcomes = run(&mut medium, Instant::FAR_FUTURE);
        let collisions = medium.stats().collisions / 2;
        prop_assert!(collisions >= 1);
        // Each collision takes less than a slot, and its backoff at most `SLOT << n`.
        let bound: u64 = (1..=collisions).map(|n| SLOT << n.min(10)).sum::<u64>() + collisions * SLOT;
        prop_assert!(on_cable(&outcomes[0]).unwrap().0 <= bound);
    }
}
