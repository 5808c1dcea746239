//! Reliable updates as control messages, and the PRAM writes that wait for a slow node.

use midplane_nicvm::context::Context;
use midplane_nicvm::control::MAX_MESSAGE;
use midplane_nicvm::timeout::Service;
use midplane_simhw::wire;

use super::{LAST, MORE, Mermera, ROOM, SHORTEST, TRIES};

/// The parts of updates that wait for one node while PRAM writes are made: 1.6 MB. Beyond that they
/// wait.
const MAX_UNSENT: usize = 16 * 1024;

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

    /// Makes the PRAM writes that have waited, until too many parts wait again.
    pub(super) fn resume_writes(&mut self, nic: &mut Context<'_>) {
        while !self.is_backed_up()
            && let Some(command) = self.held.pop_front()
        {
            self.write(nic, command);
            self.send_reliable(nic);
        }
    }
}
