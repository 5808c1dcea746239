//! TCP of a simulated host, by `smoltcp`.

mod connection;
mod listener;
mod packet;
mod recovery;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::iter::{once, repeat_n};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::kernel::Hosts;
use super::label::{Arrived, Kind};
use super::outbox::Outbox;
use crate::id::NodeId;
use crate::rng::Rng;
use crate::time::Instant;
pub use connection::TCP_BUFFER_BYTES;
use connection::{Connection, Holder};
pub use listener::{BACKLOG, TcpListener};
use packet::{Device, Ends, PREFIX, Packet, RST};
use recovery::{ACKNOWLEDGEMENTS, Recovery};
pub use stream::TcpStream;

/// The ports that connections get, as on Linux.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// Most connections that still send after their streams were dropped; further ones are reset.
const MOST_DROPPED: usize = 4_096;
/// Nanoseconds until the next poll of a connection whose poll time has passed although it has just been polled.
const RETRY_NANOS: u64 = 1_000_000;

/// A port that accepts connections.
#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    /// Number of connections that are not accepted yet, including those in their handshake.
    pending: usize,
    ready: VecDeque<u64>,
    acceptors: Vec<Waker>,
}

/// The TCP of a host.
pub(super) struct Tcp {
    own: NodeId,
    hosts: Arc<Hosts>,
    ip: Ipv4Addr,
    /// Most bytes of an IP packet.
    mtu: usize,
    rng: Rng,
    interface: Interface,
    /// Empty set of sockets, with which packets that belong to no connection are answered.
    unmatched: SocketSet<'static>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    by_ends: BTreeMap<Ends, u64>,
    listening: BTreeMap<u16, Listening>,
    timers: BTreeSet<(Instant, u64)>,
    /// Connections that may have segments to send, in the order in which they are polled.
    active: VecDeque<u64>,
    dropped: usize,
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp")
            .field("connections", &self.connections)
            .field("listening", &self.listening)
            .finish_non_exhaustive()
    }
}

/// Converts to `smoltcp`'s microseconds.
const fn micros(at: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros_const((at.as_nanos() / 1_000) as i64)
}

