//! UDP sockets of a simulated host.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::fragments::{LONGEST_DATAGRAM, cut};
use super::kernel::{Kernel, current_or_unsupported};
use super::label::{Kind, Label, Outgoing};
use crate::host::Host as _;
use crate::id::NodeId;

/// Most bytes of datagrams that wait at a socket; further ones are dropped. Linux grants a program as much on request.
pub const RECEIVE_BYTES: u64 = 4 << 20;

/// Most bytes of datagrams that are sent together, as with Linux's segmentation offload.
pub(super) const TRAIN_BYTES: usize = 65_535;

/// A datagram that a socket has received.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Datagram {
    /// The address of the sending socket.
    pub peer: SocketAddr,
    /// The two bits of explicit congestion notification in the IP header (RFC 3168, section 5).
    pub ecn: u8,
    /// The payload, as sent.
    pub bytes: Vec<u8>,
}

/// An event that a socket receives.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// A datagram has arrived.
    Datagram(Datagram),
    /// The report that no socket is bound to an address to which this socket has sent a datagram.
    Unreachable(SocketAddr),
}

/// Holds the arrivals of a socket until they are received.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The address that the socket is bound to.
    pub(super) ip: IpAddr,
    arrived: VecDeque<Arrival>,
    bytes: usize,
    receivers: Vec<Waker>,
}

impl Inbox {
    pub(super) const fn new(ip: IpAddr) -> Self {
        Self { ip, arrived: VecDeque::new(), bytes: 0, receivers: Vec::new() }
    }

    /// Returns whether the socket receives datagrams that arrive by loopback, or those that do not.
    pub(super) const fn is_reached(&self, is_loopback: bool) -> bool {
        self.ip.is_unspecified() || self.ip.is_loopback() == is_loopback
    }

    /// Appends an arrival; returns `false` if the inbox is full.
    pub(super) fn push(&mut self, arrival: Arrival, wakes: &mut Vec<Waker>) -> bool {
        let bytes = bytes_of(&arrival);
        if (self.bytes + bytes) as u64 > RECEIVE_BYTES {
            return false;
        }
        self.bytes += bytes;
        self.arrived.push_back(arrival);
        wakes.append(&mut self.receivers);
        true
    }
}

fn bytes_of(arrival: &Arrival) -> usize {
    match arrival {
        Arrival::Datagram(datagram) => datagram.bytes.len() + 64,
        Arrival::Unreachable(_) => 64,
    }
}

/// Returns whether a host with the address `own` may bind `address`: its own, loopback, or unspecified.
pub(super) fn is_own(address: SocketAddr, own: IpAddr) -> bool {
    let ip = address.ip();
    ip == own || ip.is_loopback() || ip.is_unspecified()
}

/// A UDP socket of a simulated host.
#[derive(Debug)]
pub struct UdpSocket {
    kernel: Arc<Kernel>,
    address: SocketAddr,
}

