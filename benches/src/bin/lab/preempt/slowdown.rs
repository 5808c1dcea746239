//! Measures kernels with and without preemption.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::gang::names::JobId;
use midplane::gang::nas::Class;
use midplane::gang::scheduler::Switch;
use midplane::gang::tree::DEFAULT_ARITY;
use serde::Serialize;

use super::arguments::{Arguments, FabricName, KernelName, ModeName};
use super::cluster::{self, Outcome, Program, Setting};
use super::fit::{self, Fit};
use super::lines::{self, Lines};
use super::live;
use midplane_kit::report;

/// One row of the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) kernel: &'static str,
    pub(crate) class: Class,
    pub(crate) ranks: u16,
    pub(crate) slice_ms: f64,
    pub(crate) mode: &'static str,
    pub(crate) slowdown: f64,
    /// Bounds of the 95 % confidence interval.
    pub(crate) slowdown_ci: [f64; 2],
    /// Real processes: the slowdown without the time of the switches, from the first order to the last report; that
    /// is a little more than the time for which a process is stopped.
    pub(crate) slowdown_less_still: Option<f64>,
    pub(crate) slowdown_less_still_ci: Option<[f64; 2]>,
    /// The two slowdowns of each switch.
    #[serde(skip)]
    pub(crate) lost: Vec<f64>,
    #[serde(skip)]
    pub(crate) less_still: Vec<f64>,
    pub(crate) preemptions: usize,
    /// Mean over all switches.
    pub(crate) freeze_us: f64,
    pub(crate) save_us: f64,
    pub(crate) restore_us: f64,
    pub(crate) run_us: f64,
    pub(crate) alone_s: f64,
    pub(crate) verified: bool,
    /// True if results with and without preemption agree to the last bit.
    pub(crate) same_bits: bool,
    pub(crate) checksum: String,
    pub(crate) fabric: &'static str,
    pub(crate) machine: &'static str,
}

impl Run {
    /// Returns whether two runs differ in the slice alone.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |run: &Self| (run.kernel, run.class, run.ranks, run.mode);
        what(self) == what(other)
    }
}

#[derive(Serialize)]
struct Document {
    runs: Vec<Run>,
    fits: Vec<Fit>,
    /// Lines of real processes.
    lines: Vec<Lines>,
}

/// The only job of a world.
const JOB: JobId = JobId(1);
/// A slice longer than any run.
const FOR_EVER: Duration = Duration::from_secs(100_000);

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kernel: KernelName,
    pub(crate) class: Class,
    pub(crate) ranks: u16,
    pub(crate) slice_ms: f64,
    pub(crate) mode: ModeName,
}

fn once(arguments: &Arguments, case: &Case, slice: Duration, seed: u64) -> Outcome {
    let setting = Setting {
        machine: arguments.machine,
        nodes: case.ranks,
        arity: DEFAULT_ARITY,
        mode: case.mode.mode(),
        phases: arguments.phases(),
        slice,
        seed,
    };
    let program = Program::Kernel(case.kernel, case.class);
    cluster::run(setting, &[(program, case.ranks, case.ranks)])
}

/// 97.5 % quantiles of Student's distribution by degrees of freedom, from 1.
const STUDENT: [f64; 10] = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// Returns the 97.5 % quantile for `freedom` degrees of freedom, at least 1.
pub(crate) fn student(freedom: usize) -> f64 {
    STUDENT.get(freedom - 1).copied().unwrap_or(1.96)
}

/// Returns the mean of values and the variance of that mean; the variance of one value is infinite.
pub(crate) fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, if values.len() < 2 { f64::INFINITY } else { squares / (count * (count - 1.0)) })
}

pub(crate) fn interval(values: &[f64]) -> (f64, [f64; 2]) {
    let (mean, variance) = mean_and_variance(values);
    if values.len() < 2 {
        return (mean, [mean, mean]);
    }
    let half = student(values.len() - 1) * variance.sqrt();
    (mean, [mean - half, mean + half])
}

fn mean_us(switches: &[Switch], of: impl Fn(&Switch) -> Duration) -> f64 {
    let sum: Duration = switches.iter().map(of).sum();
    sum.as_secs_f64() * 1e6 / switches.len().max(1) as f64
}