impl Tcp {
    pub(super) fn new(
        own: NodeId,
        hosts: Arc<Hosts>,
        datagram: usize,
        now: Instant,
        mut rng: Rng,
    ) -> Self {
        let (ip, mtu) = (Hosts::ipv4(own), datagram + PREFIX);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rng.next_u64();
        let outbox = &mut Outbox::default();
        let (arrived, is_full, recovery) = (None, false, None);
        let mut device =
            Device { mtu, own, hosts: &hosts, outbox, arrived, is_full, now, recovery };
        let mut interface = Interface::new(config, &mut device, micros(now));
        interface.update_ip_addrs(|addresses| {
            let loopback = IpCidr::new(Ipv4Addr::LOCALHOST.into(), 8);
            for address in [IpCidr::new(ip.into(), 32), loopback] {
                addresses.push(address).expect("an interface has two addresses at least");
            }
        });
        Self {
            own,
            hosts,
            ip,
            mtu,
            rng,
            interface,
            unmatched: SocketSet::new(Vec::new()),
            connections: BTreeMap::new(),
            next: 0,
            by_ends: BTreeMap::new(),
            listening: BTreeMap::new(),
            timers: BTreeSet::new(),
            active: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Handles an arrived segment; returns `false` if it requests a connection and the backlog is full.
    pub(super) fn on_segment(
        &mut self,
        now: Instant,
        arrived: &Arrived,
        outbox: &mut Outbox,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        let Some(packet) = Packet::parse(arrived, self.ip) else { return true };
        let known = self.by_ends.get(&packet.ends).copied();
        let id = match known {
            None if packet.is_request() => match self.admit(&packet) {
                Ok(id) => id,
                // A full backlog drops the request, which the peer resends.
                Err(()) => return false,
            },
            known => known,
        };
        let connection = id.and_then(|id| self.connections.get_mut(&id));
        let before = connection.as_ref().map(|connection| connection.state());
        let (sockets, mut recovery) = match connection {
            Some(connection) => (&mut connection.sockets, Some(&mut connection.recovery)),
            None => (&mut self.unmatched, None),
        };
        let resends = recovery.as_deref_mut().is_some_and(|it| it.on_received(now, &packet.bytes));
        let acknowledgement =
            recovery.as_deref().filter(|_| resends).and_then(Recovery::acknowledgement);
        let duplicates = acknowledgement.iter().flat_map(|it| repeat_n(&it[..], ACKNOWLEDGEMENTS));
        for bytes in once(&packet.bytes[..]).chain(duplicates) {
            let (mtu, own, hosts) = (self.mtu, self.own, &*self.hosts);
            let (arrived, is_full, recovery) = (Some(bytes), false, recovery.as_deref_mut());
            let mut device = Device { mtu, own, hosts, outbox, arrived, is_full, now, recovery };
            self.interface.poll_ingress_single(micros(now), &mut device, sockets);
        }
        if let (Some(id), Some(before)) = (id, before) {
            let connection = self.connections.get_mut(&id).expect("it was there");
            connection.on_packet(before, packet.flags & RST != 0);
            connection.take_ready(wakes);
            self.offer(id, wakes);
            self.activate(id);
        }
        true
    }

    /// Creates a connection for a request, if a listener has its port; an error if the listener's backlog is full.
    fn admit(&mut self, packet: &Packet) -> Result<Option<u64>, ()> {
        let (ip, port) = packet.ends.local;
        let Some(listening) = self.listening.get_mut(&port) else { return Ok(None) };
        let bound = listening.address.ip();
        if !bound.is_unspecified() && bound.is_loopback() != ip.is_loopback() {
            return Ok(None);
        }
        if listening.pending >= BACKLOG {
            return Err(());
        }
        listening.pending += 1;
        let mut connection = Connection::new(packet.ends, Holder::Handshake);
        connection.socket().listen((ip, port)).expect("a new socket, and a port");
        Ok(Some(self.add(connection)))
    }

    fn add(&mut self, connection: Connection) -> u64 {
        self.next += 1;
        self.by_ends.insert(connection.ends, self.next);
        self.connections.insert(self.next, connection);
        self.next
    }

    /// Passes a connection whose handshake is complete to its listener.
    fn offer(&mut self, id: u64, wakes: &mut Vec<Waker>) {
        use smoltcp::socket::tcp::State;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_early = matches!(
            connection.state(),
            State::Closed | State::Listen | State::SynReceived | State::SynSent
        );
        if connection.holder != Holder::Handshake || is_early {
            return;
        }
        if let Some(listening) = self.listening.get_mut(&connection.ends.local.1) {
            connection.holder = Holder::Backlog;
            listening.ready.push_back(id);
            wakes.append(&mut listening.acceptors);
        }
    }

    /// Schedules a poll of a connection, before the host's code waits again.
    pub(super) fn activate(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.is_active, true)
        {
            self.active.push_back(id);
        }
    }

    /// Returns when the next timer of a connection is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Schedules polls of the connections whose timers are due.
    pub(super) fn on_time(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.timer = None;
            }
            self.activate(id);
        }
    }

    /// Sends the segments of active connections, until the outbox is full.
    pub(super) fn flush(&mut self, now: Instant, outbox: &mut Outbox, wakes: &mut Vec<Waker>) {
        while outbox.has_space(Kind::Segment, self.mtu) {
            let Some(id) = self.active.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.expire(now);
            let resends = connection.recovery.on_time(now);
            let acknowledgement =
                Some(&connection.recovery).filter(|_| resends).and_then(Recovery::acknowledgement);
            let Connection { sockets, recovery, .. } = connection;
            let (mtu, own, hosts) = (self.mtu, self.own, &*self.hosts);
            let (arrived, is_full, recovery) = (None, false, Some(recovery));
            let mut device = Device { mtu, own, hosts, outbox, arrived, is_full, now, recovery };
            for bytes in acknowledgement.iter().flat_map(|it| repeat_n(&it[..], ACKNOWLEDGEMENTS)) {
                device.arrived = Some(bytes);
                self.interface.poll_ingress_single(micros(now), &mut device, sockets);
            }
            loop {
                let polled = self.interface.poll_egress(micros(now), &mut device, sockets);
                if polled == smoltcp::iface::PollResult::None {
                    break;
                }
            }
            if device.is_full {
                self.active.push_back(id);
                continue;
            }
            connection.is_active = false;
            connection.take_ready(wakes);
            self.settle(now, id);
        }
    }

    /// Removes a connection that is over, or sets its timer.
    fn settle(&mut self, now: Instant, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(at) = connection.timer.take() {
            self.timers.remove(&(at, id));
        }
        let is_over = connection.is_over();
        let has_ended = connection.state() == smoltcp::socket::tcp::State::Closed;
        if (is_over || has_ended) && self.by_ends.get(&connection.ends) == Some(&id) {
            self.by_ends.remove(&connection.ends);
        }
        if is_over {
            match connection.holder {
                Holder::Handshake => {
                    if let Some(listening) = self.listening.get_mut(&connection.ends.local.1) {
                        listening.pending -= 1;
                    }
                }
                Holder::Dropped => self.dropped -= 1,
                Holder::Backlog | Holder::Stream => {}
            }
            self.connections.remove(&id);
            return;
        }
        let (deadline, resending) = (connection.deadline(now), connection.recovery.deadline());
        let polled = self.interface.poll_at(micros(now), &connection.sockets).map(|at| {
            let at = Instant::from_nanos(at.total_micros().max(0) as u64 * 1_000);
            if at > now { at } else { now.plus_nanos(RETRY_NANOS) }
        });
        if let Some(at) = [deadline, resending, polled].into_iter().flatten().min() {
            connection.timer = Some(at);
            self.timers.insert((at, id));
        }
    }

    /// Starts connecting to an address; returns the connection's number.
    fn connect(&mut self, to: (Ipv4Addr, u16)) -> io::Result<u64> {
        let ip = if to.0.is_loopback() { to.0 } else { self.ip };
        let port = self.free_port(|tcp, port| {
            tcp.by_ends.contains_key(&Ends { local: (ip, port), peer: to })
        })?;
        let ends = Ends { local: (ip, port), peer: to };
        let mut connection = Connection::new(ends, Holder::Stream);
        let context = self.interface.context();
        connection
            .socket()
            .connect(context, to, ends.local)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let id = self.add(connection);
        self.activate(id);
        Ok(id)
    }

    /// Draws a port without a listener that is not taken.
    fn free_port(&mut self, is_taken: impl Fn(&Self, u16) -> bool) -> io::Result<u16> {
        let first = self.rng.between(u64::from(*EPHEMERAL.start()), u64::from(*EPHEMERAL.end()));
        let first = first as u16;
        let mut ports = (first..=*EPHEMERAL.end()).chain(*EPHEMERAL.start()..first);
        let port = ports.find(|port| !self.listening.contains_key(port) && !is_taken(self, *port));
        port.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Releases a connection from its stream; returns its wakers.
    fn release(&mut self, id: u64, at_once: bool) -> [Option<Waker>; 2] {
        let at_once = at_once || self.dropped >= MOST_DROPPED;
        self.dropped += 1;
        let connection =
            self.connections.get_mut(&id).expect("a connection is held until it is released");
        let wakers = connection.release(at_once);
        self.activate(id);
        wakers
    }

    /// Listens at an address of the host; for port 0, at any free one.
    fn listen(&mut self, mut address: SocketAddr) -> io::Result<SocketAddr> {
        match address.port() {
            0 => address.set_port(self.free_port(|_, _| false)?),
            port if self.listening.contains_key(&port) => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            _ => {}
        }
        let listening =
            Listening { address, pending: 0, ready: VecDeque::new(), acceptors: Vec::new() };
        self.listening.insert(address.port(), listening);
        Ok(address)
    }

    /// Takes the next connection of a listener's backlog. If there is none, wakes the task once there is.
    fn accept(&mut self, port: u16, waker: &Waker) -> Option<(u64, Ends)> {
        let listening = self.listening.get_mut(&port).expect("a listener listens");
        let Some(id) = listening.ready.pop_front() else {
            if !listening.acceptors.iter().any(|known| known.will_wake(waker)) {
                listening.acceptors.push(waker.clone());
            }
            return None;
        };
        listening.pending -= 1;
        let connection = self.connections.get_mut(&id).expect("the backlog holds it");
        connection.holder = Holder::Stream;
        Some((id, connection.ends))
    }

    /// Stops listening, and resets connections that are not accepted; returns the wakers of waiting tasks.
    fn close(&mut self, port: u16) -> Vec<Waker> {
        let Some(listening) = self.listening.remove(&port) else { return Vec::new() };
        let held: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                let is_pending = matches!(connection.holder, Holder::Handshake | Holder::Backlog);
                is_pending && connection.ends.local.1 == port
            })
            .map(|(id, _)| *id)
            .collect();
        for id in held {
            self.release(id, true);
        }
        listening.acceptors
    }
}
