//! Measures the time of a plan: cached, cold with equal fragments, ramped, and the best of all families.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use midplane::pipeline::auto::Refragment;
use midplane::pipeline::fixed::{self, Signature};
use midplane::pipeline::{Limits, Pipeline, Planner, Request, auto, ramp};
use midplane::simhw::rng::Rng;
use midplane_benches::chains::{between, chain};

fn cached(c: &mut Criterion) {
    let mut rng = Rng::new(1, "plans");
    let mut planner = Planner::new(chain(&mut rng, 4), Limits::new()).expect("no limits");
    let sizes: Vec<u64> = (0..1024).map(|_| between(&mut rng, 64.0, 4e6) as u64).collect();
    for &bytes in &sizes {
        black_box(planner.plan(bytes));
    }
    while let Some(wanted) = planner.poll_ramp_request() {
        planner.install(wanted.compute().expect("random chains have overheads"));
    }
    let mut turn = 0;
    c.bench_function("pipeline/cached plan (at most 20 ns)", |b| {
        b.iter(|| {
            turn = (turn + 1) % sizes.len();
            black_box(planner.plan(sizes[turn]).planned())
        });
    });
}

/// Measures `work` on one of `inputs` after another.
fn in_turn<T, R>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    inputs: &[T],
    work: impl Fn(usize, &T) -> R,
) {
    let mut turn = 0;
    group.bench_function(id, |b| {
        b.iter(|| {
            turn = (turn + 1) % inputs.len();
            black_box(work(turn, &inputs[turn]))
        });
    });
}

fn cold(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline/equal fragments, cold (at most 50 ns)");
    for stages in [2, 4, 8] {
        let mut rng = Rng::new(2, "plans");
        let chains: Vec<Pipeline> = (0..256).map(|_| chain(&mut rng, stages)).collect();
        let signatures: Vec<Signature> = chains.iter().map(Signature::new).collect();
        let bytes = |turn| black_box(1000.0 + 97.0 * turn as f64);
        in_turn(&mut group, BenchmarkId::new("new chain", stages), &chains, |turn, one| {
            fixed::count(one, bytes(turn), 1, 65_536)
        });
        in_turn(&mut group, BenchmarkId::new("known chain", stages), &signatures, |turn, known| {
            known.count(bytes(turn), 1, 65_536)
        });
    }
    group.finish();
}

fn computed(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline/ramp (at most 100 us) and auto");
    for stages in [2, 4, 8] {
        let mut rng = Rng::new(3, "plans");
        let chains: Vec<_> = (0..64)
            .map(|_| (chain(&mut rng, stages), Request::new(between(&mut rng, 1000.0, 64_000.0))))
            .collect();
        in_turn(&mut group, BenchmarkId::new("ramp", stages), &chains, |_, (chain, request)| {
            ramp(chain, request)
        });
        in_turn(&mut group, BenchmarkId::new("auto", stages), &chains, |_, (chain, request)| {
            auto(chain, request, None, Refragment::WhereItHelps)
        });
    }
    group.finish();
}

criterion_group!(benches, cached, cold, computed);
criterion_main!(benches);
