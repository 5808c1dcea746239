//! The system of a simulated host: sockets, timers, random numbers, names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use super::fragments::Reassembly;
use super::label::{Arrived, Kind, Label, Outgoing};
use super::outbox::Outbox;
use super::tcp::Tcp;
use super::udp::{Arrival, Datagram, Inbox};
use crate::drops::{DropCause, Drops};
use crate::host::Host as _;
use crate::id::NodeId;
use crate::lock::lock;
use crate::rng::Rng;
use crate::sim::SimHost;
use crate::time::Instant;

/// The first port of the range for sockets that bind port 0.
const FIRST_PORT: u16 = 32_768;

/// The names and addresses of all hosts, and the packets that they have dropped.
#[derive(Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    drops: Mutex<(Drops, Option<DropCause>)>,
}

impl Hosts {
    /// Names the hosts: the first name is that of node 0.
    #[must_use]
    pub fn new(names: Vec<String>) -> Arc<Self> {
        Arc::new(Self { names, ..Self::default() })
    }

    /// Returns the names, in the order of the nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns the count of packets that arrived at their NICs and that the hosts dropped, by cause.
    #[must_use]
    pub fn drops(&self) -> Drops {
        lock(&self.drops).0
    }

    /// Returns why a host dropped the frame that its NIC handled last, if it did. Returns each drop once.
    #[must_use]
    pub fn take_drop(&self) -> Option<DropCause> {
        lock(&self.drops).1.take()
    }

    /// Counts a packet that a host drops.
    pub(super) fn count_drop(&self, cause: DropCause) {
        lock(&self.drops).0.add(cause);
    }

    /// Counts the frame that a NIC is handling as dropped.
    pub(super) fn drop_frame(&self, cause: DropCause) {
        let mut dropped = lock(&self.drops);
        dropped.0.add(cause);
        dropped.1 = Some(cause);
    }

    /// Returns the nodes of all hosts.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..u16::try_from(self.names.len()).unwrap_or(u16::MAX)).map(NodeId)
    }

    /// Returns the node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        let at = self.names.iter().position(|known| known == name)?;
        u16::try_from(at).ok().map(NodeId)
    }

    /// Returns a node's address: 10.0.0.1 for node 0, and so on.
    #[must_use]
    pub fn ip(node: NodeId) -> IpAddr {
        Self::ipv4(node).into()
    }

    pub(super) fn ipv4(node: NodeId) -> Ipv4Addr {
        let [high, low] = node.0.saturating_add(1).to_be_bytes();
        Ipv4Addr::new(10, 0, high, low)
    }

    pub(super) fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        let IpAddr::V4(ip) = ip.to_canonical() else { return None };
        let [10, 0, high, low] = ip.octets() else { return None };
        let node = u16::from_be_bytes([high, low]).checked_sub(1)?;
        (usize::from(node) < self.names.len()).then_some(NodeId(node))
    }
}

/// The kernel of a host, as the host's code uses it.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) host: SimHost,
    pub(super) hosts: Arc<Hosts>,
    pub(super) mtu: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) sockets: BTreeMap<u16, Inbox>,
    next_port: u16,
    timers: BTreeMap<(Instant, u64), Waker>,
    next_timer: u64,
    pub(super) outbox: Outbox,
    reassembly: Reassembly,
    /// Number of the last datagram that was sent in fragments.
    pub(super) fragmented: u32,
    pub(super) tcp: Tcp,
    rng: Rng,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Kernel>>> = const { RefCell::new(None) };
}

/// Makes a host the current one of this thread until it is dropped.
pub(super) struct Entered(Option<Arc<Kernel>>);

