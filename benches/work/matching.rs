//! Matching while 100,000 messages wait for their receive and 64 receives for theirs.

use std::hint::black_box;

use midplane::via::message::envelope::{Context, Peer, Tag};
use midplane::via::message::matching::{Key, Matching, Pattern};

const HELD: u32 = 100_000;
const OPEN: u32 = 64;
/// What an engine keeps of a message: 64 bytes.
type Message = [u64; 8];

/// A cheap permutation: neighbours in time are none in memory.
const fn scatter(i: u32) -> u32 {
    i.wrapping_mul(0x9E37_79B1) >> 3
}

/// The messages that are met, one after another.
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

/// The receive of that message alone.
pub(crate) fn exact(key: Key) -> Pattern {
    Pattern { context: key.context, source: Some(key.source), tag: Some(key.tag) }
}

fn loaded() -> Matching<u64, Message> {
    let mut matching = Matching::new(1);
    for i in 0..HELD {
        let key = key(scatter(i) % HELD);
        let (arrival, _) = matching.arrive(key);
        matching.hold(key, arrival, [u64::from(i); 8]);
    }
    for i in 0..OPEN {
        let open = Key { context: Context(1), source: Peer(i % 16), tag: Tag(i / 16) };
        matching.post(&exact(open), u64::from(i));
    }
    matching
}

/// A message meets one of the open receives, which is posted again.
pub(crate) fn expected() -> impl FnMut() {
    let (mut matching, mut turns) = (loaded(), turns());
    move || {
        let open = scatter(turns()) % OPEN;
        let key = Key { context: Context(1), source: Peer(open % 16), tag: Tag(open / 16) };
        let receive = matching.arrive(black_box(key)).1.expect("it is posted");
        assert!(matching.take(&exact(key)).is_none());
        matching.post(&exact(key), receive);
    }
}

/// A message is held, and one of those that wait is received by what `pattern` makes of its key.
pub(crate) fn unexpected(pattern: impl Fn(Key) -> Pattern) -> impl FnMut() {
    let (mut matching, mut turns) = (loaded(), turns());
    move || {
        let wanted = pattern(key(scatter(turns()) % HELD));
        let held = matching.take(black_box(&wanted)).expect("it is held");
        let (arrival, met) = matching.arrive(held.key);
        assert!(met.is_none());
        matching.hold(held.key, arrival, held.message);
    }
}
