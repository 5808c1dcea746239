//! What is asked of a planner, and the plan that it gives back.

use crate::compound::{Grouping, GroupingError};
use crate::limits::{Cut, Limits, MAX_FRAGMENTS};
use crate::stage::{Pipeline, PipelineError, StageError};
use crate::timing::{Parts, Recurrence};
use crate::unit::Micros;

/// The largest message, in bytes: a pebibyte. Every byte count up to it is exact in `f64`.
pub const MAX_BYTES: f64 = (1_u64 << 50) as f64;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The message has no bytes, more than [`MAX_BYTES`], or no finite number of them.
    #[error("bytes must be a number above 0 and at most 2^50, not {0}")]
    Bytes(f64),
    /// A limit that must be above zero is not.
    #[error("{field} must be a number above 0, not {value}")]
    NotPositive {
        /// Which limit.
        field: &'static str,
        /// What was given.
        value: f64,
    },
    /// A count that must be at least one is zero.
    #[error("{field} must be at least 1")]
    ZeroCount {
        /// Which count.
        field: &'static str,
    },
    /// The unit is larger than the message.
    #[error("align {align} is beyond the message's {bytes} bytes")]
    AlignBeyondMessage {
        /// The unit in bytes.
        align: f64,
        /// The message in bytes.
        bytes: f64,
    },
    /// The unit is less than a byte.
    #[error("align must be at least 1 byte, not {0}")]
    AlignBelowByte(f64),
    /// The unit is larger than the largest fragment.
    #[error("align {align} is beyond the mtu {mtu}")]
    AlignBeyondMtu {
        /// The unit in bytes.
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
    /// The limits together leave no cut of this message.
    #[error("no cut of {bytes} bytes keeps mtu, align, min_fragment and max_fragments at once")]
    NoCut {
        /// The message in bytes.
        bytes: f64,
    },
    /// The number of fragments asked for cannot be had.
    #[error("fragments must be from {fewest} to {most} here, not {asked}")]
    Fragments {
        /// What was asked for.
        asked: usize,
        /// Fewest possible.
        fewest: usize,
        /// Most possible.
        most: usize,
    },
    /// No finite number of fragments is best: no stage has an overhead, so cutting finer always helps.
    #[error(
        "no finite number of fragments is best: overhead_us of the bottleneck is 0; set fragments, min_fragment or align"
    )]
    Unbounded,
    /// The algorithm is made for other chains.
    #[error("planner {planner} needs {needs}, this pipeline has {stages} at its top level")]
    NotApplicable {
        /// The algorithm.
        planner: &'static str,
        /// What it needs.
        needs: &'static str,
        /// Stages of the chain, or groups if there are any.
        stages: usize,
    },
    /// The linear program would be too large to solve in reasonable time.
    #[error("planner lp stops at {limit} stage passages, this needs {needed}")]
    TooLarge {
        /// Stages times fragments.
        needed: usize,
        /// The most that is tried.
        limit: usize,
    },
    /// The solver of the linear program gave up.
    #[error("planner lp found no solution for {fragments} fragments")]
    Solver {
        /// The number of fragments that it failed at.
        fragments: usize,
    },
    /// The vector to be timed holds a size that is no size, or none at all.
    #[error("vector[{index}] must be a number above 0, not {value}")]
    Vector {
        /// Position in the vector.
        index: usize,
        /// What stands there.
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
    /// A stage's costs are no costs.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The groups do not cover the stages.
    #[error(transparent)]
    Groups(#[from] GroupingError),
}

/// Which kind of plan it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Family {
    /// Sizes that the caller gave.
    Given,
    /// Equal fragments (section 3).
    Fixed,
    /// Sizes that ramp up to the bottleneck and down from it, on any number of stages.
    Ramp,
    /// The two-stage ramp (section 4.1.3).
    RampUp,
    /// The fast-slow-fast ramp (section 4.2).
    RampUpDown,
    /// Refragmenting at the borders of compound stages (section 4.3).
    Hierarchical,
    /// The linear program's optimum (section 2).
    Optimum,
}

/// How one group of stages cuts the fragments that it is handed.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The group's stages, in order.
    pub stages: std::ops::Range<usize>,
    /// For each fragment of the top level, the sizes in bytes that it crosses this group in.
    pub fragments: Vec<Vec<f64>>,
}

/// A message cut, and what that promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) family: Family,
    pub(crate) fragments: Vec<f64>,
    pub(crate) levels: Vec<Level>,
    pub(crate) latency: Micros,
    pub(crate) lower_bound: Micros,
    pub(crate) bottleneck: usize,
}

impl Plan {
    /// The kind of plan.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Sizes in bytes, in sending order; they sum to the message.
    #[must_use]
    pub fn fragments(&self) -> &[f64] {
        &self.fragments
    }

    /// One entry for each group of stages where the plan refragments; empty where every fragment crosses all
    /// stages as it is.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The latency that the exact recurrence predicts.
    #[must_use]
    pub const fn latency(&self) -> Micros {
        self.latency
    }

    /// What no plan for this message can beat (equation 5).
    #[must_use]
    pub const fn lower_bound(&self) -> Micros {
        self.lower_bound
    }

    /// The stage that is busy longest under this plan.
    #[must_use]
    pub const fn bottleneck(&self) -> usize {
        self.bottleneck
    }

    /// How far the latency is above the lower bound, as a fraction of it; 0 where both are 0.
    #[must_use]
    pub fn gap(&self) -> f64 {
        let bound = self.lower_bound.get();
        if bound > 0.0 { (self.latency.get() / bound - 1.0).clamp(0.0, f64::MAX) } else { 0.0 }
    }

