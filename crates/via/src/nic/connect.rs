//! Connections: requesting, awaiting, accepting and ending them.

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

/// The reason why there is no connection.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConnectFailed {
    /// The other side or the network failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The local NIC failed.
    #[error(transparent)]
    Nic(#[from] NicError),
}

/// A connection request or wait under way.
#[derive(Debug)]
#[must_use = "pass it to `Nic::connected`, `finish` or `requested`"]
pub struct Ticket {
    cookie: u64,
    /// The interface that the request has made pending, and the number of its request.
    vi: Option<(ViId, u32)>,
}

/// A connection request from another node: accept or reject it.
#[derive(Debug)]
#[must_use = "the requesting node waits for an answer"]
pub struct Request {
    id: u64,
    /// The node that requests the connection.
    pub node: NodeId,
    /// The attributes of its interface: an interface that accepts it must agree.
    pub attributes: ViAttributes,
}

impl Nic {
    /// Requests a connection with a process that waits at `to`. If `timeout` is `None`, waits for ever.
    ///
    /// # Errors
    /// [`ConnectError::NoMatch`] at once if no process waits there now; [`ConnectError::InvalidState`] if the interface is
    /// not idle, which changes nothing; other [`ConnectError`]s and [`NicError`]s.
    ///
    /// # Cancel safety
    /// If dropped, the request stays under way until its timeout; [`Nic::disconnect`] ends it.
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

    /// Requests a connection with a peer that requests one with this node, under the name `local`. Does not wait:
    /// [`Nic::connected`] polls, [`Nic::finish`] waits. The peer may make its request at any time, and its node may
    /// fail or restart meanwhile. If `timeout` is `None`, the request waits for ever.
    ///
    /// # Errors
    /// [`NicError`] if the request could not be posted.
    pub fn connect_peer(
        &mut self,
        vi: ViId,
        to: Address,
        local: Discriminator,
        timeout: Option<Duration>,
    ) -> Result<Ticket, NicError> {
        self.start_connect(vi, CONNECT_PEER, to, local, timeout)
    }

    /// Waits for a request for a connection with `discriminator` of this node.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] if there was none in time.
    ///
    /// # Cancel safety
    /// If dropped, the wait stays under way until its timeout: a request that arrives meanwhile gets no answer.
    /// To avoid that, use [`Nic::listen_for`], which can be polled.
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

    /// Starts to wait for a request for a connection with `discriminator` of this node.
    ///
    /// # Errors
    /// [`NicError`] if it could not start.
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

