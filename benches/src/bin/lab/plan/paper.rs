//! Every computable number of the paper, with the one that it prints.

use midplane::pipeline::compound::approximate;
use midplane::pipeline::fixed::Signature;
use midplane::pipeline::hierarchical::{Base, LinearModel, linear_model, with_bases};
use midplane::pipeline::{Grouping, Pipeline, Request, Stage, fixed};

use super::numbers::Report;

/// Myrinet GAM (Table 1): overhead in us, us per KB of 1000 bytes.
pub(crate) const GAM: [(f64, f64); 4] = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];

/// GMS (Table 3): overhead in us, us per KB of 1000 bytes.
pub(crate) const GMS: [(f64, f64); 4] = [(2.1, 25.6), (4.0, 60.1), (2.1, 25.6), (92.8, 26.2)];

/// Builds a chain of stages given in us and us per KB.
pub(crate) fn chain(stages: &[(f64, f64)]) -> Pipeline {
    let stages = stages
        .iter()
        .map(|&(g, per_kb)| Stage::new(g, per_kb / 1000.0).expect("a cost of the paper"));
    Pipeline::new(stages.collect()).expect("never empty")
}

/// Returns the conventional network of section 5.5: GAM with every cost five times as large.
pub(crate) fn network() -> Vec<(f64, f64)> {
    GAM.iter().map(|&(g, c)| (5.0 * g, 5.0 * c)).collect()
}

/// Builds network and disk, or network, disk and network, with the grouping of algorithms B and C.
pub(crate) fn disk_chain(overhead_ms: f64, mb_per_s: f64, second: bool) -> (Pipeline, Grouping) {
    let mut stages = network();
    stages.push((overhead_ms * 1000.0, 1000.0 / mb_per_s));
    if second {
        stages.extend(network());
    }
    let chain = chain(&stages);
    let groups = Grouping::around(chain.stages().len(), 4);
    (chain, groups)
}

/// Returns the latencies of algorithms A, B and C (or C') on one point of section 5.5, in microseconds, in the
/// paper's linear model.
pub(crate) fn algorithms(
    chain: &Pipeline,
    groups: &Grouping,
    bytes: f64,
    second: bool,
) -> (f64, LinearModel, LinearModel) {
    let request = Request::new(bytes);
    let a = fixed(chain, &request).expect("the paper's chains have overheads").latency().get();
    let b = linear_model(chain, &request, groups, Base::Fixed).expect("the groups cover the chain");
    let top = if second { Base::RampUpDown } else { Base::RampUp };
    let c = linear_model(chain, &request, groups, top).expect("two or three groups");
    (a, b, c)
}

/// Computes all rows.
pub(crate) fn run(report: &mut Report) {
    gam(report);
    gms(report);
    disk(report);
    sweeps(report);
}

fn gam(report: &mut Report) {
    let gam = chain(&GAM);
    let signature = Signature::new(&gam);
    let plan = fixed(&gam, &Request::new(4000.0)).expect("GAM has overheads");
    report.near(
        "GAM, 4 KB: best number of fragments",
        plan.fragments().len() as f64,
        5.0,
        0.0,
        "fragments",
    );
    let gain = |bytes: f64| {
        let fragments = (bytes / 4000.0).ceil();
        let mut sizes = vec![4000.0; fragments as usize - 1];
        sizes.push(bytes - 4000.0 * (fragments - 1.0));
        let best = fixed(&gam, &Request::new(bytes)).expect("GAM has overheads").latency().get();
        100.0 * (gam.latency(&sizes, None).get() / best - 1.0)
    };
    report.near(
        "GAM, 4 KB: gain over one fragment (paper: measured)",
        gain(4000.0),
        51.0,
        2.0,
        "%",
    );
    let best =
        (1..=64).max_by(|a, b| gain(f64::from(*a) * 62.5).total_cmp(&gain(f64::from(*b) * 62.5)));
    report.near(
        "GAM, to 4 KB: size of the largest gain",
        62.5 * f64::from(best.unwrap_or(0)),
        4000.0,
        0.0,
        "bytes",
    );
    report.info("GAM, 4 KB + 64 B: gain over static 4 KB", gain(4064.0), "%");
    gam_elsewhere(report, &signature, plan.latency().get());
    table_2(report);
}

/// Checks numbers that other papers compute for the same chain; ours is the latency of the best plan.
fn gam_elsewhere(report: &mut Report, signature: &Signature, best: f64) {
    let fm = signature.latency(4000.0, 32.0).get();
    report.near("FM, 4 KB in 32 fragments (computed elsewhere)", fm, 364.4, 0.05, "us");
    report.near(
        "GAM, 4 KB in one fragment (computed elsewhere)",
        signature.latency(4000.0, 1.0).get(),
        286.9,
        0.1,
        "us",
    );
    report.near("GAM, 4 KB in five fragments (computed elsewhere)", best, 188.9, 0.05, "us");
}

