//! The default service, frame by frame: what is lost, doubled, overtaken, of a former life.

use crate::desk::{Desk, Effect, memory};
use midplane_nicvm::admission::CONTROLLED;
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::RegionRef;

const PORT: PortId = PortId(0);
/// Bytes of a frame here.
const PART: u32 = 10;

fn desk(buffers: u64) -> Desk {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).unwrap();
    let mut desk = Desk::new(unit);
    for cookie in 0..buffers {
        desk.post(PORT, messages::receive(memory(PORT, 100), cookie));
    }
    desk
}

/// Part `part` of message `message` of three parts.
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

fn deliver(desk: &mut Desk, parts: &[(u32, u32)]) {
    for (message, at) in parts {
        let (header, bytes) = part(*message, *at);
        desk.frame(header, &bytes);
    }
}

fn cookies(desk: &mut Desk) -> Vec<u64> {
    desk.completions().into_iter().map(|(_, completion)| completion.cookie).collect()
}

#[test]
fn a_lost_frame_loses_its_message_and_its_buffer_takes_the_next() {
    let mut desk = desk(2);
    deliver(&mut desk, &[(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]);
    assert_eq!(cookies(&mut desk), [0, 1]);
}

#[test]
fn a_doubled_frame_counts_once() {
    let mut desk = desk(2);
    deliver(&mut desk, &[(0, 0), (0, 0), (0, 1), (0, 1)]);
    assert_eq!(cookies(&mut desk), []);
    deliver(&mut desk, &[(0, 2), (0, 2), (0, 0)]);
    assert_eq!(cookies(&mut desk), [0]);
}

#[test]
fn frames_of_one_message_arrive_in_any_order() {
    let mut desk = desk(2);
    deliver(&mut desk, &[(0, 2), (0, 0), (0, 1), (1, 1), (1, 2), (1, 0)]);
    assert_eq!(cookies(&mut desk), [0, 1]);
}

#[test]
fn what_is_left_of_a_lost_message_does_not_disturb_the_next() {
    let mut desk = desk(1);
    deliver(&mut desk, &[(0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    let written: Vec<u8> = desk
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
    let mut desk = desk(2);
    deliver(&mut desk, &[(0, 0), (0, 1)]);
    let (header, bytes) = part(1, 0);
    let words = [1, u64::from(PART)];
    desk.frame(Header { flags: CONTROLLED, words, ..header }, &bytes);
    deliver(&mut desk, &[(0, 2)]);
    assert_eq!(cookies(&mut desk), [1, 0]);
}

#[test]
fn a_restarted_sender_never_finishes_a_message_of_its_former_life() {
    let mut desk = desk(1);
    deliver(&mut desk, &[(0, 0), (0, 1)]);
    let again = |desk: &mut Desk, at, incarnation| {
        let (header, bytes) = part(0, at);
        desk.frame(Header { incarnation, ..header }, &bytes);
    };
    let second = Incarnation::FIRST.next();
    again(&mut desk, 2, second);
    // A frame of the former life that was late.
    again(&mut desk, 2, Incarnation::FIRST);
    assert_eq!(cookies(&mut desk), []);
    again(&mut desk, 0, second);
    again(&mut desk, 1, second);
    assert_eq!(cookies(&mut desk), [0]);
}

#[test]
fn memory_that_is_withdrawn_ends_its_message_and_no_other() {
    let mut desk = desk(0);
    desk.post(PORT, messages::receive(RegionRef { length: 100, ..RegionRef::default() }, 5));
    desk.post(PORT, messages::receive(memory(PORT, 100), 6));
    deliver(&mut desk, &[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    let completions = desk.completions();
    let seen: Vec<_> = completions.iter().map(|(_, done)| (done.cookie, done.status)).collect();
    assert_eq!(seen, [(5, Status::Region), (6, Status::Done)]);
}

#[test]
fn memory_that_is_withdrawn_before_it_is_read_ends_the_command() {
    let mut desk = desk(0);
    let gone = RegionRef { length: 100, ..RegionRef::default() };
    desk.post(PORT, messages::send(NodeId(2), PORT, gone, 3));
    desk.post(PORT, messages::send(NodeId(2), PORT, memory(PORT, 100), 4));
    let seen: Vec<_> =
        desk.completions().iter().map(|(_, done)| (done.cookie, done.status)).collect();
    assert_eq!(seen, [(3, Status::Region), (4, Status::Done)]);
}

#[test]
fn frames_that_contradict_themselves_are_dropped() {
    let mut desk = desk(1);
    let (header, bytes) = part(0, 0);
    for words in [[u64::MAX, u64::MAX], [0, 3], [u64::from(u32::MAX) << 32, 40], [8 << 32, 12]] {
        desk.frame(Header { words, ..header }, &bytes);
    }
    assert_eq!(cookies(&mut desk), []);
    deliver(&mut desk, &[(1, 0), (1, 1), (1, 2)]);
    let done: Vec<Completion> = desk.completions().into_iter().map(|(_, done)| done).collect();
    assert_eq!((done.len(), done[0].status, done[0].length), (1, Status::Done, 30));
}
