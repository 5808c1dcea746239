//! Which message meets which receive: by context, source and tag, in order.
//!
//! A message meets the receive that was posted first among those that ask for it, and a receive the
//! message that came first among those it asks for; sizes take no part. Both are found in constant
//! time: messages and receives stand in queues by what they have in common, one set of queues for
//! each way to leave source and tag open.

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
pub use unexpected::{Arrival, Held, HeldId};

/// Posted receives, each known to the caller as an `R`, and messages that came before theirs, each
/// held as an `M`.
///
/// A receive that meets a held message is never posted, and a message that meets a posted receive
/// is never held: no held message ever matches a posted receive.
#[derive(Debug)]
pub struct Matching<R, M> {
    posted: Posted<R>,
    unexpected: Unexpected<M>,
    arrivals: u64,
}

impl<R: Copy, M> Matching<R, M> {
    /// Nothing posted, nothing held. The seed of the tables' hash is the caller's choice; whoever
    /// knows it can choose tags that make them slow.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { posted: Posted::new(seed), unexpected: Unexpected::new(seed), arrivals: 0 }
    }

    /// A message has come: its place in the order of arrival, and the receive that it meets, which
    /// is posted no longer. If there is none, [`hold`](Self::hold) the message.
    #[must_use]
    #[inline]
    pub fn arrive(&mut self, key: Key) -> (Arrival, Option<R>) {
        (self.next_arrival(), self.posted.take(key))
    }

    /// The receive that a message with this key would meet; it stays posted.
    #[must_use]
    pub fn first_posted(&self, key: Key) -> Option<(PostedId, R)> {
        self.posted.first(key)
    }

    /// A place in the order of arrival for a message that meets no posted receive.
    #[must_use]
    pub const fn next_arrival(&mut self) -> Arrival {
        let arrival = Arrival(self.arrivals);
        self.arrivals += 1;
        arrival
    }

    /// Keeps the message that came last, as no posted receive asks for it.
    #[inline]
    pub fn hold(&mut self, key: Key, arrival: Arrival, message: M) -> HeldId {
        self.unexpected.push(Held { key, arrival, message })
    }

    /// Puts a message that was received back where it stood or would have stood, if no posted receive asks for it; else says which
    /// does, and that one is posted no longer.
    ///
    /// # Errors
    /// The receive that it meets, and the message.
    pub fn put_back(&mut self, message: Held<M>) -> Result<HeldId, (R, Held<M>)> {
        match self.posted.take(message.key) {
            Some(receive) => Err((receive, message)),
            None => Ok(self.unexpected.put_back(message)),
        }
    }

    /// The first held message that the pattern asks for; held no longer.
    #[must_use]
    pub fn take(&mut self, pattern: &Pattern) -> Option<Held<M>> {
        self.unexpected.take(pattern)
    }

    /// Takes one held message out; `None` if it is held no longer.
    #[must_use]
    pub fn remove(&mut self, id: HeldId) -> Option<Held<M>> {
        self.unexpected.remove(id)
    }

    /// The first held message that the pattern asks for.
    #[must_use]
    pub fn peek(&mut self, pattern: &Pattern) -> Option<(HeldId, Key, &M)> {
        self.unexpected.peek(pattern)
    }

    /// Posts a receive; the caller has found with [`take`](Self::take) that no held message meets it.
    pub fn post(&mut self, pattern: &Pattern, receive: R) -> PostedId {
        self.posted.push(pattern, receive)
    }

    /// Withdraws a posted receive; `false` if it is posted no longer.
    pub fn withdraw(&mut self, id: PostedId) -> bool {
        self.posted.remove(id)
    }

    /// Whether nothing is posted, and nothing held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.len() == 0 && self.unexpected.len() == 0
    }

    /// Receives that are posted.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Messages that are held.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.unexpected.len()
    }

    /// All posted receives, in no order of meaning.
    pub fn posted(&self) -> impl Iterator<Item = (PostedId, &Pattern, R)> {
        self.posted.iter()
    }

    /// All held messages, in no order of meaning.
    pub fn held(&self) -> impl Iterator<Item = (HeldId, Key, &M)> {
        self.unexpected.iter()
    }
}
