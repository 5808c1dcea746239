//! Connections: how they begin, and what their end leaves.

use std::fs::File;
use std::io::IoSlice;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use midplane_simhw::shm::rings::{RingListener, connect};

use super::side::{ANY, Pair, Side, is_alone, next};
use crate::abi::constants::{ECONNRESET, INJECT};
use crate::address::Address;
use crate::endpoint::MAX_PEERS;
use crate::record::Kind;

#[test]
fn a_peer_is_lost_with_the_connection_to_it_although_it_has_opened_another() {
    let side = Side::open();
    let own = Address::parse(&side.name()).unwrap();
    let peer = Address { endpoint: own.endpoint ^ 1, ..own };
    let mut listener = RingListener::bind(peer.name().as_bytes()).unwrap();
    let to = side.set_route(&peer.bytes());
    let (long, mut got) = (vec![7; 1 << 20], [0; 4]);
    assert_eq!(side.send(to, 1, &long, 0, 1), 0);
    assert!(side.poll().is_none());
    let (first, _) = listener.accept().0.pop().unwrap().accept().unwrap();
    let mut second = connect(own.name().as_bytes(), 4096, peer.endpoint).unwrap();
    (0..600).for_each(|_| assert!(side.poll().is_none()));
    second.sender.push([Kind::Tagged as u64 | 4 << 16, 2], &[IoSlice::new(b"last")]);
    drop(first);
    side.receive(to, (2, 0), &mut got, 2);
    let ends =
        [next(&side), next(&side)].map(|(entry, error, _)| (entry.op_context as usize, error));
    assert_eq!((ends, &got), ([(2, 0), (1, ECONNRESET)], b"last"));
}

#[test]
fn wrong_data_in_the_middle_of_a_message_fails_the_receives_of_both() {
    let side = Side::open();
    let own = Address::parse(&side.name()).unwrap();
    let mut got = [[0; 16]; 2];
    for (bytes, tag) in got.iter_mut().zip([1, 2]) {
        side.receive(ANY, (tag, 0), bytes, tag as usize);
    }
    let mut peer = connect(own.name().as_bytes(), 4096, own.endpoint ^ 1).unwrap();
    let mut push = |kind: Kind, length: u64, word: u64| {
        peer.sender.push([kind as u64 | length << 16, word], &[IoSlice::new(&[0; 8])]);
    };
    push(Kind::TaggedRts, 16, 2);
    // A half of this message arrives. The first request, for the other message, has number 0.
    push(Kind::Tagged, 16, 1);
    push(Kind::Data, 15, 0);
    let mut ends =
        [next(&side), next(&side)].map(|(entry, error, _)| (entry.op_context as usize, error));
    ends.sort_unstable();
    assert_eq!(ends, [(1, ECONNRESET), (2, ECONNRESET)]);
}

/// Limits the descriptors of this process to numbers below `end`, or to as many as the system permits.
fn limit(end: u64) {
    // SAFETY: the calls read and write the limit.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(end);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

#[test]
fn a_process_that_lacks_descriptors_connects_once_it_has_some() {
    if !is_alone("tests::connections::a_process_that_lacks_descriptors_connects_once_it_has_some") {
        return;
    }
    // A connection takes four.
    for free in 0..4 {
        let pair = Pair::new();
        let mut got = [0; 4];
        let lowest = File::open("/dev/null").unwrap().as_raw_fd();
        limit(lowest as u64 + free);
        assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
        (0..20).for_each(|_| assert!(pair.one.poll().is_none()));
        limit(u64::MAX);
        pair.other.receive(ANY, (1, 0), &mut got, 2);
        assert!(pair.drive(2).iter().flatten().all(|(_, error, _)| *error == 0));
        assert_eq!(&got, b"four");
    }
}

#[test]
fn a_process_that_lacks_descriptors_accepts_once_it_has_some() {
    if !is_alone("tests::connections::a_process_that_lacks_descriptors_accepts_once_it_has_some") {
        return;
    }
    // A connection takes three until it is accepted.
    for free in 0..3 {
        let pair = Pair::new();
        let mut got = [0; 4];
        assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
        assert_eq!(next(&pair.one).1, 0);
        let lowest = File::open("/dev/null").unwrap().as_raw_fd();
        limit(lowest as u64 + free);
        (0..2000).for_each(|_| assert!(pair.other.poll().is_none()));
        limit(u64::MAX);
        pair.other.receive(ANY, (1, 0), &mut got, 2);
        assert_eq!((next(&pair.other).1, &got), (0, b"four"));
    }
}

#[test]
fn an_application_that_polls_rarely_accepts_a_connection_within_few_polls() {
    let pair = Pair::new();
    let mut got = [0; 4];
    pair.other.receive(ANY, (1, 0), &mut got, 2);
    assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
    assert_eq!(next(&pair.one).1, 0);
    let is_received = |_| {
        assert!(pair.one.wait(1).is_none());
        pair.other.poll().is_some()
    };
    assert!((0..40).any(is_received));
}

#[test]
fn an_endpoint_accepts_peers_after_many_that_have_left() {
    let side = Side::open();
    let name = Address::parse(&side.name()).unwrap().name();
    let rings = |number| connect(name.as_bytes(), 4096, number).unwrap();
    for number in 0..MAX_PEERS as u64 {
        drop(rings(number));
        (0..600).for_each(|_| assert!(side.poll().is_none()));
    }
    let (mut last, mut got) = (rings(u64::MAX), [0; 4]);
    last.sender.push([Kind::Tagged as u64 | 4 << 16, 1], &[IoSlice::new(b"last")]);
    side.receive(ANY, (1, 0), &mut got, 2);
    assert_eq!((next(&side).1, &got), (0, b"last"));
}

#[test]
fn injected_messages_that_wait_for_space_arrive_although_their_sender_closes() {
    let pair = Pair::new();
    let (sent, mut got) = (vec![7; 4096], vec![0; 100 * 4096]);
    for part in got.chunks_mut(sent.len()) {
        pair.other.receive(pair.to_one, (1, 0), part, 2);
        pair.one.send_with(pair.to_other, 1, &sent, 1, INJECT);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|_| assert_eq!(next(&pair.other).1, 0)));
        pair.one.close_endpoint();
    });
    assert!(got.iter().all(|byte| *byte == 7));
}
