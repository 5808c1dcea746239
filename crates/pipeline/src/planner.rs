//! Plans for messages on the hot path: cached by size class, without allocation.
//!
//! Message sizes fall into eight classes per octave. A plan scaled from its class's largest size
//! costs 0.1 % on average. While a class has no ramp, the planner returns equal fragments within
//! tens of nanoseconds and records the class as [`RampRequest`]. The caller computes its ramp with
//! [`RampRequest::compute`], on any thread, and hands it to [`Planner::install`].

use crate::fixed::Signature;
use crate::limits::{Cut, Limits, MAX_FRAGMENTS};
use crate::plan_error::PlanError;
use crate::problem::{MAX_BYTES, Plan, Request};
use crate::ramp::ramp;
use crate::stage::Pipeline;

/// Classes per octave: three bits of the mantissa. Four classes would cost 0.25 % on average, one 1
/// %.
const CLASSES: usize = 8;

/// Octaves of `1..=MAX_BYTES`.
const OCTAVES: usize = 51;

const WORDS: usize = (OCTAVES * CLASSES).div_ceil(64);

/// Iterates over the fragment sizes of one message: whole bytes, in order, that sum to the message.
///
/// Borrows the planner's cache and does not allocate.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    shape: Shape<'a>,
    bytes: u64,
    unit: u64,
    index: usize,
    cut: u64,
}

#[derive(Clone, Copy, Debug)]
enum Shape<'a> {
    Equal(usize),
    /// The end of each fragment, as a fraction of the message.
    Ends(&'a [f64]),
}

impl Pieces<'_> {
    /// Returns the number of planned fragments; rounding to units may leave fewer.
    #[must_use]
    pub const fn planned(&self) -> usize {
        match self.shape {
            Shape::Equal(count) => count,
            Shape::Ends(ends) => ends.len(),
        }
    }

    /// Returns true if the plan came from the cache; otherwise it has equal fragments.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        matches!(self.shape, Shape::Ends(_))
    }

    fn end(&self, index: usize) -> u64 {
        let planned = self.planned();
        if index + 1 >= planned {
            return self.bytes;
        }
        let at = match self.shape {
            Shape::Equal(count) => {
                (self.bytes as u128 * (index as u128 + 1) / count as u128) as u64
            }
            Shape::Ends(ends) => (ends[index] * self.bytes as f64) as u64,
        };
        if self.unit > 1 {
            (at.saturating_add(self.unit / 2) / self.unit * self.unit).min(self.bytes)
        } else {
            at
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.cut < self.bytes {
            let end = self.end(self.index);
            self.index += 1;
            if end > self.cut {
                let size = end - self.cut;
                self.cut = end;
                return Some(size);
            }
        }
        None
    }
}

/// A size class that has been used without a ramp in the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct RampRequest {
    class: usize,
    generation: u64,
    pipeline: Pipeline,
    request: Request,
}

/// A computed ramp, for [`Planner::install`].
#[derive(Clone, Debug, PartialEq)]
pub struct ComputedRamp {
    class: usize,
    generation: u64,
    ends: Box<[f64]>,
}

impl RampRequest {
    /// Computes the ramp in tens to hundreds of microseconds, off the hot path.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the limits leave no cut for this class; the class then stays with equal
    /// fragments.
    pub fn compute(&self) -> Result<ComputedRamp, PlanError> {
        let plan: Plan = ramp(&self.pipeline, &self.request)?;
        let mut at = 0.0;
        let bytes = self.request.bytes();
        let ends = plan.fragments().iter().map(|size| {
            at += size;
            at / bytes
        });
        Ok(ComputedRamp { class: self.class, generation: self.generation, ends: ends.collect() })
    }
}

/// Plans for one sender on one chain. Each sender has a planner of its own, so there is no lock.
#[derive(Clone, Debug)]
pub struct Planner {
    pipeline: Pipeline,
    signature: Signature,
    limits: Limits,
    /// The most fragments and the bounds of a size, derived from the limits once.
    most: usize,
    unit: u64,
    mtu: f64,
    min: f64,
    /// True if the costs are too uncertain for ramps.
    is_risky: bool,
    generation: u64,
    classes: Vec<Option<Box<[f64]>>>,
    wanted: [u64; WORDS],
}

