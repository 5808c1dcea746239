//! Store-and-forward stages, and the chain that they form.

use std::ops::Range;

use crate::unit::{Micros, MicrosPerByte};

/// Stages that one chain may have. Planning is linear to quadratic in them; real chains have 2 to 8.
pub const MAX_STAGES: usize = 256;

/// The largest cost accepted, for an overhead in microseconds (eleven days) and for a byte alike.
/// Together with [`MAX_BYTES`](crate::plan::MAX_BYTES) it keeps every latency far below what `f64` can hold.
pub const MAX_COST: f64 = 1e12;

/// Why a cost is no cost.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The overhead is not a number from 0 to [`MAX_COST`].
    #[error("overhead_us must be a number from 0 to 1e12, not {0}")]
    Overhead(f64),
    /// The first fragment's overhead is not a number from 0 to [`MAX_COST`].
    #[error("first_overhead_us must be a number from 0 to 1e12, not {0}")]
    FirstOverhead(f64),
    /// The cost of a byte is not a number from 0 to [`MAX_COST`].
    #[error("us_per_byte must be a number from 0 to 1e12, not {0}")]
    PerByte(f64),
}

/// One store-and-forward stage: a fragment of `x` bytes occupies it for `g + x G` (section 2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    overhead: f64,
    first: f64,
    per_byte: f64,
}

impl Stage {
    /// A stage that spends `overhead_us` on each fragment and `us_per_byte` on each byte.
    ///
    /// # Errors
    ///
    /// A cost that is negative, not finite or above [`MAX_COST`].
    pub fn new(overhead_us: f64, us_per_byte: f64) -> Result<Self, StageError> {
        if !is_cost(overhead_us) {
            return Err(StageError::Overhead(overhead_us));
        }
        if !is_cost(us_per_byte) {
            return Err(StageError::PerByte(us_per_byte));
        }
        Ok(Self { overhead: overhead_us, first: overhead_us, per_byte: us_per_byte })
    }

    /// The same stage with another overhead for the first fragment of a message, in microseconds: a DMA engine
    /// that must be programmed once, a disk that must seek once. Myrinet's BIP modelled its stages so.
    ///
    /// # Errors
    ///
    /// An overhead that is negative, not finite or above [`MAX_COST`].
    pub fn with_first_overhead(mut self, overhead_us: f64) -> Result<Self, StageError> {
        if !is_cost(overhead_us) {
            return Err(StageError::FirstOverhead(overhead_us));
        }
        self.first = overhead_us;
        Ok(self)
    }

    /// A stage from costs that were computed here; what a fit leaves outside the range is brought into it.
    pub(crate) fn clamped(overhead_us: f64, us_per_byte: f64) -> Self {
        let overhead = into_cost(overhead_us);
        Self { overhead, first: overhead, per_byte: into_cost(us_per_byte) }
    }

    /// Time spent on each fragment after the first, whatever its size (the paper's `g`).
    #[must_use]
    pub const fn overhead(&self) -> Micros {
        Micros::of(self.overhead)
    }

    /// Time spent on the first fragment, whatever its size. Equal to [`Stage::overhead`] unless set.
    #[must_use]
    pub const fn first_overhead(&self) -> Micros {
        Micros::of(self.first)
    }

    /// Time spent on each byte (the paper's `G`).
    #[must_use]
    pub const fn per_byte(&self) -> MicrosPerByte {
        MicrosPerByte::of(self.per_byte)
    }

    /// How long a fragment of `bytes` occupies the stage, when it is not the first.
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

    // Not fused: where the processor is not known to fuse, a fused multiply-add is a call.
    pub(crate) fn us(&self, bytes: f64) -> f64 {
        self.overhead + self.per_byte * bytes
    }

    pub(crate) fn first_us(&self, bytes: f64) -> f64 {
        self.first + self.per_byte * bytes
    }

    /// The smaller of the two overheads: what every fragment pays at least.
    pub(crate) const fn least_overhead(&self) -> f64 {
        self.overhead.min(self.first)
    }

    fn with(&self, other: &Self) -> Self {
        Self {
            overhead: into_cost(self.overhead + other.overhead),
            first: into_cost(self.first + other.first),
            per_byte: into_cost(self.per_byte + other.per_byte),
        }
    }
}

fn is_cost(value: f64) -> bool {
    value.is_finite() && (0.0..=MAX_COST).contains(&value)
}

fn into_cost(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, MAX_COST) }
}

/// Why stages do not form a chain.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// There is no stage.
    #[error("stages is empty: a pipeline needs at least one stage")]
    NoStages,
    /// More stages than [`MAX_STAGES`].
    #[error("stages has {0} entries, the limit is 256")]
    TooManyStages(usize),
    /// A range of stages to merge that is empty or goes past the last stage.
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
/// A stage takes one fragment at a time, and a fragment enters a stage only when all of it has left the one before.
/// Steps that do not behave so have to be merged first, see [`Pipeline::merged`].
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

impl Pipeline {
    /// A chain of the given stages.
    ///
    /// # Errors
    ///
    /// No stage, or more than [`MAX_STAGES`].
    pub fn new(stages: Vec<Stage>) -> Result<Self, PipelineError> {
        if stages.is_empty() {
            return Err(PipelineError::NoStages);
        }
        if stages.len() > MAX_STAGES {
            return Err(PipelineError::TooManyStages(stages.len()));
        }
        Ok(Self { stages })
    }

    /// A chain that the crate built itself from at least one stage.
    pub(crate) fn of(stages: Vec<Stage>) -> Self {
        debug_assert!(!stages.is_empty());
        Self { stages }
    }

    /// The stages in order.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The same stages in the opposite order. The best plan of the one is the other's reversed (Theorem 2), as long
    /// as no stage has an overhead of its own for the first fragment.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { stages: self.stages.iter().rev().copied().collect() }
    }

    /// The chain with a range of stages replaced by one whose costs are their sums.
    ///
    /// Two kinds of steps need it: those that run on one engine, of which only one works at any time, and those
    /// that a fragment passes as one sequential step. In the paper's Myrinet the receiver's network and host DMA
    /// are such a pair (section 5.3.1).
    ///
    /// # Errors
    ///
    /// A range that is empty or ends behind the last stage.
    pub fn merged(&self, range: Range<usize>) -> Result<Self, PipelineError> {
        self.replaced(range, |stages| {
            stages.iter().skip(1).fold(stages[0], |sum, stage| sum.with(stage))
        })
    }

    /// The chain with a range of stages replaced by one that passes bytes on as they come in (cut-through): the
    /// steps overlap, so the bytes cost what the slowest of them costs and only the overheads add up.
    ///
    /// # Errors
    ///
    /// A range that is empty or ends behind the last stage.
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

    /// A weak lower bound of any plan's latency for `bytes`, refragmenting or not (equation 5): the whole message
    /// in one piece through the slowest stage, and nothing but overhead elsewhere.
    #[must_use]
    pub fn lower_bound(&self, bytes: f64) -> Micros {
        let slowest = self.stages.iter().map(Stage::c).fold(0.0, f64::max);
        Micros::of(bytes.mul_add(slowest, self.stages.iter().map(Stage::least_overhead).sum()))
    }

    /// The stage that is busy longest when `count` fragments carry `bytes` in all; the first of equals.
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

    /// Whether cutting finer helps for ever: no overhead anywhere, and more than one stage that costs something.
    pub(crate) fn is_free_to_cut(&self) -> bool {
        self.stages.iter().all(|stage| stage.g() == 0.0)
            && self.stages.iter().filter(|stage| stage.c() > 0.0).count() > 1
    }
}