/// Checks Table 2 by equation 10, from its two parameters alone; terms without k cancel.
fn table_2(report: &mut Report) {
    let from = |g: f64, others: f64| {
        (1..20).min_by(|a, b| {
            let t = |k: i32| f64::from(k) * g + 4.0 / f64::from(k) * others;
            t(*a).total_cmp(&t(*b))
        })
    };
    report.near(
        "Table 2, direct (7.5, 40.0): fragments",
        f64::from(from(7.5, 40.0).unwrap_or(0)),
        5.0,
        0.0,
        "fragments",
    );
    // The indirect parameters are a tie, 0.06 us apart, which gives 4; the paper does not say which values it used.
    report.near(
        "Table 2, indirect (7.6, 37.8): fragments (paper 5, a tie)",
        f64::from(from(7.6, 37.8).unwrap_or(0)),
        5.0,
        1.0,
        "fragments",
    );
}

fn gms(report: &mut Report) {
    let gms = chain(&GMS);
    let signature = Signature::new(&gms);
    let best = signature.count(8000.0, 1, 8000) as f64;
    report.near("GMS, 8 KB: best number of fragments (paper 3 or 4)", best, 3.0, 1.0, "fragments");
    for (count, expected) in [(2.0, 895.4), (3.0, 796.2), (4.0, 811.6), (5.0, 859.9)] {
        let name = format!("GMS, 8 KB in {count} fragments (computed elsewhere)");
        report.near(name, signature.latency(8000.0, count).get(), expected, 0.1, "us");
    }
    let switch = signature.switches().next().unwrap_or(0.0) / 1000.0;
    report.near(
        "GMS: bottleneck moves from CPU to wire at (computed elsewhere)",
        switch,
        2.62,
        0.01,
        "KB",
    );
}

fn disk(report: &mut Report) {
    let (short, groups) = disk_chain(4.0, 5.0, false);
    let (a, b, c) = algorithms(&short, &groups, 65536.0, false);
    let percent = |worse: f64, better: f64| 100.0 * (worse / better - 1.0);
    report.near("5.5 network + disk: B over A", percent(a, b.latency), 21.3, 0.05, "%");
    report.near("5.5 network + disk: C over B", percent(b.latency, c.latency), 9.2, 0.1, "%");
    let (long, groups) = disk_chain(4.0, 5.0, true);
    let (a, b, c) = algorithms(&long, &groups, 65536.0, true);
    report.near("5.5 network + disk + network: B over A", percent(a, b.latency), 25.8, 0.05, "%");
    report.near(
        "5.5 network + disk + network: C' over B",
        percent(b.latency, c.latency),
        6.4,
        0.05,
        "%",
    );
    let exact = |top, groups: &Grouping, chain: &Pipeline| {
        let plan = with_bases(chain, &Request::new(65536.0), groups, top, Base::Fixed)
            .expect("groups cover the chain");
        plan.latency().get()
    };
    let (b, c) = (exact(Base::Fixed, &groups, &long), exact(Base::RampUpDown, &groups, &long));
    report.info("the same, C' over B by the exact recurrence", percent(b, c), "%");
    let fit = approximate(&chain(&network()), 64.0, 65536.0, 1024);
    report.near("footnote 1: deviation of the linear fit", fit.deviation.get(), 65.0, 0.6, "us");
    report.near("footnote 1: mean latency", fit.mean.get(), 5118.0, 0.6, "us");
}

fn sweeps(report: &mut Report) {
    let mut most = 0.0_f64;
    for overhead in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
        for bandwidth in 1..=20 {
            let (chain, groups) = disk_chain(overhead, f64::from(bandwidth), false);
            let (_, b, c) = algorithms(&chain, &groups, 65536.0, false);
            most = most.max(100.0 * (b.latency / c.latency - 1.0));
        }
    }
    report.at_most("figure 11: most that C gains over B", most, 10.0, "%");
    let mut most = 0.0_f64;
    for overhead in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
        for power in 12..=22 {
            let (chain, groups) = disk_chain(overhead, 5.0, false);
            let (_, b, c) = algorithms(&chain, &groups, f64::from(1 << power), false);
            most = most.max(100.0 * (b.latency / c.latency - 1.0));
        }
    }
    report.at_most("figure 13: most that C gains over B", most, 11.0, "%");
}
