use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::frame::Header;
use crate::id::NodeId;

const SHAPE: Shape = Shape { slots: 8, areas: 4, mtu: 200 };

fn pair() -> (Sender, Receiver) {
    let segment = Arc::new(Segment::private(64 + SHAPE.lane_bytes()));
    (Sender::new(Arc::clone(&segment), 64, SHAPE), Receiver::new(segment, 64, SHAPE))
}

fn header(number: u32, length: usize) -> Header {
    Header { source: NodeId(3), sequence: number, length: length as u16, ..Header::default() }
}

fn bytes(number: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number as usize * 31 + at) as u8).collect()
}

fn take(receiver: &mut Receiver) -> Option<(Header, Vec<u8>)> {
    if !receiver.has_frame() {
        return None;
    }
    let header = Header::parse_alone(&receiver.header()).unwrap();
    let extent = receiver.extent(header.length.into()).unwrap();
    let payload = receiver.payload(extent).to_vec();
    receiver.release(extent.length);
    Some((header, payload))
}

#[derive(Clone, Debug)]
enum Op {
    Stage(usize),
    Publish,
    Abort,
    Take,
}

proptest! {
    #[test]
    fn a_lane_is_a_bounded_queue_of_the_frames_that_are_published(
        ops in proptest::collection::vec(
            prop_oneof![
                4 => prop_oneof![0_usize..=8, 9_usize..=64, 65_usize..=200].prop_map(Op::Stage),
                3 => Just(Op::Publish),
                1 => Just(Op::Abort),
                4 => Just(Op::Take),
            ],
            0..400),
    ) {
        let (mut sender, mut receiver) = pair();
        let (mut staged, mut model) = (VecDeque::new(), VecDeque::new());
        for (number, op) in (0_u32..).zip(ops) {
            match op {
                Op::Stage(length) => {
                    let payload = bytes(number, length);
                    let held = || staged.iter().chain(&model);
                    let areas = held().filter(|(_, payload): &&(Header, Vec<u8>)| payload.len() > 64).count();
                    let slots = held().count();
                    let took = sender.stage(&header(number, length).emit(), View::from(&payload[..])).is_ok();
                    // Slots and areas are released in batches of a quarter.
                    prop_assert!(took || slots + 2 > 8 || (length > 64 && areas + 1 > 4));
                    prop_assert!(!took || (slots < 8 && (length <= 64 || areas < 4)));
                    if took {
                        staged.push_back((header(number, length), payload));
                    }
                }
                Op::Publish => {
                    sender.publish();
                    model.append(&mut staged);
                }
                Op::Abort => {
                    sender.abort();
                    staged.clear();
                }
                Op::Take => prop_assert_eq!(take(&mut receiver), model.pop_front()),
            }
        }
    }
}

#[test]
fn two_threads_pass_every_frame_whole_and_in_order() {
    let (mut sender, mut receiver) = pair();
    let total = 50_000_u32;
    let length = |number: u32| (number as usize * 7) % 201;
    let writer = std::thread::spawn(move || {
        for number in 0..total {
            let payload = bytes(number, length(number));
            while sender
                .stage(&header(number, payload.len()).emit(), View::from(&payload[..]))
                .is_err()
            {
                std::thread::yield_now();
            }
            sender.publish();
        }
    });
    for number in 0..total {
        let frame = loop {
            match take(&mut receiver) {
                Some(frame) => break frame,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(frame, (header(number, length(number)), bytes(number, length(number))));
    }
    writer.join().unwrap();
}

#[test]
fn a_peer_that_writes_nonsense_harms_only_itself() {
    let (mut sender, mut receiver) = pair();
    // More slots released than frames were sent.
    for nonsense in [1, 9, u64::MAX] {
        sender.place.returned()[0].store(nonsense, Ordering::Relaxed);
        let mut took = 0;
        while sender.stage(&header(0, 0).emit(), View::from(&[][..])).is_ok() {
            took += 1;
        }
        assert_eq!(took, 8);
        sender.abort();
    }
    assert_eq!(sender.in_flight(), 0);
    // Two frames with payloads longer than the MTU.
    for number in [0, 1] {
        sender.place.segment.line(sender.place.slot(number))[0]
            .store(number + 1, Ordering::Release);
        assert!(receiver.has_frame());
        assert!(receiver.extent(201).is_none() && receiver.extent(usize::MAX).is_none());
        receiver.release(0);
    }
    assert!(!receiver.has_frame());
}

#[test]
fn a_parked_consumer_is_woken_once() {
    let (sender, receiver) = pair();
    assert!(!sender.takes_wake());
    receiver.arm_wakeup();
    assert!(sender.takes_wake());
    assert!(!sender.takes_wake());
    receiver.arm_wakeup();
    receiver.disarm_wakeup();
    assert!(!sender.takes_wake());
}

#[test]
fn a_waiting_producer_is_woken_once_when_slots_are_released() {
    let (mut sender, mut receiver) = pair();
    while sender.stage(&header(0, 65).emit(), View::from(&[7; 65][..])).is_ok() {}
    sender.publish();
    assert!(sender.has_room_for(64) && !sender.has_room_for(65), "areas are what is short");
    sender.await_room();
    assert!(take(&mut receiver).is_some() && receiver.takes_wake(), "a quarter of four areas");
    assert!(!receiver.takes_wake() && sender.has_room_for(65));
}
