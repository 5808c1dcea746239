//! Measures kernels with and without preemption.

use std::time::Duration;

use midplane::gang::scheduler::{Phases, Switch};
use midplane::simhw::profile::Machine;
use midplane_nas::{Class, Ft, Kernel as _};
use serde::Serialize;
use serde_json::json;

use super::arguments::{Arguments, Mode};
use super::cluster::{self, Outcome};
use super::lines;
use super::live;
use crate::fabric::Fabric;
use crate::nas_rank::Name;
use crate::report::{self, Failure, progress};

/// One row of the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) kernel: &'static str,
    pub(crate) class: Class,
    pub(crate) ranks: u16,
    pub(crate) slice_ms: f64,
    pub(crate) mode: Mode,
    pub(crate) slowdown: f64,
    /// Bounds of the 95 % confidence interval; `None` if there is one value only.
    pub(crate) slowdown_ci: Option<[f64; 2]>,
    /// The slowdown of each switch.
    #[serde(skip)]
    pub(crate) lost: Vec<f64>,
    pub(crate) preemptions: usize,
    /// Mean over all switches.
    pub(crate) freeze_us: f64,
    pub(crate) save_us: f64,
    pub(crate) restore_us: f64,
    pub(crate) run_us: f64,
    pub(crate) alone_s: f64,
    /// `None` if nothing was computed.
    pub(crate) verified: Option<bool>,
    /// True if results with and without preemption agree to the last bit.
    pub(crate) same_bits: bool,
    pub(crate) checksum: String,
    pub(crate) fabric: Fabric,
    pub(crate) machine: &'static str,
}

impl Run {
    /// Returns whether two runs differ in the slice alone.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |run: &Self| (run.kernel, run.class, run.ranks, run.mode);
        what(self) == what(other)
    }
}

/// A slice longer than any run.
const FOR_EVER: Duration = Duration::from_secs(100_000);

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kernel: Name,
    pub(crate) class: Class,
    pub(crate) ranks: u16,
    pub(crate) slice_ms: f64,
    pub(crate) mode: Mode,
    /// Barriers of a simulated switch.
    pub(crate) phases: Phases,
    pub(crate) seed: u64,
    /// False if simulated arithmetic takes virtual time alone.
    pub(crate) computes: bool,
}

/// 97.5 % quantiles of Student's distribution by degrees of freedom, from 1.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Returns the 97.5 % quantile for `freedom` degrees of freedom, at least 1. Beyond the table it is that of its end: the
/// interval is too wide there, by 4 % at most.
fn student(freedom: usize) -> f64 {
    STUDENT[freedom.min(STUDENT.len()) - 1]
}

/// Returns the mean of values and the variance of that mean; the variance of one value is infinite.
pub(crate) fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, if values.len() < 2 { f64::INFINITY } else { squares / (count * (count - 1.0)) })
}

/// Returns the mean of values and the bounds of its 95 % confidence interval, if there are two values or more.
pub(crate) fn interval(values: &[f64]) -> (f64, Option<[f64; 2]>) {
    let (mean, variance) = mean_and_variance(values);
    let bounds = (values.len() > 1).then(|| {
        let half = student(values.len() - 1) * variance.sqrt();
        [mean - half, mean + half]
    });
    (mean, bounds)
}

fn mean_us(switches: &[Switch], of: impl Fn(&Switch) -> Duration) -> f64 {
    let sum: Duration = switches.iter().map(of).sum();
    sum.as_secs_f64() * 1e6 / switches.len().max(1) as f64
}

/// Runs a kernel in virtual time without preemption.
pub(crate) fn run_alone(case: &Case) -> Outcome {
    cluster::run(*case, FOR_EVER, case.seed)
}

