use std::collections::BTreeSet;

use midplane_simhw::frame::Header;
use midplane_simhw::id::Incarnation;
use proptest::prelude::*;

use super::*;

/// Bytes of a frame that is not the last one.
const PART: u32 = 1_400;
const PORT: PortId = PortId(3);

/// The messages of a sender: one of a single frame, the shortest and the longest among them.
const TOTALS: [u32; 4] = [SHORT as u32 + 1, 2 * PART, 20_000, MESSAGE as u32];

/// The name of a message: its sender, the sender's incarnation, and its number.
type Name = (u16, u32, u32);

fn content((sender, incarnation, message): Name, offset: u32) -> u8 {
    (u32::from(sender) * 7 + incarnation * 31 + message * 57 + offset / 3) as u8 | 1
}

fn total(message: u32) -> u32 {
    TOTALS[message as usize % TOTALS.len()]
}

fn pieces(message: u32) -> u32 {
    total(message).div_ceil(PART)
}

/// The receiver, and the messages that it has delivered.
struct Receiver {
    long: LongMessages,
    now: Instant,
    counters: ProgramCounters,
    delivered: BTreeSet<Name>,
}

impl Receiver {
    fn new() -> Self {
        Self {
            long: LongMessages::new(),
            now: Instant::ZERO,
            counters: ProgramCounters::default(),
            delivered: BTreeSet::new(),
        }
    }

    /// Receives a frame of a message with these bytes of its content. Checks what it completes.
    fn frame(&mut self, name: Name, port: PortId, (offset, length, total): (u32, u32, u32)) {
        let (sender, incarnation, message) = name;
        let bytes: Vec<u8> = (0..length).map(|at| content(name, offset.wrapping_add(at))).collect();
        let header = Header {
            source: NodeId(sender),
            incarnation: (0..incarnation).fold(Incarnation::FIRST, |last, _| last.next()),
            port,
            words: Fragment { message, offset, total, tag: 0 }.words(),
            ..Header::default()
        };
        let frame = Frame { header, payload: Payload::from(&bytes[..]) };
        if let Some(whole) = self.long.take(self.now, &frame, &mut self.counters) {
            assert!(whole.len() > SHORT && whole.len() <= MESSAGE);
            let mut bytes = whole.iter().zip(0..);
            assert!(bytes.all(|(byte, at)| *byte == content(name, at)), "a gap in {name:?}");
            assert!(self.delivered.insert(name), "{name:?} came twice");
        }
        assert!(self.long.heap.used() <= ASSEMBLY_BYTES);
    }

