//! Reliable updates as control messages, and the writes that wait for a slow node.

use midplane_nicvm::context::Context;
use midplane_nicvm::control::MAX_MESSAGE;
use midplane_nicvm::timeout::Service;
use midplane_simhw::id::NodeId;
use midplane_simhw::wire;

use super::{LAST, MORE, Mermera, ROOM, SHORTEST, TRIES};
use crate::memory::{Coherence, Update};

/// The parts of updates that wait for one node while PRAM and coherent writes are made: 1.6 MB. Beyond
/// that they wait.
const MAX_UNSENT: usize = 16 * 1024;
/// The most requests of one node that wait. Each write of an application waits for its own commit, so
/// only a faulty node sends more.
const MAX_REQUESTS: usize = 16 * 1024;

impl Mermera {
    /// Sends reliable updates as control messages.
    pub(super) fn send_reliable(&mut self, nic: &mut Context<'_>) {
        let Some(memory) = &mut self.memory else { return };
        while let Some((to, update)) = memory.poll_send() {
            // Values and parts of a log are short, so that every update can be encoded.
            let Ok(bytes) = wire::encode(&update) else { continue };
            if !update.is_reliable() {
                self.acks.entry(to).or_default().push(bytes);
                continue;
            }
            let mut parts = bytes.chunks(MAX_MESSAGE - 1).peekable();
            while let Some(part) = parts.next() {
                let mark = if parts.peek().is_some() { MORE } else { LAST };
                let message = [&[mark], part].concat();
                self.unsent.entry(to).or_default().push_back(message);
            }
        }
        let mut is_full = false;
        for (to, messages) in &mut self.unsent {
            while let Some(message) = messages.front() {
                if nic.send_control(*to, message).is_err() {
                    is_full = true;
                    break;
                }
                messages.pop_front();
            }
        }
        if is_full {
            let again = (self.config.delay / TRIES).max(SHORTEST);
            nic.set_timeout(ROOM, Service::Exact, again);
        }
    }

    /// Returns true if too many parts of updates wait for a node.
    pub(super) fn is_backed_up(&self) -> bool {
        self.unsent.values().any(|parts| parts.len() >= MAX_UNSENT)
    }

    /// Keeps a request for a place if too many parts wait for a node, since each place adds some.
    /// Returns the update if the caller is to process it.
    pub(super) fn hold_request(
        &mut self,
        from: NodeId,
        update: Update<Vec<u8>>,
    ) -> Option<Update<Vec<u8>>> {
        let is_request = matches!(update, Update::Coherent(Coherence::Request(_)));
        if !is_request || !self.is_backed_up() {
            return Some(update);
        }
        let requests = self.requests.entry(from).or_default();
        if requests.len() < MAX_REQUESTS {
            requests.push_back(update);
        }
        None
    }

    /// Makes the writes that have waited, and gives places to those of other nodes, until too many parts
    /// wait again.
    pub(super) fn resume_writes(&mut self, nic: &mut Context<'_>) {
        let has_some = |this: &Self| {
            !this.held.is_empty() || this.requests.values().any(|waiting| !waiting.is_empty())
        };
        while !self.is_backed_up() && has_some(self) {
            let Some(memory) = &mut self.memory else { return };
            for (from, requests) in &mut self.requests {
                if let Some(request) = requests.pop_front() {
                    memory.handle_update(nic.now(), *from, request);
                }
            }
            if let Some(command) = self.held.pop_front() {
                self.write(nic, command);
            }
            self.send_reliable(nic);
        }
    }
}
