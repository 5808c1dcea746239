//! A rate limiter on one page: the server's NIC refuses requests beyond a tenant's rate, without its host.

use std::collections::{BTreeMap, VecDeque};

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane::simhw::frame::Frame;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Completion, Status};

use crate::limiter::bucket::Buckets;

pub(crate) const LIMITER: ExtensionId = FIRST_USER_EXTENSION;
/// Sends a request of the tenant in argument 0 to `node`; completes when it is answered or refused.
pub(crate) const REQUEST: u8 = 1;
/// Posts a slot to the server's NIC: completes with an admitted request's node, tenant and number.
pub(crate) const SERVE: u8 = 2;
/// Sends the server's answer to the request that `node` and argument 0 name.
pub(crate) const ANSWER: u8 = 3;
/// Sets the limit of every tenant: argument 0 requests a second, bursts of argument 1.
pub(crate) const LIMIT: u8 = 4;

/// Largest number of requests that wait for the server's host; more are refused, too.
const WAITING: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Limiter {
    buckets: Buckets,
    slots: VecDeque<Command>,
    admitted: VecDeque<(NodeId, u64, u64)>,
    asked: BTreeMap<u64, Command>,
    next: u64,
}

impl Limiter {
    /// Hands admitted requests to the host, as far as it has posted slots.
    fn hand_out(&mut self, nic: &mut Context<'_>) {
        while !self.slots.is_empty() && !self.admitted.is_empty() {
            let (slot, request) = (self.slots.pop_front(), self.admitted.pop_front());
            let Some((slot, (node, tenant, number))) = slot.zip(request) else { return };
            let args = [tenant, number, 0, 0];
            let done = Completion { node, args, ..Completion::of(&slot, Status::Done) };
            nic.complete(slot.region.port, &done);
        }
    }
}

fn message(opcode: u8, words: [u64; 2]) -> Vec<u8> {
    let [first, second] = words.map(u64::to_le_bytes);
    [&[opcode][..], &first, &second].concat()
}

impl Extension for Limiter {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let Command { opcode, node, args: [first, second, _], .. } = command;
        let sent = match opcode {
            SERVE => {
                self.slots.push_back(command);
                return self.hand_out(nic);
            }
            REQUEST => {
                self.next += 1;
                if nic.send_control(node, &message(REQUEST, [first, self.next])).is_ok() {
                    self.asked.insert(self.next, command);
                    return;
                }
                Status::PeerLost
            }
            ANSWER => match nic.send_control(node, &message(ANSWER, [first, 1])) {
                Ok(()) => Status::Done,
                Err(_) => Status::PeerLost,
            },
            LIMIT => {
                self.buckets = Buckets::new(first, second);
                Status::Done
            }
            _ => Status::Invalid,
        };
        nic.complete(command.region.port, &Completion::of(&command, sent));
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message_: &[u8]) {
        let word = |at: usize| Some(u64::from_le_bytes(message_.get(at..at + 8)?.try_into().ok()?));
        let Some((first, second)) = word(1).zip(word(9)) else { return };
        if message_[0] == REQUEST {
            if self.admitted.len() < WAITING && self.buckets.admit(nic.now(), first) {
                self.admitted.push_back((from, first, second));
                self.hand_out(nic);
            } else {
                // A requester that has disconnected needs no answer.
                let _ = nic.send_control(from, &message(ANSWER, [second, 0]));
            }
        } else if let Some(command) = self.asked.remove(&first) {
            let status = if second == 1 { Status::Done } else { Status::Refused };
            nic.complete(command.region.port, &Completion::of(&command, status));
        }
    }

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}

    fn held(&mut self) -> Vec<Command> {
        let asked = std::mem::take(&mut self.asked).into_values();
        self.slots.drain(..).chain(asked).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.held() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}
