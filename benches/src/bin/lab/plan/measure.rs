//! Planning under noise and change, and the speed of the plan cache.

use std::time::Instant;

use hdrhistogram::Histogram;
use midplane::pipeline::estimate::{Monitor, Path, Verdict, observe};
use midplane::pipeline::fixed::Signature;
use midplane::pipeline::{Limits, Pipeline, Planner, Request, Stage, fixed, ramp};

use super::numbers::Report;
use midplane_benches::chains::{Dice, Sample};

/// A chain with noise: every time is off by some percent, some by far.
struct Noisy<'a> {
    chain: &'a Pipeline,
    dice: &'a mut Dice,
    noise: f64,
    outliers: f64,
}

impl Noisy<'_> {
    fn blur(&mut self, us: f64) -> f64 {
        if self.dice.unit() < self.outliers {
            us * (1.5 + 3.5 * self.dice.unit())
        } else {
            us * (1.0 + self.noise * self.dice.normal()).max(0.1)
        }
    }
}

impl Path for Noisy<'_> {
    fn latency(&mut self, bytes: f64) -> f64 {
        let us = self.chain.latency(&[bytes], None).get();
        self.blur(us)
    }

    fn interval(&mut self, bytes: f64) -> f64 {
        let us =
            self.chain.stages().iter().map(|stage| stage.time(bytes).get()).fold(0.0, f64::max);
        self.blur(us)
    }
}

/// Compares equal fragments planned from noisy observations with those planned from the true costs.
pub(crate) fn black_box(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed ^ 11);
    let (mut regret, mut error) = (Sample::default(), Sample::default());
    for _ in 0..samples {
        let n = dice.whole(2, 8);
        let chain = dice.chain(n);
        let mut path = Noisy { chain: &chain, dice: &mut dice, noise: 0.05, outliers: 0.1 };
        let seen = observe(&mut path, 256.0, 65_536.0).expect("the range is one");
        let truth = Signature::new(&chain);
        for bytes in [4096.0, 16_384.0, 65_536.0] {
            let (count, best) = (seen.count(bytes), truth.count(bytes, 1, 65_536));
            let (took, could) =
                (truth.latency(bytes, count as f64).get(), truth.latency(bytes, best as f64).get());
            regret.push(100.0 * (took / could - 1.0));
            error.push(100.0 * (seen.latency(bytes, count).get() / took - 1.0).abs());
        }
    }
    report.at_most(
        "black box, 5 % noise, 10 % outliers: p95 regret",
        regret.quantile(0.95),
        0.3,
        "%",
    );
    report.at_most("black box: p95 prediction error", error.quantile(0.95), 4.0, "%");
    report.info("black box: mean regret", regret.mean(), "%");
    report.info("black box: mean prediction error", error.mean(), "%");
}

/// Makes a stage slower at once: measures the messages until the planner replans, and the regret of its plan then.
pub(crate) fn sudden_change(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed ^ 12);
    for factor in [2.0, 4.0] {
        let (mut messages, mut regret, mut stale) =
            (Sample::default(), Sample::default(), Sample::default());
        let mut alarms = 0;
        for _ in 0..samples {
            let outcome = one_change(&mut dice, factor);
            messages.push(outcome.messages);
            regret.push(100.0 * outcome.regret);
            stale.push(100.0 * outcome.stale);
            alarms += outcome.false_alarms;
        }
        let name = |what| format!("stage {factor} x slower: {what}");
        report.at_most(name("messages until replanned, max"), messages.max(), 32.0, "messages");
        report.info(name("messages until replanned, mean"), messages.mean(), "messages");
        report.at_most(name("regret after 32 messages, p95"), regret.quantile(0.95), 2.0, "%");
        report.info(name("regret after 32 messages, mean"), regret.mean(), "%");
        report.info(name("regret of the old plan, p95"), stale.quantile(0.95), "%");
        report.info(
            name("alarms before the change, in 200 messages each"),
            f64::from(alarms),
            "alarms",
        );
    }
}

struct Outcome {
    messages: f64,
    regret: f64,
    stale: f64,
    false_alarms: u32,
}

