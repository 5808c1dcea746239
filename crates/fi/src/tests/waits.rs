//! Several threads that wait in one domain.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::side::{ANY, Pair, Side, next};
use crate::abi::constants::{PROGRESS_AUTO, PROGRESS_MANUAL};
use crate::address::Address;

/// Returns whether the descriptor of a side's queue is readable.
fn is_ready(side: &Side) -> bool {
    let mut poll = libc::pollfd { fd: side.descriptor(), events: libc::POLLIN, revents: 0 };
    // SAFETY: it is one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Requests a wake-up for a side's queue, which has no entries.
#[track_caller]
fn park(side: &Side) {
    (0..100).find(|_| side.may_wait()).expect("no work");
    assert!(!is_ready(side));
}

/// Returns a peer, connected with an endpoint, and another endpoint in the domain of the latter.
fn three(progress: i32) -> (Pair, Side) {
    let pair = Pair::of(Side::open(), Side::open_with(progress));
    assert_eq!(pair.one.send(pair.to_other, 9, &[], 0, 1), 0);
    pair.other.receive(ANY, (9, 0), &mut [], 1);
    pair.drive(2);
    let beside = pair.other.beside();
    (pair, beside)
}

#[test]
fn a_thread_that_takes_a_wake_up_passes_it_to_the_queue_that_it_is_for() {
    let (pair, beside) = three(PROGRESS_MANUAL);
    let mut got = [0; 4];
    pair.other.receive(ANY, (1, 0), &mut got, 2);
    park(&pair.other);
    park(&beside);
    assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
    assert!(is_ready(&beside) && is_ready(&pair.other));
    // The thread of the other queue is first: it receives the message, finds nothing, and waits again.
    assert!(beside.poll().is_none());
    park(&beside);
    assert!(is_ready(&pair.other));
    assert_eq!((next(&pair.other).0.op_context as usize, &got), (2, b"four"));
}

#[test]
fn a_thread_that_polls_and_stops_takes_no_wake_up_from_one_that_waits() {
    let (pair, beside) = three(PROGRESS_MANUAL);
    let mut got = [0; 4];
    pair.other.receive(ANY, (1, 0), &mut got, 2);
    for polls in [1, 3000] {
        park(&pair.other);
        (0..polls).for_each(|_| assert!(beside.poll().is_none()));
        assert!(!is_ready(&pair.other));
    }
    assert!(beside.wait(1).is_none());
    // The endpoints wake no thread now: the waiting one has to request it again.
    assert!(is_ready(&pair.other));
    park(&pair.other);
    assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
    assert!(is_ready(&pair.other));
    assert_eq!((next(&pair.other).0.op_context as usize, &got), (2, b"four"));
}

#[test]
fn a_waiting_thread_sends_what_another_thread_has_started() {
    let (pair, beside) = three(PROGRESS_MANUAL);
    park(&beside);
    let to = pair.other.set_route(&Side::open().name());
    assert_eq!(pair.other.send(to, 1, b"four", 0, 1), 0);
    // The thread connects, and then sends.
    assert!(is_ready(&beside));
}

#[test]
fn a_thread_sleeps_while_the_ring_has_less_space_than_the_next_record_needs() {
    let (pair, _) = three(PROGRESS_MANUAL);
    let (sent, mut got) = (vec![7; 60_000], vec![0; 180_000]);
    (0..3).for_each(|_| assert_eq!(pair.one.send(pair.to_other, 1, &sent, 0, 1), 0));
    // The ring holds two messages, and a part of the third.
    (0..2).for_each(|_| assert_eq!(next(&pair.one).1, 0));
    park(&pair.one);
    got.chunks_mut(60_000).for_each(|part| pair.other.receive(ANY, (1, 0), part, 2));
    (0..2).for_each(|_| assert_eq!(next(&pair.other).1, 0));
    assert!(is_ready(&pair.one));
    pair.drive(2);
    assert!(got.iter().all(|byte| *byte == 7));
}

#[test]
fn a_connection_without_a_greeting_keeps_no_thread_awake() {
    let side = Side::open();
    let name = Address::parse(&side.name()).unwrap().name();
    let flags = SocketFlags::CLOEXEC;
    let silent = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&silent, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    (0..600).for_each(|_| assert!(side.poll().is_none()));
    park(&side);
    // The thread is woken by the greeting, or the end, of the connection.
    drop(silent);
    assert!(is_ready(&side));
    park(&side);
}

#[test]
fn each_of_two_waiting_threads_receives_its_messages() {
    for progress in [PROGRESS_MANUAL, PROGRESS_AUTO] {
        let (pair, beside) = three(progress);
        let to_beside = pair.one.set_route(&beside.name());
        let receive = |side: &Side| {
            for _ in 0..200 {
                let mut got = [0; 4];
                side.receive(ANY, (1, 0), &mut got, 2);
                assert_eq!((side.wait(20_000), &got), (Some(2), b"four"));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&pair.other));
            scope.spawn(|| receive(&beside));
            for _ in 0..200 {
                for to in [pair.to_other, to_beside] {
                    assert_eq!(pair.one.send(to, 1, b"four", 0, 3), 0);
                    assert_eq!(next(&pair.one).1, 0);
                }
            }
        });
    }
}
