//! The planners compared with brute force, the linear program and each other, on random chains.

use std::time::Instant;

use midplane::pipeline::auto::Refragment;
use midplane::pipeline::fixed::Signature;
use midplane::pipeline::hierarchical::{self, Base};
use midplane::pipeline::{Grouping, Pipeline, Request, Stage, auto, fixed, optimum, ramp};

use super::numbers::Report;
use midplane_benches::chains::{Dice, Sample};

/// Measures all promises of the planners.
pub(crate) fn run(report: &mut Report, seed: u64, samples: usize) {
    fixed_against_brute_force(report, seed, 100_000.min(samples * 100));
    ramp_against_optimum(report, seed, samples);
    special_chains(report, seed, samples / 4);
    auto_on_slow_stages(report, seed, samples / 4);
}

/// Runs `work` three times; returns its result and the fastest time, as other programs use the machine, too.
#[expect(clippy::disallowed_methods, reason = "a study of speed")]
fn micros_of<T>(mut work: impl FnMut() -> T) -> (T, f64) {
    let mut once = || {
        let start = Instant::now();
        let value = std::hint::black_box(work());
        (value, start.elapsed().as_secs_f64() * 1e6)
    };
    let (first, second, (value, third)) = (once().1, once().1, once());
    (value, first.min(second).min(third))
}

fn fixed_against_brute_force(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed);
    let mut wrong = 0;
    for _ in 0..samples {
        let n = dice.whole(1, 8);
        let (chain, bytes) = (dice.chain(n), dice.between(750.0, 384_000.0));
        let plan = fixed(&chain, &Request::new(bytes)).expect("random chains have overheads");
        let at = |count: usize| chain_time(&chain, bytes, count);
        let most = 400.max(plan.fragments().len() * 2);
        let best = (1..=most).map(at).fold(f64::INFINITY, f64::min);
        if plan.latency().get() > best * (1.0 + 1e-12) {
            wrong += 1;
        }
    }
    report.at_most(
        "fixed: chains where brute force over all k is better",
        f64::from(wrong),
        0.0,
        "chains",
    );
    report.info("fixed: chains tried", samples as f64, "chains");
}

/// Computes the time of equal fragments in closed form, term by term.
fn chain_time(chain: &Pipeline, bytes: f64, count: usize) -> f64 {
    let size = bytes / count as f64;
    let times = chain.stages().iter().map(|stage| stage.time(size).get());
    let (sum, slowest) = times.fold((0.0, 0.0_f64), |(sum, slowest), t| (sum + t, slowest.max(t)));
    (count - 1) as f64 * slowest + sum
}

fn ramp_against_optimum(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed ^ 1);
    let (mut gap, mut equal, mut speed) = (Sample::default(), Sample::default(), Sample::default());
    while gap.count() < samples {
        let n = dice.whole(2, 8);
        let (chain, bytes) = (dice.chain(n), dice.between(1000.0, 64_000.0));
        if Signature::new(&chain).count(bytes, 1, 1000) > 20 {
            continue;
        }
        let request = Request::new(bytes);
        let Ok(best) = optimum(&chain, &request) else { continue };
        let (plan, us) =
            micros_of(|| ramp(&chain, &request).expect("random chains have overheads"));
        let fixed = fixed(&chain, &request).expect("random chains have overheads");
        let best = best.latency().get();
        gap.push(100.0 * (plan.latency().get() / best - 1.0));
        equal.push(100.0 * (fixed.latency().get() / best - 1.0));
        speed.push(us);
    }
    report.at_most("ramp over the LP optimum, mean", gap.mean(), 0.1, "%");
    report.at_most("ramp over the LP optimum, p95", gap.quantile(0.95), 0.5, "%");
    report.at_most("ramp over the LP optimum, max", gap.max(), 5.0, "%");
    report.at_most("ramp, mean time", speed.mean(), 100.0, "us");
    report.info("ramp, median time", speed.quantile(0.5), "us");
    report.info("ramp, p95 time", speed.quantile(0.95), "us");
    report.info("equal fragments over the LP optimum, mean", equal.mean(), "%");
    report.info("equal fragments over the LP optimum, max", equal.max(), "%");
}

