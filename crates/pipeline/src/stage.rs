//! Store-and-forward stages, and chains of them.

use std::ops::Range;

use crate::unit::{Micros, MicrosPerByte};

/// The most stages of one chain. Planning time is linear to quadratic in them; real chains have 2
/// to 8.
const MAX_STAGES: usize = 256;

/// The largest accepted cost: for an overhead in microseconds (eleven days), and for a byte in
/// microseconds per byte. Together with [`MAX_BYTES`](crate::plan::MAX_BYTES) it keeps every
/// latency far below the range of `f64`.
const MAX_COST: f64 = 1e12;

/// The mean relative error of the stages' costs above which equal fragments are better than a ramp.
///
/// Measured, not from the paper: 500 random chains of two to eight stages (1 to 200 us a fragment,
/// 1 to 100 us/KB), where the time of each fragment in each stage has a log-normal error. The mean
/// latency of ramps is 4.9 % below that of equal fragments without errors, 1.3 % at an error of 0.2,
/// 0.4 % above at 0.35, and 1.8 % at 0.6. If the stages' errors differ by up to nine times, the mean
/// decides well: the choice is 1.0 % below equal fragments, ramps alone are 0.7 %. `cargo test -p
/// midplane-pipeline uncertainty -- --nocapture` prints this.
const RISKY: f64 = 0.35;

/// An invalid cost.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The overhead is not a number from 0 to 1e12.
    #[error("overhead_us must be a number from 0 to 1e12, not {0}")]
    Overhead(f64),
    /// The first fragment's overhead is not a number from 0 to 1e12.
    #[error("first_overhead_us must be a number from 0 to 1e12, not {0}")]
    FirstOverhead(f64),
    /// The cost of a byte is not a number from 0 to 1e12.
    #[error("us_per_byte must be a number from 0 to 1e12, not {0}")]
    PerByte(f64),
    /// The relative error is not a number from 0 to 1e12.
    #[error("error must be a fraction from 0 to 1e12, such as 0.05 for 5 %, not {0}")]
    Error(f64),
}

/// One store-and-forward stage: a fragment of `x` bytes occupies it for `g + x G` (section 2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    overhead: f64,
    first: f64,
    per_byte: f64,
    error: f64,
}

impl Stage {
    /// Creates a stage that spends `overhead_us` on each fragment and `us_per_byte` on each byte.
    ///
    /// # Errors
    ///
    /// [`StageError`] if a cost is negative, not finite or above 1e12.
    pub fn new(overhead_us: f64, us_per_byte: f64) -> Result<Self, StageError> {
        if !is_cost(overhead_us) {
            return Err(StageError::Overhead(overhead_us));
        }
        if !is_cost(us_per_byte) {
            return Err(StageError::PerByte(us_per_byte));
        }
        Ok(Self { overhead: overhead_us, first: overhead_us, per_byte: us_per_byte, error: 0.0 })
    }

    /// Sets another overhead for the first fragment of a message, in microseconds. Examples are a
    /// DMA engine that must be programmed once, or a disk that must seek once. Myrinet's BIP
    /// modelled its stages so.
    ///
    /// # Errors
    ///
    /// [`StageError`] if the overhead is negative, not finite or above 1e12.
    pub fn with_first_overhead(mut self, overhead_us: f64) -> Result<Self, StageError> {
        if !is_cost(overhead_us) {
            return Err(StageError::FirstOverhead(overhead_us));
        }
        self.first = overhead_us;
        Ok(self)
    }

    /// Sets the relative error of the costs: half of the fragments take a time within this fraction
    /// of `g + x G`. 0.05 is 5 %; a new stage has 0.
    ///
    /// If the mean error of a chain's stages is above 0.35, [`auto`](crate::auto()) and
    /// [`Planner`](crate::Planner) make equal fragments, because a ramp is then slower on average. In
    /// the mean, an error above 1 counts as 1. On random chains, ramps are 4.9 % faster than equal
    /// fragments with exact costs, 2.8 % at an error of 0.1, 1.3 % at 0.2, and 1.8 % slower at 0.6. A
    /// chosen algorithm, such as [`ramp`](crate::ramp()), does not consider the error.
    /// [`estimate`](crate::estimate) sets the error of the stages that it fits.
    ///
    /// # Errors
    ///
    /// [`StageError`] if the error is negative, not finite or above 1e12.
    pub fn with_error(mut self, error: f64) -> Result<Self, StageError> {
        if !is_cost(error) {
            return Err(StageError::Error(error));
        }
        self.error = error;
        Ok(self)
    }

