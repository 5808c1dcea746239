//! Whatever frames a peer sends: nothing panics, nothing outside the memory that was opened is touched,
//! and an honest connection beside it goes on.

use crate::hostile::session::{self, FRAME, Verdict};
use crate::pair::forger;
use crate::pair::forger::{ECHOES, Forged};
use midplane_simhw::rng::Rng;
use proptest::prelude::*;

/// Numbers near those of a connection that has just begun, and any others.
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
    fn forged_frames_touch_nothing_and_stop_nobody(
        frames in proptest::collection::vec(forged(), 1..120),
    ) {
        // On a network that is trusted, who speaks in another's name is taken for that one.
        let own_name = frames.iter().all(|frame| frame.source == 2 && frame.destination == 0);
        let verdict = forger::run(frames);
        prop_assert!(verdict.untouched, "memory that is not open was written");
        prop_assert_eq!(verdict.traps, 0);
        if own_name {
            prop_assert_eq!(verdict.echoed, ECHOES, "the honest node was disturbed");
        }
    }
}

/// Without forged frames everything comes back: the test above would see it if it did not.
#[test]
fn an_honest_node_is_answered() {
    assert_eq!(forger::run(Vec::new()).echoed, ECHOES);
}

/// Makes a session of the fuzz target.
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
fn any_bytes_are_frames_that_touch_and_read_nothing_that_is_not_open() {
    const SESSIONS: u64 = 3_000;
    let mut sum = Verdict::default();
    for verdict in (0..SESSIONS).map(check_session) {
        sum.received += verdict.received;
        sum.written += verdict.written;
        sum.read += verdict.read;
    }
    // They get as far as memory: a session that broke at its first frame would prove nothing.
    let reached = [sum.received, sum.written, sum.read];
    assert!(reached.iter().all(|count| *count > SESSIONS / 10), "{reached:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn any_bytes_are_frames_that_touch_nothing_that_is_not_open_from_new_seeds(seed: u64) {
        check_session(seed);
    }
}
