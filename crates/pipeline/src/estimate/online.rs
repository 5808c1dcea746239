//! Stages watched while messages flow: drift followed, sudden change noticed, uncertainty told.

use std::collections::VecDeque;

use super::line::{Line, fit};
use crate::stage::{Pipeline, Stage};

/// Timings kept for each stage.
const WINDOW: usize = 64;

/// Timings of a stage after which a change can be believed and a stage fitted anew.
const FEWEST: usize = 8;

/// Page-Hinkley: the part of a relative error that is no news, and the sum of errors that is a change. At 5 % noise a
/// false alarm comes about once in ten thousand messages, a doubling is seen after two to three.
const DRIFT: f64 = 0.08;
const ALARM: f64 = 1.2;

/// Errors are cut off here, so that one outlier is no alarm.
const CLIP: f64 = 0.5;

/// Sizes have to span this factor for overhead and bytes to be told apart.
const SPREAD: f64 = 1.5;

/// The relative error of a stage's line above which ramps lose to equal fragments.
pub const RISKY: f64 = 0.2;

/// What a timing led to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing: the stages are as believed.
    Steady,
    /// A stage has changed: its old timings are forgotten, and new ones are being collected.
    Suspect(usize),
    /// The believed stages were replaced: plan anew from [`Monitor::pipeline`].
    Replan,
}

/// Watches the stages of one chain through timings of single fragments.
///
/// After every [`Verdict::Replan`] hand [`Monitor::pipeline`] to the planner, with ramps only while
/// [`Monitor::is_risky`] is false. Reads no clock; a timing is what a fragment spent in service, waits excluded.
#[derive(Clone, Debug)]
pub struct Monitor {
    stages: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    believed: Stage,
    window: VecDeque<(f64, f64)>,
    rise: f64,
    fall: f64,
    suspect: bool,
    error: f64,
    since_fit: usize,
}

impl Monitor {
    /// Watches a chain whose stages are believed to be these.
    #[must_use]
    pub fn new(believed: &Pipeline) -> Self {
        Self { stages: believed.stages().iter().map(|&stage| Watched::new(stage)).collect() }
    }

    /// Takes the time in microseconds that a fragment of `bytes` spent in a stage. What is no time, and stages that
    /// are not there, change nothing.
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

    /// The stages as they are believed to be now.
    #[must_use]
    pub fn pipeline(&self) -> Pipeline {
        Pipeline::of(self.stages.iter().map(|watched| watched.believed).collect())
    }

    /// The largest relative error of any stage: the median distance of its timings from its line.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.stages.iter().map(|watched| watched.error).fold(0.0, f64::max)
    }

    /// Whether the stages are so uncertain that equal fragments are the better choice.
    #[must_use]
    pub fn is_risky(&self) -> bool {
        self.error() > RISKY || self.stages.iter().any(|watched| watched.suspect)
    }
}

impl Watched {
    fn new(believed: Stage) -> Self {
        Self {
            believed,
            window: VecDeque::with_capacity(WINDOW),
            rise: 0.0,
            fall: 0.0,
            suspect: false,
            error: 0.0,
            since_fit: 0,
        }
    }

    /// `None`: nothing new; `false`: under suspicion from now on; `true`: believed anew.
    fn handle_timing(&mut self, bytes: f64, us: f64) -> Option<bool> {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back((bytes, us));
        self.since_fit += 1;
        if self.suspect {
            return (self.window.len() >= FEWEST).then(|| {
                self.believe();
                true
            });
        }
        let ratio = us / self.believed.us(bytes).max(1e-9);
        let error = ratio.max(1e-9).ln().clamp(-CLIP, CLIP);
        self.rise = (self.rise + error - DRIFT).max(0.0);
        self.fall = (self.fall - error - DRIFT).max(0.0);
        if self.rise > ALARM || self.fall > ALARM {
            self.suspect = true;
            // The newest timings, those that raised the alarm, belong to the new stage.
            let keep = (ALARM / CLIP).ceil() as usize;
            self.window.drain(..self.window.len().saturating_sub(keep));
            return Some(false);
        }
        // Slow drift stays below the alarm: fit again when the window has been renewed.
        if self.since_fit >= WINDOW && self.window.len() == WINDOW {
            let before = self.believed;
            self.believe();
            let moved = (self.believed.us(bytes) / before.us(bytes).max(1e-9) - 1.0).abs();
            return (moved > DRIFT).then_some(true);
        }
        None
    }

    /// Fits the stage anew. Where sizes do not tell overhead from bytes, the old stage is scaled as a whole.
    fn believe(&mut self) {
        let timings: Vec<(f64, f64)> = self.window.iter().copied().collect();
        let (low, high) =
            timings.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), (x, _)| (l.min(*x), h.max(*x)));
        let mut ratios: Vec<(f64, f64)> =
            timings.iter().map(|(x, y)| (y / self.believed.us(*x).max(1e-9), 1.0)).collect();
        let ratio = super::line::weighted_median(&mut ratios);
        let scaled = Line {
            overhead_us: self.believed.g() * ratio,
            us_per_byte: self.believed.c() * ratio,
            error: spread_around(&ratios, ratio),
        };
        let fitted = if high > low * SPREAD && timings.len() >= WINDOW / 2 {
            fit(&timings).ok()
        } else {
            None
        };
        // Few timings cannot tell a better line from luck: scaling has one parameter, a fit two.
        let line = fitted.filter(|fitted| fitted.error < scaled.error * 0.9).unwrap_or(scaled);
        self.believed = line.stage();
        self.error = line.error;
        (self.rise, self.fall, self.suspect, self.since_fit) = (0.0, 0.0, false, 0);
    }
}

fn spread_around(ratios: &[(f64, f64)], middle: f64) -> f64 {
    let mut errors: Vec<(f64, f64)> =
        ratios.iter().map(|(ratio, _)| ((ratio / middle.max(1e-9) - 1.0).abs(), 1.0)).collect();
    super::line::weighted_median(&mut errors)
}
