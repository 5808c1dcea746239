//! Bounds of the memory that a peer can make an engine use, whatever it sends and however little it receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use crate::engines::{cluster, message, receive, send, settle};
use midplane_simhw::region::Payload;
use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::request::Mode;
use midplane_via::message::transport::{InitError, Wait};

const WINDOW: usize = 64 * 1024;
const PACKETS: u32 = 100_000;

/// A peer that sends the packets that `make` makes from their numbers.
struct Flood<M> {
    make: M,
    next: Arc<AtomicU32>,
    bytes: Vec<u8>,
    /// True if the peer receives the packets sent to it, such as credit.
    takes: bool,
}

impl<M: FnMut(u32) -> (Envelope, usize) + Send> Carrier for Flood<M> {
    fn own(&self) -> Peer {
        Peer(0)
    }
    fn connect(&mut self, _: &[Peer]) -> Result<(), InitError> {
        Ok(())
    }
    fn room(&self) -> usize {
        4096
    }
    fn post(&mut self, _: Peer, _: &Envelope, _: &[u8]) -> Result<(), Refusal> {
        if self.takes { Ok(()) } else { Err(Refusal::Full) }
    }
    fn poll(&mut self) -> Option<Event<'_>> {
        let next = self.next.load(Ordering::Relaxed);
        if next == PACKETS {
            return None;
        }
        let (envelope, length) = (self.make)(next);
        self.next.store(next + 1, Ordering::Relaxed);
        let payload = Payload::from(&self.bytes[..length]);
        Some(Event::Packet { from: Peer(1), envelope, payload })
    }
    fn arm_wakeup(&mut self, _: &Waker) -> bool {
        true
    }
    fn close(&mut self) {}
}

fn packet(kind: Kind, number: u32) -> Envelope {
    Envelope {
        length: 0,
        tag: Tag(number),
        kind,
        marks: Marks::NONE,
        source: Peer(1),
        context: Context(number % 7),
        sequence: number,
        to: 0,
        from: u64::from(number) + 1,
    }
}

/// Floods an engine, and checks the bytes that it uses meanwhile. Returns false if the sender then counts as lost.
#[track_caller]
fn flood(takes: bool, make: impl FnMut(u32) -> (Envelope, usize) + Send + 'static) -> bool {
    let next = Arc::new(AtomicU32::new(0));
    let flood = Flood { make, next: Arc::clone(&next), bytes: vec![7; 4096], takes };
    let mut engine = Engine::new(flood, Config::default().window(WINDOW));
    engine.init().unwrap();
    engine.add_processes(&[Peer(1)]).unwrap();
    let counts = allocation_counter::measure(|| {
        while next.load(Ordering::Relaxed) < PACKETS {
            engine.advance(Wait::Not);
        }
    });
    // The window, as much again for the rounding of buffers, and other state.
    let most = 4 * WINDOW as u64 + 64 * 1024;
    assert!(counts.bytes_max < most, "{} bytes", counts.bytes_max);
    assert!(engine.unexpected_bytes() <= WINDOW as u64);
    engine.explain().lost.is_empty()
}

#[test]
fn withdrawals_are_kept_up_to_a_bound() {
    assert!(!flood(false, |number| (packet(Kind::Withdraw, number), 0)), "it breaks the protocol");
}

#[test]
fn seeks_are_kept_up_to_a_bound() {
    assert!(!flood(false, |number| (packet(Kind::Seek, number), 0)), "it breaks the protocol");
}

#[test]
fn hints_use_bounded_memory() {
    assert!(flood(false, |number| (packet(Kind::Hint, number), 0)));
}

#[test]
fn messages_are_kept_up_to_the_window() {
    for length in [0, 1, 100, 4096] {
        let eager = move |number| {
            let envelope = packet(Kind::Eager, number);
            (Envelope { length: length as u32, ..envelope }, length)
        };
        assert!(!flood(false, eager), "it exceeds its window");
    }
    let rts = |number| (Envelope { length: 9, ..packet(Kind::Rts, number) }, 0);
    assert!(!flood(false, rts), "it exceeds its window");
}

