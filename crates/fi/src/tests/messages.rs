use std::io::IoSlice;

use midplane_simhw::shm::rings::connect;

use super::side::{ANY, Pair, Side, next};
use crate::abi::constants::*;
use crate::address::Address;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn tagged_messages_of_all_lengths_arrive_expected_and_unexpected() {
    let pair = Pair::new();
    for length in [0, 1, 39, 40, 64, 4096, 8192, 8193, 65_536, 65_537, 3 << 20] {
        for is_expected in [true, false] {
            let (sent, mut got) = (bytes(length), vec![0; length]);
            if is_expected {
                pair.other.receive(pair.to_one, (5, 0), &mut got, 2);
            }
            assert_eq!(pair.one.send(pair.to_other, 5, &sent, 77, 1), 0);
            if !is_expected {
                // The message, or its RTS, arrives before the receive is posted.
                (0..2000).for_each(|_| assert!(pair.other.poll().is_none()));
                pair.other.receive(ANY, (0, u64::MAX), &mut got, 2);
            }
            let [mut sends, mut receives] = pair.drive(2);
            let (send, receive) = (sends.pop().unwrap(), receives.pop().unwrap());
            assert_eq!((send.0.flags, send.0.op_context as usize), (SEND | TAGGED, 1));
            assert_eq!(receive.0.flags, RECV | TAGGED | REMOTE_CQ_DATA);
            let (entry, error, source) = receive;
            assert_eq!((entry.op_context as usize, entry.len, entry.tag), (2, length, 5));
            assert_eq!((entry.data, error, source), (77, 0, pair.to_one));
            assert_eq!(sent, got, "{length} bytes, expected: {is_expected}");
        }
    }
}

#[test]
fn a_send_completes_once_its_message_has_arrived_or_matched_as_its_flags_request() {
    let pair = Pair::new();
    for length in [10, 60_000, 100_000] {
        for flag in [DELIVERY_COMPLETE, MATCH_COMPLETE] {
            let (sent, mut got) = (bytes(length), vec![0; length]);
            pair.one.send_with(pair.to_other, 5, &sent, 1, flag);
            (0..2000).for_each(|_| assert!(pair.one.poll().is_none()));
            if flag == DELIVERY_COMPLETE && length < 100_000 {
                // The send completes without a posted receive.
                assert_eq!(pair.drive(1)[0][0].1, 0);
                pair.other.receive(ANY, (5, 0), &mut got, 2);
            } else {
                (0..2000).for_each(|_| assert!(pair.other.poll().is_none()));
                (0..2000).for_each(|_| assert!(pair.one.poll().is_none()));
                pair.other.receive(ANY, (5, 0), &mut got, 2);
                assert_eq!(next_of(&pair), 0);
            }
            assert_eq!(next_of(&pair), 0);
            assert_eq!(sent, got);
        }
    }
}

/// Polls both sides until one has a completion; returns its error.
fn next_of(pair: &Pair) -> i32 {
    pair.drive(1).iter().flatten().next().unwrap().1
}

#[test]
fn messages_of_one_sender_do_not_overtake_each_other() {
    const COUNT: usize = 500;
    let pair = Pair::new();
    // Short messages, and long ones sent by rendezvous.
    let length = |at: usize| if at.is_multiple_of(7) { 70_000 } else { at };
    let sent: Vec<_> = (0..COUNT).map(|at| vec![at as u8; length(at)]).collect();
    let mut got: Vec<_> = (0..COUNT).map(|at| vec![0; length(at)]).collect();
    for (at, message) in sent.iter().enumerate() {
        assert_eq!(pair.one.send(pair.to_other, 1, message, 0, at), 0);
        if at == COUNT / 2 {
            (0..100).for_each(|_| assert!(pair.other.poll().is_none()));
        }
    }
    for (at, buffer) in got.iter_mut().enumerate() {
        pair.other.receive(ANY, (1, 0), buffer, at);
    }
    let [sends, receives] = pair.drive(2 * COUNT);
    assert_eq!((sends.len(), receives.len()), (COUNT, COUNT));
    assert_eq!(sent, got);
}

