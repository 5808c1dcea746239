//! An order's way through the tree, as one daemon sees it: on to its children, carried out, and reported
//! once all below have. No I/O, no clock.

use std::collections::{BTreeSet, VecDeque};

use super::order::{Action, Order, Outcome};

/// An order that is being carried out.
#[derive(Debug)]
struct Pending {
    number: u32,
    /// Children that have not reported.
    below: BTreeSet<u16>,
    /// This daemon has done its own part.
    own: bool,
    outcome: Outcome,
}

/// One daemon's part in handing orders on.
///
/// After any `&mut self` call: drain [`Relay::poll_order`], then [`Relay::poll_action`], then
/// [`Relay::poll_done`].
#[derive(Debug)]
pub struct Relay<P> {
    children: BTreeSet<u16>,
    pending: Option<Pending>,
    out: VecDeque<(u16, Order<P>)>,
    action: Option<(u32, Action<P>)>,
}

impl<P: Clone> Relay<P> {
    /// Hands orders on to these children.
    #[must_use]
    pub fn new(children: impl IntoIterator<Item = u16>) -> Self {
        let children = children.into_iter().collect();
        Self { children, pending: None, out: VecDeque::new(), action: None }
    }

    /// A child has come: it hears of the next order.
    pub fn adopt(&mut self, child: u16) {
        self.children.insert(child);
    }

    /// A child is gone: nobody waits for it any longer.
    pub fn lose(&mut self, child: u16) {
        self.children.remove(&child);
        if let Some(pending) = &mut self.pending {
            pending.below.remove(&child);
        }
    }

    /// An order has come, or begins here. One before it that was not carried out is forgotten: whoever
    /// gave it is gone.
    pub fn handle_order(&mut self, order: Order<P>) {
        let below = self.children.clone();
        self.out.extend(below.iter().map(|child| (*child, order.clone())));
        let Order { number, action } = order;
        self.pending = Some(Pending { number, below, own: false, outcome: Outcome::default() });
        self.action = Some((number, action));
    }

    /// A child has reported.
    pub fn handle_report(&mut self, from: u16, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.number == number)
            && pending.below.remove(&from)
        {
            pending.outcome.add(outcome);
        }
    }

    /// This daemon has done its own part.
    pub fn handle_own(&mut self, number: u32, outcome: Outcome) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.number == number) {
            pending.outcome.add(outcome);
            pending.own = true;
        }
    }

    /// Children that have not reported.
    pub fn waits_for(&self) -> impl Iterator<Item = u16> {
        self.pending.iter().flat_map(|pending| pending.below.iter().copied())
    }

    /// An order for a child.
    #[must_use]
    pub fn poll_order(&mut self) -> Option<(u16, Order<P>)> {
        self.out.pop_front()
    }

    /// What this daemon is to do itself, and the order's number.
    #[must_use]
    pub fn poll_action(&mut self) -> Option<(u32, Action<P>)> {
        self.action.take()
    }

    /// All below have done it: what came of it, for whoever gave the order.
    #[must_use]
    pub fn poll_done(&mut self) -> Option<(u32, Outcome)> {
        let is_done = |pending: &mut Pending| pending.own && pending.below.is_empty();
        self.pending.take_if(is_done).map(|pending| (pending.number, pending.outcome))
    }
}
