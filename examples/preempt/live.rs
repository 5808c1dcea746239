//! The same with real processes: daemons with a NIC each, two or more ranks, preempted in real time.

use midplane::gang::live::message::Slice;

use super::arguments::{Arguments, FabricName};
use super::daemons::parts::number;
use super::daemons::stage::{Daemons, Stage};
use super::nas_rank::Said;
use super::pairs;
use super::slowdown::{Case, Run, interval};

/// Milliseconds of a slice that nothing outlives.
const FOR_EVER: f64 = 1e8;
/// Most daemons of one run.
const MOST_HOSTS: u16 = 8;

/// One run of a kernel: what it said, and how often it was stopped.
fn once(stage: &Stage, case: &Case) -> Result<(Said, usize), String> {
    let class = case.class.to_string();
    let lines = stage.run(case.ranks, &["--be-rank", case.kernel.name(), &class])?;
    let wrong = || "a job did not say what it found".to_owned();
    let [said, about] = &lines[..] else { return Err(wrong()) };
    let said = serde_json::from_str(said).map_err(|_| wrong())?;
    Ok((said, number(about)?))
}

fn mean(slices: &[Slice], of: impl Fn(&Slice) -> f64) -> f64 {
    slices.iter().map(of).sum::<f64>() / slices.len().max(1) as f64
}

/// Daemons under which a job runs alone, and those that preempt it.
fn stages(arguments: &Arguments, case: &Case) -> Result<[Stage; 2], String> {
    if let Some([alone, preempting]) = &arguments.daemons {
        let preempting = Stage::of_others(preempting.clone())?;
        let slice_ms = preempting.listing()?.slice_ms;
        if slice_ms != case.slice_ms {
            return Err(format!("--slice-ms {}: those of --daemons are {slice_ms}", case.slice_ms));
        }
        return Ok([Stage::of_others(alone.clone())?, preempting]);
    }
    // Over UDP a host is a daemon with an address of its own; it has more than one rank only if it must.
    let hosts = if arguments.fabric == FabricName::Udp { case.ranks.min(MOST_HOSTS) } else { 1 };
    let (slots, fabric, mode) = (case.ranks / hosts, arguments.fabric.name(), case.mode.name());
    let start = |slice_ms| {
        Stage::start(Daemons { hosts, slots, slice_ms, with_itself: true, fabric, mode })
    };
    Ok([start(FOR_EVER)?, start(case.slice_ms)?])
}

/// Measures a kernel with and without preemption, in turns.
///
/// # Errors
/// One line.
pub(crate) fn measure(arguments: &Arguments, case: &Case) -> Result<Run, String> {
    let fabric = arguments.fabric.name();
    let [alone, preempted] = stages(arguments, case)?;
    let (first, _) = once(&alone, case)?;
    let (mut slowdowns, mut less_still, mut times) = (Vec::new(), Vec::new(), 0);
    let (mut same_bits, mut verified, mut alone_s) = (true, first.verified, Vec::new());
    let mut runs = 0;
    while runs < arguments.repeat || times < arguments.preemptions {
        // What drifts with time is in one half of the pairs as much as in the other.
        let before = if runs.is_multiple_of(2) { Some(once(&alone, case)?.0) } else { None };
        let (gang, count) = once(&preempted, case)?;
        let said = match before {
            Some(said) => said,
            None => once(&alone, case)?.0,
        };
        let slices = preempted.slices()?;
        let last = &slices[slices.len().saturating_sub(count)..];
        let still = last.iter().map(|slice| slice.switch_us).sum::<f64>() / 1e6;
        slowdowns.push(gang.seconds / said.seconds - 1.0);
        less_still.push((gang.seconds - still) / said.seconds - 1.0);
        alone_s.push(said.seconds);
        same_bits &= said.checksum == first.checksum && gang.checksum == first.checksum;
        verified &= said.verified && gang.verified;
        times += count;
        runs += 1;
    }
    let slices = preempted.slices()?;
    let (slowdown, slowdown_ci) = interval(&slowdowns);
    let (less, less_ci) = pairs::middle(&less_still);
    let rest = |slice: &Slice| slice.switch_us - slice.freeze_us - slice.save_us - slice.restore_us;
    Ok(Run {
        kernel: case.kernel.name(),
        class: case.class,
        ranks: case.ranks,
        slice_ms: case.slice_ms,
        mode: case.mode.name(),
        slowdown,
        slowdown_ci,
        slowdown_less_still: Some(less),
        slowdown_less_still_ci: Some(less_ci),
        pairs: less_still,
        preemptions: times,
        freeze_us: mean(&slices, |slice| slice.freeze_us),
        save_us: mean(&slices, |slice| slice.save_us),
        restore_us: mean(&slices, |slice| slice.restore_us),
        run_us: mean(&slices, rest),
        alone_s: interval(&alone_s).0,
        verified,
        same_bits,
        checksum: first.checksum,
        fabric,
        machine: "this one",
    })
}

/// How long 64 real processes take to stand still.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Frozen {
    pub(crate) processes: u16,
    /// They wait for something, or compute.
    pub(crate) blocked: bool,
    pub(crate) freezes: usize,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

/// Freezes so many processes again and again, without a network.
///
/// # Errors
/// One line.
pub(crate) fn freeze(processes: u16, blocked: bool, seconds: f64) -> Result<Frozen, String> {
    let (fabric, mode) = ("none", "resident");
    let of =
        Daemons { hosts: 1, slots: processes, slice_ms: 10.0, with_itself: true, fabric, mode };
    let stage = Stage::start(of)?;
    let how = if blocked { "blocked" } else { "spinning" };
    stage.run(processes, &["--be-idle", how, &seconds.to_string()])?;
    let mut all: Vec<f64> = stage.slices()?.iter().map(|slice| slice.freeze_us).collect();
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((all.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
    Ok(Frozen { processes, blocked, freezes: all.len(), median_us: at(0.5), p99_us: at(0.99) })
}