/// Checks two stages and fast-slow-fast, where the ramp is the optimum.
fn special_chains(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed ^ 2);
    for (name, n) in [("two stages", 2), ("fast-slow-fast", 3)] {
        let mut worst = Sample::default();
        while worst.count() < samples {
            let mut stages = dice.chain(n).stages().to_vec();
            if n == 3 {
                let g = stages.iter().map(|s| s.overhead().get()).fold(0.0, f64::max);
                let c = stages.iter().map(|s| s.per_byte().get()).fold(0.0, f64::max);
                stages[1] = Stage::new(g, c).expect("both were costs before");
            }
            let chain = Pipeline::new(stages).expect("n is at least 1");
            let request = Request::new(dice.between(1000.0, 64_000.0));
            if Signature::new(&chain).count(request.bytes(), 1, 1000) > 20 {
                continue;
            }
            let Ok(best) = optimum(&chain, &request) else { continue };
            let plan = ramp(&chain, &request).expect("random chains have overheads");
            worst.push(plan.latency().get() / best.latency().get() - 1.0);
        }
        report.at_most(
            format!("ramp over the LP optimum, {name}, max"),
            worst.max(),
            1e-9,
            "relative",
        );
    }
}

/// Checks chains with one slow stage: auto against all known plans, including every grouping and every base.
fn auto_on_slow_stages(report: &mut Report, seed: u64, samples: usize) {
    let mut dice = Dice::new(seed ^ 3);
    let (mut gap, mut flat, mut speed) = (Sample::default(), Sample::default(), Sample::default());
    let mut above = 0;
    for _ in 0..samples {
        let n = dice.whole(3, 8);
        let chain = dice.slow_chain(n);
        let request = Request::new(dice.between(16_000.0, 256_000.0));
        let (plan, us) = micros_of(|| {
            auto(&chain, &request, None, Refragment::WhereItHelps).expect("overheads")
        });
        let families = best_known(&chain, &request);
        let best = families.iter().copied().fold(plan.latency().get(), f64::min);
        let single = families[0].min(families[1]).min(families[2]);
        if plan.latency().get() > single * (1.0 + 1e-12) {
            above += 1;
        }
        gap.push(100.0 * (plan.latency().get() / best - 1.0));
        flat.push(100.0 * (families[0] / plan.latency().get() - 1.0));
        speed.push(us);
    }
    report.at_most("auto over the best plan known, mean", gap.mean(), 0.2, "%");
    report.info("auto over the best plan known, p95", gap.quantile(0.95), "%");
    report.info("auto over the best plan known, max", gap.max(), "%");
    report.at_most("auto above a single family", f64::from(above), 0.0, "chains");
    report.info("equal fragments over auto, mean", flat.mean(), "%");
    report.info("auto, mean time", speed.mean(), "us");
}

/// Returns the latencies of the families, then of every division into up to four groups with every base.
fn best_known(chain: &Pipeline, request: &Request) -> Vec<f64> {
    let mut known = vec![
        fixed(chain, request).expect("overheads").latency().get(),
        ramp(chain, request).expect("overheads").latency().get(),
        hierarchical::hierarchical(chain, request, None).expect("overheads").latency().get(),
    ];
    if let Ok(best) = optimum(chain, request) {
        known.push(best.latency().get());
    }
    let n = chain.stages().len();
    for mask in 1_u32..1 << (n - 1) {
        if mask.count_ones() > 3 {
            continue;
        }
        let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
        for stage in 0..n {
            groups.last_mut().expect("starts with one").push(stage);
            if mask >> stage & 1 == 1 {
                groups.push(Vec::new());
            }
        }
        let groups = Grouping::new(n, &groups).expect("covers all stages in order");
        for (top, inside) in
            [(Base::Fixed, Base::Fixed), (Base::Ramp, Base::Fixed), (Base::Ramp, Base::Ramp)]
        {
            if let Ok(plan) = hierarchical::with_bases(chain, request, &groups, top, inside) {
                known.push(plan.latency().get());
            }
        }
    }
    known
}
