//! The costs of the path's stages, learned from messages over it; the plan and the prediction that follow.

use std::fs::File;

use midplane::pipeline::auto::Refragment;
use midplane::pipeline::estimate::{FitError, Line, fit};
use midplane::pipeline::{Limits, Pipeline, Plan, PlanError, Request, Stage, auto};

use super::wire::{Connection, Outcome, send};

/// Largest and smallest fragment of a mixed message, as parts of it.
const PARTS: (f64, f64) = (0.5, 1.0 / 64.0);

/// Smallest observed fragment, and the unit of a plan, in bytes: a sector.
const SECTOR: f64 = 512.0;

/// Whole messages: sizes per round, and the smallest one as a part of the message.
const SIZES: usize = 6;
const LEAST: f64 = 1.0 / 16.0;

/// A connection on which messages are timed.
#[derive(Debug)]
pub struct Real<'a> {
    pub connection: &'a Connection,
    pub file: &'a File,
}

impl Real<'_> {
    /// Sends one message in fragments of these sizes.
    ///
    /// # Errors
    /// One line, if the receiver is lost.
    pub async fn time(&self, sizes: &[u64]) -> Result<Outcome, String> {
        let outcome = send(self.connection, self.file, sizes).await;
        outcome.map_err(|error| format!("the receiver: {error}"))
    }
}

/// Observations of the path with messages of about one size.
#[derive(Clone, Debug)]
pub struct Timings {
    message: u64,
    turn: usize,
    /// Times of fragments in the stages read, send and write: bytes and microseconds.
    stays: [Vec<(f64, f64)>; 3],
    /// Times of whole messages: bytes and microseconds.
    whole: Vec<(f64, f64)>,
}

impl Timings {
    /// Creates an empty record.
    pub fn new(message: u64) -> Self {
        Self { message, turn: 0, stays: Default::default(), whole: Vec::new() }
    }

    /// Times one message in fragments of all sizes, and whole messages of some sizes. The first round is not counted:
    /// caches are cold and processors asleep.
    pub async fn observe(&mut self, real: &Real<'_>) -> Result<(), String> {
        let sizes = mixed(self.message, self.turn);
        let outcome = real.time(&sizes).await?;
        self.turn += 1;
        if self.turn == 1 {
            return Ok(());
        }
        for row in &outcome.sender {
            self.stays[row.stage].push((row.bytes, row.end.get() - row.start.get()));
        }
        for (&bytes, spans) in sizes.iter().zip(&outcome.receiver) {
            let (start, end) = spans[1];
            self.stays[2].push((bytes as f64, (end - start) as f64 / 1000.0));
        }
        for index in 0..SIZES {
            let part = LEAST.powf(index as f64 / (SIZES - 1) as f64);
            let bytes = sectors(self.message as f64 * part);
            self.whole.push((bytes as f64, real.time(&[bytes]).await?.us));
        }
        Ok(())
    }
}

/// The path's costs for messages of about one size.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The stages read, send, receive and write.
    pub chain: Pipeline,
}

impl Observed {
    /// Fits the costs to the timings. Time of whole messages beyond the timed stages goes to the receiving stage if
    /// it grows with the size.
    pub fn new(seen: &Timings) -> Result<Self, String> {
        Self::fitted(&seen.stays, &seen.whole)
            .map_err(|problem| format!("observing the path: {problem}"))
    }

    fn fitted(stays: &[Vec<(f64, f64)>; 3], whole: &[(f64, f64)]) -> Result<Self, FitError> {
        let lines = [fit(&stays[0])?, fit(&stays[1])?, fit(&stays[2])?];
        let whole = fit(whole)?;
        let sum = |cost: &dyn Fn(&Line) -> f64| lines.iter().map(cost).sum::<f64>();
        let per_byte = (whole.us_per_byte - sum(&|line| line.us_per_byte)).max(0.0);
        let receive = Stage::new(0.0, per_byte).map_err(|_| FitError::TooFew(0))?;
        let stages = vec![lines[0].stage(), lines[1].stage(), receive, lines[2].stage()];
        let chain = Pipeline::new(stages).map_err(|_| FitError::TooFew(0))?;
        Ok(Self { chain })
    }

    /// Returns the plan for a message: the best one without refragmentation, or equal fragments if the costs are too
    /// uncertain for a ramp.
    pub fn plan(&self, message: u64) -> Result<Plan, PlanError> {
        let bytes = message as f64;
        let request = Request::new(bytes).limits(Limits::new().align(SECTOR.min(bytes)));
        auto(&self.chain, &request, None, Refragment::Never)
    }
}

/// Returns fragments of all sizes that sum to the message, different ones every round.
fn mixed(message: u64, turn: usize) -> Vec<u64> {
    /// Golden-section steps never repeat and leave no gap.
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let mut sizes = Vec::new();
    let (mut left, mut step) = (message, turn as f64 * 7.0 + 1.0);
    while left > 0 {
        let part = PARTS.0 * (PARTS.1 / PARTS.0).powf((step * GOLDEN).fract());
        let size = sectors(message as f64 * part).min(left);
        sizes.push(size);
        (left, step) = (left - size, step + 1.0);
    }
    sizes
}

/// Rounds to whole sectors, at least one.
fn sectors(bytes: f64) -> u64 {
    ((bytes / SECTOR).round().max(1.0) * SECTOR) as u64
}
