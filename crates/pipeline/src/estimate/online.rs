//! Stages monitored while messages flow: follows drift, detects sudden change and reports
//! uncertainty.

use std::collections::VecDeque;

use super::line::{Line, fit};
use crate::stage::{Pipeline, Stage};

/// Timings that are stored for each stage.
const WINDOW: usize = 64;

/// Timings after which a suspected change is fitted.
const FEWEST: usize = 8;

/// Page-Hinkley test: the part of each relative error that is ignored, and the sum of the rest that
/// is a change. At 5 % noise it raises a false alarm about once in ten thousand messages, and
/// detects a doubling after two to three.
const DRIFT: f64 = 0.08;
const ALARM: f64 = 1.2;

/// Errors are clamped to this, so that one outlier raises no alarm.
const CLIP: f64 = 0.5;

/// Time in microseconds below which a stage costs nothing; timings are then compared with it.
const LEAST_US: f64 = 1e-9;

/// Sizes must span this factor to separate overhead and cost per byte.
const SPREAD: f64 = 1.5;

/// The consequence of a timing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// The present model of the stages holds.
    Steady,
    /// A stage has changed: its old timings are discarded, and new ones are being collected. Until
    /// they are fitted, its costs are the old ones, scaled to the timings that raised the alarm.
    Suspect(usize),
    /// The model of the stages was replaced: plan anew from [`Monitor::pipeline`].
    Replan,
}

/// Monitors the stages of one chain through timings of single fragments.
///
/// After [`Verdict::Suspect`] and [`Verdict::Replan`], pass [`Monitor::pipeline`] to
/// [`Planner::replace`](crate::Planner::replace), which makes equal fragments while the costs are too
/// uncertain for a ramp. Reads no clock. A timing is the time that a fragment spent in service,
/// without waiting.
///
/// A change is noticed within a few fragments. While all fragments have about one size, overhead and
/// cost per byte cannot be told apart, so that the stage is scaled as a whole; fragments of other sizes
/// then correct the shares. Fits follow after 8 timings of a changed stage, and whenever their number
/// has doubled, up to 64. The constants suit noise of up to 10 %; at 20 %, false alarms are frequent.
#[derive(Clone, Debug)]
pub struct Monitor {
    stages: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    model: Stage,
    /// The first fragment's overhead less that of the others.
    surplus: f64,
    window: VecDeque<(f64, f64)>,
    rise: f64,
    fall: f64,
    suspect: bool,
    since_fit: usize,
    /// Timings after the last fit at which the stage is fitted again.
    due: usize,
}

impl Monitor {
    /// Creates a monitor that starts with `believed` as its model of the chain.
    #[must_use]
    pub fn new(believed: &Pipeline) -> Self {
        Self { stages: believed.stages().iter().map(|&stage| Watched::new(stage)).collect() }
    }

    /// Records the time in microseconds that a fragment of `bytes` spent in a stage. Ignores
    /// invalid times and stages that do not exist.
    ///
    /// If a stage has another overhead for the first fragment of a message
    /// ([`Stage::with_first_overhead`]), do not pass the time of that fragment. The difference of the
    /// two overheads is not measured: the model keeps it.
    pub fn handle_timing(&mut self, stage: usize, bytes: f64, us: f64) -> Verdict {
        let good = bytes.is_finite() && us.is_finite() && bytes > 0.0 && us >= 0.0;
        match self.stages.get_mut(stage) {
            Some(watched) if good => {
                watched.handle_timing(bytes, us).map_or(Verdict::Steady, |replan| {
                    if replan { Verdict::Replan } else { Verdict::Suspect(stage) }
                })
            }
            _ => Verdict::Steady,
        }
    }

    /// Returns the present model of the stages, with the errors of their timings.
    #[must_use]
    pub fn pipeline(&self) -> Pipeline {
        Pipeline::of(self.stages.iter().map(|watched| watched.model).collect())
    }
}

impl Watched {
    fn new(model: Stage) -> Self {
        Self {
            model,
            surplus: model.first_overhead().get() - model.g(),
            window: VecDeque::with_capacity(WINDOW),
            rise: 0.0,
            fall: 0.0,
            suspect: false,
            since_fit: 0,
            due: WINDOW,
        }
    }

