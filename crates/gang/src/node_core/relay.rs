//! Forwards an order to a daemon's children, has the daemon carry it out, and reports once all of them have. Performs
//! no I/O, and reads no clock.

use std::collections::{BTreeSet, VecDeque};

use super::order::{Action, Order, Outcome};

/// An order in progress.
#[derive(Debug)]
struct Pending {
    number: u32,
    /// Children that have not reported.
    below: BTreeSet<u16>,
    /// True if this daemon has carried out its own part.
    own: bool,
    outcome: Outcome,
}

/// Forwards orders to a daemon's children, and collects their reports.
///
/// After any `&mut self` call: drain [`Relay::poll_order`], then [`Relay::poll_action`], then
/// [`Relay::poll_done`].
#[derive(Debug, Default)]
pub(crate) struct Relay {
    children: BTreeSet<u16>,
    pending: Option<Pending>,
    out: VecDeque<(u16, Order)>,
    action: Option<(u32, Action)>,
}

impl Relay {
    /// Adds a child, which receives the next order.
    pub(crate) fn adopt(&mut self, child: u16) {
        self.children.insert(child);
    }

    /// Removes a child. The order in progress no longer waits for its report.
    pub(crate) fn lose(&mut self, child: u16) {
        self.children.remove(&child);
        if let Some(pending) = &mut self.pending {
            pending.below.remove(&child);
        }
    }

    /// Abandons the order in progress, because the parent is lost. The children stay.
    pub(crate) fn clear(&mut self) {
        (self.pending, self.action) = (None, None);
        self.out.clear();
    }

    /// Handles an order from the parent, or from this daemon if it is the root. Drops an earlier incomplete order,
    /// whose parent has ended.
    pub(crate) fn handle_order(&mut self, order: Order) {
        let below = self.children.clone();
        self.out.extend(below.iter().map(|child| (*child, order.clone())));
        let Order { number, action } = order;
        self.pending = Some(Pending { number, below, own: false, outcome: Outcome::default() });
        self.action = Some((number, action));
    }

    /// Handles a child's report.
    pub(crate) fn handle_report(&mut self, from: u16, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.number == number)
            && pending.below.remove(&from)
        {
            pending.outcome.add(outcome);
        }
    }

    /// Handles the outcome of this daemon's own part.
    pub(crate) fn handle_own(&mut self, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.number == number) {
            pending.outcome.add(outcome);
            pending.own = true;
        }
    }

    /// Returns the children that have not reported.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = u16> {
        self.pending.iter().flat_map(|pending| pending.below.iter().copied())
    }

    /// Returns an order to send to a child.
    #[must_use]
    pub(crate) fn poll_order(&mut self) -> Option<(u16, Order)> {
        self.out.pop_front()
    }

    /// Returns the order's number, and the action that this daemon must carry out itself.
    #[must_use]
    pub(crate) fn poll_action(&mut self) -> Option<(u32, Action)> {
        self.action.take()
    }

    /// Returns the number and outcome of the order for the parent, once this daemon and all daemons below have carried
    /// it out.
    #[must_use]
    pub(crate) fn poll_done(&mut self) -> Option<(u32, Outcome)> {
        let is_done = |pending: &mut Pending| pending.own && pending.below.is_empty();
        self.pending.take_if(is_done).map(|pending| (pending.number, pending.outcome))
    }
}
