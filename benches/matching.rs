//! What does matching a message with its receive cost?
//!
//! 100,000 messages wait for their receive, and 64 receives for theirs. A time is that of a message:
//! its arrival, and its receive. At most 100 ns are asked for. Programs receive in about the order in
//! which messages came; in random order, each message has to be fetched from where it lies in memory.

#[path = "work/matching.rs"]
mod work;

use criterion::{Criterion, criterion_group, criterion_main};
use midplane::via::message::matching::Pattern;
use work::{IN_ORDER, RANDOM, SHARED, exact, expected, unexpected};

fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("matching, 100,000 held (at most 100 ns)");
    group.bench_function("meets a posted receive", |b| b.iter(expected()));
    let orders = [
        ("held, received in order", IN_ORDER),
        ("held, received at random", RANDOM),
        ("held, keys shared, in order", SHARED),
    ];
    for (name, order) in orders {
        group.bench_function(format!("{name}: exactly"), |b| b.iter(unexpected(order, exact)));
        group.bench_function(format!("{name}: from any source"), |b| {
            b.iter(unexpected(order, |key| Pattern { source: None, ..exact(key) }));
        });
        group.bench_function(format!("{name}: with any tag"), |b| {
            b.iter(unexpected(order, |key| Pattern { tag: None, ..exact(key) }));
        });
    }
    group.bench_function("held, received by a receive of anything", |b| {
        b.iter(unexpected(SHARED, |key| Pattern { source: None, tag: None, ..exact(key) }));
    });
    group.finish();
}

criterion_group!(benches, matching);
criterion_main!(benches);