    /// Adds `surplus_us` to the overhead of the first fragment, clamped to the valid range.
    pub(crate) fn with_surplus(mut self, surplus_us: f64) -> Self {
        self.first = into_cost(self.overhead + surplus_us);
        self
    }

    /// Creates a stage from fitted costs, clamped to the valid range.
    pub(crate) fn clamped(overhead_us: f64, us_per_byte: f64, error: f64) -> Self {
        let overhead = into_cost(overhead_us);
        let (per_byte, error) = (into_cost(us_per_byte), into_cost(error));
        Self { overhead, first: overhead, per_byte, error }
    }

    /// Returns the time spent on each fragment after the first, whatever its size (the paper's
    /// `g`).
    #[must_use]
    pub const fn overhead(&self) -> Micros {
        Micros::of(self.overhead)
    }

    /// Returns the time spent on the first fragment, whatever its size. Equal to
    /// [`Stage::overhead`] unless set.
    #[must_use]
    pub(crate) const fn first_overhead(&self) -> Micros {
        Micros::of(self.first)
    }

    /// Returns the time spent on each byte (the paper's `G`).
    #[must_use]
    pub const fn per_byte(&self) -> MicrosPerByte {
        MicrosPerByte::of(self.per_byte)
    }

    /// Returns how long a fragment of `bytes` occupies the stage, when it is not the first.
    #[must_use]
    pub fn time(&self, bytes: f64) -> Micros {
        Micros::of(self.us(bytes))
    }

    pub(crate) const fn g(&self) -> f64 {
        self.overhead
    }

    pub(crate) const fn c(&self) -> f64 {
        self.per_byte
    }

    // No fused multiply-add: without support by the target processor it is a function call.
    pub(crate) fn us(&self, bytes: f64) -> f64 {
        self.overhead + self.per_byte * bytes
    }

    pub(crate) fn first_us(&self, bytes: f64) -> f64 {
        self.first + self.per_byte * bytes
    }

    /// Returns the smaller of the two overheads, which every fragment pays at least.
    pub(crate) const fn least_overhead(&self) -> f64 {
        self.overhead.min(self.first)
    }

    pub(crate) const fn error(&self) -> f64 {
        self.error
    }

    fn with(&self, other: &Self) -> Self {
        Self {
            overhead: into_cost(self.overhead + other.overhead),
            first: into_cost(self.first + other.first),
            per_byte: into_cost(self.per_byte + other.per_byte),
            error: self.error.max(other.error),
        }
    }
}

fn is_cost(value: f64) -> bool {
    value.is_finite() && (0.0..=MAX_COST).contains(&value)
}

fn into_cost(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, MAX_COST) }
}

/// An invalid chain of stages.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The chain has no stage.
    #[error("stages is empty: a pipeline needs at least one stage")]
    NoStages,
    /// The chain has more stages than 256.
    #[error("stages has {0} entries, the limit is 256")]
    TooManyStages(usize),
    /// The range of stages to merge is empty or goes past the last stage.
    #[error("stages {start}..{end} cannot be merged in a chain of {stages}")]
    BadMerge {
        /// First stage of the range.
        start: usize,
        /// One past its last stage.
        end: usize,
        /// Stages in the chain.
        stages: usize,
    },
}

/// A chain of store-and-forward stages, in the order in which a fragment passes them. Never empty.
///
/// A stage takes one fragment at a time. A fragment enters a stage only when all of it has left the
/// stage before. Steps that behave otherwise must first be merged, see [`Pipeline::merged`].
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

impl Pipeline {
    /// Creates a chain of the given stages.
    ///
    /// # Errors
    ///
    /// [`PipelineError`] if there is no stage, or more than 256.
    pub fn new(stages: Vec<Stage>) -> Result<Self, PipelineError> {
        if stages.is_empty() {
            return Err(PipelineError::NoStages);
        }
        if stages.len() > MAX_STAGES {
            return Err(PipelineError::TooManyStages(stages.len()));
        }
        Ok(Self { stages })
    }

