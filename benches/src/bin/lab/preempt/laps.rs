//! Real processes: the cost of preemption, from the laps between a rank's reports of work.
//!
//! Runs on a virtual machine differ by more than preemption costs; laps of one kind that are near each other in one
//! run hardly do. So a run is preempted in stretches: some slices with switches, as many without.
//!
//! The cost of a switch is the extra time of the laps that it fell into, and of those that began while caches were
//! cold. The reference are undisturbed laps of the same kind near them: their median, plus the mean difference from
//! it. Switches fall into long laps more often, so that mean weights each lap by its chance to be met.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use midplane::gang::live::clock::now;
use midplane::gang::live::message::Slice;
use midplane::simhw::time::Instant;
use midplane_kit::claims::median;
use midplane_nas::Pace;

/// Microseconds after a switch in which caches are still cold.
const AFTER_US: f64 = 1_000.0;
/// Microseconds before the first switch of a stretch: a lap that begins then may be stopped by that switch.
const BEFORE_US: f64 = 25_000.0;
/// Number of laps that a lap is compared with.
const NEAR: usize = 21;

/// A report of work: nanoseconds of this host's clock, and number of operations.
pub(crate) type Report = (u64, u64);

/// Records the time of each report of work.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch(Mutex<Vec<Report>>);

impl Stopwatch {
    pub(crate) fn into_reports(self) -> Vec<Report> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace for Stopwatch {
    fn work(&self, operations: u64) -> impl Future<Output = ()> + Send {
        let at = now().nanos_since(Instant::ZERO);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((at, operations));
        std::future::ready(())
    }
}

/// Kind of a lap: the operations last reported before it, the number of empty reports since then, and its own
/// operations.
type Kind = (u64, u32, u64);

#[derive(Clone, Copy, Debug)]
struct Lap {
    kind: Kind,
    from: f64,
    until: f64,
}

impl Lap {
    fn took(&self) -> f64 {
        self.until - self.from
    }
}

/// Times of laps of one kind in which nothing is stopped.
struct Usual {
    /// Numbers and times of those laps.
    laps: Vec<(usize, f64)>,
    /// Mean difference from the median of the laps near them: of laps that a switch falls into, and of those that it
    /// misses.
    more: [f64; 2],
}

impl Usual {
    fn of(laps: Vec<(usize, f64)>, slice_us: f64) -> Option<Self> {
        if laps.len() < NEAR {
            return None;
        }
        let mut usual = Self { laps, more: [0.0; 2] };
        // Chance that a switch falls into a lap.
        let chance = |took: f64| (took / slice_us).min(1.0);
        let more = |weight: &dyn Fn(f64) -> f64| {
            let weights = usual.laps.iter().map(|&(_, took)| weight(took)).sum::<f64>();
            let more = |&(at, took): &(usize, f64)| weight(took) * (took - usual.near(at));
            usual.laps.iter().map(more).sum::<f64>() / weights.max(f64::MIN_POSITIVE)
        };
        usual.more = [more(&chance), more(&|took| 1.0 - chance(took))];
        Some(usual)
    }

    /// Returns the median of the laps nearest to this number.
    fn near(&self, at: usize) -> f64 {
        let place = self.laps.partition_point(|(lap, _)| *lap < at);
        let first = place.saturating_sub(NEAR / 2).min(self.laps.len() - NEAR);
        median(self.laps[first..first + NEAR].iter().map(|(_, took)| *took).collect())
    }

