//! Measures what each layer of messages adds, without communication between cores.
//!
//! A time covers a message there and one back, the work of both sides together, on one thread. A layer's cost is the
//! difference to the layer above in the list.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
#[cfg(target_os = "linux")]
use midplane_benches::work::interfaces;
use midplane_benches::work::{descriptors, messages};

fn in_memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("there and back in memory");
    for length in [8, 64, 1024, 4096] {
        let bytes = vec![7; length];
        let id = |layer| BenchmarkId::new(layer, length);
        group.bench_function(id("carrier"), |b| b.iter(messages::carrier(&bytes)));
        group.bench_function(id("engine"), |b| b.iter(messages::engine(&bytes)));
        group.bench_function(id("process"), |b| b.iter(messages::process(&bytes)));
        group.bench_function(id("futures"), |b| b.iter(messages::futures(&bytes)));
    }
    group.finish();
}

fn posted(c: &mut Criterion) {
    let name = "a descriptor, posted and reaped by its host (at most 60 ns)";
    c.bench_function(name, |b| b.iter_custom(descriptors::posted_and_reaped));
}

#[cfg(target_os = "linux")]
fn over_shared_memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("there and back over shared memory, 64 bytes");
    let nics = interfaces::Nics::start("layers");
    group.bench_function("units", |b| b.iter(interfaces::units(&nics)));
    group
        .bench_function("Virtual Interfaces, gate shut", |b| b.iter(interfaces::interfaces(&nics)));
    group.bench_function("messages", |b| b.iter(interfaces::messages(&nics)));
    // NICs that were not run for seconds declare each other dead.
    let nics = interfaces::Nics::start_gated("layers, gated");
    group.bench_function("Virtual Interfaces, gate open", |b| b.iter(interfaces::gated(&nics)));
    group.bench_function("messages over lanes", |b| b.iter(interfaces::lanes(&nics)));
    group.finish();
}

#[cfg(not(target_os = "linux"))]
fn over_shared_memory(_: &mut Criterion) {}

criterion_group!(benches, in_memory, posted, over_shared_memory);
criterion_main!(benches);