impl Planner {
    /// Creates a planner with an empty cache.
    ///
    /// The hot path does not support `equal_but_last` and `max_in_flight`: plan such messages with
    /// [`fixed`](mod@crate::fixed) or [`auto`](mod@crate::auto). `align` must be a whole number, and
    /// `mtu` at least a byte more than it.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if limits contradict each other or are not supported, or if the chain has no
    /// overhead and no limit bounds the number of fragments.
    pub fn new(pipeline: Pipeline, limits: Limits) -> Result<Self, PlanError> {
        let unit = limits.align.unwrap_or(1.0);
        limits.check(unit.max(1.0))?;
        let stages = pipeline.stages().len();
        let needs = |needs| Err(PlanError::NotApplicable { planner: "cache", needs, stages });
        if limits.equal_but_last || limits.max_in_flight.is_some() {
            return needs("limits without equal_but_last and max_in_flight: use fixed or auto");
        }
        if unit.fract() != 0.0 || unit > MAX_BYTES {
            return needs("a whole number of bytes, at most 2^50, as align");
        }
        if pipeline.is_free_to_cut() && !limits.bounds_count() {
            return Err(PlanError::Unbounded);
        }
        // Rounding to units moves each end by up to half a unit, so both bounds of a size keep a
        // unit of slack.
        let slack = if limits.align.is_some() { unit } else { 1.0 };
        let mtu = limits.mtu.map_or(f64::INFINITY, |mtu| mtu - slack);
        if mtu < 1.0 {
            return needs("an mtu of at least align + 1 bytes; align is 1 unless set");
        }
        let min = limits.min_fragment.map_or(slack, |min| min + slack).min(mtu);
        Ok(Self {
            signature: Signature::new(&pipeline),
            is_risky: pipeline.is_risky(),
            pipeline,
            limits,
            most: limits.max_fragments.unwrap_or(MAX_FRAGMENTS).min(MAX_FRAGMENTS),
            unit: unit as u64,
            mtu,
            min,
            generation: 0,
            classes: vec![None; OCTAVES * CLASSES],
            wanted: [0; WORDS],
        })
    }

    /// Returns the sizes for a message of `bytes`: from its class's ramp if there is one, otherwise
    /// equal. Zero bytes have none. If the chain's costs are too uncertain for ramps
    /// ([`Stage::with_error`](crate::Stage::with_error)), the planner requests none.
    ///
    /// The mtu wins where it needs more fragments than `max_fragments` or 65,536 allows.
    ///
    /// Takes nanoseconds and does not allocate. A message above 2^50 bytes uses that class.
    pub fn plan(&mut self, bytes: u64) -> Pieces<'_> {
        let class = class_of(bytes);
        let shape = match &self.classes[class] {
            Some(ends) => Shape::Ends(ends),
            None => {
                if !self.is_risky {
                    self.wanted[class / 64] |= 1 << (class % 64);
                }
                Shape::Equal(self.equal(bytes as f64))
            }
        };
        Pieces { shape, bytes, unit: self.unit, index: 0, cut: 0 }
    }

    fn equal(&self, bytes: f64) -> usize {
        let fewest = ((bytes / self.mtu).ceil() as usize).max(1);
        let most = ((bytes / self.min) as usize).min(self.most).max(fewest);
        self.signature.count(bytes, fewest, most)
    }

    /// Replaces the chain and empties the cache. Ramps that were requested before are rejected by
    /// [`Planner::install`].
    ///
    /// # Errors
    ///
    /// As [`Planner::new`]; the old chain then stays.
    pub fn replace(&mut self, pipeline: Pipeline) -> Result<(), PlanError> {
        let next = Self::new(pipeline, self.limits)?;
        *self = Self { generation: self.generation + 1, ..next };
        Ok(())
    }

    /// Returns the next class that needs a ramp, each once until a message uses it again.
    /// Allocates, so call it off the hot path.
    #[must_use]
    pub fn poll_ramp_request(&mut self) -> Option<RampRequest> {
        let word = self.wanted.iter().position(|&word| word != 0)?;
        let class = word * 64 + self.wanted[word].trailing_zeros() as usize;
        self.wanted[word] &= self.wanted[word] - 1;
        let largest = largest_of(class);
        let shrink = (largest / smallest_of(class)).min(largest);
        let mut limits = Limits::new();
        if self.mtu.is_finite() {
            limits = limits.mtu(self.mtu);
        }
        if self.limits.min_fragment.is_some() || self.unit > 1 {
            limits = limits.min_fragment((self.min * shrink).min(self.mtu).min(largest));
        }
        limits = limits.max_fragments(self.most);
        let request = Request::new(largest).limits(limits);
        Some(RampRequest {
            class,
            generation: self.generation,
            pipeline: self.pipeline.clone(),
            request,
        })
    }

    /// Puts a computed ramp into the cache. Returns false if the chain has been replaced since, or
    /// if the ramp breaks a limit for some size of its class.
    pub fn install(&mut self, computed: ComputedRamp) -> bool {
        let good = computed.generation == self.generation && self.keeps_limits(&computed);
        if good {
            self.classes[computed.class] = Some(computed.ends);
        }
        good
    }

    fn keeps_limits(&self, computed: &ComputedRamp) -> bool {
        if self.limits.min_fragment.is_none() {
            return true;
        }
        [smallest_of(computed.class), largest_of(computed.class)].into_iter().all(|bytes| {
            let Ok(cut) = Cut::new(bytes, &Limits { align: None, ..self.limits }) else {
                return false;
            };
            let mut before = 0.0;
            let sizes: Vec<f64> = computed
                .ends
                .iter()
                .map(|end| (end - std::mem::replace(&mut before, *end)) * bytes)
                .collect();
            cut.allows(&sizes)
        })
    }

    /// Returns the chain.
    #[must_use]
    pub const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }
}