    /// Returns the expected time of a lap that nothing stops.
    fn expected(&self, at: usize, is_met: bool) -> f64 {
        self.near(at) + self.more[usize::from(!is_met)]
    }
}

/// A switch: microseconds from its first order until its last report.
type Stop = [f64; 2];

/// Groups switches that follow each other slice by slice.
fn stretches(slices: &[Slice], slice_ms: f64) -> Vec<Vec<Stop>> {
    let stops = slices.iter().map(|slice| [slice.at_us, slice.at_us + slice.switch_us]);
    let stops: Vec<Stop> = stops.collect();
    let follow = |before: &Stop, after: &Stop| after[0] - before[1] < 1.5 * slice_ms * 1e3;
    stops.chunk_by(follow).map(<[Stop]>::to_vec).collect()
}

fn laps_between(reports: &[Report]) -> Vec<Lap> {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let (mut before, mut none) = (0, 0);
    let lap = |pair: &[Report]| {
        let [(from, begun), (until, work)] = [pair[0], pair[1]];
        (before, none) = if begun > 0 { (begun, 0) } else { (before, none + 1) };
        Lap { kind: (before, none, work), from: micros(from), until: micros(until) }
    };
    reports.windows(2).map(lap).collect()
}

/// Returns the numbers of the laps that begin in a time span.
fn begun(laps: &[Lap], [from, until]: [f64; 2]) -> Range<usize> {
    let before = |time: f64| laps.partition_point(|lap| lap.from < time);
    before(from)..before(until).max(before(from))
}

/// Returns the undisturbed laps, by kind.
fn usual(laps: &[Lap], stretches: &[Vec<Stop>], slice_us: f64) -> BTreeMap<Kind, Usual> {
    let ends = stretches.iter().map(|stops| stops[stops.len() - 1][1] + AFTER_US);
    let next = stretches.iter().skip(1).map(|stops| stops[0][0] - BEFORE_US);
    let mut kinds: BTreeMap<Kind, Vec<(usize, f64)>> = BTreeMap::new();
    for (from, until) in ends.zip(next) {
        for at in begun(laps, [from, until]) {
            kinds.entry(laps[at].kind).or_default().push((at, laps[at].took()));
        }
    }
    let usual = kinds.into_iter().map(|(kind, laps)| Some((kind, Usual::of(laps, slice_us)?)));
    usual.flatten().collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Touch {
    None,
    /// A switch fell into the lap.
    Met,
    /// The lap began after a switch, with cold caches.
    After,
}

/// Returns the effect of switches on each lap.
fn touches(laps: &[Lap], stops: &[Stop]) -> Vec<Touch> {
    let mut touches = vec![Touch::None; laps.len()];
    for stop in stops {
        for at in begun(laps, [stop[0], stop[1] + AFTER_US]) {
            if touches[at] == Touch::None {
                touches[at] = Touch::After;
            }
        }
        let met = laps.partition_point(|lap| lap.until <= stop[0]);
        if let Some(touch) = touches.get_mut(met) {
            *touch = Touch::Met;
        }
    }
    touches
}

/// Returns the mean time from one switch to the next.
fn period(stretches: &[Vec<Stop>]) -> f64 {
    let count: usize = stretches.iter().map(|stops| stops.len() - 1).sum();
    let time = stretches.iter().map(|stops| stops[stops.len() - 1][0] - stops[0][0]).sum::<f64>();
    time / count as f64
}

/// Returns the cost of each switch of a run, as a part of the work between two switches, without switches around which the kinds of laps are too rare.
pub(crate) fn losses(reports: &[Report], slices: &[Slice], slice_ms: f64) -> Vec<f64> {
    let laps = laps_between(reports);
    let Some((first, last)) = laps.first().zip(laps.last()) else { return Vec::new() };
    let mut stretches = stretches(slices, slice_ms);
    let within = |stops: &Vec<Stop>| {
        let ends = stops.len() > 1 && stops[stops.len() - 1][1] + AFTER_US < last.from;
        ends && stops[0][0] > first.from
    };
    stretches.retain(within);
    let (usual, stops) = (usual(&laps, &stretches, slice_ms * 1e3), stretches.concat());
    let touches = touches(&laps, &stops);
    let touched: Vec<usize> = (0..laps.len()).filter(|at| touches[*at] != Touch::None).collect();
    let mut costs = Vec::new();
    for group in touched.chunk_by(|a, b| a + 1 == *b) {
        let more = |at: &usize| {
            let expected = usual.get(&laps[*at].kind)?.expected(*at, touches[*at] == Touch::Met);
            Some(laps[*at].took() - expected)
        };
        let Some(lost) = group.iter().map(more).sum::<Option<f64>>() else { continue };
        let [from, until] = [laps[group[0]].from, laps[group[group.len() - 1]].until];
        let count = stops.iter().filter(|stop| (from..until).contains(&stop[0])).count();
        // Switches of one lap share its cost equally.
        costs.extend(std::iter::repeat_n(lost / count as f64, count));
    }
    let work = period(&stretches) - costs.iter().sum::<f64>() / costs.len() as f64;
    costs.iter().map(|lost| lost / work).collect()
}