    /// Creates a chain from at least one stage, without checks.
    pub(crate) fn of(stages: Vec<Stage>) -> Self {
        debug_assert!(!stages.is_empty());
        Self { stages }
    }

    /// Returns the stages in order.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns the chain with its stages in the opposite order.
    ///
    /// The best plan of one is the reversed plan of the other (Theorem 2), unless a stage has a
    /// different overhead for the first fragment.
    #[must_use]
    #[doc(hidden)]
    pub fn reversed(&self) -> Self {
        Self { stages: self.stages.iter().rev().copied().collect() }
    }

    /// Replaces a range of stages by one stage whose costs are their sums.
    ///
    /// Two kinds of steps need this: steps that run on one engine, so that only one works at a
    /// time, and steps that a fragment passes as one sequential step. In the paper's Myrinet the
    /// receiver's network and host DMA are such a pair (section 5.3.1).
    ///
    /// # Errors
    ///
    /// [`PipelineError::BadMerge`] if the range is empty or ends behind the last stage.
    pub fn merged(&self, range: Range<usize>) -> Result<Self, PipelineError> {
        self.replaced(range, |stages| {
            stages.iter().skip(1).fold(stages[0], |sum, stage| sum.with(stage))
        })
    }

    /// Replaces a range of stages by one stage that passes bytes on as they arrive (cut-through).
    /// The steps overlap, so a byte costs what the slowest step costs, and only the overheads add
    /// up.
    ///
    /// # Errors
    ///
    /// [`PipelineError::BadMerge`] if the range is empty or ends behind the last stage.
    #[doc(hidden)]
    pub fn overlapped(&self, range: Range<usize>) -> Result<Self, PipelineError> {
        self.replaced(range, |stages| {
            let mut whole = stages.iter().skip(1).fold(stages[0], |sum, stage| sum.with(stage));
            whole.per_byte = stages.iter().map(Stage::c).fold(0.0, f64::max);
            whole
        })
    }

    fn replaced(
        &self,
        range: Range<usize>,
        by: impl Fn(&[Stage]) -> Stage,
    ) -> Result<Self, PipelineError> {
        if range.start >= range.end || range.end > self.stages.len() {
            let stages = self.stages.len();
            return Err(PipelineError::BadMerge { start: range.start, end: range.end, stages });
        }
        let mut stages = self.stages[..range.start].to_vec();
        stages.push(by(&self.stages[range.clone()]));
        stages.extend_from_slice(&self.stages[range.end..]);
        Ok(Self { stages })
    }

    /// Returns a weak lower bound of any plan's latency for `bytes`, refragmenting or not (equation
    /// 5): the whole message in one piece through the slowest stage, and only the overheads
    /// elsewhere.
    #[must_use]
    pub fn lower_bound(&self, bytes: f64) -> Micros {
        let slowest = self.stages.iter().map(Stage::c).fold(0.0, f64::max);
        Micros::of(bytes.mul_add(slowest, self.stages.iter().map(Stage::least_overhead).sum()))
    }

    /// Returns the stage that is busy longest when `count` fragments carry `bytes` in all; the
    /// first of equals.
    #[must_use]
    pub fn bottleneck(&self, count: usize, bytes: f64) -> usize {
        let busy = |stage: &Stage| {
            bytes.mul_add(stage.c(), (count.max(1) - 1) as f64 * stage.g() + stage.first)
        };
        let mut best = 0;
        for (index, stage) in self.stages.iter().enumerate() {
            if busy(stage) > busy(&self.stages[best]) {
                best = index;
            }
        }
        best
    }

    /// Returns the largest relative error of any stage.
    pub(crate) fn error(&self) -> f64 {
        self.stages.iter().map(Stage::error).fold(0.0, f64::max)
    }

    /// Returns true if the costs are so uncertain that equal fragments are better than a ramp.
    pub(crate) fn is_risky(&self) -> bool {
        let errors = self.stages.iter().map(|stage| stage.error.min(1.0));
        errors.sum::<f64>() > RISKY * self.stages.len() as f64
    }

    /// Returns true if cutting finer always helps: no stage has an overhead, and more than one has
    /// a cost per byte.
    pub(crate) fn is_free_to_cut(&self) -> bool {
        self.stages.iter().all(|stage| stage.g() == 0.0)
            && self.stages.iter().filter(|stage| stage.c() > 0.0).count() > 1
    }
}
