//! Judges timing claims: bounds on numbers that the machine's other load affects, too.
//!
//! Ours and theirs are measured in alternating rounds. A claim is judged in builds with optimization, from
//! three rounds on. If it is missed and the machine was measurably too busy, the result is open.

use serde::Serialize;

use crate::report;

#[cfg(test)]
mod tests;

/// Exit code of a program that ran well, on a machine too busy to judge its timing claims.
const TOO_BUSY: u8 = 3;
/// Least number of rounds whose median is judged.
const MIN_ROUNDS: usize = 3;
/// Largest ratio of theirs' best round to its worst one that counts as steady; above it, all rounds must agree.
const MAX_SPREAD: f64 = 1.5;
/// Of each this many rounds, one at each end is an outlier: the spread and the agreement of rounds leave it out.
const ROUNDS_PER_OUTLIER: usize = 4;
/// Largest shares of processor time that the hypervisor, and other programs, may take from a run.
const MAX_STOLEN: f64 = 0.02;
const MAX_OTHERS: f64 = 0.1;

/// Judgement of one claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The ratio reaches the claimed one, and ours is faster.
    Holds,
    /// The ratio reaches the claimed one, which is less than 1, but theirs is faster: no failure.
    Slower,
    /// The ratio is less than the claimed one.
    Missed,
    /// Theirs' rounds differ too much, and the rounds' ratios lie on both sides of the bound.
    Unclear,
    /// A build without optimization, or too few rounds.
    NotJudged,
    /// The number could not be measured.
    NoNumber,
}

impl Verdict {
    /// Returns whether more rounds may change the judgement to a better one.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Missed | Self::Unclear)
    }

    /// Returns the text of a table's last column.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "missed",
            Self::Slower => "slower",
            Self::Unclear => "unclear",
            Self::NotJudged => "not judged",
            Self::NoNumber => "no number",
        }
    }
}

/// Result of several rounds: how many times ours is faster, and the spread of the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Compared {
    /// The ratio of ours to theirs, above 1 if ours is faster: the median over the rounds.
    pub ratio: f64,
    /// The lowest ratio of a round. Of each four rounds, the lowest one is left out.
    pub lowest_ratio: f64,
    /// The highest ratio of a round. Of each four rounds, the highest one is left out.
    pub highest_ratio: f64,
    /// Theirs in its best round over theirs in its worst one. Of each four rounds, one at each end is left out.
    pub anchor_spread: f64,
    #[serde(skip)]
    rounds: usize,
}

impl Compared {
    /// Summarizes the `(ratio, theirs)` of each round; `None` if there is no round, or a ratio is not finite.
    pub fn of(rounds: &[(f64, f64)]) -> Option<Self> {
        let known = !rounds.is_empty() && rounds.iter().all(|round| round.0.is_finite());
        known.then(|| {
            let (lowest_ratio, highest_ratio) = ends(rounds.iter().map(|round| round.0).collect());
            let (least, most) = ends(rounds.iter().map(|round| round.1).collect());
            Self {
                ratio: median(rounds.iter().map(|round| round.0).collect()),
                lowest_ratio,
                highest_ratio,
                anchor_spread: most / least,
                rounds: rounds.len(),
            }
        })
    }

    /// Judges whether the ratio reaches `wanted`.
    pub fn verdict(&self, wanted: f64) -> Verdict {
        match cfg!(debug_assertions) || self.rounds < MIN_ROUNDS {
            true => Verdict::NotJudged,
            false => self.judge(wanted),
        }
    }

    /// Uses the median if theirs is steady; else the rounds must agree.
    fn judge(&self, wanted: f64) -> Verdict {
        let is_steady = self.anchor_spread <= MAX_SPREAD;
        match self {
            _ if self.lowest_ratio >= wanted || is_steady && self.ratio >= wanted => {
                if self.ratio < 1.0 { Verdict::Slower } else { Verdict::Holds }
            }
            _ if !is_steady && self.highest_ratio >= wanted => Verdict::Unclear,
            _ => Verdict::Missed,
        }
    }
}

/// Returns the least and the largest value without outliers; there is at least one value.
fn ends(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let outliers = values.len() / ROUNDS_PER_OUTLIER;
    (values[outliers], values[values.len() - 1 - outliers])
}

