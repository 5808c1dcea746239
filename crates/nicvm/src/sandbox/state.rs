//! A module's state and its effects: the same on every engine.

use std::collections::BTreeSet;

use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

use super::{Limits, MAILBOX_BYTES, Service, TimeoutId};
use crate::control::MAX_MESSAGE;
use crate::install::MAX_MEMBERS;

/// One effect that a handler has asked for; its bytes lie in [`State`]'s own buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    Control { to: NodeId, start: u32, length: u32 },
    Data { to: NodeId, port: PortId, start: u32, length: u32 },
    Set { timeout: TimeoutId, service: Service, nanos: u64 },
    Cancel(TimeoutId),
    Complete { port: PortId, completion: Completion },
    Write { to: RegionRef, start: u32, length: u32 },
}

/// Prices of a module's calls: fuel, and instructions charged to the coprocessor.
pub(super) mod price {
    pub(in crate::sandbox) const ASK: u64 = 5;
    pub(in crate::sandbox) const TIMEOUT: u64 = 50;
    pub(in crate::sandbox) const COMPLETE: u64 = 100;
    pub(in crate::sandbox) const SEND: u64 = 200;
    /// Price of each byte that a call passes.
    pub(in crate::sandbox) const BYTE: u64 = 1;
}

/// The part of a sandbox that the module's calls work on.
#[derive(Debug)]
pub(super) struct State {
    limits: Limits,
    node: NodeId,
    now: Instant,
    random: u64,
    spent: u64,
    pub(super) effects: Vec<Effect>,
    bytes: Vec<u8>,
    /// Commands that are not completed, by the low half of their ticket, with its high half.
    commands: Vec<(u16, Option<Command>)>,
    held: usize,
    /// Commands that this handler has completed; they count as held if the handler fails.
    ending: Vec<Command>,
    closed: bool,
    timers: BTreeSet<TimeoutId>,
    /// Nodes to which the module has sent messages. The unit has a queue for each.
    peers: BTreeSet<NodeId>,
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            node: NodeId(0),
            now: Instant::ZERO,
            random: 0,
            spent: 0,
            effects: Vec::new(),
            bytes: Vec::new(),
            commands: Vec::new(),
            held: 0,
            ending: Vec::new(),
            closed: false,
            timers: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }

    /// Prepares for a handler.
    pub(super) fn begin(&mut self, node: NodeId, now: Instant) {
        (self.node, self.now, self.spent) = (node, now, 0);
        self.effects.clear();
        self.bytes.clear();
        self.closed = false;
    }

    /// Forbids effects in the handler that runs next: it may only export or import state.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Forgets the completed commands, whose completions were carried out.
    pub(super) fn settle(&mut self) {
        self.ending.clear();
    }

    /// Seeds the random numbers.
    pub(super) fn seed(&mut self, node: NodeId, extension: ExtensionId) {
        self.random = u64::from(node.0) << 8 | u64::from(extension.0);
    }

    /// Returns the fuel that the handler's calls have cost.
    pub(super) const fn spent(&self) -> u64 {
        self.spent
    }

    pub(super) const fn spend(&mut self, fuel: u64) {
        self.spent += fuel;
    }

    /// Returns the bytes of an effect.
    pub(super) fn bytes(&self, start: u32, length: u32) -> &[u8] {
        &self.bytes[start as usize..(start + length) as usize]
    }

    /// Returns a ticket for a command; `None` if too many are held.
    pub(super) fn admit(&mut self, command: &Command) -> Option<i32> {
        if self.held >= self.limits.commands.min(usize::from(u16::MAX)) {
            return None;
        }
        let free = self.commands.iter().position(|(_, command)| command.is_none());
        let slot = free.unwrap_or_else(|| {
            self.commands.push((0, None));
            self.commands.len() - 1
        });
        let (turn, place) = &mut self.commands[slot];
        *turn = turn.wrapping_add(1);
        *place = Some(*command);
        self.held += 1;
        Some((u32::from(*turn) << 16 | slot as u32) as i32)
    }

    pub(super) fn on_timeout(&mut self, timeout: TimeoutId) {
        self.timers.remove(&timeout);
    }

    /// Forgets the commands of a closed port.
    pub(super) fn forget(&mut self, port: PortId) {
        for (_, place) in &mut self.commands {
            if place.take_if(|command| command.region.port == port).is_some() {
                self.held -= 1;
            }
        }
    }

    /// Takes out all held commands, and those whose completions a failed handler did not carry out.
    pub(super) fn abandon(&mut self) -> Vec<Command> {
        self.held = 0;
        let taken = self.commands.iter_mut().filter_map(|(_, place)| place.take());
        taken.chain(self.ending.drain(..)).collect()
    }

    pub(super) const fn now(&self) -> i64 {
        self.now.as_nanos() as i64
    }

    pub(super) fn node(&self) -> i32 {
        self.node.0.into()
    }

    /// Draws a random number: SplitMix64.
    pub(super) const fn draw(&mut self) -> i64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as i64
    }

    pub(super) fn send_control(&mut self, to: i32, bytes: &[u8]) -> i32 {
        let Ok(to) = u16::try_from(to) else { return -1 };
        let is_new = !self.peers.contains(&NodeId(to));
        let is_one_more = is_new && self.peers.len() >= MAX_MEMBERS;
        if bytes.len() > MAX_MESSAGE || !self.has_room() || is_one_more {
            return -1;
        }
        self.peers.insert(NodeId(to));
        let (start, length) = self.keep(bytes);
        self.ask(Effect::Control { to: NodeId(to), start, length })
    }

    pub(super) fn send_data(&mut self, to: i32, port: i32, bytes: &[u8]) -> i32 {
        let (Ok(to), Ok(port)) = (u16::try_from(to), u16::try_from(port)) else { return -1 };
        if bytes.len() > MAILBOX_BYTES || NodeId(to) == self.node || !self.has_room() {
            return -1;
        }
        let (start, length) = self.keep(bytes);
        self.ask(Effect::Data { to: NodeId(to), port: PortId(port), start, length })
    }

    pub(super) fn set_timeout(&mut self, number: i32, coarse: i32, nanos: i64) -> i32 {
        let timeout = TimeoutId(number as u32);
        let is_new = !self.timers.contains(&timeout);
        if !self.has_room() || nanos < 0 || (is_new && self.timers.len() >= self.limits.timers) {
            return -1;
        }
        self.timers.insert(timeout);
        let service = if coarse == 0 { Service::Exact } else { Service::Coarse };
        self.ask(Effect::Set { timeout, service, nanos: nanos as u64 })
    }

    pub(super) fn cancel_timeout(&mut self, number: i32) -> i32 {
        let timeout = TimeoutId(number as u32);
        if !self.has_room() || !self.timers.remove(&timeout) {
            return -1;
        }
        self.ask(Effect::Cancel(timeout))
    }

    pub(super) fn complete(
        &mut self,
        ticket: i32,
        status: i32,
        length: i64,
        args: [i64; 2],
    ) -> i32 {
        let Some(status) = u8::try_from(status).ok().and_then(Status::from_number) else {
            return -1;
        };
        if !self.has_room() {
            return -1;
        }
        let Some(command) = self.place(ticket).and_then(Option::take) else { return -1 };
        self.held -= 1;
        self.ending.push(command);
        let [first, second] = args.map(|word| word as u64);
        let args = [first, second, 0, 0];
        let length = length as u64;
        let completion = Completion { length, args, ..Completion::of(&command, status) };
        self.ask(Effect::Complete { port: command.region.port, completion })
    }

    pub(super) fn write(&mut self, ticket: i32, offset: i32, bytes: &[u8]) -> i32 {
        if !self.has_room() {
            return -1;
        }
        let region = self.place(ticket).and_then(|place| place.as_ref()).map(|held| held.region);
        let part = region.and_then(|region| region.part(offset as u32, bytes.len() as u32));
        let Some(to) = part else { return -1 };
        let (start, length) = self.keep(bytes);
        self.ask(Effect::Write { to, start, length })
    }

    fn has_room(&self) -> bool {
        !self.closed && self.effects.len() < self.limits.effects
    }

    fn place(&mut self, ticket: i32) -> Option<&mut Option<Command>> {
        let (turn, slot) = ((ticket as u32 >> 16) as u16, (ticket as u32 & 0xFFFF) as usize);
        let (held, place) = self.commands.get_mut(slot)?;
        (*held == turn).then_some(place)
    }

    fn keep(&mut self, bytes: &[u8]) -> (u32, u32) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        (start, bytes.len() as u32)
    }

    fn ask(&mut self, effect: Effect) -> i32 {
        self.effects.push(effect);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_sends_to_a_bounded_number_of_nodes() {
        let mut state = State::new(Limits::default().effects(1_000));
        let sent = (0..400).filter(|node| state.send_control(*node, b"x") == 0).count();
        assert_eq!(sent, MAX_MEMBERS);
        assert_eq!(state.send_control(0, b"x"), 0);
    }
}
