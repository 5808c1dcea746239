use std::ptr::null_mut;

use super::side::{Pair, next};
use crate::abi::constants::*;

pub(super) fn write(pair: &Pair, bytes: &[u8], at: u64, key: u64, context: usize) {
    // SAFETY: tests keep the bytes until the completion.
    unsafe {
        let rma = &*(*pair.one.ep).rma;
        let (from, context) = (bytes.as_ptr().cast(), context as *mut _);
        let ep = pair.one.ep;
        let code = (rma.write)(ep, from, bytes.len(), null_mut(), pair.to_other, at, key, context);
        assert_eq!(code, 0);
    }
}

pub(super) fn read(pair: &Pair, bytes: &mut [u8], at: u64, key: u64, context: usize) {
    assert_eq!(try_read(pair, bytes, at, key, context), 0);
}

fn try_read(pair: &Pair, bytes: &mut [u8], at: u64, key: u64, context: usize) -> isize {
    // SAFETY: tests keep the bytes until the completion.
    unsafe {
        let rma = &*(*pair.one.ep).rma;
        let (to, context) = (bytes.as_mut_ptr().cast(), context as *mut _);
        (rma.read)(pair.one.ep, to, bytes.len(), null_mut(), pair.to_other, at, key, context)
    }
}

#[test]
fn writes_and_reads_reach_a_region_and_count() {
    let pair = Pair::new();
    let mut memory = vec![0; 300_000];
    pair.other.register(&mut memory, 42);
    for (round, length) in [1, 100, 8192, 200_000].into_iter().enumerate() {
        let sent = vec![round as u8 + 1; length];
        write(&pair, &sent, 1000, 42, 1);
        let [ends, _] = pair.drive(1);
        assert_eq!((ends[0].0.flags, ends[0].1), (WRITE | RMA, 0));
        assert_eq!((memory[999], memory[1000], memory[999 + length]), (0, sent[0], sent[0]));
        let mut got = vec![0; length];
        read(&pair, &mut got, 1000, 42, 2);
        let [ends, _] = pair.drive(1);
        assert_eq!((ends[0].0.flags, ends[0].1, ends[0].0.len), (READ | RMA, 0, length));
        assert_eq!(sent, got);
        assert_eq!(pair.one.count(), 2 * (round as u64 + 1));
    }
}

#[test]
fn nothing_outside_a_region_is_touched() {
    let pair = Pair::new();
    let mut memory = vec![0; 1000];
    let region = pair.other.register(&mut memory, 42);
    for (at, key) in [(990, 42), (0, 43), (u64::MAX - 5, 42)] {
        write(&pair, &[1; 20], at, key, 1);
        let [ends, _] = pair.drive(1);
        assert_eq!(ends[0].1, EACCES);
        read(&pair, &mut [0; 20], at, key, 2);
        let [ends, _] = pair.drive(1);
        assert_eq!(ends[0].1, EACCES);
    }
    assert!(memory.iter().all(|byte| *byte == 0));
    // SAFETY: the region is not used afterwards.
    unsafe { ((*(*region).fid.ops).close)(region.cast()) };
    write(&pair, &[1; 20], 0, 42, 3);
    let [ends, _] = pair.drive(1);
    assert_eq!((ends[0].0.op_context as usize, ends[0].1), (3, EACCES));
    // The refused operation has failed no other operation.
    let mut got = [0; 4];
    pair.one.receive(ADDR_UNSPEC, (1, 0), &mut got, 4);
    assert_eq!(pair.other.send(pair.to_one, 1, b"four", 0, 5), 0);
    pair.drive(2);
    assert_eq!(&got, b"four");
    assert!(pair.one.poll().is_none());
}

#[test]
fn a_region_that_is_closed_while_a_peer_reads_it_fails_those_reads_alone() {
    const LENGTH: usize = 1 << 20;
    let pair = Pair::new();
    let (mut gone, mut stays) = (vec![1; LENGTH], vec![2; LENGTH]);
    let region = pair.other.register(&mut gone, 42);
    pair.other.register(&mut stays, 43);
    write(&pair, &[2], 0, 43, 1);
    pair.drive(1);
    let mut got = [(); 4].map(|()| vec![0; LENGTH]);
    for (at, (buffer, key)) in got.iter_mut().zip([42, 42, 43, 42]).enumerate() {
        read(&pair, buffer, 0, key, at);
    }
    // The ring holds a part of the first read's data; the other reads wait.
    (0..2000).for_each(|_| assert!(pair.other.poll().is_none()));
    // SAFETY: the region is not used afterwards.
    unsafe { ((*(*region).fid.ops).close)(region.cast()) };
    let [mut ends, _] = pair.drive(4);
    ends.sort_by_key(|(entry, ..)| entry.op_context as usize);
    let errors: Vec<_> = ends.iter().map(|(_, error, _)| *error).collect();
    assert_eq!(errors, [EACCES, EACCES, 0, EACCES]);
    assert_eq!(got[2], stays);
    assert_eq!((got[0][0], got[0][LENGTH - 1], got[1][0]), (1, 0, 0));
    // Both sides can still send to each other.
    write(&pair, &[3; 10], 0, 43, 1);
    let [ends, _] = pair.drive(1);
    assert_eq!((ends[0].1, stays[9], stays[10]), (0, 3, 2));
    let mut got = [0; 4];
    pair.one.receive(ADDR_UNSPEC, (1, 0), &mut got, 4);
    assert_eq!(pair.other.send(pair.to_one, 1, b"four", 0, 5), 0);
    assert!(pair.drive(2).iter().flatten().all(|(_, error, _)| *error == 0));
    assert_eq!(&got, b"four");
}

