//! Matching while 100,000 messages wait for their receive and 64 receives for theirs.

use std::hint::black_box;

use midplane::via::message::envelope::{Context, Peer, Tag};
use midplane::via::message::matching::{Key, Matching, Pattern};

const HELD: u32 = 100_000;
const OPEN: u32 = 64;
/// Stored part of a message: 64 bytes; an engine stores 40.
type Message = [u64; 8];

/// Permutes cheaply: consecutive numbers are not adjacent in memory.
const fn scatter(i: u32) -> u32 {
    i.wrapping_mul(0x9E37_79B1) >> 3
}

/// Permutes the numbers below `HELD` almost randomly.
const fn shuffled(i: u32) -> u32 {
    let mut at = i;
    loop {
        at = at.wrapping_mul(0x9E37_79B1) % HELD.next_power_of_two();
        at ^= at >> 9;
        at = at.wrapping_mul(0x85EB_CA6B) % HELD.next_power_of_two();
        at ^= at >> 7;
        if at < HELD {
            return at;
        }
    }
}

/// The numbers of the keys of the arriving and of the requested message, by step.
#[derive(Clone, Copy)]
pub struct Order {
    arrives: fn(u32) -> u32,
    requested: fn(u32) -> u32,
}

/// Each message has a key of its own; receives follow the order of arrival.
pub const IN_ORDER: Order = Order { arrives: |i| i, requested: |i| i };
/// Each message has a key of its own; receives are in random order.
pub const RANDOM: Order = Order { arrives: |i| i, requested: shuffled };
/// Random keys, a few of them shared (63,000 keys); receives follow the order of arrival.
pub const SHARED: Order =
    Order { arrives: |i| scatter(i) % HELD, requested: |i| scatter(i) % HELD };

/// Returns the sequence of message numbers.
fn turns() -> impl FnMut() -> u32 {
    let mut next = 0;
    move || {
        next = (next + 1) % HELD;
        next
    }
}

const fn key(i: u32) -> Key {
    Key { context: Context(1), source: Peer(i % 16), tag: Tag(1_000 + i / 16) }
}

/// Returns the pattern of that message alone.
pub fn exact(key: Key) -> Pattern {
    Pattern { context: key.context, source: Some(key.source), tag: Some(key.tag) }
}

fn loaded(order: Order) -> Matching<u64, Message> {
    let mut matching = Matching::new(1);
    for i in 0..HELD {
        let key = key((order.arrives)(i));
        let (arrival, _) = matching.arrive(key);
        matching.hold(key, arrival, [u64::from(i); 8]);
    }
    for i in 0..OPEN {
        let open = Key { context: Context(1), source: Peer(i % 16), tag: Tag(i / 16) };
        matching.post(&exact(open), u64::from(i));
    }
    matching
}

/// Returns a step in which a message meets a posted receive, which is then posted again.
pub fn expected() -> impl FnMut() {
    let (mut matching, mut turns) = (loaded(SHARED), turns());
    move || {
        let open = scatter(turns()) % OPEN;
        let key = Key { context: Context(1), source: Peer(open % 16), tag: Tag(open / 16) };
        let receive = matching.arrive(black_box(key)).1.expect("it is posted");
        assert!(matching.take(&exact(key)).is_none());
        matching.post(&exact(key), receive);
    }
}

/// Returns a step in which one message is held, and a held one is received by `pattern` of its key.
pub fn unexpected(order: Order, pattern: impl Fn(Key) -> Pattern) -> impl FnMut() {
    let (mut matching, mut turns) = (loaded(order), turns());
    move || {
        let wanted = pattern(key((order.requested)(turns())));
        let held = matching.take(black_box(&wanted)).expect("it is held");
        let (arrival, met) = matching.arrive(held.key);
        assert!(met.is_none());
        matching.hold(held.key, arrival, held.message);
    }
}
