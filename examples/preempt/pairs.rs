//! Real processes: what being preempted costs beside standing still, from many pairs of runs with and without, next
//! to each other in time.
//!
//! A pair's value is (T_gang - T_still) / T_alone - 1. T_still is the time that the daemons' switches took, from the
//! first order to the last report: a little more than a process stands still, so that the value is a little low. Of
//! pairs the median is taken, for one whose processor was taken away by somebody else says nothing; the bounds are
//! those of 95 % of medians of as many pairs, drawn from them with replacement.

use midplane::simhw::rng::Rng;
use serde::Serialize;

use super::slowdown::Run;

/// Samples of a bootstrap.
const DRAWS: usize = 2_000;
/// Slices that a fit needs.
const LEAST: usize = 3;

/// A value, and its bounds of 95 %.
pub(crate) type Bounded = (f64, [f64; 2]);

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 if middle > 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values.get(middle).copied().unwrap_or(f64::NAN),
    }
}

/// What `of` finds in groups of values, and in as many groups that are drawn from those.
fn bootstrap(groups: &[&[f64]], of: impl Fn(&[Vec<f64>]) -> f64) -> Bounded {
    let mut dice = Rng::new(1, "bootstrap");
    let found = of(&groups.iter().map(|group| group.to_vec()).collect::<Vec<_>>());
    let mut draw = |group: &&[f64]| -> Vec<f64> {
        let last = group.len() as u64 - 1;
        group.iter().map(|_| group[dice.between(0, last) as usize]).collect()
    };
    let again = |_| of(&groups.iter().map(&mut draw).collect::<Vec<_>>());
    let mut drawn: Vec<f64> = (0..DRAWS).map(again).collect();
    drawn.sort_by(f64::total_cmp);
    (found, [drawn[DRAWS / 40], drawn[DRAWS - 1 - DRAWS / 40]])
}

/// The median of pairs, of which there is one at least.
pub(crate) fn middle(pairs: &[f64]) -> Bounded {
    bootstrap(&[pairs], |groups| median(&mut groups[0].clone()))
}

/// A kernel's medians over slices, as a constant and a part that halves as the slice doubles.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PairedFit {
    kernel: &'static str,
    ranks: u16,
    mode: &'static str,
    slices: usize,
    pairs: usize,
    slowdown_at_100ms: f64,
    /// Bounds of 95 %.
    slowdown_at_100ms_ci: [f64; 2],
    slowdown_at_10ms: f64,
    slowdown_at_10ms_ci: [f64; 2],
}

/// The value at `x` of a straight line through points, by least squares.
fn line_at(points: &[(f64, f64)], x: f64) -> f64 {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let width: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / width;
    mean_y + slope * (x - mean_x)
}

fn fit(runs: &[&Run]) -> Option<PairedFit> {
    let first = runs.first().filter(|_| runs.len() >= LEAST)?;
    let groups: Vec<&[f64]> = runs.iter().map(|run| &run.pairs[..]).collect();
    let at = |slice_ms: f64| {
        bootstrap(&groups, |groups| {
            let medians = groups.iter().map(|group| median(&mut group.clone()));
            let points: Vec<(f64, f64)> =
                runs.iter().zip(medians).map(|(run, it)| (1.0 / run.slice_ms, it)).collect();
            line_at(&points, 1.0 / slice_ms)
        })
    };
    let (slowdown_at_100ms, slowdown_at_100ms_ci) = at(100.0);
    let (slowdown_at_10ms, slowdown_at_10ms_ci) = at(10.0);
    Some(PairedFit {
        kernel: first.kernel,
        ranks: first.ranks,
        mode: first.mode,
        slices: runs.len(),
        pairs: groups.iter().map(|group| group.len()).sum(),
        slowdown_at_100ms,
        slowdown_at_100ms_ci,
        slowdown_at_10ms,
        slowdown_at_10ms_ci,
    })
}

/// A fit for each kernel and mode of real processes that has enough slices.
pub(crate) fn fits(runs: &[Run]) -> Vec<PairedFit> {
    let same = |a: &Run, b: &Run| {
        (a.kernel, a.class, a.ranks, a.mode) == (b.kernel, b.class, b.ranks, b.mode)
    };
    let groups = runs.chunk_by(same).filter(|group| group.iter().all(|run| !run.pairs.is_empty()));
    groups.filter_map(|group| fit(&group.iter().collect::<Vec<_>>())).collect()
}

/// For people.
pub(crate) fn table(runs: &[Run], fits: &[PairedFit]) -> String {
    let mut text = String::new();
    for run in runs {
        if let Some((value, [low, high])) = run.slowdown_less_still.zip(run.slowdown_less_still_ci)
        {
            let [value, low, high] = [value, low, high].map(|part| part * 100.0);
            text += &format!(
                "{:<4} {:>5} ms {:<8} less its switches' time {value:>6.2} % ({low:>6.2} to {high:>5.2}), {} pairs\n",
                run.kernel,
                run.slice_ms,
                run.mode,
                run.pairs.len()
            );
        }
    }
    for fit in fits {
        let parts = [
            (100, fit.slowdown_at_100ms, fit.slowdown_at_100ms_ci),
            (10, fit.slowdown_at_10ms, fit.slowdown_at_10ms_ci),
        ];
        text += &format!("{:<4} {:<8} fitted over {} slices", fit.kernel, fit.mode, fit.slices);
        for (slice, value, [low, high]) in parts {
            let [value, low, high] = [value, low, high].map(|part| part * 100.0);
            text += &format!(", at {slice} ms {value:>6.2} % ({low:>6.2} to {high:>5.2})");
        }
        text += "\n";
    }
    text
}