#[test]
fn operations_of_peers_count_in_the_counters_of_their_region() {
    let pair = Pair::new();
    let (mut memory, mut other) = (vec![0; 100], vec![0; 100]);
    let region = pair.other.register(&mut memory, 42);
    pair.other.register(&mut other, 43);
    let counters = [(); 2].map(|()| pair.other.open_counter());
    for (counter, flag) in counters.into_iter().zip([REMOTE_READ, REMOTE_WRITE]) {
        // SAFETY: the region and the counter are open.
        let code = unsafe { ((*(*region).fid.ops).bind)(region.cast(), counter.cast(), flag) };
        assert_eq!(code, 0);
    }
    let mut got = [0; 10];
    for key in [42, 43, 42, 42] {
        write(&pair, &[1; 10], 0, key, 1);
        pair.drive(1);
    }
    read(&pair, &mut got, 0, 42, 1);
    pair.drive(1);
    read(&pair, &mut got, 95, 42, 1);
    assert_eq!(pair.drive(1)[0][0].1, EACCES);
    assert_eq!(counters.map(|counter| pair.other.value(counter)), [1, 3]);
}

#[test]
fn a_read_counts_at_the_target_once_all_of_its_data_has_left() {
    const LENGTH: usize = 1 << 20;
    let pair = Pair::new();
    let (mut memory, mut got) = (vec![5; LENGTH], vec![0; LENGTH]);
    let region = pair.other.register(&mut memory, 42);
    let counter = pair.other.open_counter();
    // SAFETY: the region and the counter are open.
    let code = unsafe { ((*(*region).fid.ops).bind)(region.cast(), counter.cast(), REMOTE_READ) };
    assert_eq!(code, 0);
    write(&pair, &[5], 0, 42, 1);
    pair.drive(1);
    read(&pair, &mut got, 0, 42, 2);
    // The reader does not poll, and the ring holds only a part of the data.
    (0..2000).for_each(|_| assert_eq!(pair.other.value(counter), 0));
    assert_eq!(pair.drive(1)[0][0].1, 0);
    assert_eq!((pair.other.value(counter), got == memory), (1, true));
}

#[test]
fn reads_beyond_what_a_peer_answers_in_time_are_refused_for_now() {
    const COUNT: usize = 100_000;
    let pair = Pair::new();
    let (mut memory, mut got) = (vec![5; COUNT], vec![0; COUNT]);
    pair.other.register(&mut memory, 42);
    let (mut completed, mut refused) = (0, 0);
    let mut take = |polls: usize| {
        for (_, error, _) in (0..polls).filter_map(|_| pair.one.poll()) {
            assert_eq!(error, 0);
            completed += 1;
        }
        completed
    };
    for (at, byte) in got.chunks_mut(1).enumerate() {
        while try_read(&pair, byte, at as u64, 42, at) == -(EAGAIN as isize) {
            refused += 1;
            // The reader receives fewer answers than the target creates.
            take(1);
            (0..40).for_each(|_| assert!(pair.other.poll().is_none()));
        }
    }
    while take(1) < COUNT {
        assert!(pair.other.poll().is_none());
    }
    assert!(refused > 0 && got == memory);
}

#[test]
fn a_full_queue_of_received_messages_stops_no_reads_and_writes() {
    let pair = Pair::new();
    let (mut memory, sent, mut got) = (vec![0; 300_000], vec![7; 200_000], vec![0; 200_000]);
    pair.other.register(&mut memory, 42);
    write(&pair, &[1], 0, 42, 1);
    pair.drive(1);
    let mut message = [0; 4];
    pair.other.receive(ADDR_UNSPEC, (1, 0), &mut message, 2);
    // Each peek completes without a message, until the queue has its default number of entries.
    for _ in 0..4096 {
        pair.other.receive_with(8, &mut [], 5, PEEK);
    }
    let complete = |context| {
        let is_complete = |_: &usize| {
            // Reading a counter makes progress, and takes no entries.
            pair.other.count();
            pair.one.poll().is_some_and(|(entry, ..)| entry.op_context as usize == context)
        };
        (0..1_000_000).find(is_complete).expect("a completion in time");
    };
    write(&pair, &sent, 1000, 42, 3);
    complete(3);
    read(&pair, &mut got, 1000, 42, 4);
    complete(4);
    assert!(got == sent && memory[1000..201_000] == sent);
    // A message waits until the queue has space.
    assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 6), 0);
    complete(6);
    (0..2000).for_each(|_| assert_eq!((pair.other.count(), message), (0, [0; 4])));
    (0..4096).for_each(|_| assert_eq!(next(&pair.other).1, ENOMSG));
    assert_eq!((next(&pair.other).0.op_context as usize, &message), (2, b"four"));
}