/// Withdraws each message after it was sent: the window never fills, and credit is always due.
#[test]
fn credit_that_a_peer_does_not_receive_is_stored_once() {
    flood(false, |number| match number % 3 {
        0 => (Envelope { sequence: number / 3, tag: Tag(1), ..packet(Kind::Rts, 0) }, 0),
        1 => (Envelope { tag: Tag(1), ..packet(Kind::Withdraw, 0) }, 0),
        _ => (packet(Kind::Hint, number), 0),
    });
}

#[test]
fn unexpected_answers_lose_their_sender() {
    for kind in [Kind::Cts, Kind::Acknowledge, Kind::Withdrawn, Kind::Sought, Kind::Settle] {
        assert!(!flood(false, move |number| (packet(kind, number), 0)), "{kind:?}");
    }
}

/// Fills one stream's part of the window with unread messages; messages of another stream still arrive whole, at once.
#[test]
fn an_unread_stream_occupies_only_its_part_of_the_window() {
    let config = Config::default().eager(1_000).window(WINDOW);
    let mut pair = cluster(2, MemoryConfig::default(), config);
    pair.iter_mut().for_each(|engine| engine.assert_no_any_tag(Context(0)));
    for number in 0..200 {
        let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, number, 900));
    }
    settle(&mut pair);
    let (kept, eager) = (pair[1].unexpected_bytes(), pair[0].counters().eager);
    assert!(kept <= WINDOW as u64 / 8, "{kept} bytes of one stream");
    for number in 0..5 {
        let _ = send(&mut pair[0], Mode::Standard, 1, 2, &message(0, number, 900));
    }
    settle(&mut pair);
    assert_eq!(pair[0].counters().eager, eager + 5);
}

/// The tag of a notice that its sender left a collective operation.
const LEFT: Tag = Tag(1 << 31);

/// Makes a notice that its sender has left a collective operation, or has revoked a communicator.
fn notice(kind: Kind, number: u32) -> Envelope {
    Envelope { tag: LEFT, context: Context(4 * number + 1 + number % 2), ..packet(kind, number) }
}

#[test]
fn notices_of_abandoned_operations_are_kept_up_to_a_bound_and_occupy_no_window() {
    let whole = |number| (Envelope { from: 0, ..notice(Kind::Eager, number) }, 0);
    assert!(flood(true, whole), "it follows the protocol");
}

#[test]
fn hints_of_notices_are_answered_up_to_a_bound() {
    let hint = |number| (notice(Kind::Hint, number), 0);
    assert!(flood(true, hint), "it receives the answers");
    assert!(!flood(false, hint), "it breaks the protocol");
}

/// Has the CTSs of many messages wait for a peer, which then revokes a communicator.
#[test]
fn answers_to_messages_do_not_count_as_answers_to_notices() {
    const MESSAGES: u32 = 3_000;
    let make = |number| match number {
        0..MESSAGES => (Envelope { context: Context(0), ..packet(Kind::Hint, number) }, 0),
        _ => (notice(Kind::Hint, number), 0),
    };
    let next = Arc::new(AtomicU32::new(0));
    let flood = Flood { make, next: Arc::clone(&next), bytes: Vec::new(), takes: false };
    let mut engine = Engine::new(flood, Config::default().window(WINDOW));
    engine.init().unwrap();
    engine.add_processes(&[Peer(1)]).unwrap();
    for _ in 0..MESSAGES {
        let _ = receive(&mut engine, None, None, 0);
    }
    while next.load(Ordering::Relaxed) <= MESSAGES {
        engine.advance(Wait::Not);
    }
    assert_eq!(engine.counters().expected, u64::from(MESSAGES));
    assert!(engine.explain().lost.is_empty(), "it follows the protocol");
}
