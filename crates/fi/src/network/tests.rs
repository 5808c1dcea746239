//! Tests two endpoints of one process that treat each other as endpoints on other hosts.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Mutex;

use midplane_simhw::shm::Record;
use midplane_simhw::shm::rings::RingPair;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::Endpoint as Pipes;
use midplane_via::wire::pipe::Config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Terms;
use super::frames::head;
use super::link::Link;
use crate::address::Address;
use crate::completion::{Completions, Entry, Queue, QueueBinding};
use crate::endpoint::{Completes, Domain, Endpoint, Message, Post, Transfer};
use crate::matching::{Kind, Pattern, Receive};
use crate::memory::Buffer;
use crate::region::Regions;

struct Side {
    endpoint: Endpoint,
    regions: Regions,
    out: Completions,
}

impl Side {
    fn open(host: u64) -> Self {
        let terms = Terms { address: Ipv4Addr::LOCALHOST.into(), key: None };
        let mut endpoint = Endpoint::open(true, Some(&terms)).unwrap();
        endpoint.address.host = host;
        let mut out = Completions::default();
        let entries = std::collections::VecDeque::new();
        let queue =
            out.queues.insert(Queue { entries, is_signalled: false, capacity: 1000, waiter: None });
        let binding = Some(QueueBinding { queue, is_selective: false });
        let bindings = &mut endpoint.state.bindings;
        (bindings.transmit, bindings.receive) = (binding, binding);
        Self { endpoint, regions: Regions::default(), out }
    }

    fn poll(&mut self) -> Option<Entry> {
        let mut domain = Domain { regions: &self.regions, out: &mut self.out };
        self.endpoint.progress(&mut domain);
        self.endpoint.progress_connections();
        self.out.queues[0].entries.pop_front()
    }

    fn send(&mut self, tag: u64, bytes: &[u8]) {
        let post = Post {
            to: 0,
            transfer: Transfer::Message(Message { kind: Kind::Tagged, tag }),
            buffer: borrowed(bytes),
            data: None,
            context: 1,
            reports: true,
            is_injected: false,
            completes: Completes::Sent,
        };
        let mut domain = Domain { regions: &self.regions, out: &mut self.out };
        self.endpoint.post(&post, &mut domain).unwrap();
    }

    fn receive(&mut self, tag: u64, bytes: &mut [u8]) {
        let pattern = Pattern { kind: Kind::Tagged, source: 0, tag, ignore: 0 };
        #[expect(unsafe_code, reason = "posts a buffer whose bytes the test keeps")]
        // SAFETY: each test keeps its bytes until the completion.
        let buffer = unsafe { Buffer::new(bytes.as_mut_ptr() as usize, bytes.len()) };
        let receive = Receive { pattern, buffer, context: 2, reports: true, multi: None };
        let mut domain = Domain { regions: &self.regions, out: &mut self.out };
        self.endpoint.post_receive(receive, false, &mut domain);
    }
}

#[expect(unsafe_code, reason = "refers to bytes that the test keeps")]
fn borrowed(bytes: &[u8]) -> Buffer {
    // SAFETY: each test keeps its bytes until the completion.
    unsafe { Buffer::new(bytes.as_ptr() as usize, bytes.len()) }
}

fn sides() -> [Side; 2] {
    let mut sides = [1, 2].map(Side::open);
    let addresses = sides.each_ref().map(|side| side.endpoint.address);
    sides[0].endpoint.set_route(0, Some(addresses[1]));
    sides[1].endpoint.set_route(0, Some(addresses[0]));
    sides
}

/// Polls both sides until they have `count` completions together.
fn drive(sides: &mut [Side; 2], count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < count {
        entries.extend(sides.iter_mut().filter_map(Side::poll));
        std::thread::yield_now();
    }
    entries
}

#[test]
fn messages_cross_udp_and_the_last_ones_arrive_although_their_sender_closes() {
    let mut sides = sides();
    for length in [0, 1, 8192, 100_000, 3_000_000] {
        let (sent, mut got) = (vec![7; length], vec![0; length]);
        sides[0].send(length as u64, &sent);
        sides[1].receive(length as u64, &mut got);
        assert!(drive(&mut sides, 2).iter().all(|entry| entry.error == 0));
        assert_eq!(sent, got);
    }
    let (sent, mut got) = (vec![9; 60_000], vec![0; 60_000]);
    sides[1].send(5, &sent);
    let mut alone = [0; 8];
    sides[0].receive(6, &mut alone);
    assert_eq!(drive(&mut sides, 1)[0].error, 0);
    let [mut left, closed] = sides;
    let closing = std::thread::spawn(move || drop(closed));
    let next = |side: &mut Side| loop {
        if let Some(entry) = side.poll() {
            return entry;
        }
        std::thread::yield_now();
    };
    assert_eq!(next(&mut left).error, libc::ECONNRESET, "the receive from the peer alone");
    left.receive(5, &mut got);
    assert_eq!((next(&mut left).error, sent), (0, got));
    closing.join().unwrap();
}

