//! An extension that detects messages of another version.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{
    Extension, FIRST_USER_EXTENSION, ImportError, InitError, TimeoutId,
};
use midplane_nicvm::timeout::Service;
use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::{Command, Completion, Status};

pub(crate) const TALLY: ExtensionId = FIRST_USER_EXTENSION;
/// Opcode: sends a message to a member, and completes when the member has answered.
pub(crate) const ASK: u8 = 1;
/// Opcode: panics in the handler.
pub(crate) const FAIL: u8 = 2;
const GAP: Duration = Duration::from_micros(20);

/// Counts over all nodes' tallies.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    pub(crate) wrong: u64,
    pub(crate) sent: u64,
}

/// An extension whose messages carry the label of their sender's module. The module's first byte is its label; a digit
/// after it names a node that refuses it. A module with the label X loads, and does not start on the last node; one with
/// the label Y starts on none.
pub(crate) struct Tally {
    pub(crate) label: u8,
    pub(crate) nodes: u16,
    pub(crate) chatty: bool,
    pub(crate) sent: u32,
    pub(crate) held: Vec<Command>,
    pub(crate) handled: u64,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Extension for Tally {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        if self.chatty {
            nic.set_timeout(TimeoutId(0), Service::Exact, GAP);
        }
        let is_last = nic.node().0 == self.nodes - 1;
        if self.label == b'Y' || (self.label == b'X' && is_last) {
            return Err(InitError::Refused { extension: nic.extension(), reason: "on purpose" });
        }
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        assert!(command.opcode != FAIL, "on purpose");
        let message = [self.label, 1, self.held.len() as u8];
        if nic.send_control(command.node, &message).is_err() {
            nic.refuse(&command, Status::Refused);
            return;
        }
        self.held.push(command);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.handled += 1;
        {
            let mut seen = self.seen.lock().unwrap();
            seen.messages += 1;
            seen.wrong += u64::from(message[0] != self.label);
        }
        match message[1] {
            1 => nic.send_control(from, &[self.label, 2, 0]).unwrap(),
            2 => {
                // Answers of a node come in order, so the oldest command to that node ends.
                let at = self.held.iter().position(|command| command.node == from);
                if let Some(at) = at {
                    let command = self.held.remove(at);
                    let args = [self.label.into(), self.handled, 0, 0];
                    nic.complete(
                        command.region.port,
                        &Completion { cookie: command.cookie, args, ..Completion::default() },
                    );
                }
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, _: TimeoutId) {
        self.sent += 1;
        let to = (u32::from(nic.node().0) + 1 + self.sent % u32::from(self.nodes - 1)) as u16;
        if nic.send_control(NodeId(to % self.nodes), &[self.label, 0]).is_ok() {
            self.seen.lock().unwrap().sent += 1;
        }
        nic.set_timeout(TimeoutId(0), Service::Exact, GAP);
    }

    fn export(&mut self) -> Option<Vec<u8>> {
        Some(self.handled.to_le_bytes().to_vec())
    }

    fn import(&mut self, state: &[u8]) -> Result<(), ImportError> {
        let state = state.try_into().map_err(|_| ImportError("eight bytes"))?;
        self.handled = u64::from_le_bytes(state);
        Ok(())
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in std::mem::take(&mut self.held) {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}
