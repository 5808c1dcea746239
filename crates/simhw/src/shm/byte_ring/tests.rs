use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn private(capacity: usize) -> (RingSender, RingReceiver) {
    ring(&Arc::new(Segment::private(64 + ring_bytes(capacity))), 64, capacity)
}

fn read(receiver: &RingReceiver, record: Record) -> Vec<u8> {
    let mut bytes = vec![0; record.length];
    receiver.read(0, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue_of_records(
        ops in proptest::collection::vec((any::<bool>(), 0_usize..1_100), 0..400),
    ) {
        let (mut sender, mut receiver) = private(MIN_CAPACITY);
        let mut model = VecDeque::new();
        for (number, (pushes, length)) in ops.into_iter().enumerate() {
            if pushes {
                let Some(room) = sender.room() else {
                    prop_assert!(!model.is_empty());
                    continue;
                };
                let payload: Vec<u8> = (0..length.min(room)).map(|at| (at ^ number) as u8).collect();
                let (head, rest) = payload.split_at(payload.len() / 3);
                let words = [number as u64, length as u64];
                sender.push(words, &[IoSlice::new(head), IoSlice::new(rest)]);
                model.push_back((words, payload));
            } else {
                let record = receiver.peek().unwrap();
                prop_assert_eq!(record.is_some(), !model.is_empty());
                let Some(record) = record else { continue };
                let (words, payload) = model.pop_front().unwrap();
                prop_assert_eq!(record.words, words);
                prop_assert_eq!(read(&receiver, record), payload);
                let _ = receiver.advance(record);
            }
        }
    }
}

#[test]
fn two_threads_pass_every_record_whole_and_in_order() {
    let (mut sender, mut receiver) = private(MIN_CAPACITY);
    let total = 100_000_u64;
    let writer = std::thread::spawn(move || {
        for value in 0..total {
            let length = (value % 700) as usize;
            while sender.room().is_none_or(|room| room < length) {
                std::thread::yield_now();
            }
            sender.push([value, !value], &[IoSlice::new(&vec![value as u8; length])]);
        }
    });
    for value in 0..total {
        let record = loop {
            match receiver.peek().unwrap() {
                Some(record) => break record,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(record.words, [value, !value]);
        assert_eq!(read(&receiver, record), vec![value as u8; (value % 700) as usize]);
        let _ = receiver.advance(record);
    }
    writer.join().unwrap();
}

#[test]
fn a_record_longer_than_any_is_an_error_and_no_copy() {
    let (sender, receiver) = private(MIN_CAPACITY);
    for length in [MIN_CAPACITY as u64 / 4, u64::MAX >> 1] {
        sender.place.line(0)[0].store(length | PUBLISHED, Ordering::Relaxed);
        assert_eq!(receiver.peek(), Err(Corrupt));
    }
}

#[test]
fn room_that_can_not_have_been_returned_is_ignored() {
    let (mut sender, _receiver) = private(MIN_CAPACITY);
    while let Some(room) = sender.room() {
        sender.push([0; 2], &[IoSlice::new(&vec![0; room])]);
    }
    for returned in [u64::MAX, MIN_CAPACITY as u64 + 64, 63] {
        sender.place.returned()[0].store(returned, Ordering::Relaxed);
        assert_eq!(sender.room(), None);
    }
}

#[test]
fn a_park_is_answered_by_one_wake_up() {
    let (mut sender, mut receiver) = private(MIN_CAPACITY);
    assert!(!sender.must_wake());
    assert!(!receiver.park());
    sender.push([1; 2], &[]);
    assert!(sender.must_wake());
    assert!(!sender.must_wake());
    while let Some(room) = sender.room() {
        sender.push([0; 2], &[IoSlice::new(&vec![0; room])]);
    }
    sender.await_room();
    let mut wakes = 0;
    while let Some(record) = receiver.peek().unwrap() {
        wakes += usize::from(receiver.advance(record));
    }
    assert_eq!(wakes, 1);
    assert!(sender.room().is_some());
}
