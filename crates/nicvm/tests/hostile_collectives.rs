//! Nodes that are not this member's parent in a broadcast's tree neither make it take memory nor forge the bytes. Parts
//! of a reduction take little memory.

use crate::harness::{Harness, Peer};
use midplane_nicvm::collective::{COLLECTIVES, Collectives};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId};

/// The most bytes of a broadcast.
const TOTAL: u64 = 1 << 20;
/// The opcode of an all-reduce.
const ALL_REDUCE: u8 = 4;

/// Receives a frame of a broadcast from rank 0, which is node 0.
fn frame(harness: &mut Harness, source: u16, number: u32) {
    let header = Header {
        kind: Kind::Data,
        extension: COLLECTIVES,
        source: NodeId(source),
        destination: NodeId(1),
        incarnation: Incarnation::FIRST,
        sequence: number,
        words: [4_096 << 16 | TOTAL << 32, 0],
        ..Header::default()
    };
    harness.frame(header, &[5; 4_096]);
}

fn harness() -> Harness {
    let mut unit = Unit::default();
    unit.install(COLLECTIVES, Collectives::new((0..4).map(NodeId).collect())).unwrap();
    Harness::new(unit)
}

/// Returns how many operations the member keeps, and how many messages and frames it has refused.
fn state(harness: &Harness) -> (usize, u64) {
    let collectives = harness.unit.extension::<Collectives>(COLLECTIVES).unwrap();
    (collectives.running(), collectives.counters().malformed)
}

#[test]
fn frames_of_broadcasts_count_only_from_the_parent_and_not_far_ahead() {
    let mut harness = harness();
    // Another member, and a node that is none.
    for source in [3, 9] {
        for number in 0..100 {
            frame(&mut harness, source, number);
        }
    }
    assert_eq!(state(&harness), (0, 64));
    for number in 0..100 {
        frame(&mut harness, 0, number);
    }
    assert_eq!(state(&harness), (32, 64));
}

/// Members that keep pace with the slowest begin no operation so far ahead.
#[test]
fn a_member_that_does_not_wait_for_the_slowest_fills_no_memory() {
    let (mut harness, mut peer) = (harness(), Peer::new(NodeId(0)));
    for number in 0..33_000_u32 {
        // A broadcast of rank 0, of one byte.
        let message = [&[2, 0][..], &number.to_le_bytes(), &[0, 0, 5]].concat();
        peer.send(&mut harness, COLLECTIVES.into(), &message);
    }
    assert_eq!(state(&harness), (32_768, 33_000 - 32_768));
}

#[test]
fn parts_of_a_reduction_count_only_in_rounds_that_there_are() {
    let (mut harness, mut peer) = (harness(), Peer::new(NodeId(0)));
    for round in 0..=u8::MAX {
        // An all-reduce of one word.
        let message = [&[ALL_REDUCE, round, 0, 0, 0, 0][..], &[7; 8]].concat();
        peer.send(&mut harness, COLLECTIVES.into(), &message);
    }
    // Sixteen rounds, and that of the result.
    assert_eq!(state(&harness), (1, 256 - 17));
}