/// Returns the class of a size: its octave, and the three bits below its leading one.
fn class_of(bytes: u64) -> usize {
    let bytes = bytes.clamp(1, MAX_BYTES as u64);
    let octave = bytes.ilog2() as usize;
    let mantissa = ((bytes << 3) >> octave) as usize & 7;
    octave * CLASSES + mantissa
}

fn smallest_of(class: usize) -> f64 {
    let (octave, mantissa) = (class / CLASSES, class % CLASSES);
    ((1.0 + mantissa as f64 / CLASSES as f64) * (octave as f64).exp2()).ceil()
}

fn largest_of(class: usize) -> f64 {
    let (octave, mantissa) = (class / CLASSES, class % CLASSES);
    ((1.0 + (mantissa + 1) as f64 / CLASSES as f64) * (octave as f64).exp2() - 1.0)
        .ceil()
        .clamp(1.0, MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes_in_order() {
        for bytes in (0..4096).chain([1 << 20, (1 << 50) - 1, 1 << 50, u64::MAX]) {
            let class = class_of(bytes);
            assert!(class < OCTAVES * CLASSES);
            if (1..1 << 49).contains(&bytes) {
                assert!(
                    smallest_of(class) <= bytes as f64 && bytes as f64 <= largest_of(class),
                    "{bytes}"
                );
            }
        }
    }

    #[test]
    fn a_ramp_of_an_old_chain_is_rejected() {
        let chain = |g| {
            Pipeline::new(vec![Stage::new(g, 0.01).unwrap(), Stage::new(2.0 * g, 0.02).unwrap()])
                .unwrap()
        };
        use crate::stage::Stage;
        let mut planner = Planner::new(chain(5.0), Limits::new()).unwrap();
        assert!(!planner.plan(5000).is_cached());
        let stale = planner.poll_ramp_request().unwrap().compute().unwrap();
        assert!(planner.poll_ramp_request().is_none());
        planner.replace(chain(9.0)).unwrap();
        assert!(!planner.install(stale));
        assert!(!planner.plan(5000).is_cached());
        let fresh = planner.poll_ramp_request().unwrap().compute().unwrap();
        assert!(planner.install(fresh));
        assert!(planner.plan(5000).is_cached());
        assert_eq!(planner.plan(5000).sum::<u64>(), 5000);
    }
}
