//! A group that one port holds at each member: tracks the lost members, and the first operation that all take part in.
//!
//! ```text
//! Free --hold--> Held --start--> Starting --all others hold it--> Started
//!   ^                                                                |
//!   +------------------------- the port closes ----------------------+
//! ```
//!
//! A member that takes the group sends all others the number of its next operation. A member that releases it sends the
//! number of the first operation that it takes no part in. Between two members these messages arrive in order, so a
//! loss that follows a hold belongs to that hold.

use std::collections::BTreeMap;

use midplane_simhw::port::{Command, Completion, Status};

use super::{Collectives, Context, HOLD, PROBE_AFTER, PortId, Progress, Service, WATCH};

/// Round numbers of the holders' messages.
const HELD: u8 = 0;
const LEFT: u8 = 1;

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Free,
    Held(PortId),
    Starting(Command),
    Started(PortId),
}

/// Another member that holds the group.
#[derive(Debug)]
struct Other {
    /// The number of its next operation.
    next: u32,
    left: bool,
}

/// The port that holds the group, and the members that are lost.
#[derive(Debug, Default)]
pub(super) struct Holder {
    state: State,
    /// Other members that hold the group, or have held it since this member took it. Cleared when the operations start.
    others: BTreeMap<u16, Other>,
    /// Lost members in the order of their loss, with the first operation that each takes no part in; `None` for all
    /// operations.
    lost: Vec<(u16, Option<u32>)>,
}

impl Holder {
    const fn port(&self) -> Option<PortId> {
        match &self.state {
            State::Free => None,
            State::Held(port) | State::Started(port) => Some(*port),
            State::Starting(command) => Some(command.region.port),
        }
    }

    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting(_))
    }

    /// Takes out the command that waits for all members to hold the group.
    pub(super) const fn take_start(&mut self) -> Option<Command> {
        let State::Starting(command) = self.state else { return None };
        self.state = State::Held(command.region.port);
        Some(command)
    }

    /// Checks that `port` may post operations now.
    pub(super) fn admits(&self, port: PortId) -> Result<(), Status> {
        match self.state {
            State::Free => Ok(()),
            State::Started(holder) if holder == port => Ok(()),
            _ if self.port() == Some(port) => Err(Status::Invalid),
            _ => Err(Status::Refused),
        }
    }

    /// Returns a member that takes no part in operation `number`.
    pub(super) fn lost(&self, number: u32) -> Option<u16> {
        let without = |from: Option<u32>| from.is_none_or(|from| !is_before(number, from));
        self.lost.iter().find(|(_, from)| without(*from)).map(|(rank, _)| *rank)
    }

    /// Notes a lost member, from operation `from` on, or for all. A repeated loss can only extend the first: it neither
    /// restores the member nor takes more memory.
    fn lose(&mut self, rank: u16, from: Option<u32>) {
        let Some((_, before)) = self.lost.iter_mut().find(|(other, _)| *other == rank) else {
            self.lost.push((rank, from));
            return;
        };
        *before = before.zip(from).map(|(a, b)| if is_before(b, a) { b } else { a });
    }
}

