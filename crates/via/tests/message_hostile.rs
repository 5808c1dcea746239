//! Hostile packets of a process: the others do not panic, keep their memory bounded, and continue to communicate.

use crate::hostile::packets::{self, Op, STEP};
use midplane_simhw::rng::Rng;
use proptest::prelude::*;

fn operation() -> impl Strategy<Value = Op> {
    let handle = prop_oneof![
        4 => (0_u64..6, 0_u64..6).prop_map(|(slot, generation)| slot | generation << 32),
        1 => any::<u64>(),
        1 => 0_u64..5000,
    ];
    let words = (
        prop_oneof![3 => 0_u32..300, 1 => any::<u32>()],
        0_u32..2,
        (prop_oneof![1_u32..13, Just(2_u32)], prop_oneof![Just(0_u32), 0_u32..16])
            .prop_map(|(kind, marks)| kind | marks << 8),
        1_u32..3,
        0_u32..2,
        0_u32..4,
    )
        .prop_map(<[u32; 6]>::from);
    let packet = (1_u32..4, words, [handle.clone(), handle], 0_usize..300, any::<bool>());
    prop_oneof![
        6 => packet.prop_map(|(from, words, handles, payload, repair)| Op::Packet {
            from, words, handles, payload, repair
        }),
        2 => (any::<bool>(), 0_usize..400).prop_map(|(synchronous, length)| Op::Send {
            synchronous, length
        }),
        2 => (any::<bool>(), 0_usize..400).prop_map(|(wild, room)| Op::Receive { wild, room }),
        1 => Just(Op::Claim),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(at, undo)| Op::Destroy(at, undo)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_packets_cause_a_panic_or_exceed_the_window(ops in proptest::collection::vec(operation(), 0..60)) {
        packets::run(&ops);
    }
}

/// The bytes of the sender's window that the message would occupy exceed 32 bits.
#[test]
fn a_whole_message_that_claims_the_greatest_length_is_refused() {
    let words = [u32::MAX, 0, 1, 1, 0, 0];
    packets::run(&[Op::Packet { from: 1, words, handles: [0; 2], payload: 8, repair: false }]);
}

/// The CTS of the message has arrived; the engine sends the data only after the second answer.
#[test]
fn a_second_answer_to_a_message_after_its_cts_is_refused() {
    let packet = |kind, length, handles| Op::Packet {
        from: 1,
        words: [length, 0, kind, 1, 0, 0],
        handles,
        payload: 0,
        repair: false,
    };
    let (first_send, limits) = (1 << 32, u64::from(u32::MAX) << 32 | u64::from(u32::MAX));
    for second in [3, 5] {
        packets::run(&[
            packet(6, 0, [4096, limits]),
            Op::Send { synchronous: false, length: 300 },
            packet(3, 300, [first_send, 1]),
            packet(second, 300, [first_send, 1]),
        ]);
    }
}

/// Makes a run of the fuzz target from a seed.
fn check_packets(seed: u64) {
    let mut rng = Rng::new(seed, "packets");
    let bytes = rng.between(0, 80 * STEP as u64);
    let mut input = vec![0; bytes as usize];
    rng.fill(&mut input);
    packets::run(&packets::steps(&input));
}

#[test]
fn random_packets_stop_no_process() {
    (0..3_000).for_each(check_packets);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn random_packets_of_new_seeds_stop_no_process(seed: u64) {
        check_packets(seed);
    }
}
