//! Matching of messages and receives: by context, source and tag, in order.
//!
//! A message matches the receive that was posted first among those that accept it. A receive matches the
//! message that arrived first among those that it accepts; sizes do not matter. Both are found in constant
//! time: messages and receives are queued by the fixed parts of the key, with one set of queues for each combination
//! of wildcards.

mod key;
mod posted;
mod queues;
mod slots;
#[cfg(test)]
mod tests;
mod unexpected;

use posted::Posted;
use unexpected::Unexpected;

pub use key::{Key, Pattern};
pub use posted::PostedId;
pub use unexpected::UnexpectedId;
pub use unexpected::{Arrival, UnexpectedMessage};

/// Posted receives, each identified by the caller's `R`, and unexpected messages, each stored as an `M`.
///
/// A receive that matches a held message is never posted, and a message that matches a posted receive is never
/// held. So no held message ever matches a posted receive.
#[derive(Debug)]
#[doc(hidden)]
pub struct Matching<R, M> {
    posted: Posted<R>,
    unexpected: Unexpected<M>,
    arrivals: u64,
}

impl<R: Copy, M> Matching<R, M> {
    /// Makes an empty table. `seed` is the seed of the tables' hash; a sender that knows it can choose tags that make
    /// matching slow.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { posted: Posted::new(seed), unexpected: Unexpected::new(seed), arrivals: 0 }
    }

    /// Handles an arriving message: returns its place in the order of arrival, and the receive that it matches,
    /// which is then no longer posted. If there is no such receive, [`hold`](Self::hold) the message.
    #[must_use]
    #[inline]
    pub fn arrive(&mut self, key: Key) -> (Arrival, Option<R>) {
        (self.next_arrival(), self.posted.take(key))
    }

    /// Returns the receive that a message with this key would match; it stays posted.
    #[must_use]
    pub(crate) fn first_posted(&self, key: Key) -> Option<(PostedId, R)> {
        self.posted.first(key)
    }

    /// Returns the next place in the order of arrival, for a message that matches no posted receive.
    #[must_use]
    pub(crate) const fn next_arrival(&mut self) -> Arrival {
        let arrival = Arrival(self.arrivals);
        self.arrivals += 1;
        arrival
    }

    /// Stores the message that arrived last, which no posted receive accepts.
    #[inline]
    pub fn hold(&mut self, key: Key, arrival: Arrival, message: M) -> UnexpectedId {
        self.unexpected.push(UnexpectedMessage { key, arrival, message })
    }

    /// Returns a received message to its place in the queue, if no posted receive accepts it.
    ///
    /// # Errors
    /// The receive that accepts it, which is then no longer posted, and the message.
    pub fn put_back(
        &mut self,
        message: UnexpectedMessage<M>,
    ) -> Result<UnexpectedId, (R, UnexpectedMessage<M>)> {
        match self.posted.take(message.key) {
            Some(receive) => Err((receive, message)),
            None => Ok(self.unexpected.put_back(message)),
        }
    }

    /// Takes the first held message that the pattern accepts.
    #[must_use]
    pub fn take(&mut self, pattern: &Pattern) -> Option<UnexpectedMessage<M>> {
        self.unexpected.take(pattern)
    }

    /// Takes one held message; returns `None` if it is no longer held.
    #[must_use]
    pub fn remove(&mut self, id: UnexpectedId) -> Option<UnexpectedMessage<M>> {
        self.unexpected.remove(id)
    }

    /// Returns the first held message that the pattern accepts; it stays held.
    #[must_use]
    pub fn peek(&mut self, pattern: &Pattern) -> Option<(UnexpectedId, Key, &M)> {
        self.unexpected.peek(pattern)
    }

    /// Posts a receive; the caller has checked with [`take`](Self::take) that no held message matches it.
    pub fn post(&mut self, pattern: &Pattern, receive: R) -> PostedId {
        self.posted.push(pattern, receive)
    }

    /// Withdraws a posted receive; returns `false` if it is no longer posted.
    pub fn withdraw(&mut self, id: PostedId) -> bool {
        self.posted.remove(id)
    }

    /// Returns whether no receive is posted and no message held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.len() == 0 && self.unexpected.len() == 0
    }

    /// Returns the number of posted receives.
    #[must_use]
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the number of held messages.
    #[cfg(test)]
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// Iterates over all posted receives, in no particular order.
    pub fn posted(&self) -> impl Iterator<Item = (PostedId, &Pattern, R)> {
        self.posted.iter()
    }

    /// Iterates over all held messages, in no particular order.
    pub fn unexpected(&self) -> impl Iterator<Item = (UnexpectedId, Key, &M)> {
        self.unexpected.iter()
    }
}