    fn piece(&mut self, name: Name, piece: u32) {
        let (offset, total) = (piece * PART, total(name.2));
        self.frame(name, PORT, (offset, PART.min(total - offset), total));
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Some pieces of a message, in this order.
    Pieces(Name, Vec<u32>),
    /// A frame with any place in its message.
    Lie(Name, u32, u32, u32),
    /// A frame for another port than the rest of its message.
    Elsewhere(Name, u32),
    /// Lets some milliseconds pass.
    Wait(u64),
    /// A sender is down.
    Down(u16),
    /// Closes a port of the receiver.
    Close(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let name = || (0..4_u16, 0..2_u32, 0..12_u32);
    let edge = || {
        prop_oneof![
            0..100_000_u32,
            Just(0),
            Just(PART),
            Just(MESSAGE as u32),
            Just(MESSAGE as u32 + 1),
            Just(u32::MAX)
        ]
    };
    prop_oneof![
        4 => (name(), prop::collection::vec(0..50_u32, 0..60)).prop_map(|(name, pieces)| Op::Pieces(name, pieces)),
        3 => name().prop_map(|name| Op::Pieces(name, (0..pieces(name.2)).collect())),
        4 => (name(), edge(), 0..PART, edge()).prop_map(|(name, offset, length, total)| Op::Lie(name, offset, length, total)),
        1 => (name(), 0..50_u32).prop_map(|(name, piece)| Op::Elsewhere(name, piece)),
        1 => (0..150_u64).prop_map(Op::Wait),
        1 => (0..4_u16).prop_map(Op::Down),
        1 => (0..5_u16).prop_map(Op::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Sends any frames: a delivered message has no gap and is delivered once. The memory stays bounded, and is free
    /// again when no frame has arrived for the timeout. Then a correct sender's message is delivered, in whatever order
    /// its frames arrive, and if each arrives twice.
    #[test]
    fn any_frames_deliver_only_whole_messages_once(
        ops in prop::collection::vec(op(), 0..60),
        order in Just((0..pieces(3)).chain(0..pieces(3)).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut receiver = Receiver::new();
        for op in ops {
            match op {
                Op::Pieces(name, order) => {
                    order.iter().for_each(|piece| receiver.piece(name, piece % pieces(name.2)));
                }
                Op::Lie(name, offset, length, total) => {
                    receiver.frame(name, PORT, (offset, length, total));
                }
                Op::Elsewhere(name, piece) => {
                    let (offset, total) = (piece % pieces(name.2) * PART, total(name.2));
                    let length = PART.min(total - offset);
                    receiver.frame(name, PortId(4), (offset, length, total));
                }
                Op::Wait(millis) => {
                    receiver.now = receiver.now.plus_nanos(millis * 1_000_000);
                    receiver.counters.incomplete += receiver.long.expire(receiver.now);
                }
                Op::Down(sender) => {
                    receiver.long.forget_sender(NodeId(sender));
                }
                Op::Close(port) => {
                    receiver.long.forget_port(PortId(port));
                }
            }
        }
        receiver.now += ASSEMBLY_TIMEOUT;
        receiver.long.expire(receiver.now);
        prop_assert!(receiver.long.is_empty());
        let name = (9, 0, 3);
        order.iter().for_each(|piece| receiver.piece(name, *piece));
        prop_assert!(receiver.delivered.contains(&name));
    }
}

#[test]
fn senders_beyond_the_memory_are_dropped_and_counted_until_dead_ones_time_out() {
    let mut receiver = Receiver::new();
    // Each message takes a few bytes more than its own.
    let room = (ASSEMBLY_BYTES / MESSAGE) as u16 - 1;
    for sender in 0..20 {
        receiver.piece((sender, 0, 3), 0);
    }
    assert_eq!(receiver.counters.without_memory, u64::from(20 - room));
    receiver.now += ASSEMBLY_TIMEOUT;
    assert_eq!(receiver.long.expire(receiver.now), u64::from(room));
    for piece in 0..pieces(7) {
        receiver.piece((19, 0, 7), piece);
    }
    assert!(receiver.delivered.contains(&(19, 0, 7)));
}

#[test]
fn a_sender_that_restarts_or_begins_anew_loses_the_message_that_it_left() {
    let mut receiver = Receiver::new();
    for (name, incomplete) in [((1, 0, 3), 0), ((1, 0, 7), 1), ((1, 1, 3), 2)] {
        receiver.piece(name, 0);
        assert_eq!(receiver.counters.incomplete, incomplete);
    }
    assert_eq!(receiver.long.forget_sender(NodeId(1)), 1);
    assert!(receiver.long.is_empty());
    assert_eq!(receiver.delivered.len(), 0);
}

#[test]
fn frames_that_no_sender_sends_are_counted_as_malformed() {
    let mut receiver = Receiver::new();
    let (short, long) = (SHORT as u32, MESSAGE as u32);
    let lies = [
        (0, short, short),
        (0, 1, 0),
        (0, 10, long + 1),
        (0, 0, long),
        (long - 5, 6, long),
        (u32::MAX, 6, long),
        (0, 200, 199),
    ];
    for lie in lies {
        receiver.frame((1, 0, 1), PORT, lie);
    }
    assert_eq!(receiver.counters.malformed, lies.len() as u64);
    assert!(receiver.long.is_empty());
}
