//! Preemption of real processes: daemons with a NIC each, two or more ranks, real time.

use std::num::NonZeroU32;

use midplane::gang::live::message::Slice;

use super::arguments::Arguments;
use super::laps::{self, Report};
use super::slowdown::{Case, Run, interval};
use crate::daemons::parts::number;
use crate::daemons::stage::{Daemons, Stage};
use crate::fabric::Fabric;
use crate::nas_rank::KernelResult;

/// Milliseconds of a slice longer than any run.
const FOR_EVER: f64 = 1e8;
/// Least number of preempted stretches, and of seconds, of a job; it repeats its kernel up to a limit to reach them.
const STRETCHES: f64 = 10.0;
const AT_LEAST: f64 = 3.0;
const MAX_TIMES: f64 = 500.0;
/// Further runs, each twice as long, if the earlier ones yielded no losses.
const MORE_RUNS: u32 = 3;
/// Milliseconds of a stretch, within limits on its number of slices.
const STRETCH_MS: f64 = 200.0;
const MIN_SLICES: f64 = 4.0;
const MAX_SLICES: f64 = 20.0;
/// Largest number of daemons of one run.
const MAX_HOSTS: u16 = 8;

/// Runs a kernel `times` times in one job; returns its result, its reports of work, and the number of preemptions.
fn once(
    stage: &Stage,
    case: &Case,
    times: u32,
) -> Result<(KernelResult, Vec<Report>, usize), String> {
    let (class, times) = (case.class.to_string(), times.to_string());
    let lines = stage.run(case.ranks, &["--be-rank", case.kernel.name(), &class, &times])?;
    let wrong = || "a job printed no result".to_owned();
    let [result, reports, about] = &lines[..] else { return Err(wrong()) };
    let result = serde_json::from_str(result).map_err(|_| wrong())?;
    let reports = serde_json::from_str(reports).map_err(|_| wrong())?;
    Ok((result, reports, number(about)?))
}

fn mean(slices: &[Slice], of: impl Fn(&Slice) -> f64) -> f64 {
    slices.iter().map(of).sum::<f64>() / slices.len().max(1) as f64
}

/// Returns the slices of a preempted stretch, and as many of one without switches.
fn stretch(case: &Case) -> NonZeroU32 {
    let slices = (STRETCH_MS / case.slice_ms).clamp(MIN_SLICES, MAX_SLICES) as u32;
    NonZeroU32::new(slices).unwrap_or(NonZeroU32::MIN)
}

/// Returns the daemons under which a job runs alone, and those that preempt it.
fn stages(arguments: &Arguments, case: &Case) -> Result<[Stage; 2], String> {
    if let Some([alone, preempting]) = &arguments.daemons {
        let preempting = Stage::of_others(preempting.clone())?;
        let slice_ms = preempting.listing()?.slice_ms;
        if slice_ms != case.slice_ms {
            return Err(format!("--slice-ms {}: those of --daemons are {slice_ms}", case.slice_ms));
        }
        return Ok([Stage::of_others(alone.clone())?, preempting]);
    }
    // Over UDP, each daemon stands for a host with an address of its own, with several ranks only if there are too
    // few daemons.
    let hosts = if arguments.fabric == Fabric::Udp { case.ranks.min(MAX_HOSTS) } else { 1 };
    let fabric = &arguments.fabric.to_string();
    let (slots, stretch) = (case.ranks / hosts, Some(stretch(case)));
    let start = |slice_ms| Stage::start(Daemons { hosts, slots, slice_ms, stretch, fabric });
    Ok([start(FOR_EVER)?, start(case.slice_ms)?])
}

/// Results of preempted runs.
#[derive(Default)]
struct Preempted {
    losses: Vec<f64>,
    /// Number of preemptions.
    times: usize,
    differs: bool,
    unverified: bool,
}

/// Runs a kernel as often as requested, each time with enough repetitions to show losses.
fn preempt(
    arguments: &Arguments,
    case: &Case,
    stage: &Stage,
    alone: &KernelResult,
) -> Result<Preempted, String> {
    let enough = STRETCHES * 2.0 * f64::from(stretch(case).get()) * case.slice_ms / 1e3;
    let mut again = (enough.max(AT_LEAST) / alone.seconds).ceil().clamp(1.0, MAX_TIMES) as u32;
    let (mut all, mut runs) = (Preempted::default(), 0);
    while runs < arguments.repeat + if all.losses.is_empty() { MORE_RUNS } else { 0 } {
        let (gang, reports, count) = once(stage, case, again)?;
        let losses = laps::losses(&reports, &stage.slices()?, case.slice_ms);
        if losses.is_empty() {
            // The run without preemption was slower than this one.
            again = (2 * again).min(MAX_TIMES as u32);
        }
        all.losses.extend(losses);
        all.times += count;
        all.differs |= gang.checksum != alone.checksum;
        all.unverified |= !gang.verified;
        runs += 1;
    }
    if all.losses.is_empty() {
        return Err(format!(
            "{} {} at {} ms: too little work to measure the loss; take a larger class, shorter slices, or daemons with --with-itself 10",
            case.kernel.name(),
            case.class,
            case.slice_ms
        ));
    }
    Ok(all)
}

/// Measures a kernel with preemption and without.
pub(crate) fn measure(arguments: &Arguments, case: &Case) -> Result<Run, String> {
    let [alone, preempted] = stages(arguments, case)?;
    let (alone, ..) = once(&alone, case, 1)?;
    let Preempted { losses: lost, times, differs, unverified } =
        preempt(arguments, case, &preempted, &alone)?;
    let slices = preempted.slices()?;
    let (slowdown, slowdown_ci) = interval(&lost);
    let rest = |slice: &Slice| slice.switch_us - slice.freeze_us - slice.save_us - slice.restore_us;
    Ok(Run {
        kernel: case.kernel.name(),
        class: case.class,
        ranks: case.ranks,
        slice_ms: case.slice_ms,
        mode: case.mode,
        slowdown,
        slowdown_ci,
        lost,
        preemptions: times,
        freeze_us: mean(&slices, |slice| slice.freeze_us),
        save_us: mean(&slices, |slice| slice.save_us),
        restore_us: mean(&slices, |slice| slice.restore_us),
        run_us: mean(&slices, rest),
        alone_s: alone.seconds,
        verified: Some(alone.verified && !unverified),
        same_bits: !differs,
        checksum: alone.checksum,
        fabric: arguments.fabric,
        machine: "this one",
    })
}
