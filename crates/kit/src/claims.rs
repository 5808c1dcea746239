//! Timing claims: what is claimed of numbers that the machine's other work changes too, and when they are judged.
//!
//! Ours and theirs are measured in alternating rounds. A claim is judged in builds with optimization, from
//! [`LEAST_ROUNDS`] rounds on. Where it is missed, and the machine was provably too busy for it, nothing is known.

use std::process::ExitCode;

use serde::Serialize;

use crate::report;

#[cfg(test)]
mod tests;

/// The exit code of a program that ran well on a machine too busy for what it claims of times.
const TOO_BUSY: u8 = 3;
/// Fewest rounds whose median is a claim.
const LEAST_ROUNDS: usize = 3;
/// Theirs is the anchor: where its best round is more than so many times its worst one, rounds must agree.
const MOST_SPREAD: f64 = 1.5;
/// Shares of the processors' time that the hypervisor, and other programs, may take from a run.
const MOST_STOLEN: f64 = 0.02;
const MOST_OTHERS: f64 = 0.1;

/// What became of one claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The ratio is at least what is claimed, and ours is ahead.
    Holds,
    /// The ratio is at least what is claimed, which is less than 1, and theirs is ahead: no failure.
    Slower,
    /// The ratio is less than what is claimed.
    Missed,
    /// The anchor's rounds differ too much, and the rounds' ratios lie on both sides of the bound.
    Unclear,
    /// A build without optimization, or too few rounds.
    NotJudged,
    /// It could not be measured.
    NoNumber,
}

impl Verdict {
    /// Judges a claim of a program's own, after so many rounds in which its anchor took so many times longer at worst than at
    /// best.
    pub fn of(holds: bool, rounds: usize, anchor_spread: f64) -> Self {
        match holds {
            _ if cfg!(debug_assertions) || rounds < LEAST_ROUNDS => Self::NotJudged,
            true => Self::Holds,
            false if anchor_spread > MOST_SPREAD => Self::Unclear,
            false => Self::Missed,
        }
    }

    /// What a table says after a row's numbers.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "does not hold",
            Self::Slower => "slower",
            Self::Unclear => "unclear",
            Self::NotJudged => "not judged",
            Self::NoNumber => "no number",
        }
    }
}

/// What rounds have given: how far ours is ahead, and how far apart the rounds were.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Compared {
    /// How many times ours is ahead: the rounds' median, worst and best.
    pub ratio: f64,
    /// The lowest ratio of a round.
    pub lowest_ratio: f64,
    /// The highest ratio of a round.
    pub highest_ratio: f64,
    /// Theirs in its best round over theirs in its worst one.
    pub anchor_spread: f64,
    #[serde(skip)]
    rounds: usize,
}

impl Compared {
    /// What `(ratio, theirs)` of each round come to; `None` where there is no number.
    pub fn of(rounds: &[(f64, f64)]) -> Option<Self> {
        let (lowest_ratio, highest_ratio) = ends(rounds.iter().map(|round| round.0));
        let (least, most) = ends(rounds.iter().map(|round| round.1));
        let known = !rounds.is_empty() && rounds.iter().all(|round| round.0.is_finite());
        known.then(|| Self {
            ratio: median(rounds.iter().map(|round| round.0).collect()),
            lowest_ratio,
            highest_ratio,
            anchor_spread: most / least,
            rounds: rounds.len(),
        })
    }

    /// Whether ours is ahead by `wanted`, or more, where that is judged.
    pub fn verdict(&self, wanted: f64) -> Verdict {
        match cfg!(debug_assertions) || self.rounds < LEAST_ROUNDS {
            true => Verdict::NotJudged,
            false => self.judge(wanted),
        }
    }

    /// Where theirs is steady, the median counts; else the rounds must agree.
    fn judge(&self, wanted: f64) -> Verdict {
        let is_steady = self.anchor_spread <= MOST_SPREAD;
        match self {
            _ if self.lowest_ratio >= wanted || is_steady && self.ratio >= wanted => {
                if self.ratio < 1.0 { Verdict::Slower } else { Verdict::Holds }
            }
            _ if !is_steady && self.highest_ratio >= wanted => Verdict::Unclear,
            _ => Verdict::Missed,
        }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// The median of some numbers; not a number where there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Processors' time, in the system's ticks.
#[derive(Clone, Copy, Debug)]
struct Times {
    all: f64,
    stolen: f64,
    programs: f64,
    /// This process's, and that of its children that have ended.
    own: f64,
}

impl Times {
    /// `None` on systems that do not say.
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; those of guests are users' as well.
        let [user, nice, system, _, _, _, _, stolen, ..] = ticks[..] else { return None };
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The name before may have spaces.
        let fields = text.rsplit_once(") ")?.1.split_whitespace();
        let own = fields.skip(11).take(4).flat_map(str::parse::<f64>).sum();
        let all = ticks[..8].iter().sum();
        Some(Self { all, stolen, programs: user + nice + system, own })
    }
}

/// How busy the machine is with other work while a program measures.
#[derive(Debug)]
pub struct Watch(Option<Times>);

impl Watch {
    /// Begins a run.
    pub fn start() -> Self {
        Self(Times::read())
    }

    /// What the machine did beside this program and its children, which have ended; `None` where that is too little to
    /// excuse a claim that is missed.
    pub fn evidence(&self) -> Option<String> {
        let (then, now) = (self.0?, Times::read()?);
        let all = (now.all - then.all).max(1.0);
        let stolen = (now.stolen - then.stolen) / all;
        let others = (now.programs - then.programs - (now.own - then.own)) / all;
        let is_busy = stolen > MOST_STOLEN || others > MOST_OTHERS;
        is_busy.then(|| {
            format!(
                "{:.1} % of the processors' time was stolen (a quiet machine: at most {:.0}), and {:.1} % went to other programs \
                 (at most {:.0})",
                100.0 * stolen,
                100.0 * MOST_STOLEN,
                100.0 * others,
                100.0 * MOST_OTHERS
            )
        })
    }
}

/// How a program ends that claims these: says on standard error why claims that are missed may be the machine's.
pub fn exit(verdicts: &[Verdict], watch: &Watch) -> ExitCode {
    match outcome(verdicts, || watch.evidence()) {
        Ok(code) => ExitCode::from(code),
        Err(evidence) => report::fail(&format!("too busy for a claim: {evidence}"), TOO_BUSY),
    }
}

/// The exit code.
///
/// # Errors
/// The evidence that the machine was too busy.
fn outcome(verdicts: &[Verdict], evidence: impl FnOnce() -> Option<String>) -> Result<u8, String> {
    let any = |of: &[Verdict]| verdicts.iter().any(|verdict| of.contains(verdict));
    if any(&[Verdict::NoNumber]) {
        return Ok(report::DID_NOT_HOLD);
    }
    if any(&[Verdict::Missed]) {
        return evidence().map_or(Ok(report::DID_NOT_HOLD), Err);
    }
    match any(&[Verdict::Unclear]) {
        true => Err(format!(
            "rounds of what ours is compared with differ by more than {MOST_SPREAD} times"
        )),
        false => Ok(0),
    }
}
