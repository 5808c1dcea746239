//! Tests that a process checks all that a hostile peer sends or shares.

use super::connection::MAX_SUCCESSORS;
use super::inbox::PeerEvent;
use super::*;
use crate::segment::{Kind, Segment};
use crate::shm::rendezvous::PeerListener as _;

/// Returns the rings of two processes, the second of which has sent the first a frame.
fn pair(name: &str) -> (Lanes, Lanes) {
    let fabric = format!("midplane-lanes-{name}-{}", std::process::id());
    let open = |node| Lanes::open(&ShmConfig::new(&fabric, NodeId(node), 2)).unwrap();
    let (honest, mut liar) = (open(0), open(1));
    while liar.send(NodeId(0), [1; WORDS], &[]) == Err(SendRefused::Full) {
        assert!(liar.poll().is_none());
        std::thread::yield_now();
    }
    (honest, liar)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn link(lanes: &mut Lanes, node: usize) -> &mut Link {
    let Peer::Connected(peer) = &mut lanes.peers[node] else { panic!("it was sent something") };
    &mut peer.link
}

#[test]
fn a_peer_that_shares_an_invalid_file_is_disconnected() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bytes = 5_000;
    let (_, good) = Segment::shared(Kind::Arena, bytes).unwrap();
    let (_, other) = Segment::shared(Kind::Link, bytes).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for (number, file) in [good.as_fd(), other.as_fd(), null.as_fd()].into_iter().enumerate() {
        let (mut honest, mut liar) = pair(&format!("no-memory-{number}"));
        let socket = &link(&mut liar, 0).socket;
        if number == 0 {
            pass(socket, [5, 6], bytes, file).unwrap();
            let (from, name, memory) = loop {
                match honest.poll() {
                    Some(News::Shown { from, name, memory }) => break (from, name, memory),
                    Some(News::Left(_)) => panic!("there was nothing wrong with it"),
                    _ => std::thread::yield_now(),
                }
            };
            assert_eq!((from, name, memory.len()), (NodeId(1), [5, 6], bytes));
            // More bytes than the file has.
            pass(socket, [5, 6], 2 * bytes, file).unwrap();
        } else {
            pass(socket, [5, 6], bytes, file).unwrap();
        }
        loop {
            match honest.poll() {
                Some(News::Left(node)) => break assert_eq!(node, NodeId(1)),
                Some(News::Shown { .. }) => panic!("it is none"),
                _ => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn a_peer_that_shares_memory_faster_than_it_is_taken_is_disconnected() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut honest, mut liar) = pair("much-memory");
    while honest.poll().is_none() {
        std::thread::yield_now();
    }
    let (_, file) = Segment::shared(Kind::Arena, 100).unwrap();
    let is_connected = |lanes: &Lanes| {
        let pending = lanes.events.pending.lock().unwrap();
        let left = |(_, event): &(NodeId, PeerEvent)| matches!(event, PeerEvent::Left);
        let has_left = pending.events.iter().any(left);
        !has_left && matches!(&lanes.peers[1], Peer::Connected(peer) if !peer.is_leaving)
    };
    let (mut shared, mut taken, mut left) = (0, 0, None);
    while left.is_none() && is_connected(&honest) {
        if pass(&link(&mut liar, 0).socket, [shared, 0], 100, file.as_fd()).is_err() {
            // The socket has no space.
            std::thread::yield_now();
            continue;
        }
        shared += 1;
        if shared % 8 == 0 {
            match honest.poll() {
                Some(News::Shown { .. }) => taken += 1,
                Some(News::Restarted(node) | News::Left(node)) => left = Some(node),
                _ => {}
            }
        }
        assert!(honest.shown.len() <= inbox::MAX_SHOWN, "it keeps all that the peer shares");
    }
    while left.is_none() {
        match honest.poll() {
            // It has connected again by itself, or not yet.
            Some(News::Restarted(node) | News::Left(node)) => left = Some(node),
            _ => std::thread::yield_now(),
        }
    }
    assert_eq!((left, taken > 0), (Some(NodeId(1)), true));
}

#[test]
fn a_peer_that_sends_a_frame_longer_than_the_mtu_is_disconnected() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut honest, mut liar) = pair("nonsense");
    for length in [usize::MAX, 0] {
        let header = header_of([2; WORDS], length);
        let sender = &mut link(&mut liar, 0).sender;
        sender.stage_parts(header, 0, std::iter::empty()).unwrap();
    }
    link(&mut liar, 0).sender.publish();
    let words = loop {
        match honest.poll() {
            Some(News::Frame { words, .. }) => break words,
            Some(_) => panic!("what it said before was good"),
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(words, [1; WORDS]);
    assert!(matches!(honest.poll(), Some(News::Left(NodeId(1)))));
    assert!(honest.poll().is_none(), "nothing more is believed");
    assert_eq!(honest.send(NodeId(1), [0; WORDS], &[]), Err(SendRefused::Gone(NodeId(1))));
}

/// Returns a connection with node 1, in which node 1 has sent a frame; `name` names its rings.
fn connection(name: &str) -> Link {
    let (mut lanes, _sender) = pair(name);
    while !matches!(lanes.peers[1], Peer::Connected(_)) {
        lanes.handle_all_events();
        std::thread::yield_now();
    }
    let Peer::Connected(peer) = lanes.disconnect(1) else { panic!("it is connected") };
    peer.link
}

/// Returns the rings of a process that has handled the frame of its peer, the peer's rings, and the inbox of the first.
fn polled_pair(name: &str) -> (Lanes, Lanes, PeerInbox) {
    let (mut lanes, peer) = pair(name);
    while lanes.poll().is_none() {
        std::thread::yield_now();
    }
    let (queue, wakes) = (Arc::clone(&lanes.events), Arc::clone(lanes.wakes.get_ref()));
    (lanes, peer, PeerInbox { queue, wakes })
}

#[test]
fn frames_of_a_successor_that_has_left_are_handled() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut lanes, _peer, inbox) = polled_pair("short-lived");
    inbox.left(NodeId(1));
    inbox.joined(connection("short-lived-2"));
    inbox.left(NodeId(1));
    assert!(matches!(lanes.poll(), Some(News::Restarted(NodeId(1)))));
    assert!(matches!(lanes.poll(), Some(News::Frame { from: NodeId(1), .. })));
    assert!(matches!(lanes.poll(), Some(News::Left(NodeId(1)))));
    assert!(lanes.poll().is_none());
    // A process that returns and leaves between two polls is reported in that order.
    inbox.joined(connection("short-lived-3"));
    inbox.left(NodeId(1));
    assert!(matches!(lanes.poll(), Some(News::Returned(NodeId(1)))));
    assert!(matches!(lanes.poll(), Some(News::Frame { from: NodeId(1), .. })));
    assert!(matches!(lanes.poll(), Some(News::Left(NodeId(1)))));
    assert!(lanes.poll().is_none());
}

