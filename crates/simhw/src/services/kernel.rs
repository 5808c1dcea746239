//! The system of a simulated host: sockets, timers, random numbers, names.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::nic::{Outgoing, Ports};
use super::udp::{Arrival, Datagram, Inbox};
use crate::host::Host as _;
use crate::id::NodeId;
use crate::rng::Rng;
use crate::sim::SimHost;
use crate::time::Instant;

/// Bytes of datagrams that wait for the NIC: more wait in their senders.
const OUTBOX_BYTES: usize = 256 << 10;
/// The first port that a socket gets which asks for none.
const FIRST_PORT: u16 = 32_768;

/// The names and addresses of all hosts.
#[derive(Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// Names the hosts: the first name is that of node 0.
    #[must_use]
    pub fn new(names: Vec<String>) -> Arc<Self> {
        Arc::new(Self { names })
    }

    /// Returns the names, in the order of the nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
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
        let [high, low] = node.0.saturating_add(1).to_be_bytes();
        Ipv4Addr::new(10, 0, high, low).into()
    }

    fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        let IpAddr::V4(ip) = ip.to_canonical() else { return None };
        let [10, 0, high, low] = ip.octets() else { return None };
        let node = u16::from_be_bytes([high, low]).checked_sub(1)?;
        (usize::from(node) < self.names.len()).then_some(NodeId(node))
    }
}

/// A host's system, as its code uses it.
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
    pub(super) outbox: VecDeque<Outgoing>,
    outbox_bytes: usize,
    /// Tasks that wait for space in the outbox.
    senders: Vec<Waker>,
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

impl Kernel {
    pub(super) fn new(host: SimHost, hosts: Arc<Hosts>, mtu: usize) -> Arc<Self> {
        // A host that starts again draws other numbers than before: peers know its former ones.
        let rng = host.rng(&format!("services from {}", host.world_now().as_nanos()));
        let state = State {
            sockets: BTreeMap::new(),
            next_port: FIRST_PORT,
            timers: BTreeMap::new(),
            next_timer: 0,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            senders: Vec::new(),
            rng,
        };
        Arc::new(Self { host, hosts, mtu, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ip(&self) -> IpAddr {
        Hosts::ip(self.host.node())
    }

    /// Returns the node at an address that is not this host's own.
    pub(super) fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        if ip.is_loopback() { Some(self.host.node()) } else { self.hosts.node_at(ip) }
    }

    /// Passes an arrived datagram to its socket, and appends the waker of the task that waits for it. A
    /// datagram to a port that no socket has is answered.
    pub(super) fn deliver(
        &self,
        (from, ports, bytes): (NodeId, Ports, Vec<u8>),
        wakes: &mut Vec<Waker>,
    ) {
        let peer = SocketAddr::new(Hosts::ip(from), ports.from);
        let mut state = self.state();
        match state.sockets.get_mut(&ports.to) {
            Some(inbox) if ports.is_unreachable => inbox.push(Arrival::Unreachable(peer), wakes),
            Some(inbox) => inbox.push(Arrival::Datagram(Datagram { peer, bytes }), wakes),
            None if ports.is_unreachable => {}
            None => {
                let ports = Ports { from: ports.to, to: ports.from, is_unreachable: true };
                let _ = state.queue(Outgoing { to: from, ports, bytes: vec![0; 8] });
            }
        }
    }

    /// Returns when the next exact timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.state().timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Appends the wakers of the timers that are due.
    pub(super) fn take_timers(&self, now: Instant, wakes: &mut Vec<Waker>) {
        let mut state = self.state();
        while let Some(entry) = state.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            wakes.push(entry.remove());
        }
    }
}

impl State {
    /// Sets or changes a timer; returns its number, and the waker that it had. Dropped under the lock, a waker that is the
    /// last reference to a task would come back here.
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

    /// Removes a timer; returns the waker that it had.
    #[must_use = "it is dropped without the lock"]
    pub(super) fn remove_timer(&mut self, at: Instant, number: u64) -> Option<Waker> {
        self.timers.remove(&(at, number))
    }

    /// Binds a port, or any free one for 0.
    pub(super) fn bind(&mut self, port: u16) -> io::Result<u16> {
        let port = match port {
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
        self.sockets.insert(port, Inbox::default());
        Ok(port)
    }

    /// Queues a datagram for the NIC; returns it if too many wait.
    pub(super) fn queue(&mut self, outgoing: Outgoing) -> Result<(), Outgoing> {
        if self.outbox_bytes + outgoing.bytes.len() > OUTBOX_BYTES {
            return Err(outgoing);
        }
        self.outbox_bytes += outgoing.bytes.len();
        self.outbox.push_back(outgoing);
        Ok(())
    }

    /// Returns whether a datagram can be queued; if not, wakes the task once one can.
    pub(super) fn wait_for_space(&mut self, bytes: usize, waker: &Waker) -> bool {
        if self.outbox_bytes + bytes <= OUTBOX_BYTES {
            return true;
        }
        if !self.senders.iter().any(|known| known.will_wake(waker)) {
            self.senders.push(waker.clone());
        }
        false
    }

    /// Removes the first queued datagram, which the NIC has taken.
    pub(super) fn on_posted(&mut self, wakes: &mut Vec<Waker>) {
        if let Some(posted) = self.outbox.pop_front() {
            self.outbox_bytes = self.outbox_bytes.saturating_sub(posted.bytes.len());
            wakes.append(&mut self.senders);
        }
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

    /// Draws a random number from the host's stream of the simulation's seed.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.state().rng.next_u64()
    }

    /// Resolves `HOST:PORT`; the host is a name or an address of the simulation.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if no host is called so, [`io::ErrorKind::InvalidInput`] without a port.
    pub fn resolve(&self, place: &str) -> io::Result<SocketAddr> {
        if let Ok(address) = place.parse() {
            return Ok(address);
        }
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "a place is HOST:PORT");
        let (name, port) = place.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        let node = self.0.hosts.node(name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no host is called {name:?}"))
        })?;
        Ok(SocketAddr::new(Hosts::ip(node), port))
    }
}
