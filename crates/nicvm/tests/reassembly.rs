//! The default service, frame by frame: frames that are lost, duplicated, overtaken, or of a former incarnation.

use crate::harness::{Effect, Harness, memory};
use midplane_nicvm::admission::CONTROLLED;
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::RegionRef;

const PORT: PortId = PortId(0);
/// Bytes of a frame in these tests.
const PART: u32 = 10;

fn harness(buffers: u64) -> Harness {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).unwrap();
    let mut harness = Harness::new(unit);
    for cookie in 0..buffers {
        harness.post(PORT, messages::receive(memory(PORT, 100), cookie));
    }
    harness
}

/// Returns part `part` of message `message`, which has three parts.
fn part(message: u32, part: u32) -> (Header, [u8; PART as usize]) {
    let words = [u64::from(message) | u64::from(part * PART) << 32, u64::from(3 * PART)];
    let header = Header {
        extension: MESSAGES,
        source: NodeId(2),
        destination: NodeId(1),
        incarnation: Incarnation::FIRST,
        words,
        ..Header::default()
    };
    (header, [message as u8; PART as usize])
}

fn deliver(harness: &mut Harness, parts: &[(u32, u32)]) {
    for (message, at) in parts {
        let (header, bytes) = part(*message, *at);
        harness.frame(header, &bytes);
    }
}

fn cookies(harness: &mut Harness) -> Vec<u64> {
    harness.completions().into_iter().map(|(_, completion)| completion.cookie).collect()
}

#[test]
fn a_lost_frame_loses_its_message_and_its_buffer_takes_the_next() {
    let mut harness = harness(2);
    deliver(&mut harness, &[(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]);
    assert_eq!(cookies(&mut harness), [0, 1]);
}

#[test]
fn a_doubled_frame_counts_once() {
    let mut harness = harness(2);
    deliver(&mut harness, &[(0, 0), (0, 0), (0, 1), (0, 1)]);
    assert_eq!(cookies(&mut harness), []);
    deliver(&mut harness, &[(0, 2), (0, 2), (0, 0)]);
    assert_eq!(cookies(&mut harness), [0]);
}

#[test]
fn frames_of_one_message_arrive_in_any_order() {
    let mut harness = harness(2);
    deliver(&mut harness, &[(0, 2), (0, 0), (0, 1), (1, 1), (1, 2), (1, 0)]);
    assert_eq!(cookies(&mut harness), [0, 1]);
}

#[test]
fn the_rest_of_a_lost_message_does_not_disturb_the_next() {
    let mut harness = harness(1);
    deliver(&mut harness, &[(0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    let written: Vec<u8> = harness
        .take()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Written(_, bytes) => Some(bytes[0]),
            _ => None,
        })
        .collect();
    assert_eq!(written, [0, 1, 1, 1]);
}

#[test]
fn bulk_under_flow_control_and_small_messages_do_not_disturb_each_other() {
    let mut harness = harness(2);
    deliver(&mut harness, &[(0, 0), (0, 1)]);
    let (header, bytes) = part(1, 0);
    let words = [1, u64::from(PART)];
    harness.frame(Header { flags: CONTROLLED, words, ..header }, &bytes);
    deliver(&mut harness, &[(0, 2)]);
    assert_eq!(cookies(&mut harness), [1, 0]);
}

#[test]
fn a_restarted_sender_never_completes_a_message_of_its_former_incarnation() {
    let mut harness = harness(1);
    deliver(&mut harness, &[(0, 0), (0, 1)]);
    let again = |harness: &mut Harness, at, incarnation| {
        let (header, bytes) = part(0, at);
        harness.frame(Header { incarnation, ..header }, &bytes);
    };
    let second = Incarnation::FIRST.next();
    again(&mut harness, 2, second);
    // A late frame of the former incarnation.
    again(&mut harness, 2, Incarnation::FIRST);
    assert_eq!(cookies(&mut harness), []);
    again(&mut harness, 0, second);
    again(&mut harness, 1, second);
    assert_eq!(cookies(&mut harness), [0]);
}

#[test]
fn deregistered_memory_ends_its_message_and_no_other() {
    let mut harness = harness(0);
    harness.post(PORT, messages::receive(RegionRef { length: 100, ..RegionRef::default() }, 5));
    harness.post(PORT, messages::receive(memory(PORT, 100), 6));
    deliver(&mut harness, &[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    let completions = harness.completions();
    let seen: Vec<_> = completions.iter().map(|(_, done)| (done.cookie, done.status)).collect();
    assert_eq!(seen, [(5, Status::Region), (6, Status::Done)]);
}

#[test]
fn memory_deregistered_before_it_is_read_ends_the_command() {
    let mut harness = harness(0);
    let gone = RegionRef { length: 100, ..RegionRef::default() };
    harness.post(PORT, messages::send(NodeId(2), PORT, gone, 3));
    harness.post(PORT, messages::send(NodeId(2), PORT, memory(PORT, 100), 4));
    let seen: Vec<_> =
        harness.completions().iter().map(|(_, done)| (done.cookie, done.status)).collect();
    assert_eq!(seen, [(3, Status::Region), (4, Status::Done)]);
}

#[test]
fn frames_that_contradict_themselves_are_dropped() {
    let mut harness = harness(1);
    let (header, bytes) = part(0, 0);
    for words in [[u64::MAX, u64::MAX], [0, 3], [u64::from(u32::MAX) << 32, 40], [8 << 32, 12]] {
        harness.frame(Header { words, ..header }, &bytes);
    }
    assert_eq!(cookies(&mut harness), []);
    deliver(&mut harness, &[(1, 0), (1, 1), (1, 2)]);
    let done: Vec<Completion> = harness.completions().into_iter().map(|(_, done)| done).collect();
    assert_eq!((done.len(), done[0].status, done[0].length), (1, Status::Done, 30));
}
