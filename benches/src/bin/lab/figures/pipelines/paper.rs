//! Every computable number of the paper, with the one that it prints.

use midplane::pipeline::compound::approximate;
use midplane::pipeline::fixed::Signature;
use midplane::pipeline::hierarchical::{Base, LinearModel, linear_model};
use midplane::pipeline::{Grouping, Pipeline, Request, Stage, fixed};

use midplane_benches::anchors::measure::Origin;

use super::PAPER;
use crate::figures::rows::Row;

/// Myrinet GAM (Table 1): overhead in us, us per KB of 1000 bytes.
const GAM: [(f64, f64); 4] = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];

/// GMS (Table 3): overhead in us, us per KB of 1000 bytes.
pub(super) const GMS: [(f64, f64); 4] = [(2.1, 25.6), (4.0, 60.1), (2.1, 25.6), (92.8, 26.2)];

/// Overheads of the disk in Figures 10 to 13.
pub(super) const OVERHEADS_MS: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Builds a chain of stages given in us and us per KB.
pub(super) fn chain(stages: &[(f64, f64)]) -> Pipeline {
    let stages = stages
        .iter()
        .map(|&(g, per_kb)| Stage::new(g, per_kb / 1000.0).expect("a cost of the paper"));
    Pipeline::new(stages.collect()).expect("never empty")
}

/// Returns the conventional network of section 5.5: GAM with every cost five times as large.
pub(super) fn network() -> Vec<(f64, f64)> {
    GAM.iter().map(|&(g, c)| (5.0 * g, 5.0 * c)).collect()
}

/// Builds network and disk, or network, disk and network, with the grouping of algorithms B and C.
pub(super) fn disk_chain(overhead_ms: f64, mb_per_s: f64, second: bool) -> (Pipeline, Grouping) {
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
pub(super) fn algorithms(
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

/// Returns the row of a number that the paper prints. Ours is computed from the stages that the paper gives.
pub(super) fn near(what: impl Into<String>, value: f64, printed: f64, unit: &'static str) -> Row {
    Row::new(PAPER, Origin::Predicted, what, unit, printed, value)
}

/// Returns the row of a number that the paper does not print.
fn computed(what: impl Into<String>, value: f64, unit: &'static str) -> Row {
    Row::ours(PAPER, what, unit, value, "no number in the paper")
}

/// Computes all rows.
pub(super) fn rows() -> Vec<Row> {
    [gam(), gms(), disk(), sweeps().into()].concat()
}

fn gam() -> Vec<Row> {
    let gam = chain(&GAM);
    let signature = Signature::new(&gam);
    let plan = fixed(&gam, &Request::new(4000.0)).expect("GAM has overheads");
    let count = plan.fragments().len() as f64;
    let [fm, one] = [32.0, 1.0].map(|count| signature.latency(4000.0, count).get());
    // Equation 10, from its two parameters alone; terms without k cancel. The indirect parameters are a tie, 0.06 us
    // apart, which gives 4; the paper does not say which values it used.
    let table_2 = |g: f64, others: f64| {
        let time = |k: &i32| f64::from(*k) * g + 4.0 / f64::from(*k) * others;
        f64::from((1..20).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(0))
    };
    let (direct, indirect) = (table_2(7.5, 40.0), table_2(7.6, 37.8));
    let tie = "Table 2, indirect (7.6, 37.8): fragments (paper 5, a tie)";
    vec![
        near("section 5.4: GAM, 4 KB, best number of fragments", count, 5.0, "fragments"),
        computed("section 5.4: FM, 4 KB in 32 fragments", fm, "us"),
        computed("section 5.4: GAM, 4 KB in one fragment", one, "us"),
        computed("section 5.4: GAM, 4 KB in five fragments", plan.latency().get(), "us"),
        near("Table 2, direct (7.5, 40.0): fragments", direct, 5.0, "fragments"),
        near(tie, indirect, 5.0, "fragments"),
    ]
}

fn gms() -> Vec<Row> {
    let signature = Signature::new(&chain(&GMS));
    let best = signature.count(8000.0, 1, 8000) as f64;
    let mut rows = vec![near(
        "section 6: GMS, 8 KB, best number of fragments (paper 3 or 4)",
        best,
        3.0,
        "fragments",
    )];
    rows.extend([2.0, 3.0, 4.0, 5.0].map(|count| {
        let what = format!("section 6: GMS, 8 KB in {count} fragments");
        computed(what, signature.latency(8000.0, count).get(), "us")
    }));
    let switch = signature.switches().next().unwrap_or(0.0) / 1000.0;
    rows.push(computed("section 6: GMS, bottleneck moves from CPU to wire at", switch, "KB"));
    rows
}

fn disk() -> Vec<Row> {
    let percent = |worse: f64, better: f64| 100.0 * (worse / better - 1.0);
    let mut rows = Vec::new();
    let cases = [
        (false, "network + disk", "C", 21.3, 9.2),
        (true, "network + disk + network", "C'", 25.8, 6.4),
    ];
    for (second, what, last, b_over_a, c_over_b) in cases {
        let (chain, groups) = disk_chain(4.0, 5.0, second);
        let (a, b, c) = algorithms(&chain, &groups, 65536.0, second);
        rows.push(near(
            format!("section 5.5: {what}, B over A"),
            percent(a, b.latency),
            b_over_a,
            "%",
        ));
        let gain = percent(b.latency, c.latency);
        rows.push(near(format!("section 5.5: {what}, {last} over B"), gain, c_over_b, "%"));
    }
    let fit = approximate(&chain(&network()), 64.0, 65536.0, 1024);
    rows.push(near("footnote 1: deviation of the linear fit", fit.deviation.get(), 65.0, "us"));
    rows.push(near("footnote 1: mean latency", fit.mean.get(), 5118.0, "us"));
    rows
}

/// Computes the most that C gains over B in the ranges of Figures 11 and 13.
fn sweeps() -> [Row; 2] {
    let gain = |overhead: f64, bandwidth: f64, bytes: f64| {
        let (chain, groups) = disk_chain(overhead, bandwidth, false);
        let (_, b, c) = algorithms(&chain, &groups, bytes, false);
        100.0 * (b.latency / c.latency - 1.0)
    };
    let most = |number, gains: &dyn Fn(f64) -> Vec<f64>, note| {
        let most = OVERHEADS_MS.into_iter().flat_map(gains).fold(0.0, f64::max);
        Row::ours(PAPER, format!("Figure {number}: most that C gains over B"), "%", most, note)
    };
    let by_bandwidth =
        |overhead| (1..=20).map(|mb_per_s| gain(overhead, f64::from(mb_per_s), 65536.0)).collect();
    let by_size =
        |overhead| (12..=22).map(|power| gain(overhead, 5.0, f64::from(1 << power))).collect();
    [most(11, &by_bandwidth, "the paper: up to 10 %"), most(13, &by_size, "the paper: up to 11 %")]
}
