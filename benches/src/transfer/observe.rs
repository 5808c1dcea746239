//! What the path's stages cost, learned from messages over it; the plan and the promise that follow.

use std::fs::File;

use midplane::pipeline::auto::Refragment;
use midplane::pipeline::estimate::{FitError, Line, RISKY, fit};
use midplane::pipeline::{Limits, Pipeline, Plan, PlanError, Request, Stage, auto, fixed};

use super::Fault;
use super::pace;
use super::wire::{Hand, Outcome, send};

/// The largest and the smallest fragment of a mixed message, as parts of it.
const PARTS: (f64, f64) = (0.5, 1.0 / 64.0);

/// The smallest fragment observed, and the unit of a plan, in bytes: a sector.
const SECTOR: f64 = 512.0;

/// Whole messages: so many sizes a turn, from this part of the message up.
const SIZES: usize = 6;
const LEAST: f64 = 1.0 / 16.0;

/// The connection as something that messages can be timed on.
#[derive(Debug)]
pub struct Real<'a> {
    pub hand: &'a Hand,
    pub file: &'a File,
    pub limits: pace::Limits,
}

impl Real<'_> {
    /// Sends one message in fragments of these sizes.
    pub async fn time(&self, sizes: &[u64]) -> Result<Outcome, Fault> {
        tokio::select! {
            outcome = send(self.hand, self.file, sizes, self.limits) => outcome.map_err(Fault::lost("the receiver")),
            _ = tokio::signal::ctrl_c() => Err(Fault::Lost("stopped".into())),
        }
    }
}

/// What has been seen of the path with messages of about one size.
#[derive(Clone, Debug)]
pub struct Timings {
    message: u64,
    turn: usize,
    /// Stays of fragments in the stages read, send and write: bytes and microseconds.
    stays: [Vec<(f64, f64)>; 3],
    /// Whole messages.
    whole: Vec<(f64, f64)>,
}

impl Timings {
    /// Nothing yet.
    pub fn new(message: u64) -> Self {
        Self { message, turn: 0, stays: Default::default(), whole: Vec::new() }
    }

    /// One message in fragments of all sizes, and whole messages of some sizes. The first turn is not counted: it
    /// finds cold caches and sleeping processors.
    pub async fn observe(&mut self, real: &Real<'_>) -> Result<(), Fault> {
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

/// The path as messages of about one size find it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Read, send, receive, write; where two of them share a processor, they are one.
    pub chain: Pipeline,
    /// Microseconds that a message takes beyond its stages, however it is cut: wake-ups and the receiver's word. Below
    /// zero where stages were timed too slow.
    pub delay_us: f64,
    risky: bool,
}

impl Observed {
    /// What the timings tell. What whole messages take beyond the timed stages goes to the receiving stage as far as
    /// it grows with the size, else to the delay.
    pub fn new(real: &Real<'_>, seen: &Timings) -> Result<Self, Fault> {
        let shared = real.limits.disk.is_free() && real.limits.link.is_free();
        Self::fitted(&seen.stays, &seen.whole, seen.message as f64, shared)
            .map_err(|problem| Fault::Lost(format!("observing the path: {problem}")))
    }

    fn fitted(
        stays: &[Vec<(f64, f64)>; 3],
        whole: &[(f64, f64)],
        bytes: f64,
        shared: bool,
    ) -> Result<Self, FitError> {
        let lines = [fit(&stays[0])?, fit(&stays[1])?, fit(&stays[2])?];
        let whole = fit(whole)?;
        let sum = |cost: &dyn Fn(&Line) -> f64| lines.iter().map(cost).sum::<f64>();
        let per_byte = (whole.us_per_byte - sum(&|line| line.us_per_byte)).max(0.0);
        // At the message's own size, where an error of a slope weighs nothing.
        let delay_us = whole.at(bytes) - sum(&|line| line.at(bytes)) - per_byte * bytes;
        let receive = Stage::new(0.0, per_byte).map_err(|_| FitError::TooFew(0))?;
        let stages = vec![lines[0].stage(), lines[1].stage(), receive, lines[2].stage()];
        let mut chain = Pipeline::new(stages).map_err(|_| FitError::TooFew(0))?;
        if shared {
            // One thread reads and sends, another one receives and writes.
            chain = chain.merged(2..4).and_then(|chain| chain.merged(0..2)).expect("four stages");
        }
        Ok(Self { chain, delay_us, risky: lines.iter().any(|line| line.error > RISKY) })
    }

    /// The plan for a message: the best of all that do not refragment, or equal fragments where the stages are known
    /// so badly that a ramp is a risk.
    pub fn plan(&self, message: u64) -> Result<Plan, PlanError> {
        let bytes = message as f64;
        let request = Request::new(bytes).limits(Limits::new().align(SECTOR.min(bytes)));
        if self.risky {
            fixed(&self.chain, &request)
        } else {
            auto(&self.chain, &request, None, Refragment::Never)
        }
    }

    /// Microseconds promised for a message in these fragments.
    pub fn promise(&self, sizes: &[u64]) -> f64 {
        let exact: Vec<f64> = sizes.iter().map(|&size| size as f64).collect();
        self.delay_us + self.chain.latency(&exact, None).get()
    }
}

/// Fragments of all sizes that sum to the message, others every turn.
fn mixed(message: u64, turn: usize) -> Vec<u64> {
    /// Steps of the golden section never repeat and leave no gap.
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

/// Whole sectors, at least one.
fn sectors(bytes: f64) -> u64 {
    ((bytes / SECTOR).round().max(1.0) * SECTOR) as u64
}
