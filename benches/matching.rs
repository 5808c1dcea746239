//! Measures the cost of matching a message with its receive.
//!
//! 100,000 messages wait for their receive, and 64 receives for their message. A time covers the arrival of a message
//! and its receive; the goal is at most 100 ns. Programs receive roughly in order of arrival; in random order, each
//! message is a cache miss.
//!
//! `cargo bench -p midplane-benches --bench matching -- --json` prints the median of some runs of the rows with messages held.

use std::hint::black_box;

use criterion::{Criterion, criterion_group};
use midplane::via::message::matching::Pattern;
use midplane_benches::work::matching::{IN_ORDER, RANDOM, SHARED, exact, expected, unexpected};
use midplane_kit::claims::median;
use serde_json::json;

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

/// Steps of a run with `--json`, and runs.
const STEPS: u32 = 2_000_000;
const RUNS: usize = 7;

/// Returns the median over some runs of the nanoseconds of a step.
fn nanos(mut step: impl FnMut()) -> f64 {
    let run = |_| {
        #[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
        let begin = std::time::Instant::now();
        (0..STEPS).for_each(|_| black_box(&mut step)());
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
    };
    median((0..RUNS).map(run).collect())
}

fn main() {
    if std::env::args().any(|argument| argument == "--json") {
        let rows = [("in-order", IN_ORDER), ("random", RANDOM), ("shared-keys", SHARED)]
            .map(|(what, order)| json!({"what": what, "ns": nanos(unexpected(order, exact))}));
        println!("{}", json!({"rows": rows}));
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