/// Returns whether operation `a` came before `b`.
pub(super) const fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Collectives {
    pub(super) fn hold(&mut self, nic: &mut Context<'_>, command: &Command) {
        let own = [u64::from(self.group.rank), u64::from(self.group.size())];
        match self.holder.port() {
            Some(other) if other != command.region.port => nic.refuse(command, Status::Refused),
            None if command.args[..2] == own => {
                self.holder.state = State::Held(command.region.port);
                self.holder.lost.clear();
                self.holder.others.retain(|_, other| !other.left);
                self.send_to_others(nic, (HOLD, HELD, self.next));
                nic.complete(command.region.port, &Completion::of(command, Status::Done));
            }
            _ => nic.refuse(command, Status::Invalid),
        }
    }

    pub(super) fn start(&mut self, nic: &mut Context<'_>, command: Command) {
        match self.holder.state {
            State::Held(port) if port == command.region.port => {
                self.holder.state = State::Starting(command);
                self.try_start(nic);
                nic.set_timeout(WATCH, Service::Coarse, PROBE_AFTER);
            }
            _ => {
                let refused = self.holder.admits(command.region.port).err();
                nic.refuse(&command, refused.unwrap_or(Status::Invalid));
            }
        }
    }

    /// Starts once all members hold the group: the next operation follows the last number that any of them has used.
    fn try_start(&mut self, nic: &mut Context<'_>) {
        let State::Starting(command) = self.holder.state else { return };
        let port = command.region.port;
        // A member that left after the start still took part in the operations before that.
        if let Some((rank, _)) = self.holder.lost.iter().find(|(_, from)| from.is_none()).copied() {
            self.holder.state = State::Held(port);
            nic.complete(port, &lost(&command, rank));
            return;
        }
        if self.holder.others.len() + 1 < self.group.members.len() {
            return;
        }
        let others = std::mem::take(&mut self.holder.others);
        let numbers = others.into_values().map(|other| other.next);
        self.next = numbers.fold(self.next, u32::max).wrapping_add(1);
        self.align();
        for number in self.numbers(is_before) {
            self.settle(nic, number, &Progress::Failed(Status::Cancelled));
        }
        self.cancel_postponed(nic);
        self.holder.state = State::Started(port);
        nic.complete(port, &Completion::of(&command, Status::Done));
    }

    /// Ends the host's operations that have not begun.
    pub(super) fn cancel_postponed(&mut self, nic: &mut Context<'_>) {
        for command in self.postponed.drain(..) {
            nic.refuse(&command, Status::Cancelled);
        }
    }

    pub(super) fn cancel_start(&mut self, nic: &mut Context<'_>) {
        if let Some(command) = self.holder.take_start() {
            nic.refuse(&command, Status::Cancelled);
        }
    }

    /// Returns the running operations for whose number `are` holds, compared with the number of the host's next one.
    fn numbers(&self, are: impl Fn(u32, u32) -> bool) -> Vec<u32> {
        self.running.keys().copied().filter(|number| are(*number, self.next)).collect()
    }

    /// Handles a member's message that it has taken the group, or has released it.
    pub(super) fn on_holder(
        &mut self,
        nic: &mut Context<'_>,
        from: u16,
        round: u8,
        number: u32,
    ) -> Option<()> {
        match round {
            HELD => {
                self.holder.others.insert(from, Other { next: number, left: false });
                self.try_start(nic);
            }
            LEFT => {
                let other = self.holder.others.get_mut(&from);
                // A departure that arrives while the sender is not known to hold the group belongs to an earlier hold.
                let is_late = other.is_none() && !matches!(self.holder.state, State::Started(_));
                other.into_iter().for_each(|other| other.left = true);
                if self.holder.port().is_none() {
                    self.holder.others.remove(&from);
                } else if !is_late {
                    self.lose(nic, from, Some(number));
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Handles the loss of a member's NIC, or its restart (`is_another`).
    pub(super) fn on_member_gone(&mut self, nic: &mut Context<'_>, rank: u16, is_another: bool) {
        let held = self.holder.others.remove(&rank).is_some();
        match self.holder.state {
            State::Free if self.running.is_empty() && self.postponed.is_empty() => {}
            State::Held(_) | State::Starting(_) if is_another && !held => {
                // Its former incarnation received our hold and is gone, so we send it again.
                self.group.send(nic, rank, (HOLD, HELD, self.next), &[]);
            }
            _ => self.lose(nic, rank, None),
        }
    }

    /// Ends the operations that a member takes no part in: all, or those from a number on.
    fn lose(&mut self, nic: &mut Context<'_>, rank: u16, from: Option<u32>) {
        self.holder.lose(rank, from);
        for number in self.numbers(|number, _| from.is_none_or(|from| !is_before(number, from))) {
            self.settle(nic, number, &Progress::Lost(rank));
        }
        self.try_start(nic);
        self.resume(nic);
    }

    /// Releases the group when its port closes: operations that the host has not posted, or that have not ended here,
    /// end at the other members too.
    pub(super) fn leave(&mut self, nic: &mut Context<'_>, port: PortId) {
        if self.holder.port() != Some(port) {
            return;
        }
        let is_open = |command: &Command| command.region.port == port;
        let open =
            self.running.iter().filter(|(_, running)| running.command.is_some_and(|c| is_open(&c)));
        let from =
            open.map(|(number, _)| *number).reduce(|a, b| if is_before(a, b) { a } else { b });
        let from = from.unwrap_or(self.next);
        self.holder.state = State::Free;
        for number in self.numbers(|number, _| !is_before(number, from)) {
            self.running.remove(&number);
        }
        self.send_to_others(nic, (HOLD, LEFT, from));
    }

    pub(super) fn send_to_others(&mut self, nic: &mut Context<'_>, head: (u8, u8, u32)) {
        let own = self.group.rank;
        for rank in (0..self.group.size()).filter(|rank| *rank != own) {
            self.group.send(nic, rank, head, &[]);
        }
    }
}

/// Returns the completion of a command for which a lost member was needed.
pub(super) fn lost(command: &Command, rank: u16) -> Completion {
    Completion { args: [rank.into(), 0, 0, 0], ..Completion::of(command, Status::PeerLost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_member_stays_lost_from_the_earliest_operation_named() {
        let mut holder = Holder::default();
        for from in [7, 5, 9, 5] {
            holder.lose(2, Some(from));
        }
        assert_eq!(
            [4, 5, 6, 9].map(|number| holder.lost(number)),
            [None, Some(2), Some(2), Some(2)]
        );
        assert_eq!(holder.lost.len(), 1);
        holder.lose(2, None);
        holder.lose(2, Some(8));
        holder.lose(1, Some(0));
        assert_eq!([holder.lost(0), holder.lost(4)], [Some(2); 2]);
        assert_eq!(holder.lost, [(2, None), (1, Some(0))]);
    }
}
