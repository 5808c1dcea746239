//! The error of all planners. [`plan`](crate::plan) exports it.

use crate::grouping::GroupingError;
use crate::stage::{PipelineError, StageError};

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The message has no bytes, more than 2^50, or a number of
    /// bytes that is not finite.
    #[error("bytes must be a number above 0 and at most 2^50, not {0}")]
    Bytes(f64),
    /// A limit is zero, negative or not finite.
    #[error("{field} must be a number above 0, not {value}")]
    NotPositive {
        /// Name of the limit.
        field: &'static str,
        /// The given value.
        value: f64,
    },
    /// A count is zero that must be at least one.
    #[error("{field} must be at least 1")]
    ZeroCount {
        /// Name of the count.
        field: &'static str,
    },
    /// The alignment unit is larger than the message.
    #[error("align {align} is beyond the message's {bytes} bytes")]
    AlignBeyondMessage {
        /// The alignment unit in bytes.
        align: f64,
        /// The message in bytes.
        bytes: f64,
    },
    /// The alignment unit is less than a byte.
    #[error("align must be at least 1 byte, not {0}")]
    AlignBelowByte(f64),
    /// The alignment unit is larger than the largest fragment.
    #[error("align {align} is beyond the mtu {mtu}")]
    AlignBeyondMtu {
        /// The alignment unit in bytes.
        align: f64,
        /// The largest fragment in bytes.
        mtu: f64,
    },
    /// The smallest fragment is larger than the largest.
    #[error("min_fragment {min} is beyond the mtu {mtu}")]
    MinBeyondMtu {
        /// The smallest fragment in bytes.
        min: f64,
        /// The largest fragment in bytes.
        mtu: f64,
    },
    /// No cut of this message satisfies all limits.
    #[error(
        "no cut of {bytes} bytes keeps mtu, align, min_fragment and max_fragments (65536 at most) at once"
    )]
    NoCut {
        /// The message in bytes.
        bytes: f64,
    },
    /// The requested number of fragments is not possible.
    #[error("fragments must be from {fewest} to {most} here, not {asked}")]
    Fragments {
        /// The requested number.
        asked: usize,
        /// The fewest possible fragments.
        fewest: usize,
        /// The most possible fragments.
        most: usize,
    },
    /// No finite number of fragments is best: no stage has an overhead, so cutting finer always helps.
    #[error(
        "no finite number of fragments is best: overhead_us of the bottleneck is 0; set fragments, min_fragment or align"
    )]
    Unbounded,
    /// The algorithm does not apply to this chain or these limits.
    #[error("planner {planner} needs {needs}; stages at the top level: {stages}")]
    NotApplicable {
        /// Name of the algorithm.
        planner: &'static str,
        /// The requirement that is not met.
        needs: &'static str,
        /// Stages of the chain; groups, if the plan refragments.
        stages: usize,
    },
    /// The linear program would be too large to solve in reasonable time.
    #[error("planner lp stops at {limit} stage passages, this needs {needed}")]
    TooLarge {
        /// The size of the program: stages times fragments.
        needed: usize,
        /// The largest product that the planner solves.
        limit: usize,
    },
    /// The solver of the linear program found no solution.
    #[error("planner lp found no solution for {fragments} fragments")]
    Solver {
        /// The number of fragments of the unsolved program.
        fragments: usize,
    },
    /// A size of the vector to be timed is not a positive, finite number.
    #[error("vector[{index}] must be a number above 0, not {value}")]
    Vector {
        /// Position in the vector.
        index: usize,
        /// The invalid size.
        value: f64,
    },
    /// The vector to be timed does not sum to the message.
    #[error("vector sums to {sum}, not to bytes {bytes}")]
    VectorSum {
        /// Sum of the vector in bytes.
        sum: f64,
        /// The message in bytes.
        bytes: f64,
    },
    /// The stages do not form a chain.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A stage has an invalid cost.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The groups do not cover the stages.
    #[error(transparent)]
    Groups(#[from] GroupingError),
}
