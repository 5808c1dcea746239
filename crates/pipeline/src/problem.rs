//! Requests and plans: the types that all planners share. [`plan`](crate::plan) exports them.

use crate::limits::{Cut, Limits, MAX_FRAGMENTS};
use crate::plan_error::PlanError;
use crate::stage::Pipeline;
use crate::timing::{Parts, Recurrence};
use crate::unit::Micros;

/// The largest message: a pebibyte, in bytes. `f64` holds every byte count up to it exactly.
#[doc(hidden)]
pub const MAX_BYTES: f64 = (1_u64 << 50) as f64;

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

    /// Returns the sizes as whole bytes that sum to the message rounded to a byte.
    ///
    /// Every border moves to the nearest byte. A fragment that would become empty is joined with
    /// its neighbour.
    #[must_use]
    pub fn whole_bytes(&self) -> Vec<u64> {
        let mut cuts = Vec::with_capacity(self.fragments.len());
        let (mut at, mut before) = (0.0, 0_u64);
        // The sum of many sizes needs Kahan's compensation to be exact to a byte.
        let mut lost = 0.0;
        for size in &self.fragments {
            let more = size - lost;
            let next = at + more;
            lost = (next - at) - more;
            at = next;
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
    pub(crate) limits: Limits,
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

impl Plan {
    /// Returns T_f, T_b and T_l of a plan that does not refragment, on the chain that it was made
    /// for.
    #[must_use]
    pub fn parts(&self, pipeline: &Pipeline, max_in_flight: Option<usize>) -> Parts {
        pipeline.parts(&self.fragments, max_in_flight)
    }
}