impl Entered {
    pub(super) fn new(kernel: &Arc<Kernel>) -> Self {
        Self(CURRENT.replace(Some(Arc::clone(kernel))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns the kernel of the host whose code runs on this thread.
pub(super) fn current() -> Option<Arc<Kernel>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Returns the kernel of the host whose code runs on this thread, or an error outside a simulation.
pub(super) fn current_or_unsupported() -> io::Result<Arc<Kernel>> {
    current().ok_or_else(|| {
        let text = "a simulated socket needs a simulated host: bind it in the host's code";
        io::Error::new(io::ErrorKind::Unsupported, text)
    })
}

impl Kernel {
    pub(super) fn new(host: SimHost, hosts: Arc<Hosts>, mtu: usize) -> Arc<Self> {
        // A restarted host must draw other numbers than before, because its peers still know the earlier ones.
        let (now, started) = (host.now(), host.world_now().as_nanos());
        let rng = host.rng(&format!("services from {started}"));
        let of_tcp = host.rng(&format!("tcp from {started}"));
        let fragmented = host.rng(&format!("fragments from {started}")).next_u64() as u32;
        let tcp = Tcp::new(host.node(), Arc::clone(&hosts), mtu, now, of_tcp);
        let state = State {
            sockets: BTreeMap::new(),
            next_port: FIRST_PORT,
            timers: BTreeMap::new(),
            next_timer: 0,
            outbox: Outbox::default(),
            reassembly: Reassembly::default(),
            fragmented,
            tcp,
            rng,
        };
        Arc::new(Self { host, hosts, mtu, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn ip(&self) -> IpAddr {
        Hosts::ip(self.host.node())
    }

    /// Returns the node at an address, and whether it is reached by loopback. Like on Linux, an unspecified address leads
    /// to the own host.
    pub(super) fn route(&self, ip: IpAddr) -> Option<(NodeId, bool)> {
        let ip = ip.to_canonical();
        let is_loopback = ip.is_loopback() || ip.is_unspecified();
        let node = if is_loopback { Some(self.host.node()) } else { self.hosts.node_at(ip) };
        node.map(|node| (node, is_loopback))
    }

    /// Passes an arrived packet to its socket, and appends the wakers of tasks that wait for it. A datagram to an
    /// address without a socket is answered with a report.
    pub(super) fn deliver(self: &Arc<Self>, arrived: Arrived, wakes: &mut Vec<Waker>) {
        let Some(arrived) = self.assemble(arrived) else { return };
        let Label { kind, from, to, ecn, is_loopback, .. } = arrived.label;
        let ip = if is_loopback { Ipv4Addr::LOCALHOST.into() } else { Hosts::ip(arrived.from) };
        let mut peer = SocketAddr::new(ip, from);
        let (mut state, bytes) = (self.state(), arrived.bytes.len());
        let state = &mut *state;
        // A datagram of the own host has the address of its socket, which may be of the other kind than its destination.
        if kind == Kind::Datagram
            && arrived.from == self.host.node()
            && let Some(sender) = state.sockets.get(&from).filter(|it| !it.ip.is_unspecified())
        {
            peer.set_ip(sender.ip);
        }
        let is_taken = match (kind, state.sockets.get_mut(&to)) {
            (Kind::Segment, _) => {
                state.tcp.on_segment(self.host.now(), &arrived, &mut state.outbox, wakes)
            }
            (Kind::Unreachable, Some(inbox)) => inbox.push(Arrival::Unreachable(peer), wakes),
            (Kind::Unreachable, None) => true,
            (Kind::Datagram, Some(inbox)) if inbox.is_reached(is_loopback) => {
                inbox.push(Arrival::Datagram(Datagram { peer, ecn, bytes: arrived.bytes }), wakes)
            }
            (Kind::Datagram, _) => {
                let label = Label { kind: Kind::Unreachable, from: to, to: from, ..arrived.label };
                let bytes = vec![0; 8];
                let _ = state.outbox.push(Outgoing { to: arrived.from, label, bytes });
                true
            }
        };
        if !is_taken {
            self.hosts.count_drop(DropCause::SocketFull);
            let _entered = Entered::new(self);
            tracing::debug!(%peer, port = to, bytes, "a socket is full: a packet is dropped");
        }
    }

    /// Adds a fragment to its datagram; returns the packet once it is whole.
    fn assemble(&self, arrived: Arrived) -> Option<Arrived> {
        let Some(fragment) = arrived.label.fragment else { return Some(arrived) };
        let (whole, dropped) = {
            let reassembly = &mut self.state().reassembly;
            (reassembly.add(self.host.now(), arrived, fragment), reassembly.take_dropped())
        };
        (0..dropped).for_each(|_| self.hosts.count_drop(DropCause::Incomplete));
        whole
    }

    /// Returns when the next exact timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let state = self.state();
        let timer = state.timers.first_key_value().map(|((at, _), _)| *at);
        [timer, state.tcp.next_timer()].into_iter().flatten().min()
    }

    /// Appends the wakers of due timers, and activates the connections whose timers are due.
    pub(super) fn take_timers(&self, now: Instant, wakes: &mut Vec<Waker>) {
        let mut state = self.state();
        state.tcp.on_time(now);
        while let Some(entry) = state.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            wakes.push(entry.remove());
        }
    }
}

impl State {
    /// Sets or changes a timer; returns its number and the replaced waker. The caller must drop that waker without the
    /// lock: if it is the last reference to a task, dropping the task may take the lock.
    pub(super) fn set_timer(
        &mut self,
        at: Instant,
        number: Option<u64>,
        waker: &Waker,
    ) -> (u64, Option<Waker>) {
        let number = number.unwrap_or_else(|| {
            self.next_timer += 1;
            self.next_timer
        });
        (number, self.timers.insert((at, number), waker.clone()))
    }

    /// Removes a timer; returns its waker.
    #[must_use = "the caller must drop the waker without the lock"]
    pub(super) fn remove_timer(&mut self, at: Instant, number: u64) -> Option<Waker> {
        self.timers.remove(&(at, number))
    }

    /// Binds an address; for port 0, any free one.
    pub(super) fn bind(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let port = match address.port() {
            0 => {
                let from = self.next_port;
                let mut ports = (from..=u16::MAX).chain(FIRST_PORT..from);
                let free = ports.find(|port| !self.sockets.contains_key(port));
                free.ok_or(io::ErrorKind::AddrNotAvailable)?
            }
            port if self.sockets.contains_key(&port) => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            port => port,
        };
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT).max(FIRST_PORT);
        self.sockets.insert(port, Inbox::new(address.ip()));
        Ok(SocketAddr::new(address.ip(), port))
    }
}

/// The simulated host whose code runs on this thread.
#[derive(Clone, Debug)]
pub struct VirtualHost(pub(super) Arc<Kernel>);

impl VirtualHost {
    /// Returns the host whose code runs on this thread; `None` outside a simulation.
    #[must_use]
    pub fn current() -> Option<Self> {
        current().map(Self)
    }

    /// Returns the host's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.hosts.names[self.0.host.node().index()]
    }

    /// Returns the host's address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the names and addresses of all hosts.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.0.hosts
    }

    /// Returns the time by the host's clock, since the simulation's start.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.host.now()
    }

    /// Draws a random number from the host's stream, which depends on the simulation's seed.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.state().rng.next_u64()
    }

    /// Resolves `HOST:PORT`; the host is a name or an address of the simulation, or `localhost`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if no host has the name, [`io::ErrorKind::InvalidInput`] without a port.
    pub fn resolve(&self, place: &str) -> io::Result<SocketAddr> {
        if let Ok(address) = place.parse() {
            return Ok(address);
        }
        let invalid = || {
            let text = format!("{place:?} is not an address: write HOST:PORT");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let (name, port) = place.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        let ip = match self.0.hosts.node(name) {
            Some(node) => Hosts::ip(node),
            None if name == "localhost" => Ipv4Addr::LOCALHOST.into(),
            None => name.parse().map_err(|_| {
                io::Error::new(io::ErrorKind::NotFound, format!("no host is called {name:?}"))
            })?,
        };
        Ok(SocketAddr::new(ip, port))
    }
}