    /// Returns the request that has arrived, if there is one.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] if there was none in time; the ticket is used up then.
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
        // The NIC refuses the request of an interface that is not idle: the interface then keeps its state.
        let is_idle = self.queues.of(vi)?.state == ViState::Idle;
        let parameters = parameters(to.node, to.discriminator, local, timeout);
        let cookie = self.start_with(about(vi.number, opcode, 0), &parameters)?;
        let queues = self.queues.of(vi)?;
        if !is_idle {
            return Ok(Ticket { cookie, vi: None });
        }
        queues.state = ViState::ConnectPending;
        queues.requests = queues.requests.wrapping_add(1);
        Ok(Ticket { cookie, vi: Some((vi, queues.requests)) })
    }

    fn start_with(
        &mut self,
        command: Command,
        parameters: &ConnectParameters,
    ) -> Result<u64, NicError> {
        let slot = self.free_scratch.pop().ok_or(NicError::QueueFull)?;
        let mut bytes = [0; PARAMETER_BYTES];
        let length = wire::encode_into(parameters, &mut bytes)
            .expect("encoded parameters fit PARAMETER_BYTES");
        let start = usize::from(slot) * SCRATCH_BYTES;
        self.scratch
            .write(start, &bytes[..length])
            .expect("every slot is within the scratch region");
        let region =
            self.scratch.range(start, length).expect("every slot is within the scratch region");
        self.start(Command { region, ..command }, Some(slot))
    }

    /// Returns the attributes of a connection once it was made; `None` until then.
    ///
    /// # Errors
    /// [`ConnectError`] if it failed; the ticket is used up then.
    pub fn connected(&mut self, ticket: &Ticket) -> Result<Option<ViAttributes>, ConnectFailed> {
        self.poll_all();
        let Some(completion) = self.finished(ticket.cookie) else { return Ok(None) };
        let result = attributes_of(&completion);
        // The interface may have begun another connection since.
        if let (Err(_), Some((vi, request))) = (&result, ticket.vi)
            && let Ok(queues) = self.queues.of(vi)
            && (queues.state, queues.requests) == (ViState::ConnectPending, request)
        {
            queues.state = ViState::Idle;
        }
        Ok(Some(result?.unwrap_or_default()))
    }

    /// Waits until a connection was made.
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

    /// Handles the end of a command: if it has connected an interface, marks the interface as connected, even
    /// if no caller waits for the command any more.
    pub(super) fn on_connected(&mut self, completion: &Completion) {
        if !has_connected(completion) {
            return;
        }
        let [.., ends] = completion.args;
        let Some(vi) = self.queues.id(completion.port) else { return };
        // The requester may have disconnected meanwhile.
        let is_wanted = completion.opcode == CONNECT_ACCEPT
            || self.queues.of(vi).is_ok_and(|queues| queues.state == ViState::ConnectPending);
        if is_wanted {
            self.forget_errors(vi);
            self.queues.set_state(vi, ViState::Connected);
            self.link_path(vi.number, Ends::of(ends));
        }
    }

    /// Cancels a wait or a connection request: it fails with [`ConnectError::TimedOut`], unless it succeeds
    /// first.
    ///
    /// # Errors
    /// [`NicError`] if the command could not be posted.
    pub fn cancel_connect(&mut self, ticket: &Ticket) -> Result<(), NicError> {
        let args = [ticket.cookie, 0, 0];
        let command = Command { args, ..about(midplane_simhw::id::PortId(0), CANCEL, 0) };
        self.start_unwatched(command)
    }

    /// Connects `vi` with the interface of a request.
    ///
    /// # Errors
    /// [`ConnectError::Reliability`] or [`ConnectError::MaxTransfer`] if the two differ: another interface can
    /// then still accept the request.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the interface may be connected all the same: [`Nic::query_vi`] reports whether
    /// it is.
    pub async fn accept(&mut self, request: &Request, vi: ViId) -> Result<(), ConnectFailed> {
        self.queues.of(vi)?;
        let args = [request.id, 0, 0];
        let answer = self.call(Command { args, ..about(vi.number, CONNECT_ACCEPT, 0) }).await?;
        attributes_of(&answer)?;
        Ok(())
    }

    /// Refuses a connection request.
    ///
    /// # Errors
    /// [`ConnectError::Gone`] if the request was withdrawn or has timed out.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the request is refused all the same.
    pub async fn reject(&mut self, request: Request) -> Result<(), ConnectFailed> {
        let args = [request.id, 0, 0];
        let command = Command { args, ..about(midplane_simhw::id::PortId(0), CONNECT_REJECT, 0) };
        let answer = self.call(command).await?;
        attributes_of(&answer)?;
        Ok(())
    }

    /// Ends a connection, or a request for one. Posted descriptors complete, flushed if they were not done, and
    /// the interface is idle. The other end is notified, and its interface enters the error state.
    ///
    /// # Errors
    /// [`NicError::NoSuchVi`] if it was destroyed; [`NicError::QueueFull`] until completions are taken.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the connection ends all the same.
    pub async fn disconnect(&mut self, vi: ViId) -> Result<(), NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.call(about(vi.number, DISCONNECT, 0)).await?;
        // The NIC may have connected the interface meanwhile.
        self.end_connection(vi);
        Ok(())
    }

    /// Starts to disconnect an interface, without waiting for the end.
    ///
    /// # Errors
    /// [`NicError`] if the command could not be posted.
    pub(crate) fn start_disconnect(&mut self, vi: ViId) -> Result<(), NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.start_unwatched(about(vi.number, DISCONNECT, 0))
    }

    /// Starts to disconnect an interface, and returns a cookie: [`Nic::has_ended`] returns true once all posted
    /// descriptors and all events of the connection have arrived.
    pub(crate) fn begin_disconnect(&mut self, vi: ViId) -> Result<u64, NicError> {
        self.queues.of(vi)?;
        self.end_connection(vi);
        self.start(about(vi.number, DISCONNECT, 0), None)
    }

    /// Returns whether a command has ended; it is forgotten then.
    pub(crate) fn has_ended(&mut self, cookie: u64) -> bool {
        self.finished(cookie).is_some()
    }

    fn end_connection(&mut self, vi: ViId) {
        self.unlink_path(vi.number);
        self.forget_errors(vi);
        self.queues.set_state(vi, ViState::Idle);
    }
}

/// Returns whether a command has connected an interface.
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
    // 0 means for ever here, so a timeout of zero becomes 1 ns.
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

#[cfg(test)]
mod tests {
    use midplane_simhw::port::PortOptions;

    use super::*;
    use crate::nic::tests::world;

    #[test]
    fn the_failure_of_an_earlier_request_leaves_a_later_connection_connected() {
        let mut world = world();
        let host = world.host(NodeId(0));
        let done = world.block_on(NodeId(0), async move {
            let mut nic = Nic::open(&host, PortOptions::default()).await.unwrap();
            let one = nic.create_vi(ViAttributes::default()).await.unwrap();
            let other = nic.create_vi(ViAttributes::default()).await.unwrap();
            let name = |text: &str| Discriminator::new(text.as_bytes()).unwrap();
            let to = |text| Address { node: NodeId(0), discriminator: name(text) };
            let early = nic.connect_peer(one, to("nobody"), name("one"), None).unwrap();
            nic.disconnect(one).await.unwrap();
            let late = nic.connect_peer(one, to("other"), name("one"), None).unwrap();
            let its = nic.connect_peer(other, to("one"), name("other"), None).unwrap();
            nic.finish(&late).await.unwrap();
            nic.finish(&its).await.unwrap();
            assert!(nic.connected(&early).is_err());
            assert_eq!(nic.queues.of(one).unwrap().state, ViState::Connected);
        });
        done.expect("nothing waits for ever");
    }
}
