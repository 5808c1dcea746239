//! Messages of dropped receives: they return to their place in the queue.
//!
//! A message whose bytes are still arriving returns at once, so that no later message overtakes it. Its bytes arrive at
//! the dropped receive. If another receive matches the message before all bytes have arrived, that receive is the heir:
//! it gets the message once they have.

use super::{Arrived, Core};
use crate::message::envelope::Context;
use crate::message::matching::{Key, UnexpectedMessage};
use crate::message::request::{Operation, Request, State, Status, Transfer};

impl Core {
    /// Abandons a request whose outcome will not be taken: a request in progress, or a done one that is to be undone.
    pub(super) fn abandon(&mut self, request: Request, undo: bool) {
        let Some(record) = self.requests.get_mut(request) else { return };
        record.orphan = true;
        match (record.operation, record.state) {
            (Operation::Send { .. } | Operation::Nothing, State::Done) => {
                self.requests.remove(request);
            }
            (Operation::Send { .. }, _) => {}
            (Operation::Receive(_), State::Active) if record.posted.is_some() && undo => {
                self.cancel(request);
            }
            (Operation::Receive(_) | Operation::Claimed(_), State::Done) => {
                let key = Self::key_of(record.operation, record.status);
                if record.result.is_ok() {
                    let length = record.status.length;
                    self.return_message(request, key, length);
                } else {
                    self.requests.remove(request);
                }
            }
            _ if undo => self.return_early(request),
            _ => {}
        }
    }

    pub(super) const fn key_of(operation: Operation, status: Status) -> Key {
        let context = match operation {
            Operation::Receive(pattern) => pattern.context,
            Operation::Claimed(key) => key.context,
            Operation::Send { context, .. } => context,
            Operation::Nothing => Context(0),
        };
        Key { context, source: status.source, tag: status.tag }
    }

    /// Returns the message of a dropped receive to the queue while its bytes are still arriving. A truncated message is
    /// lost.
    fn return_early(&mut self, receive: Request) {
        let Some(record) = self.requests.get_mut(receive) else { return };
        let Some(Transfer { wanted, length, dropped, .. }) = record.transfer else { return };
        let (key, arrival) = (Self::key_of(record.operation, record.status), record.arrival);
        match dropped {
            Some(dropped) => {
                // The receive was the heir of another one.
                self.requests.remove(receive);
                if let Some(record) = self.requests.get_mut(dropped) {
                    record.heir = None;
                }
            }
            None if record.undo || wanted < length => return,
            None => record.undo = true,
        }
        let length = u32::try_from(length).expect("at most MAX_LENGTH");
        let arriving = Some(dropped.unwrap_or(receive));
        let message = Arrived { length, arriving, ..Arrived::default() };
        self.put_back(UnexpectedMessage { key, arrival, message });
    }

    /// Matches a receive with a message whose bytes are still arriving at a dropped receive.
    pub(super) fn inherit(&mut self, heir: Request, dropped: Request, key: Key) {
        let Some(record) = self.requests.get_mut(dropped) else { return };
        record.heir = Some(heir);
        let transfer = record.transfer;
        let Some(record) = self.requests.get_mut(heir) else { return };
        record.state = State::Active;
        record.status = Self::blank(key);
        record.transfer =
            transfer.map(|transfer| Transfer { filled: 0, dropped: Some(dropped), ..transfer });
    }

    /// Returns the whole message of a dropped receive to the queue, or passes it to the heir; removes the receive.
    pub(super) fn return_message(&mut self, receive: Request, key: Key, length: usize) {
        let Some(record) = self.requests.get_mut(receive) else { return };
        let bytes = match record.memory.take().and_then(|memory| memory.part(0..length)) {
            Some(memory) => memory.to_vec(),
            None => std::mem::take(&mut record.storage),
        };
        let (arrival, has_returned, heir) = (record.arrival, record.undo, record.heir);
        self.requests.remove(receive);
        let length = u32::try_from(bytes.len()).expect("at most MAX_LENGTH");
        // The message's room in the window was returned when it was received.
        let message = Arrived { length, bytes: Some(bytes), ..Arrived::default() };
        let held = UnexpectedMessage { key, arrival, message };
        match heir {
            Some(heir) => self.meet(heir, held),
            None if has_returned => self.replace_early(receive, held),
            None => self.put_back(held),
        }
    }

    /// Replaces a message that has returned early, in the queue or claimed by a probe, with the same message and its
    /// bytes.
    fn replace_early(&mut self, dropped: Request, held: UnexpectedMessage<Arrived>) {
        let is_same = |message: &Arrived| message.arriving == Some(dropped);
        let claimed = self.claimed.values_mut().find(|claimed| is_same(&claimed.message));
        if let Some(claimed) = claimed {
            claimed.message = held.message;
            return;
        }
        let queued = self.matching.unexpected().find(|&(.., message)| is_same(message));
        let place = queued.map(|(id, ..)| id);
        if let Some(place) = place {
            let _ = self.matching.remove(place);
            self.put_back(held);
        }
    }

    pub(super) fn put_back(&mut self, held: UnexpectedMessage<Arrived>) {
        match self.matching.put_back(held) {
            Ok(_) => self.requests.note_move(),
            Err((receive, held)) => self.meet(receive, held),
        }
    }
}