#[test]
fn an_endpoint_sends_to_itself() {
    let side = Side::open();
    let to = side.set_route(&side.name());
    let (sent, mut got) = (bytes(100_000), vec![0; 100_000]);
    assert_eq!(side.send(to, 3, &sent, 0, 1), 0);
    side.receive(to, (3, 0), &mut got, 2);
    let contexts = [next(&side), next(&side)].map(|(entry, ..)| entry.op_context as usize);
    assert_eq!(contexts.iter().sum::<usize>(), 3);
    assert_eq!(sent, got);
}

#[test]
fn a_message_that_is_too_long_is_truncated_and_reported() {
    let pair = Pair::new();
    for length in [50, 100_000] {
        let (sent, mut got) = (bytes(length), vec![0; 10]);
        pair.other.receive(ANY, (1, 0), &mut got, 2);
        assert_eq!(pair.one.send(pair.to_other, 1, &sent, 0, 1), 0);
        let [_, receives] = pair.drive(2);
        let (entry, error, _) = receives[0];
        assert_eq!((error, entry.len, &got[..]), (ETRUNC, 10, &sent[..10]));
    }
}

#[test]
fn a_peek_describes_a_message_and_a_claim_reserves_it() {
    let pair = Pair::new();
    let mut got = vec![0; 100];
    pair.other.receive_with(8, &mut [], 5, PEEK);
    assert_eq!(next(&pair.other).1, ENOMSG);
    for value in [1, 2] {
        assert_eq!(pair.one.send(pair.to_other, 8, &[value; 100], value.into(), 1), 0);
        pair.drive(1);
    }
    while {
        pair.other.receive_with(8, &mut [], 5, PEEK | CLAIM);
        let (entry, error, _) = next(&pair.other);
        error == ENOMSG || (entry.len, entry.data) != (100, 1)
    } {}
    // Other receives don't match a claimed message.
    pair.other.receive(ANY, (8, 0), &mut got, 6);
    assert_eq!((next(&pair.other).0.data, got[99]), (2, 2));
    pair.other.receive_with(8, &mut got, 5, CLAIM);
    assert_eq!((next(&pair.other).0.data, got[99]), (1, 1));
}

#[test]
fn a_receive_is_cancelled_once() {
    let pair = Pair::new();
    let mut got = [0; 8];
    pair.other.receive(ANY, (1, 0), &mut got, 9);
    pair.other.cancel(9);
    pair.other.cancel(9);
    let (entry, error, _) = next(&pair.other);
    assert_eq!((entry.op_context as usize, error), (9, ECANCELED));
    assert!(pair.other.poll().is_none());
}

#[test]
fn a_buffer_for_several_messages_is_filled_and_released() {
    let pair = Pair::new();
    let mut buffer = vec![0; 1000];
    pair.other.receive_several(&mut buffer, 4);
    let sent: Vec<_> = (0..3).map(|at| vec![at + 1; 400]).collect();
    sent.iter().for_each(|message| pair.one.send_plain(pair.to_other, message, 1));
    let [_, receives] = pair.drive(6);
    let flags: Vec<_> = receives.iter().map(|(entry, ..)| entry.flags).collect();
    // The third does not fit: the buffer is released alone, and the message waits for the next.
    assert_eq!(flags, [RECV | MSG, RECV | MSG, MULTI_RECV]);
    assert_eq!((buffer[0], buffer[399], buffer[400], buffer[799]), (1, 1, 2, 2));
    let mut next_buffer = vec![0; 450];
    pair.other.receive_several(&mut next_buffer, 5);
    // 50 bytes are left, fewer than `FI_OPT_MIN_MULTI_RECV`.
    assert_eq!(next(&pair.other).0.flags, RECV | MSG | MULTI_RECV);
    assert_eq!(next_buffer[399], 3);
}

