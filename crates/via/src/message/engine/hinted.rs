//! Messages that wait at their sender: the receiver has no room even for their RTS.
//!
//! The sender notifies the receiver of such a message once, by a hint. The receiver stores only the message's
//! key, unless a receive waits for it. A receive that is posted later asks for the message
//! ([`Seeks`](super::seeks::Seeks)).

use std::collections::BTreeMap;

use super::flows::Class;
use crate::message::envelope::{Context, Tag};
use crate::message::request::Request;

/// The receiver's state for a message that waits at its sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// The receiver has not asked for it.
    Free,
    /// The receiver asked and was offered this message; it has yet to accept or return it.
    Offered,
    /// The receiver holds the message for a matched probe.
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    send: Request,
    place: Place,
    /// True if the sender has asked the receiver to return the message.
    cancelling: bool,
}

/// Messages to one process that wait here, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Hinted {
    next: u64,
    waiting: BTreeMap<(Context, Tag, u64), Waiting>,
    order: BTreeMap<(Context, u64), Tag>,
    numbers: BTreeMap<Request, (Context, Tag, u64)>,
}

impl Hinted {
    pub(super) fn insert(&mut self, send: Request, context: Context, tag: Tag) {
        let number = self.next;
        self.next += 1;
        let waiting = Waiting { send, place: Place::Free, cancelling: false };
        self.waiting.insert((context, tag, number), waiting);
        self.order.insert((context, number), tag);
        self.numbers.insert(send, (context, tag, number));
    }

    pub(super) fn remove(&mut self, send: Request) -> bool {
        let Some((context, tag, number)) = self.numbers.remove(&send) else { return false };
        self.order.remove(&(context, number));
        self.waiting.remove(&(context, tag, number)).is_some()
    }

    pub(super) fn place(&self, send: Request) -> Option<Place> {
        let at = self.numbers.get(&send)?;
        self.waiting.get(at).map(|waiting| waiting.place)
    }

    /// Sets the state of a message; returns whether its sender has asked the receiver to return it.
    pub(super) fn put(&mut self, send: Request, place: Place) -> bool {
        let waiting = self.numbers.get(&send).and_then(|at| self.waiting.get_mut(at));
        waiting.is_some_and(|waiting| {
            waiting.place = place;
            waiting.cancelling
        })
    }

    /// Sets whether the sender has asked the receiver to return a message: such a message is not offered.
    pub(super) fn set_cancelling(&mut self, send: Request, cancelling: bool) {
        if let Some(waiting) = self.numbers.get(&send).and_then(|at| self.waiting.get_mut(at)) {
            waiting.cancelling = cancelling;
        }
    }

    /// Returns whether the sender has asked the receiver to return a message.
    pub(super) fn is_cancelling(&self, send: Request) -> bool {
        let waiting = self.numbers.get(&send).and_then(|at| self.waiting.get(at));
        waiting.is_some_and(|waiting| waiting.cancelling)
    }

    /// Returns the first message of this context, and of this tag unless it is `None`, that may be offered.
    pub(super) fn first(&self, context: Context, tag: Option<Tag>) -> Option<Request> {
        match tag {
            Some(tag) => {
                let of_tag = self.waiting.range((context, tag, 0)..=(context, tag, u64::MAX));
                of_tag.map(|(_, waiting)| waiting).find(|waiting| waiting.is_free())
            }
            None => {
                let of_context = self.order.range((context, 0)..=(context, u64::MAX));
                let in_order = of_context.filter_map(|(&(context, number), &tag)| {
                    self.waiting.get(&(context, tag, number))
                });
                in_order.into_iter().find(|waiting| waiting.is_free())
            }
        }
        .map(|waiting| waiting.send)
    }

    /// Returns whether messages of a class wait here: later ones queue behind them.
    #[inline]
    pub(super) fn holds(&self, Class { context, tag }: Class) -> bool {
        if self.order.is_empty() {
            return false;
        }
        match tag {
            Some(tag) => {
                self.waiting.range((context, tag, 0)..=(context, tag, u64::MAX)).next().is_some()
            }
            None => self.order.range((context, 0)..=(context, u64::MAX)).next().is_some(),
        }
    }

    /// Returns whether any message may be offered.
    pub(super) fn has_free(&self) -> bool {
        self.waiting.values().any(Waiting::is_free)
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.order.clear();
        self.numbers.clear();
    }
}

impl Waiting {
    fn is_free(&self) -> bool {
        self.place == Place::Free && !self.cancelling
    }
}