#[test]
fn a_message_to_a_new_peer_arrives_although_its_sender_closes_at_once() {
    let [mut sender, mut receiver] = sides();
    let mut got = [0; 4];
    receiver.receive(1, &mut got);
    sender.send(1, b"four");
    // The send completes when the message is in the ring, and the peer has not answered the dial.
    assert_eq!(sender.poll().unwrap().error, 0);
    let closing = std::thread::spawn(move || drop(sender));
    let next = |_| {
        std::thread::yield_now();
        receiver.poll()
    };
    let entry = (0..5_000_000).find_map(next).expect("a completion in time");
    assert_eq!((entry.error, &got), (0, b"four"));
    closing.join().unwrap();
}

#[test]
fn a_close_gives_up_a_peer_that_never_answers() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut sender = Side::open(1);
    let udp = Some(silent.local_addr().unwrap());
    sender.endpoint.set_route(0, Some(Address { host: 2, endpoint: 3, udp }));
    sender.send(1, b"four");
    assert_eq!(sender.poll().unwrap().error, 0);
    drop(sender);
    // A dial ends after 10 s, and is sent 13 times until then; 8 times in the 5 s of a close.
    silent.set_nonblocking(true).unwrap();
    let dials = std::iter::repeat_with(|| silent.recv(&mut [0; 2048])).take_while(Result::is_ok);
    let count = dials.count();
    assert!((1..=11).contains(&count), "{count} dials");
}

#[test]
fn messages_arrive_although_their_sender_does_not_poll() {
    let mut sides = sides();
    let (sent, mut got) = (vec![3; 60_000], vec![0; 60_000]);
    sides[0].send(1, &sent);
    sides[1].receive(1, &mut got);
    assert!(drive(&mut sides, 2).iter().all(|entry| entry.error == 0));
    for round in 2..20 {
        sides[0].send(round, &sent);
        sides[1].receive(round, &mut got);
        let entry = loop {
            if let Some(entry) = sides[1].poll() {
                break entry;
            }
            std::thread::yield_now();
        };
        assert_eq!((entry.error, &got), (0, &sent));
        got.fill(0);
        // The send completed when the message was in the ring.
        assert_eq!(sides[0].poll().unwrap().error, 0);
    }
}

#[test]
fn a_waiting_side_is_woken_by_a_message_from_another_host() {
    let mut sides = sides();
    let (sent, mut got) = ([3; 8], [0; 8]);
    for round in 1..20 {
        sides[0].send(round, &sent);
        sides[1].receive(round, &mut got);
        if round == 1 {
            drive(&mut sides, 2);
            continue;
        }
        assert_eq!(sides[0].poll().unwrap().error, 0);
        let entry = loop {
            if let Some(entry) = sides[1].poll() {
                break entry;
            }
            if !sides[1].endpoint.park() {
                continue;
            }
            let mut descriptors: Vec<_> = sides[1]
                .endpoint
                .descriptors()
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            let most = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert!(poll(&mut descriptors, Some(&most)).unwrap() > 0, "nothing wakes the side");
        };
        assert_eq!((entry.error, got), (0, sent));
    }
}

/// Returns a link over rings, with the pipes to which its pipe belongs.
fn link(rings: Option<RingPair>) -> (Link, Mutex<Pipes>) {
    let mut pipes = Pipes::new(Config::default(), 1);
    let pipe = pipes.dial(Instant::from_nanos(0), (Ipv4Addr::LOCALHOST, 1).into());
    (Link::new(pipe, rings), Mutex::new(pipes))
}

#[test]
fn bytes_of_a_peer_for_which_there_were_no_rings_are_not_read_as_the_number_of_another() {
    let (mut link, _) = link(None);
    link.incoming.extend([7; 8]);
    assert!(link.is_new());
    link.has_left = true;
    assert!(!link.is_new());
}

#[test]
fn a_bridge_sleeps_while_a_ring_has_less_space_than_the_next_record_needs() {
    let [mine, mut theirs] = RingPair::local(4096).unwrap();
    let (mut link, pipes) = link(Some(mine));
    let record = Record { words: [1, 2], length: 900 };
    for _ in 0..5 {
        link.incoming.extend(head(record));
        link.incoming.extend([7; 900]);
    }
    assert!(link.pump(&pipes, Instant::from_nanos(0)));
    assert!(link.park(&pipes));
    let mut is_woken = false;
    while let Ok(Some(record)) = theirs.receiver.peek() {
        is_woken |= theirs.receiver.advance(record);
    }
    assert!(is_woken && !link.park(&pipes));
}
