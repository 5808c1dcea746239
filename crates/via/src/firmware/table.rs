//! The interfaces of a NIC: creation, queries, destruction, and asynchronous errors.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};

use super::Via;
use super::endpoint::Endpoint;
use crate::attributes::{ViAttributes, ViState};
use crate::command::{CREATE, DESTROY, DISCONNECT, EVENT, QUERY, QUERY_NIC};
use crate::outcome::{AsyncError, ConnectError, DescriptorError};

impl Via {
    /// Translates a port's name of an interface into its number; into an unused number if the port has none of
    /// that name.
    pub(super) fn number(&self, owner: PortId, name: PortId) -> PortId {
        let number = self.names.number(owner, name);
        match self.vis.get(number.index()) {
            Some(Some(endpoint)) if endpoint.owner == owner && endpoint.name != name => {
                PortId(u16::MAX)
            }
            _ => number,
        }
    }

    /// Returns the interface with this number, if that port owns it.
    pub(super) fn own(&mut self, owner: PortId, vi: PortId) -> Option<&mut Endpoint> {
        let endpoint = self.vis.get_mut(vi.index())?.as_mut()?;
        (endpoint.owner == owner).then_some(endpoint)
    }

    pub(super) fn create(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let attributes = ViAttributes::from_words([command.args[0], command.args[1]]);
        // Skips numbers that the port uses as names of other interfaces.
        let is_free = |at: &usize| {
            self.vis.get(*at).is_none_or(Option::is_none)
                && !self.names.is_taken(owner, PortId(*at as u16))
        };
        let free = (0..=self.config.max_vis).find(is_free).unwrap_or(self.config.max_vis);
        let (status, number) = match attributes {
            None => (Status::Invalid, PortId(0)),
            Some(_) if free >= self.config.max_vis => (Status::Refused, PortId(0)),
            Some(attributes) => {
                if free >= self.vis.len() {
                    self.vis.resize_with(free + 1, || None);
                }
                let number = PortId(free as u16);
                let connection = self.names.connection(number);
                let mut endpoint = Endpoint::new((number, connection), owner, attributes);
                endpoint.memory = self.names.memory(owner);
                self.vis[free] = Some(endpoint);
                (Status::Done, number)
            }
        };
        let cookie = command.cookie;
        let done =
            Completion { status, opcode: CREATE, cookie, port: number, ..Completion::default() };
        nic.complete(owner, &done);
    }

    pub(super) fn destroy(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let result = match self.own(owner, command.port) {
            None => Err(ConnectError::Gone),
            Some(vi) if !matches!(vi.state, ViState::Idle | ViState::Error) => {
                Err(ConnectError::InvalidState)
            }
            Some(vi) => {
                vi.flush(nic, DescriptorError::Flushed, ViState::Idle);
                if let Some(endpoint) = self.vis[command.port.index()].take() {
                    self.retire(&endpoint);
                }
                Ok(None)
            }
        };
        Self::answer(nic, (owner, DESTROY, command.cookie), result, 0);
    }

    pub(super) fn query(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let (result, state) = match self.own(owner, command.port) {
            None => (Err(ConnectError::Gone), 0),
            Some(endpoint) => (Ok(Some(endpoint.attributes)), endpoint.state as u64),
        };
        Self::answer(nic, (owner, QUERY, command.cookie), result, state);
    }

    pub(super) fn query_nic(&self, nic: &mut Context<'_>, command: &Command) {
        let mtu = nic.mtu_bytes() - HEADER_BYTES as u64;
        let vis = self.vis.iter().flatten().count() as u64;
        let args = [self.config.max_vis as u64, vis, mtu, 0];
        let cookie = command.cookie;
        let answer = Completion { opcode: QUERY_NIC, cookie, args, ..Completion::default() };
        nic.complete(command.region.port, &answer);
    }

    pub(super) fn disconnect(&mut self, nic: &mut Context<'_>, command: &Command) {
        let (owner, vi) = (command.region.port, command.port);
        let caller = (owner, DISCONNECT, command.cookie);
        if self.own(owner, vi).is_none() {
            return Self::answer(nic, caller, Err(ConnectError::Gone), 0);
        }
        self.fail(nic, ConnectError::Gone, |pending| pending.is_of(vi));
        if let Some(endpoint) = self.own(owner, vi) {
            let end = endpoint.end(0);
            endpoint.flush(nic, DescriptorError::Flushed, ViState::Idle);
            // Errors reported later concern the next connection.
            endpoint.errors.clear();
            let name = endpoint.name;
            self.drop_errors(owner, name);
            self.outbox.send(nic, end);
        }
        Self::answer(nic, caller, Ok(None), 0);
    }

    /// Drops the errors of an interface that wait for its port.
    fn drop_errors(&mut self, owner: PortId, name: PortId) {
        if let Some(errors) = self.errors.get_mut(&owner) {
            errors.retain(|(vi, _)| *vi != name);
        }
    }

    /// Ends a connection that the other end has ended. That end expected frame `expected` next, and `error` is the
    /// error in it.
    pub(super) fn end(&mut self, nic: &mut Context<'_>, vi: PortId, expected: u32, error: u8) {
        let now = nic.now();
        let Some(endpoint) = self.vis.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        let Some(link) = endpoint.link.as_mut() else { return };
        let arrived = link.sending.on_acknowledgement(now, expected);
        endpoint.on_arrived(nic, arrived.map_or(0, |arrived| arrived.ended));
        let first = DescriptorError::of(error).err().unwrap_or(DescriptorError::Flushed);
        endpoint.flush(nic, first, ViState::Error);
        endpoint.errors.push_back(AsyncError::ConnectionLost);
        self.report_errors(nic, vi);
    }

    /// Queues an interface's asynchronous errors for its port.
    pub(super) fn report_errors(&mut self, nic: &mut Context<'_>, vi: PortId) {
        let Some(endpoint) = self.vis.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        if endpoint.errors.is_empty() {
            return;
        }
        let (owner, name) = (endpoint.owner, endpoint.name);
        let queue = self.errors.entry(owner).or_default();
        for error in endpoint.errors.drain(..) {
            if error.is_kept(queue.len()) {
                queue.push_back((name, error));
            }
        }
        self.deliver_error(nic, owner);
    }

    pub(super) fn deliver_error(&mut self, nic: &mut Context<'_>, owner: PortId) {
        let Some(cookie) = self.listening.get(&owner).copied() else { return };
        let Some((vi, error)) = self.errors.get_mut(&owner).and_then(VecDeque::pop_front) else {
            return;
        };
        self.listening.remove(&owner);
        let args = [error as u64, 0, 0, 0];
        let told = Completion { opcode: EVENT, cookie, port: vi, args, ..Completion::default() };
        nic.complete(owner, &told);
    }

    /// Retires an interface: its frames and its errors never reach a later interface with its number.
    pub(super) fn retire(&mut self, endpoint: &Endpoint) {
        self.drop_errors(endpoint.owner, endpoint.name);
        self.names.forget_vi(endpoint.owner, endpoint.name);
        self.names.retire(endpoint.number, endpoint.connection);
    }
}