#[test]
fn the_release_of_a_buffer_for_several_messages_is_reported_although_they_are_not() {
    let pair = Pair::new();
    pair.other.bind(pair.other.cq.cast(), RECV | SELECTIVE_COMPLETION);
    let mut buffer = vec![0; 450];
    pair.other.receive_several(&mut buffer, 4);
    (0..2).for_each(|_| pair.one.send_plain(pair.to_other, &[7; 200], 1));
    let [_, receives] = pair.drive(3);
    let ends: Vec<_> =
        receives.iter().map(|(entry, ..)| (entry.op_context as usize, entry.flags)).collect();
    assert_eq!(ends, [(4, RECV | MSG | MULTI_RECV)]);
}

#[test]
fn a_cancelled_buffer_for_several_messages_is_released_after_its_last_message() {
    let pair = Pair::new();
    let (mut buffer, long) = (vec![0; 300_000], bytes(100_000));
    pair.other.receive_several(&mut buffer, 4);
    pair.one.send_plain(pair.to_other, &[7; 10], 1);
    pair.drive(2);
    // The RTS of the long message matches; its bytes are not sent while the sender does not poll.
    pair.one.send_plain(pair.to_other, &long, 2);
    (0..2000).for_each(|_| assert!(pair.other.poll().is_none()));
    pair.other.cancel(4);
    assert!(pair.other.poll().is_none());
    let [_, ends] = pair.drive(3);
    let ends: Vec<_> = ends.iter().map(|(entry, error, _)| (entry.flags, *error)).collect();
    assert_eq!(ends, [(RECV | MSG, 0), (RECV | MSG | MULTI_RECV, ECANCELED)]);
    assert_eq!(buffer[10..100_010], long);
    // The buffer receives no more.
    pair.one.send_plain(pair.to_other, &[8; 10], 3);
    pair.drive(1);
    assert!((0..2000).all(|_| pair.other.poll().is_none()));
    assert!(buffer[100_010..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_counter_of_receives_counts_no_peek_and_no_release_of_a_buffer() {
    let pair = Pair::new();
    let counter = pair.other.open_counter();
    pair.other.bind(counter.cast(), RECV);
    assert_eq!(pair.one.send(pair.to_other, 8, &[1; 10], 0, 1), 0);
    let peek = || {
        pair.other.receive_with(8, &mut [], 5, PEEK);
        next(&pair.other).1
    };
    assert_eq!(peek(), ENOMSG);
    pair.drive(1);
    while peek() == ENOMSG {}
    assert_eq!((pair.other.value(counter), pair.other.errors(counter)), (0, 0));
    let mut buffer = vec![0; 1000];
    pair.other.receive_several(&mut buffer, 4);
    (0..3).for_each(|_| pair.one.send_plain(pair.to_other, &[2; 400], 1));
    // Two messages, and the release of the buffer, for which the third is too long.
    pair.drive(6);
    assert_eq!((pair.other.value(counter), pair.other.errors(counter)), (2, 0));
}

#[test]
fn a_queue_that_is_opened_small_delays_no_confirmation_behind_a_message() {
    let pair = Pair::new();
    let (queue, mut got) = (pair.one.open_queue(1), [0; 8]);
    pair.one.bind(queue.cast(), RECV);
    for part in got.chunks_mut(4) {
        pair.one.receive(ANY, (1, 0), part, 2);
        assert_eq!(pair.other.send(pair.to_one, 1, b"four", 0, 3), 0);
        pair.drive(1);
        (0..600).for_each(|_| assert!(pair.one.poll().is_none()));
    }
    pair.one.send_with(pair.to_other, 5, b"", 4, DELIVERY_COMPLETE);
    assert_eq!(pair.drive(1)[0][0].0.op_context as usize, 4);
}

#[test]
fn operations_end_with_an_error_when_their_peer_closes() {
    let pair = Pair::new();
    let (mut got, long) = ([[0; 8]; 2], bytes(1 << 20));
    pair.one.receive(pair.to_other, (1, 0), &mut got[0], 1);
    assert_eq!(pair.one.send(pair.to_other, 2, &long, 0, 2), 0);
    assert_eq!(pair.other.send(pair.to_one, 9, b"last", 0, 3), 0);
    pair.drive(1);
    pair.other.close_endpoint();
    pair.one.receive(ANY, (9, 0), &mut got[1], 4);
    let mut ends: Vec<_> = (0..3).map(|_| next(&pair.one)).collect();
    ends.sort_by_key(|(entry, ..)| entry.op_context as usize);
    let ends: Vec<_> =
        ends.iter().map(|(entry, error, _)| (entry.op_context as usize, *error)).collect();
    assert_eq!(ends, [(1, ECONNRESET), (2, ECONNRESET), (4, 0)]);
    assert_eq!(&got[1][..4], b"last");
    assert_eq!(pair.one.send(pair.to_other, 2, &long, 0, 5), -(ECONNRESET as isize));
}

#[test]
fn a_receive_from_a_lost_peer_ends_with_an_error() {
    let pair = Pair::new();
    let mut got = [[0; 4]; 4];
    pair.one.receive(pair.to_other, (1, 0), &mut got[0], 0);
    assert_eq!(pair.other.send(pair.to_one, 1, b"four", 0, 9), 0);
    pair.drive(2);
    pair.one.receive(pair.to_other, (1, 0), &mut got[1], 1);
    assert_eq!(pair.other.send(pair.to_one, 2, b"last", 0, 9), 0);
    pair.drive(1);
    pair.other.close_endpoint();
    let end = || {
        let (entry, error, _) = next(&pair.one);
        (entry.op_context as usize, error)
    };
    assert_eq!(end(), (1, ECONNRESET));
    // The message that arrived before the loss is received.
    pair.one.receive(pair.to_other, (2, 0), &mut got[2], 2);
    assert_eq!((end(), &got[2]), ((2, 0), b"last"));
    pair.one.receive(pair.to_other, (2, 0), &mut got[3], 3);
    assert_eq!(end(), (3, ECONNRESET));
}

#[test]
fn a_waiting_thread_is_woken_by_a_peer() {
    let pair = Pair::new();
    let mut got = vec![0; 4];
    assert!(pair.other.wait(20).is_none(), "there is nothing yet");
    pair.other.receive(ANY, (1, 0), &mut got, 2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pair.other.wait(20_000));
        for _ in 0..3 {
            std::thread::yield_now();
        }
        assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
        while pair.one.poll().is_none() {}
        assert_eq!(waiter.join().unwrap(), Some(2));
    });
    assert_eq!(got, b"four");
}

#[test]
fn records_that_no_correct_peer_writes_end_their_sender_alone() {
    let pair = Pair::new();
    let name = Address::parse(&pair.other.name()).unwrap().name();
    let (payload, mut number) = ([0xff; 100], 0);
    for kind in (0..16).chain([255]) {
        for length in [0, 1, 100, 1 << 21, (1 << 40) + 1, (1 << 48) - 1] {
            for bytes in [0, 7, 8, 16, 100] {
                number += 1;
                let mut rings = connect(name.as_bytes(), 4096, number).unwrap();
                for flags in [0, 3 << 8, 7 << 8] {
                    let words = [kind | flags | length << 16, number];
                    rings.sender.push(words, &[IoSlice::new(&payload[..bytes])]);
                }
                (0..600).for_each(|_| assert!(pair.other.poll().is_none()));
            }
        }
    }
    let (sent, mut got) = (bytes(100_000), vec![0; 100_000]);
    pair.other.receive(pair.to_one, (0, u64::MAX), &mut got, 2);
    assert_eq!(pair.one.send(pair.to_other, 5, &sent, 0, 1), 0);
    assert!(pair.drive(2).iter().flatten().all(|(_, error, _)| *error == 0));
    assert_eq!(sent, got);
}
