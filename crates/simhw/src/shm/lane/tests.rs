use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
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
    let arrived = receiver.frame().unwrap();
    let payload = receiver.payload(&arrived).to_vec();
    receiver.give_back(Some(&arrived));
    Some((arrived.header, payload))
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
                    let took = sender.stage(&header(number, length), View::from(&payload[..])).is_ok();
                    // Both come back in batches of a quarter.
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
            while sender.stage(&header(number, payload.len()), View::from(&payload[..])).is_err() {
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
    // More given back than was ever sent.
    for nonsense in [1, 9, u64::MAX] {
        sender.place.returned()[0].store(nonsense, Ordering::Relaxed);
        let mut took = 0;
        while sender.stage(&header(0, 0), View::from(&[][..])).is_ok() {
            took += 1;
        }
        assert_eq!(took, 8);
        sender.abort();
    }
    assert_eq!(sender.under_way(), 0);
    // A header that is none, one that is too long, and a good frame after them.
    let slot = |number| sender.place.segment.line(sender.place.slot(number));
    slot(0)[1].store(u64::MAX, Ordering::Relaxed);
    slot(0)[0].store(1, Ordering::Release);
    assert!(receiver.has_frame());
    assert_eq!(receiver.frame().unwrap_err(), FrameError::Magic);
    receiver.give_back(None);
    let long = header(0, 201).emit();
    for (word, value) in slot(1)[1..].iter().zip(long.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
    }
    slot(1)[0].store(2, Ordering::Release);
    assert!(receiver.has_frame());
    assert_eq!(receiver.frame().unwrap_err(), FrameError::Length);
    receiver.give_back(None);
    assert!(!receiver.has_frame());
}

#[test]
fn a_sleeper_is_woken_once() {
    let (sender, receiver) = pair();
    assert!(!sender.takes_wake());
    receiver.fall_asleep();
    assert!(sender.takes_wake());
    assert!(!sender.takes_wake());
    receiver.fall_asleep();
    receiver.stay_awake();
    assert!(!sender.takes_wake());
}