    /// Records a timing. Returns `None` if nothing changed, false if a change is suspected from now
    /// on, and true if the model was replaced.
    fn handle_timing(&mut self, bytes: f64, us: f64) -> Option<bool> {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back((bytes, us));
        self.since_fit += 1;
        if self.suspect {
            return (self.window.len() >= FEWEST).then(|| {
                self.refit();
                true
            });
        }
        let ratio = us / self.model.us(bytes).max(LEAST_US);
        let error = ratio.max(1e-9).ln().clamp(-CLIP, CLIP);
        self.rise = (self.rise + error - DRIFT).max(0.0);
        self.fall = (self.fall - error - DRIFT).max(0.0);
        if self.rise > ALARM || self.fall > ALARM {
            return Some(self.handle_alarm());
        }
        // Slow drift raises no alarm, so the stage is fitted again whenever the window has been
        // renewed, and after a change whenever the number of its timings has doubled.
        if self.since_fit >= self.due {
            let before = self.model;
            self.refit();
            return self.has_moved(&before).then_some(true);
        }
        None
    }

    /// Decides what raised the alarm. If one line explains all timings, the model's shares of
    /// overhead and bytes were wrong: replaces the model and returns true. Otherwise the stage has
    /// changed: keeps only the newest timings and returns false.
    fn handle_alarm(&mut self) -> bool {
        let newest = self.window.len().saturating_sub((ALARM / CLIP).ceil() as usize);
        if let Some(line) = self.fitted() {
            let close = |timing: &(f64, f64)| line.residual(*timing).abs() <= DRIFT;
            if line.error <= DRIFT && self.window.iter().skip(newest).all(close) {
                self.replace(&line);
                return true;
            }
        }
        self.suspect = true;
        self.window.drain(..newest);
        self.model = self.scaled().stage().with_surplus(self.surplus);
        false
    }

    /// Returns true if the model differs from the one before for sizes that the next plan may use.
    fn has_moved(&self, before: &Stage) -> bool {
        let (low, high) = self.sizes();
        [0.5 * low, 2.0 * high]
            .into_iter()
            .any(|x| (self.model.us(x) / before.us(x).max(1e-9) - 1.0).abs() > DRIFT)
            || (self.model.error() - before.error()).abs() > DRIFT
    }

    /// Returns the smallest and the largest size in the window, in bytes.
    fn sizes(&self) -> (f64, f64) {
        let sizes = self.window.iter().map(|timing| timing.0);
        sizes.fold((f64::INFINITY, 0.0), |(low, high), x| (low.min(x), high.max(x)))
    }

    /// Fits a line to the window, if there are timings enough, and their sizes separate overhead and
    /// cost per byte. A line without overhead counts as noise until half a window supports it.
    fn fitted(&self) -> Option<Line> {
        let ((low, high), count) = (self.sizes(), self.window.len());
        if count < FEWEST || high <= low * SPREAD {
            return None;
        }
        let line = fit(&self.window.iter().copied().collect::<Vec<_>>()).ok()?;
        (line.overhead_us > 0.0 || count >= WINDOW / 2).then_some(line)
    }

    /// Fits the stage anew. If the sizes do not separate overhead and cost per byte, scales the old
    /// stage as a whole.
    fn refit(&mut self) {
        let scaled = self.scaled();
        // A fit has two parameters and scaling has one, so with few timings a slightly better fit
        // may be chance.
        let few = self.window.len() < WINDOW / 2;
        let better = |fit: &Line| match few {
            true => fit.error <= DRIFT && fit.error < scaled.error * 0.5,
            false => fit.error < scaled.error * 0.9,
        };
        self.replace(&self.fitted().filter(better).unwrap_or(scaled));
    }

    /// Scales the stage as a whole to the median of the timings. If the stage costs nothing, the median
    /// becomes its overhead.
    fn scaled(&self) -> Line {
        let mut ratios = self.ratios();
        let ratio = super::line::weighted_median(&mut ratios);
        let is_free = self.model.us(self.sizes().1) <= LEAST_US;
        let (g, c) = if is_free { (LEAST_US, 0.0) } else { (self.model.g(), self.model.c()) };
        let error = spread_around(&ratios, ratio);
        Line { overhead_us: g * ratio, us_per_byte: c * ratio, error }
    }

    /// Replaces the model of the stage.
    fn replace(&mut self, line: &Line) {
        self.model = line.stage().with_surplus(self.surplus);
        (self.rise, self.fall, self.suspect, self.since_fit) = (0.0, 0.0, false, 0);
        self.due = self.window.len();
    }

    /// Returns each timing over the model's, with weight 1.
    fn ratios(&self) -> Vec<(f64, f64)> {
        let ratio = |&(x, y): &(f64, f64)| (y / self.model.us(x).max(LEAST_US), 1.0);
        self.window.iter().map(ratio).collect()
    }
}

fn spread_around(ratios: &[(f64, f64)], middle: f64) -> f64 {
    let mut errors: Vec<(f64, f64)> =
        ratios.iter().map(|(ratio, _)| ((ratio / middle.max(1e-9) - 1.0).abs(), 1.0)).collect();
    super::line::weighted_median(&mut errors)
}