/// Measures a kernel in virtual time with preemption, compared with its run without.
pub(crate) fn measure(repeat: u32, case: &Case, alone: &Outcome) -> Run {
    let alone_s = alone.took.as_secs_f64();
    let verdict = &alone.verdict;
    let mut slowdowns = Vec::new();
    let (mut switches, mut same_bits) = (Vec::new(), true);
    for repeat in 0..repeat {
        // Each repetition has slices a little longer, so that the first one ends elsewhere in the job.
        let slice = case.slice_ms / 1e3 * (1.0 + 0.013 * f64::from(repeat));
        let seed = case.seed + u64::from(repeat);
        let outcome = cluster::run(*case, Duration::from_secs_f64(slice), seed);
        let lost = outcome.took.as_secs_f64() - alone_s;
        slowdowns.push(lost / alone_s * slice * 1e3 / case.slice_ms);
        same_bits &= outcome.verdict.checksum == verdict.checksum;
        // The first switch stops nothing.
        switches.extend(outcome.switches.into_iter().skip(1).filter(|s| !s.stopped.is_empty()));
    }
    let (slowdown, slowdown_ci) = interval(&slowdowns);
    Run {
        kernel: case.kernel.name(),
        class: case.class,
        ranks: case.ranks,
        slice_ms: case.slice_ms,
        mode: case.mode,
        slowdown,
        slowdown_ci,
        lost: Vec::new(),
        preemptions: switches.len(),
        freeze_us: mean_us(&switches, |switch| switch.freeze),
        save_us: mean_us(&switches, |switch| switch.save),
        restore_us: mean_us(&switches, |switch| switch.restore),
        run_us: mean_us(&switches, |switch| switch.run),
        alone_s,
        verified: case.computes.then_some(verdict.verified),
        same_bits,
        checksum: format!("{:016x}", verdict.checksum),
        fabric: Fabric::Sim,
        machine: Machine::PM_MYRINET.name,
    }
}

/// Returns all combinations of the arguments.
fn cases(arguments: &Arguments, modes: &[Mode]) -> Vec<Case> {
    let (phases, seed, computes) = (Phases::Two, arguments.seed, true);
    let mut cases = Vec::new();
    for &kernel in &arguments.kernel {
        for &class in &arguments.class {
            for &ranks in &arguments.ranks {
                for &mode in modes {
                    let slices = arguments.slice_ms.iter();
                    cases.extend(slices.map(|&slice_ms| Case {
                        kernel,
                        class,
                        ranks,
                        slice_ms,
                        mode,
                        phases,
                        seed,
                        computes,
                    }));
                }
            }
        }
    }
    cases
}

/// Template of the progress bar.
pub(crate) const PROGRESS: &str = "{bar:40} {pos}/{len} {msg}";

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let cases = cases(arguments, arguments.modes()?);
    let mut of_ft = cases.iter().filter(|case| case.kernel == Name::Ft);
    if let Some(error) = of_ft.find_map(|case| Ft::begin(case.class, 0, case.ranks.into()).err()) {
        return Err(format!("--ranks: {error}").into());
    }
    let bar = progress(cases.len(), PROGRESS);
    let mut runs = Vec::new();
    for case in &cases {
        bar.set_message(format!("{} {} on {}", case.kernel.name(), case.class, case.ranks));
        runs.push(match arguments.fabric {
            Fabric::Sim => measure(arguments.repeat, case, &run_alone(case)),
            Fabric::Shm | Fabric::Udp => live::measure(arguments, case).map_err(Failure::of_run)?,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let holds = runs.iter().all(|run| run.verified != Some(false) && run.same_bits);
    let lines = lines::lines(&runs);
    let document = json!({"runs": runs, "lines": lines, "holds": holds});
    Ok(report::conclude(arguments.json, &document, holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one value had an interval without width, and of 12 values on, intervals were those of any number.
    #[test]
    fn few_values_have_wide_intervals_and_one_has_none() {
        assert_eq!(interval(&[3.0]), (3.0, None));
        let (mean, bounds) = interval(&[1.0, 3.0]);
        let [low, high] = bounds.unwrap();
        assert_eq!(mean, 2.0);
        assert!((low + 10.706).abs() < 1e-9 && (high - 14.706).abs() < 1e-9);
        assert_eq!(
            (student(10), student(11), student(30), student(1_000)),
            (2.228, 2.201, 2.042, 2.042)
        );
        assert!(STUDENT.is_sorted_by(|a, b| a > b));
    }
}