/// Numbers of several rounds without a claim.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Medians {
    /// Median of ours.
    pub ours: f64,
    /// Median of theirs, if there is something to compare with.
    pub theirs: Option<f64>,
    /// Median of ours over theirs; none if that is no finite number.
    pub ratio: Option<f64>,
    /// The range of the rounds' ratios over the ratio.
    pub spread: Option<f64>,
}

impl Medians {
    /// Summarizes `ours` and `theirs` of each round, if it has both.
    pub fn of(rounds: &[(f64, Option<f64>)]) -> Self {
        let theirs: Vec<f64> = rounds.iter().filter_map(|round| round.1).collect();
        let ratios = rounds.iter().filter_map(|(ours, theirs)| Some(ours / (*theirs)?));
        let (least, most) =
            ratios.clone().fold((f64::MAX, 0.0_f64), |(a, b), ratio| (a.min(ratio), b.max(ratio)));
        let known = |value: f64| Some(value).filter(|value| value.is_finite());
        let ratio = known(median(ratios.collect()));
        Self {
            ours: median(rounds.iter().map(|round| round.0).collect()),
            theirs: known(median(theirs)),
            ratio,
            spread: ratio.and_then(|ratio| known((most - least) / ratio)),
        }
    }
}

/// Returns the median, of an even number of values the mean of the two in the middle; NaN for an empty list.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        // Of an odd number of values, both are the same.
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

/// Processor time, in the system's ticks.
#[derive(Clone, Copy, Debug)]
struct Times {
    all: f64,
    stolen: f64,
    programs: f64,
    /// Time of this process, and of its children that have ended.
    own: f64,
}

impl Times {
    /// Reads the times; `None` on systems without `/proc`.
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
        // Fields: user, nice, system, idle, iowait, irq, softirq, steal. Guest time is part of user time.
        let [user, nice, system, _, _, _, _, stolen, ..] = ticks[..] else { return None };
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The name before these fields may contain spaces.
        let fields = text.rsplit_once(") ")?.1.split_whitespace();
        let own = fields.skip(11).take(4).flat_map(str::parse::<f64>).sum();
        let all = ticks[..8].iter().sum();
        Some(Self { all, stolen, programs: user + nice + system, own })
    }
}

/// Measures other load of the machine while a program measures.
#[derive(Debug)]
pub struct Watch(Option<Times>);

impl Watch {
    /// Starts to measure.
    pub fn start() -> Self {
        Self(Times::read())
    }

    /// Describes the load besides this program and its ended children; `None` if it is too small to excuse a missed
    /// claim.
    pub fn evidence(&self) -> Option<String> {
        let (then, now) = (self.0?, Times::read()?);
        let all = (now.all - then.all).max(1.0);
        let stolen = (now.stolen - then.stolen) / all;
        let others = (now.programs - then.programs - (now.own - then.own)) / all;
        let is_busy = stolen > MAX_STOLEN || others > MAX_OTHERS;
        is_busy.then(|| {
            format!(
                "{:.1} % of the processors' time was stolen (a quiet machine: at most {:.0}), and {:.1} % went to other programs \
                 (at most {:.0})",
                100.0 * stolen,
                100.0 * MAX_STOLEN,
                100.0 * others,
                100.0 * MAX_OTHERS
            )
        })
    }
}

/// Returns the exit code for these verdicts; prints to standard error why missed claims may be due to the machine.
pub fn exit(verdicts: &[Verdict], watch: &Watch) -> u8 {
    outcome(verdicts, || watch.evidence()).unwrap_or_else(|evidence| {
        report::fail(&format!("too busy for a claim: {evidence}"), TOO_BUSY);
        TOO_BUSY
    })
}

/// Computes the exit code.
///
/// # Errors
/// The evidence that the machine was too busy.
fn outcome(verdicts: &[Verdict], evidence: impl FnOnce() -> Option<String>) -> Result<u8, String> {
    let any = |of: &[Verdict]| verdicts.iter().any(|verdict| of.contains(verdict));
    if any(&[Verdict::NoNumber]) {
        return Ok(report::FAILED);
    }
    if any(&[Verdict::Missed]) {
        return evidence().map_or(Ok(report::FAILED), Err);
    }
    match any(&[Verdict::Unclear]) {
        true => Err(format!(
            "theirs is more than {MAX_SPREAD} times as fast in one round as in another"
        )),
        false => Ok(0),
    }
}
