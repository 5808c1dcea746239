//! What matching costs while 100,000 messages wait for their receive and 64 receives for theirs.
//!
//! `cargo bench -p midplane-via --bench matching`. Nanoseconds a message: the median of 301 rounds
//! of 1,000 messages each (shorter than a time slice), everything about a message included (arrival, and its receive).

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::{Key, Matching, Pattern};

const HELD: u32 = 100_000;
const OPEN: u32 = 64;
const MESSAGES: u32 = 1_000;
const ROUNDS: usize = 301;
/// What an engine keeps of a message: 64 bytes.
type Message = [u64; 8];

/// A cheap permutation: neighbours in time are none in memory.
const fn scatter(i: u32) -> u32 {
    i.wrapping_mul(0x9E37_79B1) >> 3
}

const fn key(i: u32) -> Key {
    Key { context: Context(1), source: Peer(i % 16), tag: Tag(1_000 + i / 16) }
}

fn exact(key: Key) -> Pattern {
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

/// Median nanoseconds a message.
fn measure(mut round: impl FnMut(&mut Matching<u64, Message>, u32)) -> f64 {
    let mut matching = loaded();
    let mut times = [0.0; ROUNDS];
    let mut next = 0;
    for time in &mut times {
        let start = Instant::now();
        for _ in 0..MESSAGES {
            round(&mut matching, next);
            next = (next + 1) % HELD;
        }
        *time = start.elapsed().as_nanos() as f64 / f64::from(MESSAGES);
    }
    times.sort_unstable_by(f64::total_cmp);
    assert_eq!((matching.held_len(), matching.posted_len()), (HELD as usize, OPEN as usize));
    times[ROUNDS / 2]
}

/// A message meets one of the open receives, which is posted again.
fn expected(matching: &mut Matching<u64, Message>, i: u32) {
    let open = scatter(i) % OPEN;
    let key = Key { context: Context(1), source: Peer(open % 16), tag: Tag(open / 16) };
    let receive = matching.arrive(black_box(key)).1.expect("it is posted");
    assert!(matching.take(&exact(key)).is_none());
    matching.post(&exact(key), receive);
}

/// A message is held, and one of those that wait is received by what `pattern` makes of its key.
fn unexpected(matching: &mut Matching<u64, Message>, i: u32, pattern: impl Fn(Key) -> Pattern) {
    let wanted = pattern(key(scatter(i) % HELD));
    let held = matching.take(black_box(&wanted)).expect("it is held");
    let (arrival, met) = matching.arrive(held.key);
    assert!(met.is_none());
    matching.hold(held.key, arrival, held.message);
}

fn main() {
    let any_source = |key: Key| Pattern { source: None, ..exact(key) };
    let any_tag = |key: Key| Pattern { tag: None, ..exact(key) };
    let anything = |key: Key| Pattern { source: None, tag: None, ..exact(key) };
    println!("{HELD} messages held, {OPEN} receives posted; ns a message, asked for: at most 100");
    println!("  meets a posted receive      {:6.1}", measure(expected));
    println!("  held, then received exactly {:6.1}", measure(|m, i| unexpected(m, i, exact)));
    println!("    from any source           {:6.1}", measure(|m, i| unexpected(m, i, any_source)));
    println!("    with any tag              {:6.1}", measure(|m, i| unexpected(m, i, any_tag)));
    println!("    anything                  {:6.1}", measure(|m, i| unexpected(m, i, anything)));
}
