//! Connections, as the host asks for them.

use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::time::nanos;
use midplane_simhw::wire;
use thiserror::Error;

use super::{Call, Nic, NicError, SCRATCH_BYTES, ViId};
use crate::attributes::{Address, Discriminator, ViAttributes, ViState};
use crate::command::{
    CANCEL, CONNECT_ACCEPT, CONNECT_PEER, CONNECT_REJECT, CONNECT_REQUEST, CONNECT_WAIT,
    ConnectParameters, DISCONNECT, Ends, PARAMETER_BYTES, about,
};
use crate::outcome::ConnectError;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConnectFailed {
    /// The other side, or the network.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// This side.
    #[error(transparent)]
    Nic(#[from] NicError),
}

/// A connection that was asked for.
#[derive(Debug)]
#[must_use = "ask the NIC for what became of it"]
pub struct Ticket {
    cookie: u64,
    vi: Option<ViId>,
}

/// Somebody asks for a connection: accept or reject it.
#[derive(Debug)]
#[must_use = "whoever asks waits for an answer"]
pub struct Request {
    id: u64,
    /// The node that asks.
    pub node: NodeId,
    /// What its interface is like: an interface that accepts it must agree.
    pub attributes: ViAttributes,
}

impl Nic {
    /// Asks for a connection with whoever waits at `to`; `timeout` `None` waits for ever.
    ///
    /// # Errors
    /// [`ConnectError::NoMatch`] at once if nobody waits there now; the others as they say.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the request under way until its timeout; [`Nic::disconnect`] ends
    /// it.
    pub async fn connect(
        &mut self,
        vi: ViId,
        to: Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, ConnectFailed> {
        let ticket = self.start_connect(vi, CONNECT_REQUEST, to, Discriminator::default(), timeout);
        let ticket = ticket?;
        let call = Call { nic: self, cookie: ticket.cookie };
        call.nic.finish(&ticket).await
    }

    /// Asks for a connection with a peer that asks for one with us: `local` is what it calls us.
    /// Does not wait: [`Nic::connected`] polls, [`Nic::finish`] waits. The peer may come at any time, its node
    /// may be dead or start again meanwhile; `timeout` `None` waits for ever.
    ///
    /// # Errors
    /// [`NicError`] if nothing was asked.
    pub fn connect_peer(
        &mut self,
        vi: ViId,
        to: Address,
        local: Discriminator,
        timeout: Option<Duration>,
    ) -> Result<Ticket, NicError> {
        self.start_connect(vi, CONNECT_PEER, to, local, timeout)
    }

    /// Waits for somebody who asks for a connection with `discriminator` of this node.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] if nobody did in time.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the wait under way until its timeout: who asks meanwhile is left
    /// without an answer. Use [`Nic::listen_for`], which may be polled, where that matters.
    pub async fn connect_wait(
        &mut self,
        discriminator: Discriminator,
        timeout: Option<Duration>,
    ) -> Result<Request, ConnectFailed> {
        let ticket = self.listen_for(discriminator, timeout)?;
        let call = Call { nic: self, cookie: ticket.cookie };
        loop {
            if let Some(request) = call.nic.requested(&ticket)? {
                return Ok(request);
            }
            call.nic.progress().await?;
        }
    }

    /// Begins to wait for one who asks for a connection with `discriminator` of this node.
    ///
    /// # Errors
    /// [`NicError`] if it could not begin.
    pub fn listen_for(
        &mut self,
        discriminator: Discriminator,
        timeout: Option<Duration>,
    ) -> Result<Ticket, NicError> {
        let node = self.node();
        let parameters = parameters(node, Discriminator::default(), discriminator, timeout);
        let command = about(midplane_simhw::id::PortId(0), CONNECT_WAIT, 0);
        let cookie = self.start_with(command, &parameters)?;
        Ok(Ticket { cookie, vi: None })
    }

    /// Who has asked since, if anybody has.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] if nobody did in time; the ticket is used up then.
    pub fn requested(&mut self, ticket: &Ticket) -> Result<Option<Request>, ConnectFailed> {
        self.poll_all();
        let Some(completion) = self.finished(ticket.cookie) else { return Ok(None) };
        let attributes = attributes_of(&completion)?;
        let [.., more] = completion.args;
        let attributes = attributes.ok_or(ConnectError::Rejected)?;
        let id = more & u64::from(u32::MAX);
        Ok(Some(Request { id, node: NodeId((more >> 32) as u16), attributes }))
    }

    fn start_connect(
        &mut self,
        vi: ViId,
        opcode: u8,
        to: Address,
        local: Discriminator,
        timeout: Option<Duration>,
    ) -> Result<Ticket, NicError> {
        self.queues.of(vi)?;
        let parameters = parameters(to.node, to.discriminator, local, timeout);
        let cookie = self.start_with(about(vi.number, opcode, 0), &parameters)?;
        self.queues.set_state(vi, ViState::ConnectPending);
        Ok(Ticket { cookie, vi: Some(vi) })
    }

    fn start_with(
        &mut self,
        command: Command,
        parameters: &ConnectParameters,
    ) -> Result<u64, NicError> {
        let slot = self.free_scratch.pop().ok_or(NicError::QueueFull)?;
        let mut bytes = [0; PARAMETER_BYTES];
        let length = wire::encode_into(parameters, &mut bytes).expect("they always fit");
        let start = usize::from(slot) * SCRATCH_BYTES;
        self.scratch.write(start, &bytes[..length]).expect("a slot of it");
        let region = self.scratch.range(start, length).expect("a slot of it");
        self.start(Command { region, ..command }, Some(slot))
    }

    /// What became of a connection that was asked for, if anything has.
    ///
    /// # Errors
    /// [`ConnectError`] if there will be none; the ticket is used up then.
    pub fn connected(&mut self, ticket: &Ticket) -> Result<Option<ViAttributes>, ConnectFailed> {
        self.poll_all();
        let Some(completion) = self.finished(ticket.cookie) else { return Ok(None) };
        let result = attributes_of(&completion);
        if let (Err(_), Some(vi)) = (&result, ticket.vi) {
            self.queues.set_state(vi, ViState::Idle);
        }
        Ok(Some(result?.unwrap_or_default()))
    }

    /// The same, when it has.
    ///
    /// # Errors
    /// As [`Nic::connected`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn finish(&mut self, ticket: &Ticket) -> Result<ViAttributes, ConnectFailed> {
        loop {
            if let Some(attributes) = self.connected(ticket)? {
                return Ok(attributes);
            }
            self.progress().await?;
        }
    }

    /// A command has ended: where it has connected an interface, that is so, whether anybody still waits for
    /// it or not.
    pub(super) fn on_connected(&mut self, completion: &Completion) {
        if !has_connected(completion) {
            return;
        }
        let [.., ends] = completion.args;
        let Some(vi) = self.queues.id(completion.port) else { return };
        // Whoever has asked may have ended it since.
        let is_wanted = completion.opcode == CONNECT_ACCEPT
            || self.queues.of(vi).is_ok_and(|queues| queues.state == ViState::ConnectPending);
        if is_wanted {
            self.queues.set_state(vi, ViState::Connected);
            self.link_direct(vi.number, Ends::of(ends));
        }
    }

    /// Does not wait any more for what was asked for: it fails with [`ConnectError::TimedOut`], if
    /// it has not come about.
    ///
    /// # Errors
    /// [`NicError`] if the NIC could not be told.
    pub fn give_up(&mut self, ticket: &Ticket) -> Result<(), NicError> {
        let args = [ticket.cookie, 0, 0];
        let command = Command { args, ..about(midplane_simhw::id::PortId(0), CANCEL, 0) };
        self.start_unwatched(command)
    }

    /// Connects `vi` with who has asked.
    ///
    /// # Errors
    /// [`ConnectError::Reliability`] or [`ConnectError::MaxTransfer`] if the two differ: the request
    /// stands, for another interface to accept.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the interface may be connected all the same: [`Nic::query_vi`]
    /// tells.
    pub async fn accept(&mut self, request: &Request, vi: ViId) -> Result<(), ConnectFailed> {
        self.queues.of(vi)?;
        let args = [request.id, 0, 0];
        let answer = self.call(Command { args, ..about(vi.number, CONNECT_ACCEPT, 0) }).await?;
        attributes_of(&answer)?;
        Ok(())
    }

    /// Refuses who has asked.
    ///
    /// # Errors
    /// [`ConnectError::Gone`] if it does not ask any more.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the request is refused all the same.
    pub async fn reject(&mut self, request: Request) -> Result<(), ConnectFailed> {
        let args = [request.id, 0, 0];
        let command = Command { args, ..about(midplane_simhw::id::PortId(0), CONNECT_REJECT, 0) };
        let answer = self.call(command).await?;
        attributes_of(&answer)?;
        Ok(())
    }

    /// Ends a connection, or the wish for one: what was posted comes back, flushed where it was not
    /// done, and the interface is idle. The other end is told, and finds its own in the error state.
    ///
    /// # Errors
    /// [`NicError::NoSuchVi`] if it was destroyed; [`NicError::QueueFull`] until completions are taken.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the connection ends all the same.
    pub async fn disconnect(&mut self, vi: ViId) -> Result<(), NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.call(about(vi.number, DISCONNECT, 0)).await?;
        // It may have been connected only then.
        self.end_connection(vi);
        Ok(())
    }

    /// As [`Nic::disconnect`], without waiting for it.
    ///
    /// # Errors
    /// [`NicError`] if the NIC could not be told.
    pub fn start_disconnect(&mut self, vi: ViId) -> Result<(), NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.start_unwatched(about(vi.number, DISCONNECT, 0))
    }

    /// The same; [`Nic::has_ended`] tells when all that was posted has come back, and all news of the connection.
    pub(crate) fn begin_disconnect(&mut self, vi: ViId) -> Result<u64, NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.start(about(vi.number, DISCONNECT, 0), None)
    }

    /// Whether a command has ended; it is forgotten then.
    pub(crate) fn has_ended(&mut self, cookie: u64) -> bool {
        self.finished(cookie).is_some()
    }

    fn end_connection(&mut self, vi: ViId) {
        self.unlink_direct(vi.number);
        self.queues.set_state(vi, ViState::Idle);
    }
}

/// Whether a command has connected an interface.
fn has_connected(completion: &Completion) -> bool {
    matches!(completion.opcode, CONNECT_REQUEST | CONNECT_PEER | CONNECT_ACCEPT)
        && completion.status == Status::Done
        && completion.args[0] == 0
}

fn parameters(
    node: NodeId,
    remote: Discriminator,
    local: Discriminator,
    timeout: Option<Duration>,
) -> ConnectParameters {
    // No time at all is hardly any: 0 means for ever here.
    let timeout_ns = timeout.map_or(0, |timeout| nanos(timeout).max(1));
    ConnectParameters { node: node.0, remote, local, timeout_ns }
}

fn attributes_of(completion: &Completion) -> Result<Option<ViAttributes>, ConnectFailed> {
    if completion.status != Status::Done {
        return Err(NicError::NoExtension.into());
    }
    let [code, first, second, _] = completion.args;
    ConnectError::of(code)?;
    Ok(ViAttributes::from_words([first, second]))
}
