//! Requests to a planner, and the plans that it returns.

use crate::compound::{Grouping, GroupingError};
use crate::limits::{Cut, Limits, MAX_FRAGMENTS};
use crate::stage::{Pipeline, PipelineError, StageError};
use crate::timing::{Parts, Recurrence};
use crate::unit::Micros;

/// The largest message: a pebibyte, in bytes. `f64` holds every byte count up to it exactly.
pub const MAX_BYTES: f64 = (1_u64 << 50) as f64;

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The message has no bytes, more than [`MAX_BYTES`], or a number of bytes that is not finite.
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
    /// No cut of this message satisfies all limits.
    #[error("no cut of {bytes} bytes keeps mtu, align, min_fragment and max_fragments at once")]
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
    #[error("planner {planner} needs {needs}, this pipeline has {stages} at its top level")]
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
        /// Stages times fragments.
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

/// The kind of a plan: the planner that made it.
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

/// The cuts of top-level fragments inside one group of stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The group's stages, in order.
    pub stages: std::ops::Range<usize>,
    /// For each top-level fragment, the sizes in bytes in which it crosses this group.
    pub fragments: Vec<Vec<f64>>,
}

/// The cut of a message, with its predicted latency.
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
    /// Returns the kind of the plan.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns the sizes in bytes, in sending order. They sum to the message.
    #[must_use]
    pub fn fragments(&self) -> &[f64] {
        &self.fragments
    }

    /// Returns one entry for each group of stages, if the plan refragments. Empty if every fragment
    /// crosses all stages unchanged.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Returns the latency that the exact recurrence predicts.
    #[must_use]
    pub const fn latency(&self) -> Micros {
        self.latency
    }

    /// Returns a latency that no plan for this message can beat (equation 5).
    #[must_use]
    pub const fn lower_bound(&self) -> Micros {
        self.lower_bound
    }

    /// Returns the stage that is busy longest under this plan.
    #[must_use]
    pub const fn bottleneck(&self) -> usize {
        self.bottleneck
    }

    /// Returns how far the latency is above the lower bound, as a fraction of the bound; 0 if both
    /// are 0.
    #[must_use]
    pub fn gap(&self) -> f64 {
        let bound = self.lower_bound.get();
        if bound > 0.0 { (self.latency.get() / bound - 1.0).clamp(0.0, f64::MAX) } else { 0.0 }
    }

    /// Returns the sizes in reverse order. For the reversed pipeline they have the same latency
    /// (Theorem 2).
    #[must_use]
    pub fn reversed_fragments(&self) -> Vec<f64> {
        self.fragments.iter().rev().copied().collect()
    }

    /// Returns the sizes as whole bytes that sum to the message rounded to a byte.
    ///
    /// Every border moves to the nearest byte. A fragment that would become empty is joined with
    /// its neighbour.
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

/// A planning request: the size of the message, its limits and, if set, the number of fragments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    bytes: f64,
    limits: Limits,
    fragments: Option<usize>,
}

impl Request {
    /// Creates a request for a message of `bytes`, without limits. Fractions of a byte are allowed,
    /// since planning treats sizes as real numbers.
    #[must_use]
    pub fn new(bytes: f64) -> Self {
        Self { bytes, limits: Limits::new(), fragments: None }
    }

    /// Sets the limits that the plan must satisfy.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the exact number of fragments at the top level.
    #[must_use]
    pub const fn fragments(mut self, count: usize) -> Self {
        self.fragments = Some(count);
        self
    }

    /// Returns the size of the message in bytes.
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

    /// Makes a plan that does not refragment, with its predicted latency.
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

/// Makes a plan of sizes that the caller gives, and predicts its latency.
///
/// With `groups`, the sizes are those of the top level; the fixed planner cuts them again inside
/// every group.
///
/// # Errors
///
/// [`PlanError`] if the vector is empty, has an invalid size, or does not sum to the message within
/// one part in a million.
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
    /// Returns T_f, T_b and T_l of a plan that does not refragment, on the chain that it was made
    /// for.
    #[must_use]
    pub fn parts(&self, pipeline: &Pipeline, max_in_flight: Option<usize>) -> Parts {
        pipeline.parts(&self.fragments, max_in_flight)
    }
}