impl UdpSocket {
    /// Binds a socket of the host whose code runs on this thread; for port 0, any free one. A socket of the loopback
    /// address receives from its own host only.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] outside a simulation, [`io::ErrorKind::AddrInUse`], and
    /// [`io::ErrorKind::AddrNotAvailable`] for the address of another host.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let kernel = current_or_unsupported()?;
        if !is_own(address, kernel.ip()) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let address = kernel.state().bind(address)?;
        Ok(Self { kernel, address })
    }

    /// Returns the address that the socket is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the most bytes of a datagram that the host's interface sends as one packet.
    #[must_use]
    pub fn max_datagram(&self) -> usize {
        self.kernel.mtu
    }

    /// Takes the next arrival. If there is none, wakes the task once there is; every task that waits is woken.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Arrival> {
        let mut state = self.kernel.state();
        let inbox = state.sockets.get_mut(&self.address.port()).expect("a socket is bound");
        match inbox.arrived.pop_front() {
            Some(arrival) => {
                inbox.bytes -= bytes_of(&arrival);
                Poll::Ready(arrival)
            }
            None => {
                let waker = context.waker();
                if !inbox.receivers.iter().any(|waits| waits.will_wake(waker)) {
                    inbox.receivers.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }

    /// Sends bytes as datagrams of `segment` bytes, if the queue to the NIC has space for all of them. The last
    /// datagram may be shorter. `ecn` has the two bits of explicit congestion notification of their IP headers: 0 for
    /// none.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no space. [`io::ErrorKind::InvalidInput`] if a datagram is longer than
    /// [`UdpSocket::max_datagram`], all together are longer than 65,535 bytes, or the socket has the loopback address and
    /// the destination is another host. [`io::ErrorKind::HostUnreachable`] if no host has the address. Nothing is then
    /// sent.
    pub fn try_send(
        &self,
        to: SocketAddr,
        bytes: &[u8],
        segment: usize,
        ecn: u8,
    ) -> io::Result<()> {
        let segment = segment.max(1).min(bytes.len());
        if segment > self.kernel.mtu || bytes.len() > TRAIN_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (node, label) = self.label(to, ecn)?;
        let outbox = &mut self.kernel.state().outbox;
        if !outbox.has_space(Kind::Datagram, bytes.len()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (first, others) = bytes.split_at(segment);
        for bytes in std::iter::once(first).chain(others.chunks(segment.max(1))) {
            let has_space = outbox.push(Outgoing { to: node, label, bytes: bytes.to_vec() });
            debug_assert!(has_space, "there is space for all");
        }
        Ok(())
    }

    /// Returns the node at an address, and the label of a datagram to it.
    fn label(&self, to: SocketAddr, ecn: u8) -> io::Result<(NodeId, Label)> {
        let (node, is_loopback) =
            self.kernel.route(to.ip()).ok_or(io::ErrorKind::HostUnreachable)?;
        if self.address.ip().is_loopback() && node != self.kernel.host.node() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let label = Label {
            kind: Kind::Datagram,
            from: self.address.port(),
            to: to.port(),
            ecn,
            is_loopback,
            sequence: 0,
            fragment: None,
        };
        Ok((node, label))
    }

    /// Sends a datagram in fragments, if the queue to the NIC has space for all of them.
    fn try_send_fragments(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let (node, label) = self.label(to, 0)?;
        let mut state = self.kernel.state();
        if !state.outbox.has_space(Kind::Datagram, bytes.len()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.fragmented = state.fragmented.wrapping_add(1);
        let id = state.fragmented;
        for outgoing in cut(node, label, id, bytes, self.kernel.mtu) {
            let has_space = state.outbox.push(outgoing);
            debug_assert!(has_space, "there is space for all");
        }
        Ok(())
    }

    /// Waits until the queue to the NIC has space for `bytes` bytes of datagrams.
    pub fn poll_send_ready(&self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        match self.kernel.state().outbox.wait_for_space(bytes, context.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Sends a datagram once the queue to the NIC has space, in fragments if it is longer than
    /// [`UdpSocket::max_datagram`]. The receiver drops a datagram of which a fragment is lost.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it has more than 65,507 bytes, or the socket has the loopback address and the
    /// destination is another host. [`io::ErrorKind::HostUnreachable`] if no host has the address. Nothing is then sent.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has sent nothing.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        if bytes.len() > LONGEST_DATAGRAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            poll_fn(|context| self.poll_send_ready(context, bytes.len())).await;
            let sending = match bytes.len() > self.kernel.mtu {
                true => self.try_send_fragments(to, bytes),
                false => self.try_send(to, bytes, bytes.len(), 0),
            };
            match sending {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent.map(|()| bytes.len()),
            }
        }
    }

    /// Receives a datagram; bytes that do not fit `out` are lost. Like on Linux, a socket that is not connected gets no
    /// error for a port without a socket: [`UdpSocket::poll_receive`] returns such reports.
    ///
    /// # Errors
    /// It returns no error; the result has the type of tokio's.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has received nothing.
    pub async fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = loop {
            if let Arrival::Datagram(it) = poll_fn(|context| self.poll_receive(context)).await {
                break it;
            }
        };
        let length = datagram.bytes.len().min(out.len());
        out[..length].copy_from_slice(&datagram.bytes[..length]);
        Ok((length, datagram.peer))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let inbox = self.kernel.state().sockets.remove(&self.address.port());
        drop(inbox);
    }
}
