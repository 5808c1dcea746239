//! The end of an asynchronous iteration: declared only for an answer that has been checked.
//!
//! That every rank is at rest proves nothing: values may be on their way that wake it again. So
//! when all say that they are at rest the coordinator has them hold still, gathers the very values
//! that would be the answer, and computes their residual. If it is small enough those values are
//! the answer; if not, all go on, and say so later next time. What ranks and coordinator tell each
//! other must arrive once and in order; values between ranks need not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{FixedPoint, residual};

/// What a rank tells the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Its unknowns have been at rest for a while, in this round.
    AtRest {
        /// The round.
        round: u32,
    },
    /// It holds still; these are its unknowns, from `first` on.
    Values {
        /// The round.
        round: u32,
        /// The first unknown.
        first: usize,
        /// Their values.
        values: Vec<f64>,
    },
}

/// What the coordinator tells all ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Hold still, and report your values.
    Hold {
        /// The round.
        round: u32,
    },
    /// Not yet: go on, in this new round.
    GoOn {
        /// The new round.
        round: u32,
    },
    /// The answer is found, and has been checked.
    Stop,
}

/// How a rank takes part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Working,
    AtRest,
    Holding,
    Stopped,
}

/// A rank's side.
#[derive(Clone, Debug)]
pub struct Participant {
    tolerance: f64,
    state: State,
    round: u32,
    calm: u32,
}

/// Sweeps in which nothing moved before a rank says that it is at rest.
const CALM_SWEEPS: u32 = 3;

impl Participant {
    /// A rank whose part of the residual is to be at most `tolerance`.
    #[must_use]
    pub const fn new(tolerance: f64) -> Self {
        Self { tolerance, state: State::Working, round: 0, calm: 0 }
    }

    /// A sweep found `residual` as the largest of its unknowns; what to report, if anything.
    pub fn on_sweep(&mut self, residual: f64) -> Option<Report> {
        self.calm = if residual <= self.tolerance { self.calm.saturating_add(1) } else { 0 };
        // Each failed round asks for more patience, so that rounds do not follow one another while
        // values are still on their way.
        let patience = CALM_SWEEPS << self.round.min(10);
        if self.state == State::Working && self.calm >= patience {
            self.state = State::AtRest;
            return Some(Report::AtRest { round: self.round });
        }
        None
    }

    /// The coordinator orders; the reports that it asks for, of the unknowns `own` of `x`.
    pub fn handle_order(&mut self, order: Order, own: &[Range<usize>], x: &[f64]) -> Vec<Report> {
        match order {
            Order::Hold { round } if round == self.round && self.state != State::Stopped => {
                self.state = State::Holding;
                let report = |range: &Range<usize>| Report::Values {
                    round,
                    first: range.start,
                    values: x[range.clone()].to_vec(),
                };
                return own.iter().filter(|range| !range.is_empty()).map(report).collect();
            }
            Order::GoOn { round } if self.state != State::Stopped => {
                self.round = round;
                self.state = State::Working;
                self.calm = 0;
            }
            Order::Stop => self.state = State::Stopped,
            Order::Hold { .. } | Order::GoOn { .. } => {}
        }
        Vec::new()
    }

    /// Whether it may change its unknowns.
    #[must_use]
    pub const fn may_sweep(&self) -> bool {
        matches!(self.state, State::Working | State::AtRest)
    }

    /// Whether the answer has been found.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }
}

/// The coordinator's side.
#[derive(Clone, Debug)]
pub struct Coordinator {
    tolerance: f64,
    ranks: BTreeSet<usize>,
    round: u32,
    at_rest: BTreeSet<usize>,
    /// Unknowns that have been reported in this round, by their first.
    values: Option<BTreeMap<usize, Vec<f64>>>,
    answer: Option<Vec<f64>>,
    rounds_failed: u32,
}

impl Coordinator {
    /// Of `ranks` ranks, for an answer whose residual is at most `tolerance`.
    #[must_use]
    pub fn new(ranks: usize, tolerance: f64) -> Self {
        Self {
            tolerance,
            ranks: (0..ranks).collect(),
            round: 0,
            at_rest: BTreeSet::new(),
            values: None,
            answer: None,
            rounds_failed: 0,
        }
    }

    /// A rank reports; what all ranks are to be told, if anything.
    pub fn handle_report(
        &mut self,
        problem: &impl FixedPoint,
        rank: usize,
        report: Report,
    ) -> Option<Order> {
        match report {
            Report::AtRest { round } if round == self.round => {
                self.at_rest.insert(rank);
                self.hold()
            }
            Report::Values { round, first, values } if round == self.round => {
                self.values.as_mut()?.insert(first, values);
                self.judge(problem)
            }
            Report::AtRest { .. } | Report::Values { .. } => None,
        }
    }

    /// A rank is dead, and another has taken over its unknowns: the round is void.
    pub fn on_lost(&mut self, rank: usize) -> Option<Order> {
        self.ranks.remove(&rank);
        self.answer.is_none().then(|| self.go_on())
    }

    /// The answer, once it has been checked.
    #[must_use]
    pub fn answer(&self) -> Option<&[f64]> {
        self.answer.as_deref()
    }

    /// Rounds in which all were at rest and the answer was not good enough.
    #[must_use]
    pub const fn rounds_failed(&self) -> u32 {
        self.rounds_failed
    }

    fn hold(&mut self) -> Option<Order> {
        if self.values.is_some() || !self.ranks.is_subset(&self.at_rest) {
            return None;
        }
        self.values = Some(BTreeMap::new());
        Some(Order::Hold { round: self.round })
    }

    /// Checks the answer when all of it is there.
    fn judge(&mut self, problem: &impl FixedPoint) -> Option<Order> {
        let values = self.values.as_ref()?;
        let mut x = Vec::with_capacity(problem.unknowns());
        for (first, part) in values {
            if *first != x.len() {
                return None;
            }
            x.extend_from_slice(part);
        }
        if x.len() != problem.unknowns() {
            return None;
        }
        if residual(problem, &x) <= self.tolerance {
            self.answer = Some(x);
            return Some(Order::Stop);
        }
        self.rounds_failed += 1;
        Some(self.go_on())
    }

    fn go_on(&mut self) -> Order {
        self.round += 1;
        self.at_rest.clear();
        self.values = None;
        Order::GoOn { round: self.round }
    }
}