    /// The plan backwards: for the reversed pipeline it has the same latency (Theorem 2).
    #[must_use]
    pub fn reversed_fragments(&self) -> Vec<f64> {
        self.fragments.iter().rev().copied().collect()
    }

    /// The sizes as whole bytes that sum to the message rounded to a byte: every border moves to the nearest byte,
    /// and a fragment that would become empty goes to its neighbour.
    #[must_use]
    pub fn whole_bytes(&self) -> Vec<u64> {
        let mut cuts = Vec::with_capacity(self.fragments.len());
        let (mut at, mut before) = (0.0, 0_u64);
        for size in &self.fragments {
            at += size;
            let border = at.round() as u64;
            if border > before {
                cuts.push(border - before);
                before = border;
            }
        }
        cuts
    }
}

/// A message to be planned for: its size, the limits, and where the caller insists, the number of fragments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    bytes: f64,
    limits: Limits,
    fragments: Option<usize>,
}

impl Request {
    /// A message of `bytes`, free of limits. Fractions of a byte are allowed: sizes are a continuum here.
    #[must_use]
    pub fn new(bytes: f64) -> Self {
        Self { bytes, limits: Limits::new(), fragments: None }
    }

    /// Keeps these limits.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Cuts into exactly so many fragments, at the top level.
    #[must_use]
    pub const fn fragments(mut self, count: usize) -> Self {
        self.fragments = Some(count);
        self
    }

    /// Size of the message in bytes.
    #[must_use]
    pub const fn bytes(&self) -> f64 {
        self.bytes
    }

    pub(crate) fn check_bytes(&self) -> Result<(), PlanError> {
        let good = self.bytes.is_finite() && self.bytes > 0.0 && self.bytes <= MAX_BYTES;
        if good { Ok(()) } else { Err(PlanError::Bytes(self.bytes)) }
    }

    /// Checks everything that does not depend on the algorithm.
    pub(crate) fn problem<'p>(&self, pipeline: &'p Pipeline) -> Result<Problem<'p>, PlanError> {
        self.check_bytes()?;
        let mut cut = Cut::new(self.bytes, &self.limits)?;
        if let Some(asked) = self.fragments {
            let (fewest, most) = cut.counts;
            if asked < fewest || asked > most {
                return Err(PlanError::Fragments { asked, fewest, most });
            }
            cut.counts = (asked, asked);
        } else if pipeline.is_free_to_cut() && !self.limits.bounds_count() {
            return Err(PlanError::Unbounded);
        }
        Ok(Problem { pipeline, bytes: self.bytes, cut, limits: self.limits })
    }
}

/// A checked request on a chain.
#[derive(Clone, Debug)]
pub(crate) struct Problem<'p> {
    pub(crate) pipeline: &'p Pipeline,
    pub(crate) bytes: f64,
    pub(crate) cut: Cut,
    pub(crate) limits: Limits,
}

impl<'p> Problem<'p> {
    pub(crate) fn credits(&self) -> Option<usize> {
        self.limits.max_in_flight.map(|credits| credits.clamp(1, MAX_FRAGMENTS))
    }

    pub(crate) fn recurrence(&self) -> Recurrence<'p> {
        let most = self.cut.counts.1;
        Recurrence::new(self.pipeline.stages(), self.credits().map(|credits| credits.min(most)))
    }

    /// A plan that does not refragment, with its promise.
    pub(crate) fn plan(&self, family: Family, fragments: Vec<f64>) -> Plan {
        Plan {
            family,
            latency: self.pipeline.latency(&fragments, self.credits()),
            lower_bound: self.pipeline.lower_bound(self.bytes),
            bottleneck: self.pipeline.bottleneck(fragments.len(), self.bytes),
            fragments,
            levels: Vec::new(),
        }
    }
}

/// Times a vector that the caller gives; with `groups` its fragments are the top level's, cut anew in every
/// compound stage by the fixed planner.
///
/// # Errors
///
/// A vector that is empty, holds what is no size, or does not sum to the message within one part in a million.
pub fn time(
    pipeline: &Pipeline,
    request: &Request,
    vector: &[f64],
    groups: Option<&Grouping>,
) -> Result<Plan, PlanError> {
    request.check_bytes()?;
    request.limits.check(request.bytes)?;
    let (fewest, most) = (1, MAX_FRAGMENTS);
    if vector.is_empty() || vector.len() > most {
        return Err(PlanError::Fragments { asked: vector.len(), fewest, most });
    }
    for (index, &value) in vector.iter().enumerate() {
        if !(value.is_finite() && value > 0.0) {
            return Err(PlanError::Vector { index, value });
        }
    }
    let sum: f64 = vector.iter().sum();
    if (sum - request.bytes).abs() > 1e-6 * request.bytes {
        return Err(PlanError::VectorSum { sum, bytes: request.bytes });
    }
    let mut cut = Cut::new(request.bytes, &Limits::new())?;
    cut.counts = (1, vector.len());
    let problem = Problem { pipeline, bytes: request.bytes, cut, limits: request.limits };
    match groups {
        None => Ok(problem.plan(Family::Given, vector.to_vec())),
        Some(groups) => crate::hierarchical::given(&problem, groups, vector),
    }
}

impl Plan {
    /// T_f, T_b and T_l of a plan that does not refragment, on the chain that it was made for.
    #[must_use]
    pub fn parts(&self, pipeline: &Pipeline, max_in_flight: Option<usize>) -> Parts {
        pipeline.parts(&self.fragments, max_in_flight)
    }
}
