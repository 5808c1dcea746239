//! Forwards an order to a daemon's children, has the daemon carry it out, and reports once all of them have.

use std::collections::BTreeSet;

use midplane_simhw::time::Instant;

use super::NodeCore;
use super::message::Down;
use super::order::{Action, Order, Outcome};

/// An order in progress.
#[derive(Debug)]
pub(super) struct Pending {
    number: u32,
    /// This daemon's own part, until it begins.
    action: Option<Action>,
    /// Children that have not reported.
    pub(super) below: BTreeSet<u16>,
    /// True if this daemon has carried out its own part.
    own: bool,
    outcome: Outcome,
}

impl NodeCore {
    /// Begins an order of the parent, or of this daemon if it is the root, and forwards it to the children. Drops an
    /// earlier incomplete order, whose parent has ended.
    pub(super) fn begin(&mut self, now: Instant, order: Order) {
        self.order_began = now;
        self.send_children(&Down::Order(order.clone()));
        let (Order { number, action }, outcome) = (order, Outcome::default());
        let (action, below) = (Some(action), self.children.keys().copied().collect());
        self.pending = Some(Pending { number, action, below, own: false, outcome });
    }

    fn pending(&mut self, number: u32) -> Option<&mut Pending> {
        self.pending.as_mut().filter(|pending| pending.number == number)
    }

    /// Handles a child's report.
    pub(super) fn handle_report(&mut self, from: u16, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending(number)
            && pending.below.remove(&from)
        {
            pending.outcome.add(outcome);
        }
    }

    /// Handles the outcome of this daemon's own part.
    pub(super) fn handle_own_part(&mut self, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending(number) {
            pending.outcome.add(outcome);
            pending.own = true;
        }
    }

    /// Returns the children that have not reported.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = u16> {
        self.pending.iter().flat_map(|pending| pending.below.iter().copied())
    }

    /// Returns the order's number, and the action that this daemon must carry out itself, once.
    pub(super) fn poll_own_part(&mut self) -> Option<(u32, Action)> {
        let pending = self.pending.as_mut()?;
        Some((pending.number, pending.action.take()?))
    }

    /// Returns the number and outcome of the order for the parent, once this daemon and all daemons below have carried
    /// it out.
    pub(super) fn poll_report(&mut self) -> Option<(u32, Outcome)> {
        let is_done = |pending: &mut Pending| pending.own && pending.below.is_empty();
        self.pending.take_if(is_done).map(|pending| (pending.number, pending.outcome))
    }
}