fn one_change(dice: &mut Dice, factor: f64) -> Outcome {
    let n = dice.whole(2, 6);
    let old = dice.chain(n);
    let request = Request::new(dice.between(8000.0, 64_000.0));
    let slow = dice.whole(0, n - 1);
    let mut stages = old.stages().to_vec();
    let stage = stages[slow];
    stages[slow] = Stage::new(stage.overhead().get() * factor, stage.per_byte().get() * factor)
        .expect("a cost times four");
    let new = Pipeline::new(stages).expect("n is at least 2");
    let mut monitor = Monitor::new(&old);
    let plan_for = |monitor: &Monitor| {
        let chain = monitor.pipeline();
        let plan =
            if monitor.is_risky() { fixed(&chain, &request) } else { ramp(&chain, &request) };
        plan.expect("random chains have overheads").fragments().to_vec()
    };
    let first = plan_for(&monitor);
    let (mut sizes, mut replanned, mut false_alarms) = (first.clone(), None, 0);
    for message in 0..200 + 32 {
        let chain = if message < 200 { &old } else { &new };
        let mut replan = false;
        for &bytes in &sizes {
            for (index, stage) in chain.stages().iter().enumerate() {
                let us = stage.time(bytes).get() * (1.0 + 0.05 * dice.normal()).max(0.1);
                replan |= monitor.handle_timing(index, bytes, us) == Verdict::Replan;
            }
        }
        if replan {
            sizes = plan_for(&monitor);
            if message < 200 {
                false_alarms += 1;
            } else {
                replanned.get_or_insert(message - 199);
            }
        }
    }
    let best = ramp(&new, &request).expect("random chains have overheads").latency().get();
    let regret = |sizes: &[f64]| new.latency(sizes, None).get() / best - 1.0;
    let messages = replanned.map_or(f64::INFINITY, f64::from);
    Outcome { messages, regret: regret(&sizes), stale: regret(&first), false_alarms }
}

/// Times calls of the planner in batches: reading the clock costs as much as one call.
#[expect(clippy::disallowed_methods, reason = "a study of speed")]
pub(crate) fn cache(report: &mut Report, seed: u64) {
    const BATCH: u64 = 64;
    let mut dice = Dice::new(seed ^ 13);
    let chain = dice.chain(4);
    let mut planner = Planner::new(chain.clone(), Limits::new()).expect("no limits");
    let sizes: Vec<u64> = (0..4096).map(|_| dice.between(64.0, 4e6) as u64).collect();
    for &bytes in &sizes {
        let _ = planner.plan(bytes).planned();
    }
    while let Some(wanted) = planner.poll_ramp_request() {
        let ramp = wanted.compute().expect("random chains have overheads");
        planner.install(ramp);
    }
    let mut cached = Histogram::<u64>::new(3).expect("three digits are allowed");
    let (mut at, mut single) = (0, Histogram::<u64>::new(3).expect("three digits are allowed"));
    for _ in 0..20_000 {
        let start = Instant::now();
        for _ in 0..BATCH {
            std::hint::black_box(planner.plan(std::hint::black_box(sizes[at % sizes.len()])));
            at += 1;
        }
        // In tenths of a nanosecond.
        cached.saturating_record(start.elapsed().as_nanos() as u64 * 10 / BATCH);
        let start = Instant::now();
        std::hint::black_box(planner.plan(std::hint::black_box(sizes[at % sizes.len()])));
        single.saturating_record(start.elapsed().as_nanos() as u64);
        at += 1;
    }
    let empty = reading_cost();
    report.at_most(
        "cached plan, p50 of batches of 64",
        cached.value_at_quantile(0.5) as f64 / 10.0,
        20.0,
        "ns",
    );
    report.info(
        "cached plan, p99 of batches of 64",
        cached.value_at_quantile(0.99) as f64 / 10.0,
        "ns",
    );
    let single = (single.value_at_quantile(0.99) as f64 - empty).max(0.0);
    report.at_most("cached plan, p99 of single calls less the clock's median", single, 100.0, "ns");
    fixed_cold(report, &mut dice, &sizes);
}

/// Returns the median cost of reading the clock twice, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "a study of speed")]
fn reading_cost() -> f64 {
    let mut empty = Histogram::<u64>::new(3).expect("three digits are allowed");
    for _ in 0..10_000 {
        let start = Instant::now();
        empty.saturating_record(std::hint::black_box(start.elapsed().as_nanos() as u64));
    }
    empty.value_at_quantile(0.5) as f64
}

#[expect(clippy::disallowed_methods, reason = "a study of speed")]
fn fixed_cold(report: &mut Report, dice: &mut Dice, sizes: &[u64]) {
    let chains: Vec<Pipeline> = (0..256).map(|index| dice.chain(1 + index % 8)).collect();
    let signatures: Vec<Signature> = chains.iter().map(Signature::new).collect();
    let (mut plan, mut known) = (Sample::default(), Sample::default());
    for round in 0..200 {
        let bytes = |index: usize| sizes[(index * 31 + round) % sizes.len()] as f64;
        let start = Instant::now();
        for (index, chain) in chains.iter().enumerate() {
            std::hint::black_box(fixed::count(
                chain,
                std::hint::black_box(bytes(index)),
                1,
                65_536,
            ));
        }
        plan.push(start.elapsed().as_nanos() as f64 / chains.len() as f64);
        let start = Instant::now();
        for (index, signature) in signatures.iter().enumerate() {
            std::hint::black_box(signature.count(std::hint::black_box(bytes(index)), 1, 65_536));
        }
        known.push(start.elapsed().as_nanos() as f64 / signatures.len() as f64);
    }
    report.at_most(
        "fixed plan, cold (straight from the stages), median",
        plan.quantile(0.5),
        50.0,
        "ns",
    );
    report.at_most(
        "fixed plan, cold size on a known chain, median",
        known.quantile(0.5),
        50.0,
        "ns",
    );
}
