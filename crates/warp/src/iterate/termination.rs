//! Termination of an asynchronous iteration: declared only for an answer that has been checked.
//!
//! If every rank is at rest, that proves nothing: values in flight may make ranks change again. So
//! when all ranks report rest, the coordinator makes them hold their values, gathers exactly those
//! values and computes their residual. If it is small enough, they are the answer. Otherwise all
//! ranks resume, and wait longer before they report rest again. Reports and orders must arrive, and
//! may arrive twice. Values between ranks may be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{FixedPoint, residual};

/// A message from a rank to the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The rank's unknowns have been at rest for several sweeps of this round.
    AtRest {
        /// The round.
        round: u32,
    },
    /// The rank holds its values; these are its unknowns, from `first` on.
    Values {
        /// The round.
        round: u32,
        /// The first unknown.
        first: usize,
        /// The values of the unknowns, in order.
        values: Vec<f64>,
    },
}

/// A message from the coordinator to all ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Hold your values and report them. If this order comes again, report them again.
    Hold {
        /// The round.
        round: u32,
    },
    /// The answer is not good enough: resume, in a new round.
    Resume {
        /// The new round.
        round: u32,
    },
    /// Stop: the answer has been found and checked.
    Stop,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Working,
    AtRest,
    Holding,
    Stopped,
}

/// A rank's side of the protocol.
#[derive(Clone, Debug)]
pub struct Participant {
    tolerance: f64,
    state: State,
    round: u32,
    quiet_sweeps: u32,
}

/// Sweeps within the tolerance, in a row, after which a rank reports rest.
const QUIET_SWEEPS: u32 = 3;

impl Participant {
    /// Creates a rank's side, whose largest residual is to be at most `tolerance`.
    #[must_use]
    pub const fn new(tolerance: f64) -> Self {
        Self { tolerance, state: State::Working, round: 0, quiet_sweeps: 0 }
    }

    /// Records a sweep with `residual` as its largest. Returns the report to send, if there is one.
    pub fn on_sweep(&mut self, residual: f64) -> Option<Report> {
        self.quiet_sweeps =
            if residual <= self.tolerance { self.quiet_sweeps.saturating_add(1) } else { 0 };
        // Each failed round doubles the sweeps needed, so that rounds do not follow one another
        // while values are still in flight.
        let needed = QUIET_SWEEPS << self.round.min(10);
        if self.state == State::Working && self.quiet_sweeps >= needed {
            self.state = State::AtRest;
            return Some(Report::AtRest { round: self.round });
        }
        None
    }

    /// Carries out an order of the coordinator. Returns the reports that it requests, of the
    /// unknowns `own` of `x`.
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
            Order::Resume { round } if round > self.round && self.state != State::Stopped => {
                self.round = round;
                self.state = State::Working;
                self.quiet_sweeps = 0;
            }
            Order::Stop => self.state = State::Stopped,
            Order::Hold { .. } | Order::Resume { .. } => {}
        }
        Vec::new()
    }

    /// Returns the report of rest again, for transports that may lose reports.
    #[must_use]
    pub fn repeat(&self) -> Option<Report> {
        (self.state == State::AtRest).then_some(Report::AtRest { round: self.round })
    }

    /// Returns true if the rank may change its unknowns.
    #[must_use]
    pub const fn may_sweep(&self) -> bool {
        matches!(self.state, State::Working | State::AtRest)
    }

    /// Returns true if the answer has been found.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }
}

/// The coordinator's side of the protocol.
#[derive(Clone, Debug)]
pub struct Coordinator {
    tolerance: f64,
    ranks: BTreeSet<usize>,
    round: u32,
    at_rest: BTreeSet<usize>,
    /// Values reported in this round, by their first unknown; `None` until the ranks hold.
    values: Option<BTreeMap<usize, Vec<f64>>>,
    answer: Option<Vec<f64>>,
    rounds_failed: u32,
}

impl Coordinator {
    /// Creates the coordinator of `ranks` ranks, for an answer with a residual of at most
    /// `tolerance`.
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

    /// Processes the report of a rank. Returns the order to send to all ranks, if there is one.
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
                self.check_answer(problem)
            }
            Report::AtRest { .. } | Report::Values { .. } => None,
        }
    }

    /// Handles the loss of a rank whose unknowns another rank has taken over: starts a new round.
    pub fn on_lost(&mut self, rank: usize) -> Option<Order> {
        self.ranks.remove(&rank);
        self.answer.is_none().then(|| self.start_round())
    }

    /// Returns the present order again, for transports that may lose orders.
    #[must_use]
    pub fn repeat(&self) -> Order {
        match (&self.answer, &self.values) {
            (Some(_), _) => Order::Stop,
            (None, Some(_)) => Order::Hold { round: self.round },
            (None, None) => Order::Resume { round: self.round },
        }
    }

    /// Returns the answer, once it has been checked.
    #[must_use]
    pub fn answer(&self) -> Option<&[f64]> {
        self.answer.as_deref()
    }

    /// Returns the number of rounds in which all ranks were at rest but the answer was not good
    /// enough.
    #[cfg(test)]
    pub(crate) const fn rounds_failed(&self) -> u32 {
        self.rounds_failed
    }

    fn hold(&mut self) -> Option<Order> {
        if self.values.is_some() || !self.ranks.is_subset(&self.at_rest) {
            return None;
        }
        self.values = Some(BTreeMap::new());
        Some(Order::Hold { round: self.round })
    }

    /// Checks the answer once all values have arrived.
    fn check_answer(&mut self, problem: &impl FixedPoint) -> Option<Order> {
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
        Some(self.start_round())
    }

    fn start_round(&mut self) -> Order {
        self.round += 1;
        self.at_rest.clear();
        self.values = None;
        Order::Resume { round: self.round }
    }
}
