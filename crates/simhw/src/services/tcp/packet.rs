//! Converts TCP's IP packets between `smoltcp`'s form and that of frames.

use std::net::Ipv4Addr;

use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::id::NodeId;
use crate::services::kernel::Hosts;
use crate::services::label::{Arrived, Kind, Label, Outgoing};
use crate::services::outbox::Outbox;
use crate::services::tcp::recovery::Recovery;
use crate::time;

/// Bytes of an IP packet that its frame does not carry as payload: the IP header, and the ports and the sequence number
/// of TCP's header. A UDP datagram's headers have as many bytes.
pub(super) const PREFIX: usize = 28;
/// Least bytes of a segment in a frame: the rest of TCP's header.
const REST: usize = 12;

/// Flags of TCP's header.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 1 << 1;
pub(super) const RST: u8 = 1 << 2;
pub(super) const ACK: u8 = 1 << 4;

/// The two ends of a connection, as the own host sees them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Ends {
    pub(super) local: (Ipv4Addr, u16),
    pub(super) peer: (Ipv4Addr, u16),
}

/// A packet that has arrived.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) ends: Ends,
    /// Flags of TCP's header.
    pub(super) flags: u8,
    /// The whole packet, from the IP header on.
    pub(super) bytes: Vec<u8>,
}

impl Packet {
    /// Restores the packet of a frame; `None` if the frame is too short for TCP's header.
    pub(super) fn parse(arrived: &Arrived, own: Ipv4Addr) -> Option<Self> {
        let Label { from, to, ecn, is_loopback, sequence, .. } = arrived.label;
        let length = u16::try_from(PREFIX + arrived.bytes.len()).ok()?;
        let flags = *arrived.bytes.get(..REST)?.get(5)?;
        let (source, destination) = match is_loopback {
            true => (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST),
            false => (Hosts::ipv4(arrived.from), own),
        };
        let mut bytes = Vec::with_capacity(usize::from(length));
        // Version and length of the header, no fragments, 64 hops, TCP, no checksum.
        bytes.extend([0x45, ecn]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes.extend(from.to_be_bytes());
        bytes.extend(to.to_be_bytes());
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(&arrived.bytes);
        let ends = Ends { local: (destination, to), peer: (source, from) };
        Some(Self { ends, flags, bytes })
    }

    /// Returns whether the packet requests a connection.
    pub(super) const fn is_request(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }
}

/// Converts a packet of `smoltcp` for its frame; `None` if no host has its destination.
fn outgoing(mut bytes: Vec<u8>, hosts: &Hosts, own: NodeId) -> Option<Outgoing> {
    let destination = Ipv4Addr::from(*bytes.get(16..)?.first_chunk::<4>()?);
    let [from, from_low, to, to_low] = *bytes.get(20..)?.first_chunk()?;
    let sequence = u32::from_be_bytes(*bytes.get(24..)?.first_chunk()?);
    let is_loopback = destination.is_loopback();
    let to_node = if is_loopback { own } else { hosts.node_at(destination.into())? };
    let label = Label {
        kind: Kind::Segment,
        from: u16::from_be_bytes([from, from_low]),
        to: u16::from_be_bytes([to, to_low]),
        ecn: bytes[1] & 3,
        is_loopback,
        sequence,
        fragment: None,
    };
    bytes.drain(..PREFIX);
    Some(Outgoing { to: to_node, label, bytes })
}

/// The NIC, as `smoltcp` uses it in one poll.
#[derive(Debug)]
pub(super) struct Device<'a> {
    /// Most bytes of a packet.
    pub(super) mtu: usize,
    pub(super) own: NodeId,
    pub(super) hosts: &'a Hosts,
    pub(super) outbox: &'a mut Outbox,
    /// The packet that has arrived.
    pub(super) arrived: Option<&'a [u8]>,
    /// True once the outbox had no space for a segment.
    pub(super) is_full: bool,
    pub(super) now: time::Instant,
    /// The loss recovery of the polled connection.
    pub(super) recovery: Option<&'a mut Recovery>,
}

#[derive(Debug)]
pub(super) struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

#[derive(Debug)]
pub(super) struct Sending<'a> {
    own: NodeId,
    hosts: &'a Hosts,
    outbox: &'a mut Outbox,
    now: time::Instant,
    recovery: Option<&'a mut Recovery>,
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        if let Some(recovery) = self.recovery {
            recovery.on_sent(self.now, &bytes);
        }
        if let Some(outgoing) = outgoing(bytes, self.hosts, self.own) {
            // If there is no space for an answer to a packet, it is lost as in a congested network.
            let _ = self.outbox.push(outgoing);
        }
        result
    }
}

impl Device<'_> {
    fn sending(&mut self) -> Sending<'_> {
        let recovery = self.recovery.as_deref_mut();
        Sending { own: self.own, hosts: self.hosts, outbox: self.outbox, now: self.now, recovery }
    }
}

impl phy::Device for Device<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let arrived = self.arrived.take()?;
        Some((Received(arrived), self.sending()))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        self.is_full = !self.outbox.has_space(Kind::Segment, self.mtu);
        (!self.is_full).then(|| self.sending())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // Damaged frames do not arrive.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}