pub(crate) fn measure(arguments: &Arguments, case: &Case) -> Run {
    let alone = once(arguments, case, FOR_EVER, arguments.seed);
    let alone_s = alone.took(JOB).as_secs_f64();
    let bits = |outcome: &Outcome| outcome.ended.values().next().and_then(|e| e.verdict.clone());
    let expected = bits(&alone);
    let mut slowdowns = Vec::new();
    let (mut switches, mut same_bits) = (Vec::new(), true);
    for repeat in 0..arguments.repeat {
        // Each repetition has slices a little longer, so that the first one ends elsewhere in the job.
        let slice = case.slice_ms / 1e3 * (1.0 + 0.013 * f64::from(repeat));
        let seed = arguments.seed + u64::from(repeat);
        let outcome = once(arguments, case, Duration::from_secs_f64(slice), seed);
        let lost = outcome.took(JOB).as_secs_f64() - alone_s;
        slowdowns.push(lost / alone_s * slice * 1e3 / case.slice_ms);
        same_bits &= bits(&outcome) == expected;
        // The first switch stops nothing.
        switches.extend(outcome.switches.into_iter().skip(1).filter(|s| !s.stopped.is_empty()));
    }
    let (slowdown, slowdown_ci) = interval(&slowdowns);
    let verdict = expected.expect("a kernel has a verdict");
    Run {
        kernel: case.kernel.name(),
        class: case.class,
        ranks: case.ranks,
        slice_ms: case.slice_ms,
        mode: case.mode.name(),
        slowdown,
        slowdown_ci,
        slowdown_less_still: None,
        slowdown_less_still_ci: None,
        lost: Vec::new(),
        less_still: Vec::new(),
        preemptions: switches.len(),
        freeze_us: mean_us(&switches, |switch| switch.freeze),
        save_us: mean_us(&switches, |switch| switch.save),
        restore_us: mean_us(&switches, |switch| switch.restore),
        run_us: mean_us(&switches, |switch| switch.run),
        alone_s,
        verified: verdict.verified,
        same_bits,
        checksum: format!("{:016x}", verdict.checksum),
        fabric: "sim",
        machine: arguments.machine.machine().name,
    }
}

/// Returns all combinations of the arguments.
fn cases(arguments: &Arguments) -> Vec<Case> {
    let mut cases = Vec::new();
    for &kernel in &arguments.kernel {
        for &class in &arguments.class {
            for &ranks in &arguments.ranks {
                for &mode in &arguments.mode {
                    for &slice_ms in &arguments.slice_ms {
                        cases.push(Case { kernel, class, ranks, slice_ms, mode });
                    }
                }
            }
        }
    }
    cases
}

pub(crate) fn progress(length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}");
    ProgressBar::new(length as u64).with_style(style.expect("the template is well-formed"))
}

pub(crate) fn run(arguments: &Arguments) -> bool {
    let cases = cases(arguments);
    if let Some(case) = cases.iter().find(|case| case.kernel == KernelName::Ft && case.ranks > 32) {
        report::fail(&format!("--ranks {}: ft runs on up to 32", case.ranks), report::BAD_INPUT);
        std::process::exit(report::BAD_INPUT.into());
    }
    let bar = progress(cases.len());
    let mut runs = Vec::new();
    for case in &cases {
        bar.set_message(format!("{} {} on {}", case.kernel.name(), case.class, case.ranks));
        runs.push(match arguments.fabric {
            FabricName::Sim => measure(arguments, case),
            FabricName::Shm | FabricName::Udp => match live::measure(arguments, case) {
                Ok(run) => run,
                Err(error) => {
                    bar.finish_and_clear();
                    report::fail(&error, report::FAILED);
                    return false;
                }
            },
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let holds = runs.iter().all(|run| run.verified && run.same_bits);
    let lines = lines::lines(&runs);
    // Measured slowdowns may be negative and then have no logarithm.
    let fits = if arguments.fabric == FabricName::Sim { fit::all(&runs) } else { Vec::new() };
    if arguments.json {
        report::print_json(&Document { runs, fits, lines });
    } else {
        report::print(&table(&runs));
        report::print(&fit::table(&fits));
        report::print(&lines::table(&runs, &lines));
    }
    holds
}

pub(crate) fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<4} {:>5} {:>5} {:>8} {:<8} {:>8} {:>17} {:>7} {:>9} {:>9} {:>9} {:>9}  results\n",
        "",
        "class",
        "ranks",
        "slice",
        "mode",
        "slowdown",
        "95 %",
        "times",
        "freeze",
        "save",
        "restore",
        "run"
    );
    for run in runs {
        let [low, high] = run.slowdown_ci.map(|bound| bound * 100.0);
        let results = match (run.verified, run.same_bits) {
            (true, true) => "official, same bits",
            (false, _) => "NOT THE OFFICIAL ONES",
            (_, false) => "OTHER BITS WHEN PREEMPTED",
        };
        text += &format!(
            "{:<4} {:>5} {:>5} {:>5} ms {:<8} {:>6.2} % {:>6.2} to {:>5.2} % {:>7} {:>6.0} us {:>6.0} us {:>6.0} us {:>6.0} us  {results}\n",
            run.kernel,
            run.class,
            run.ranks,
            run.slice_ms,
            run.mode,
            run.slowdown * 100.0,
            low,
            high,
            run.preemptions,
            run.freeze_us,
            run.save_us,
            run.restore_us,
            run.run_us,
        );
    }
    text
}
