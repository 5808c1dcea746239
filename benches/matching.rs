//! Measures the cost of matching a message with its receive.
//!
//! 100,000 messages wait for their receive, and 64 receives for their message. A time covers the arrival of a message
//! and its receive; the goal is at most 100 ns. Programs receive roughly in order of arrival; in random order, each
//! message is a cache miss.

use criterion::{Criterion, criterion_group, criterion_main};
use midplane::via::message::matching::Pattern;
use midplane_benches::work::matching::{IN_ORDER, RANDOM, SHARED, exact, expected, unexpected};

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
