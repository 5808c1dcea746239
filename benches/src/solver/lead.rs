//! Rank 0's coordination: whether the answer is found, which ranks are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use midplane::simhw::id::NodeId;
use midplane::warp::iterate::termination::{Coordinator, Order, Report};

use super::message::Note;
use super::pace::Pace;
use super::rank::Rank;
use super::setting::Setting;
use midplane_kit::report::Failure;

/// Rank 0's state about the other ranks.
#[derive(Debug)]
pub struct Lead {
    coordinator: Coordinator,
    /// The answer of the synchronous iteration, which needs no coordination.
    accepted: Option<Vec<f64>>,
    pub lost: BTreeSet<NodeId>,
    /// Values of a report that spans several messages, by round and first unknown.
    partial: BTreeMap<(u32, usize), Vec<f64>>,
}

impl Lead {
    pub fn new(setting: &Setting) -> Self {
        Self {
            coordinator: Coordinator::new(usize::from(setting.ranks), setting.tolerance),
            accepted: None,
            lost: BTreeSet::new(),
            partial: BTreeMap::new(),
        }
    }

    /// Returns the answer, once it has been checked.
    pub fn answer(&self) -> Option<&[f64]> {
        self.accepted.as_deref().or_else(|| self.coordinator.answer())
    }

    /// Takes values as the answer that the caller has checked.
    pub fn accept(&mut self, values: Vec<f64>) {
        self.accepted = Some(values);
    }

    /// Returns the order to repeat to the other ranks.
    pub fn repeat(&self) -> Note {
        note(self.coordinator.repeat())
    }

    /// Adds a part of a rank's values; returns all of its `range` once they are complete.
    fn on_values(
        &mut self,
        range: &Range<usize>,
        part: (u32, u32, u32),
        values: &[f64],
    ) -> Option<Vec<f64>> {
        let (round, first, of) = part;
        if of as usize != range.len() {
            return None;
        }
        let held = self.partial.entry((round, range.start));
        let held = held.or_insert_with(|| vec![f64::NAN; range.len()]);
        let first = first as usize;
        held.get_mut(first..first.checked_add(values.len())?)?.copy_from_slice(values);
        (!held.iter().any(|value| value.is_nan())).then(|| held.clone())
    }
}

const fn note(order: Order) -> Note {
    match order {
        Order::Hold { round } => Note::Hold { round },
        Order::Resume { round } => Note::Resume { round },
        Order::Stop => Note::Stop,
    }
}

impl<H: Pace> Rank<H> {
    /// Handles another rank's note to the coordinator.
    pub fn on_note_of_rank(&mut self, from: NodeId, note: Note) -> Result<(), Failure> {
        let Some(lead) = &mut self.lead else { return Ok(()) };
        match note {
            Note::AtRest { round } => self.on_report(from, Report::AtRest { round }),
            Note::Values { round, first, of, values } => {
                let Some(range) = self.ranges.get(from.index()).cloned() else { return Ok(()) };
                match lead.on_values(&range, (round, first, of), &values) {
                    Some(values) => {
                        self.on_report(from, Report::Values { round, first: range.start, values })
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub fn on_report(&mut self, from: NodeId, report: Report) -> Result<(), Failure> {
        let Some(lead) = &mut self.lead else { return Ok(()) };
        let problem = &self.job.problem;
        match lead.coordinator.handle_report(problem, from.index(), report) {
            Some(order) => self.order(order),
            None => Ok(()),
        }
    }

    /// Handles a lost rank, which ends the run.
    pub fn on_lost(&mut self, node: NodeId) {
        self.last_received.remove(&node);
        if let Some(lead) = &mut self.lead {
            lead.lost.insert(node);
        }
    }

    fn order(&mut self, order: Order) -> Result<(), Failure> {
        if let Some(lead) = &mut self.lead {
            lead.partial.clear();
        }
        self.send_note_to_all(&note(order))?;
        self.obey(order)
    }
}
