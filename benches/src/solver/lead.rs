//! Rank 0's coordination: which ranks have started, whether the answer is found, which ranks are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use midplane::simhw::id::NodeId;
use midplane::warp::iterate::termination::{Coordinator, Order, Report};

use super::message::{Note, Tally};
use super::pace::Pace;
use super::rank::{COORDINATOR, Rank};
use super::setting::Setting;
use crate::nodes::Failure;

/// Rank 0's state about the other ranks.
#[derive(Debug)]
pub struct Lead {
    coordinator: Coordinator,
    others: BTreeSet<NodeId>,
    here: BTreeSet<NodeId>,
    pub lost: BTreeSet<NodeId>,
    pub tallies: BTreeMap<NodeId, Tally>,
    /// Values of a report that spans several messages, by round and first unknown.
    partial: BTreeMap<(u32, usize), Vec<f64>>,
}

impl Lead {
    pub fn new(setting: &Setting) -> Self {
        Self {
            coordinator: Coordinator::new(usize::from(setting.ranks), setting.tolerance),
            others: setting.others(COORDINATOR).into_iter().collect(),
            here: BTreeSet::new(),
            lost: BTreeSet::new(),
            tallies: BTreeMap::new(),
            partial: BTreeMap::new(),
        }
    }

    /// Returns the ranks that have not said hello.
    pub fn missing(&self) -> Vec<NodeId> {
        self.others.difference(&self.here).copied().collect()
    }

    /// Returns the answer, once it has been checked.
    pub fn answer(&self) -> Option<&[f64]> {
        self.coordinator.answer()
    }

    /// Returns whether every live rank has reported its counts.
    pub fn has_all_tallies(&self) -> bool {
        let lives = |node: &&NodeId| !self.lost.contains(node);
        self.others.iter().filter(lives).all(|node| self.tallies.contains_key(node))
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
        Order::Resume { round } => Note::GoOn { round },
        Order::Stop => Note::Stop,
    }
}

impl<H: Pace> Rank<H> {
    /// Handles another rank's note to the coordinator.
    pub fn on_note_of_rank(&mut self, from: NodeId, note: Note) -> Result<(), Failure> {
        let Some(lead) = &mut self.lead else { return Ok(()) };
        // A rank that returns after it was declared lost.
        if lead.lost.contains(&from) {
            return self.say(from, &Note::Lost(from.0));
        }
        match note {
            Note::Hello(fingerprint) if fingerprint != self.job.setting.fingerprint() => {
                self.say(from, &Note::Mismatch)?;
                Err(Failure::Mismatch(from))
            }
            Note::Hello(_) => {
                lead.here.insert(from);
                Ok(())
            }
            Note::Done(tally) => {
                lead.tallies.insert(from, tally);
                Ok(())
            }
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
        self.heard.remove(&node);
        if let Some(lead) = &mut self.lead {
            lead.lost.insert(node);
        }
    }

    fn order(&mut self, order: Order) -> Result<(), Failure> {
        if let Some(lead) = &mut self.lead {
            lead.partial.clear();
        }
        self.tell_all(&note(order))?;
        self.obey(order)
    }
}