/// Returns the kind of the next event, and the number of shared memory.
fn next_event(lanes: &mut Lanes) -> (&'static str, u64) {
    // A poll may leave memory to the next one.
    for _ in 0..2 {
        match lanes.poll() {
            Some(News::Frame { .. }) => return ("frame", 0),
            Some(News::Shown { name: [number, _], .. }) => return ("memory", number),
            Some(News::Left(_)) => return ("left", 0),
            Some(News::Restarted(_)) => return ("restarted", 0),
            Some(News::Returned(_)) => return ("returned", 0),
            None => {}
        }
    }
    ("none", 0)
}

#[test]
fn memory_of_a_process_is_shown_after_its_start_is_reported_and_before_its_end() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut lanes, _peer, inbox) = polled_pair("memory");
    let (_, file) = Segment::shared(Kind::Arena, 100).unwrap();
    let show = |number| {
        let memory = SharedMemory::open(&file, 100, |_| true).unwrap();
        assert!(inbox.shown(NodeId(1), [number, 0], memory));
    };
    (1..=2).for_each(show);
    inbox.left(NodeId(1));
    inbox.joined(connection("memory-2"));
    show(3);
    inbox.left(NodeId(1));
    let events = [("memory", 1), ("memory", 2), ("restarted", 0), ("memory", 3), ("frame", 0)];
    for event in events.into_iter().chain([("left", 0), ("none", 0)]) {
        assert_eq!(next_event(&mut lanes), event);
    }
    inbox.joined(connection("memory-3"));
    show(4);
    for event in [("returned", 0), ("memory", 4), ("frame", 0), ("none", 0)] {
        assert_eq!(next_event(&mut lanes), event);
    }
}

#[test]
fn frames_of_all_successors_are_handled_and_their_number_is_bounded() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut lanes, _peer, inbox) = polled_pair("replaced");
    for number in 0..=MAX_SUCCESSORS {
        inbox.joined(connection(&format!("replaced-{number}")));
    }
    for _ in 0..MAX_SUCCESSORS {
        assert!(matches!(lanes.poll(), Some(News::Restarted(NodeId(1)))));
        assert!(matches!(lanes.poll(), Some(News::Frame { from: NodeId(1), .. })));
    }
    // The last was refused, and the one before it counts as left.
    assert!(matches!(lanes.poll(), Some(News::Left(NodeId(1)))));
    assert!(lanes.poll().is_none());
}

/// Regression: each successor had a bound of its own, so that one peer could have 16 times as much memory mapped.
#[test]
fn memory_of_all_successors_together_is_bounded() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut peer = Connection::new(connection("hoard"));
    let (_, file) = Segment::shared(Kind::Arena, 100).unwrap();
    let half = inbox::MAX_SHOWN / 2;
    for number in 0..4 {
        peer.on_joined(Box::new(connection(&format!("hoard-{number}"))));
        for _ in 0..half {
            let memory = SharedMemory::open(&file, 100, |_| true).unwrap();
            assert!(peer.on_shown((NodeId(1), [0, 0], memory)).is_none());
        }
    }
    let kept: Vec<usize> = peer.successors.iter().map(|it| it.shown.len()).collect();
    assert_eq!(kept, [half, half, 0, 0]);
    assert!(peer.successors.iter().all(|it| it.has_left), "the newest was not refused");
}

/// Regression: once all successors had left, it was reported as memory of the last of them.
#[test]
fn memory_of_a_refused_process_is_given_to_no_other() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (mut lanes, _peer, inbox) = polled_pair("refused");
    for number in 0..=MAX_SUCCESSORS {
        inbox.joined(connection(&format!("refused-{number}")));
    }
    for _ in 0..MAX_SUCCESSORS {
        assert_eq!(next_event(&mut lanes), ("restarted", 0));
        assert_eq!(next_event(&mut lanes), ("frame", 0));
    }
    let (_, file) = Segment::shared(Kind::Arena, 100).unwrap();
    let memory = SharedMemory::open(&file, 100, |_| true).unwrap();
    assert!(inbox.shown(NodeId(1), [1, 0], memory));
    assert_eq!(next_event(&mut lanes), ("left", 0));
    assert_eq!(next_event(&mut lanes), ("none", 0));
}
