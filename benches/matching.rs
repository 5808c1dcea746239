//! What does matching a message with its receive cost?
//!
//! 100,000 messages wait for their receive, and 64 receives for theirs. A time is that of a message:
//! its arrival, and its receive. At most 100 ns are asked for.

#[path = "work/matching.rs"]
mod work;

use criterion::{Criterion, criterion_group, criterion_main};
use midplane::via::message::matching::Pattern;
use work::{exact, expected, unexpected};

fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("matching, 100,000 held (at most 100 ns)");
    group.bench_function("meets a posted receive", |b| b.iter(expected()));
    group.bench_function("held, then received exactly", |b| b.iter(unexpected(exact)));
    group.bench_function("held, then received from any source", |b| {
        b.iter(unexpected(|key| Pattern { source: None, ..exact(key) }));
    });
    group.bench_function("held, then received with any tag", |b| {
        b.iter(unexpected(|key| Pattern { tag: None, ..exact(key) }));
    });
    group.bench_function("held, then received by a receive of anything", |b| {
        b.iter(unexpected(|key| Pattern { source: None, tag: None, ..exact(key) }));
    });
    group.finish();
}

criterion_group!(benches, matching);
criterion_main!(benches);
