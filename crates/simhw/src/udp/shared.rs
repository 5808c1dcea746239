//! The state that a NIC's hosts and its driver share: rung doorbells, opened ports, the request to end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use super::driver::Inline;
use super::{UdpCounters, kernel, observe};
use crate::drops::DropCause;
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::port::{Bell, Bells, NicPort, Port, PortNumbers, PortOptions, port};

/// A request to the driver to end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Ending {
    /// The driver continues.
    #[default]
    Running,
    /// The driver ends once everything staged has left.
    Flush,
    /// The driver ends at once.
    Now,
}

/// State that hosts leave for the driver, and the driver for them.
pub(super) struct Shared {
    bells: Bells,
    notes: Mutex<Notes>,
    waker: AtomicWaker,
    /// The NIC, if applications run it.
    inline: OnceLock<Weak<dyn Inline>>,
    node: NodeId,
    /// Default depth of a port.
    port_depth: usize,
}

#[derive(Default)]
struct Notes {
    opened: Vec<(PortId, NicPort)>,
    numbers: PortNumbers,
    ending: Ending,
    stopped: bool,
    counters: UdpCounters,
}

/// The driver's pending work.
#[derive(Default)]
pub(super) struct PendingWork {
    pub(super) rung: Vec<PortId>,
    pub(super) opened: Vec<(PortId, NicPort)>,
    pub(super) ending: Ending,
}

impl Shared {
    pub(super) fn new(node: NodeId, port_depth: usize) -> Arc<Self> {
        Arc::new(Self {
            bells: Bells::new(1 << 16),
            notes: Mutex::default(),
            waker: AtomicWaker::new(),
            inline: OnceLock::new(),
            node,
            port_depth,
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nothing panics while it holds this lock")
    }

    /// Opens a port for a host.
    pub(super) fn open(self: &Arc<Self>, options: PortOptions) -> Result<Port, OpenError> {
        let mut notes = self.notes();
        if notes.stopped {
            return Err(OpenError::Stopped(self.node));
        }
        let name = notes.numbers.claim(self.node, &options)?;
        let depth = options.depth_or(self.port_depth);
        let (port, nic) = port(name, depth, Box::new(PortBell(Arc::clone(self))));
        notes.opened.push((name.id, nic));
        drop(notes);
        self.waker.wake();
        Ok(port)
    }

    /// Lets applications run the NIC; must be called before any port is opened.
    pub(super) fn set_inline(&self, nic: Weak<dyn Inline>) {
        let set = self.inline.set(nic);
        set.expect("only one NIC is set");
    }

    /// Returns the NIC, if applications run it.
    fn inline(&self) -> Option<Arc<dyn Inline>> {
        self.inline.get()?.upgrade()
    }

    /// Handles the doorbell of a port.
    fn ring(&self, port: PortId) {
        let tells = self.bells.ring(port);
        let is_answered = self.inline().is_some_and(|nic| nic.ring());
        if tells && !is_answered {
            self.waker.wake();
        }
    }

    /// Wakes the driver.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    pub(super) fn end(&self, ending: Ending) {
        self.notes().ending = ending;
        self.waker.wake();
    }

    /// Returns the counters, including datagrams that the system lost in front of the socket at `address`.
    pub(super) fn counters(&self, address: SocketAddr) -> UdpCounters {
        let lost = kernel::dropped(address);
        let notes = self.notes();
        let mut counters = notes.counters;
        // The last report includes them already, and the socket is closed.
        if !notes.stopped {
            counters.drops.add_many(DropCause::System, lost);
        }
        counters
    }

    /// For the driver: publishes its counters.
    pub(super) fn report(&self, counters: &UdpCounters) {
        let before = std::mem::replace(&mut self.notes().counters, *counters);
        observe::on_report(self.node, &before, counters);
    }

    /// For the driver: takes the pending work.
    pub(super) fn collect(&self) -> PendingWork {
        let mut rung = Vec::new();
        self.bells.take(|port| rung.push(port));
        // Ports are taken after the bells: a port that was opened before it was rung is then present.
        let mut notes = self.notes();
        PendingWork { rung, opened: std::mem::take(&mut notes.opened), ending: notes.ending }
    }

    /// For the driver: returns whether work is pending; if not, `waker` is woken when there is.
    pub(super) fn is_waiting(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        let notes = self.notes();
        !self.bells.is_silent() || !notes.opened.is_empty() || notes.ending != Ending::Running
    }

    /// For the driver: releases the number of a closed port.
    pub(super) fn release(&self, id: PortId) {
        self.notes().numbers.release(id);
    }

    /// For the driver, as its last call: opens no more ports.
    pub(super) fn close(&self, counters: &UdpCounters) {
        self.report(counters);
        let opened = {
            let mut notes = self.notes();
            notes.stopped = true;
            std::mem::take(&mut notes.opened)
        };
        drop(opened);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The doorbell of one NIC's ports.
struct PortBell(Arc<Shared>);

impl Bell for PortBell {
    fn ring(&self, port: PortId) {
        self.0.ring(port);
    }

    fn progress(&self) {
        if let Some(nic) = self.0.inline() {
            nic.progress();
        }
    }

    fn rest(&self) {
        if let Some(nic) = self.0.inline() {
            nic.rest();
        }
    }
}

#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
impl crate::nicd::Source for Shared {
    fn node(&self) -> NodeId {
        self.node
    }

    fn grant(&self, options: PortOptions) -> Result<crate::port::Grant, OpenError> {
        let mut notes = self.notes();
        if notes.stopped {
            return Err(OpenError::Stopped(self.node));
        }
        let name = notes.numbers.claim(self.node, &options)?;
        match crate::port::far_port(name, options.depth_or(self.port_depth)) {
            Ok((nic, grant)) => {
                notes.opened.push((name.id, nic));
                drop(notes);
                self.waker.wake();
                Ok(grant)
            }
            Err(error) => {
                notes.numbers.release(name.id);
                Err(error)
            }
        }
    }

    fn ring(&self, port: PortId) {
        self.ring(port);
    }
}
