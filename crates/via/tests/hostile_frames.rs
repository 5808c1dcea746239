//! Hostile frames of a peer: nothing panics, only memory that is open is accessed, and an honest connection of the same
//! victim continues.

use crate::hostile::session::{self, FRAME, Verdict};
use crate::pair::forger;
use crate::pair::forger::{ECHOES, Forged};
use midplane_simhw::rng::Rng;
use proptest::prelude::*;

/// Generates forged frames: numbers close to those of a connection that has just begun, and arbitrary ones.
fn forged() -> impl Strategy<Value = Forged> {
    let small = || prop_oneof![3 => 0_u32..6, 1 => any::<u32>()];
    let word = || {
        let halves = (prop_oneof![0_u16..4, any::<u16>()], 0_u16..6, small());
        halves.prop_map(|(low, slot, high)| {
            u64::from(low) | u64::from(slot) << 16 | u64::from(high) << 32
        })
    };
    let place = (prop_oneof![0_u32..9_000, any::<u32>()], prop_oneof![0_u32..9_000, any::<u32>()]);
    let ends = (0_u16..2, prop_oneof![4 => Just(2_u16), 1 => 0_u16..3], 0_u16..4, 0_u8..128);
    (ends, small(), small(), word(), place, 0_usize..1_400).prop_map(
        |((destination, source, port, flags), sequence, acknowledgement, handle, place, bytes)| {
            let words = [handle, u64::from(place.0) | u64::from(place.1) << 32];
            Forged { destination, source, port, flags, sequence, acknowledgement, words, bytes }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn forged_frames_write_no_closed_memory_and_disturb_no_honest_node(
        frames in proptest::collection::vec(forged(), 1..120),
    ) {
        // The network is trusted: a frame with another node's address counts as that node's.
        let own_name = frames.iter().all(|frame| frame.source == 2 && frame.destination == 0);
        let verdict = forger::run(frames);
        prop_assert!(verdict.untouched, "memory that is not open was written");
        prop_assert_eq!(verdict.traps, 0);
        if own_name {
            prop_assert_eq!(verdict.echoed, ECHOES, "the honest node was disturbed");
        }
    }
}

/// Checks the test above: without forged frames, every message is echoed.
#[test]
fn an_honest_node_is_answered() {
    assert_eq!(forger::run(Vec::new()).echoed, ECHOES);
}

/// Runs a session of the fuzz target from a seed.
fn check_session(seed: u64) -> Verdict {
    let mut rng = Rng::new(seed, "frames");
    let bytes = rng.between(0, 60 * FRAME as u64);
    let mut input = vec![0; bytes as usize];
    rng.fill(&mut input);
    let verdict = session::run(&input);
    assert!(!verdict.touched, "seed {seed}: memory that is not open was written");
    assert!(!verdict.leaked, "seed {seed}: memory that is not open was read");
    assert_eq!(verdict.traps, 0, "seed {seed}: a handler panicked");
    verdict
}

#[test]
fn random_frames_access_only_open_memory() {
    const SESSIONS: u64 = 3_000;
    let mut sum = Verdict::default();
    for verdict in (0..SESSIONS).map(check_session) {
        sum.received += verdict.received;
        sum.written += verdict.written;
        sum.read += verdict.read;
    }
    // Enough sessions reach memory: one that broke at its first frame would prove nothing.
    let reached = [sum.received, sum.written, sum.read];
    assert!(reached.iter().all(|count| *count > SESSIONS / 10), "{reached:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn random_frames_of_new_seeds_access_only_open_memory(seed: u64) {
        check_session(seed);
    }
}
