//! The report of a run, and the table of runs.

use midplane::warp::iterate::matrix::Linear;
use midplane_kit::command_line::name_of;
use midplane_kit::report::table;
use serde::Serialize;

use super::rank::Outcome;
use super::setting::{Memory, Setting};
use super::traces::Traces;

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    #[serde(flatten)]
    pub setting: Setting,
    /// Seconds until the answer was found and checked, or the time limit.
    pub seconds: f64,
    /// Seconds until rank 0's values were within the tolerance for the first time.
    pub reached_seconds: Option<f64>,
    /// Received messages of updates, over all ranks; with Mermera its frames, those of acknowledgements among them.
    pub messages: u64,
    /// Received updates per second, over all ranks; with Mermera those that reads found.
    pub updates_per_s: f64,
    /// Sweeps of all ranks.
    pub iterations: u64,
    /// Residual of the answer, or of rank 0's last values: the 2-norm of b - A x over that of b.
    pub residual: f64,
    /// The answer's relative 2-norm distance from the direct solution, if one was computed.
    pub error: Option<f64>,
    /// True if an answer was found and checked.
    pub converged: bool,
    /// Share of sent messages that never arrived; `None` if sent ones are not counted, or none was sent.
    pub loss: Option<f64>,
    /// Ranks that were lost during the run.
    pub lost_ranks: Vec<u16>,
    #[serde(skip)]
    pub traces: Traces,
}

impl Run {
    /// Creates the report of `outcome`; `direct` is the solution by elimination.
    pub fn new(
        setting: &Setting,
        problem: &Linear,
        direct: Option<&[f64]>,
        outcome: Outcome,
    ) -> Self {
        let Outcome { answer, seconds, tally, lost, traces } = outcome;
        let last = traces.residual.last().map_or(1.0, |(_, residual)| *residual);
        let residual = answer.as_ref().map_or(last, |x| problem.relative_residual(x));
        let error = answer.as_ref().zip(direct).map(|(x, direct)| distance(x, direct));
        let arrived = tally.messages.min(tally.sent) as f64;
        let is_counted = setting.memory == Memory::Private && tally.sent > 0;
        Self {
            seconds,
            // Rank 0 checks after each of its sweeps, so an answer may exist earlier.
            reached_seconds: traces
                .reached(setting.tolerance)
                .or_else(|| answer.is_some().then_some(seconds)),
            messages: tally.messages,
            updates_per_s: tally.updates as f64 / seconds,
            iterations: tally.iterations,
            residual,
            error,
            converged: answer.is_some(),
            loss: is_counted.then(|| 1.0 - arrived / tally.sent as f64),
            lost_ranks: lost,
            traces,
            setting: setting.clone(),
        }
    }
}

/// Returns the relative 2-norm of the distance of `x` from `direct`.
fn distance(x: &[f64], direct: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let whole = norm(&mut direct.iter().copied());
    norm(&mut x.iter().zip(direct).map(|(x, d)| x - d)) / whole.max(f64::MIN_POSITIVE)
}

/// Formats a line for each run.
pub fn text(runs: &[Run]) -> String {
    let mut text = String::new();
    if let Some(Run { setting, .. }) = runs.first() {
        text += &format!(
            "{} unknowns on {} ranks, {}, memory {}, fabric {}, {}, hosts as {}, {}, seed {}\n",
            setting.unknowns,
            setting.ranks,
            name_of(&setting.iteration),
            name_of(&setting.memory),
            name_of(&setting.fabric),
            name_of(&setting.medium),
            name_of(&setting.hosts),
            name_of(&setting.transport),
            setting.seed
        );
    }
    let titles = "control, buffer, background, seconds, reached, messages, updates/s, sweeps, residual, error, loss %,";
    let line = |run: &Run| {
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let load = &run.setting.load;
        vec![
            name_of(&run.setting.control),
            run.setting.buffer.to_string(),
            format!("{}{}", load.share, if load.period.is_some() { "~" } else { "" }),
            format!("{:.2}", run.seconds),
            optional(run.reached_seconds.map(|seconds| format!("{seconds:.2}"))),
            run.messages.to_string(),
            format!("{:.0}", run.updates_per_s),
            run.iterations.to_string(),
            format!("{:.1e}", run.residual),
            optional(run.error.map(|error| format!("{error:.1e}"))),
            optional(run.loss.map(|loss| format!("{:.2}", loss * 100.0))),
            if run.converged { "" } else { "not converged" }.into(),
        ]
    };
    text + &table(titles, runs.iter().map(line))
}
