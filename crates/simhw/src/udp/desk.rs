//! What the hosts of a NIC and its driver share: rung bells, opened ports, the end.

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

/// How a driver is asked to end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Ending {
    /// It is not.
    #[default]
    Running,
    /// Once everything staged has left.
    Flush,
    /// At once.
    Now,
}

/// What hosts leave for the driver, and the driver for them.
pub(super) struct Desk {
    bells: Bells,
    notes: Mutex<Notes>,
    waker: AtomicWaker,
    /// The NIC, if applications run it.
    inline: OnceLock<Weak<dyn Inline>>,
    node: NodeId,
    /// Where a port's options do not say how deep it is.
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

/// What there is to do.
#[derive(Default)]
pub(super) struct Errands {
    pub(super) rung: Vec<PortId>,
    pub(super) opened: Vec<(PortId, NicPort)>,
    pub(super) ending: Ending,
}

impl Desk {
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

    /// Opens a port on behalf of a host.
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

    /// Before any port is opened: applications run the NIC themselves.
    pub(super) fn set_inline(&self, nic: Weak<dyn Inline>) {
        let set = self.inline.set(nic);
        set.expect("a desk has one NIC");
    }

    /// The NIC, if applications run it.
    fn inline(&self) -> Option<Arc<dyn Inline>> {
        self.inline.get()?.upgrade()
    }

    /// A port was rung.
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

    /// The counters, with what the system lost in front of the socket at `address`.
    pub(super) fn counters(&self, address: SocketAddr) -> UdpCounters {
        let lost = kernel::dropped(address);
        let notes = self.notes();
        let mut counters = notes.counters;
        // The last report has it already, and the socket is gone.
        if !notes.stopped {
            counters.drops.add_many(DropCause::System, lost);
        }
        counters
    }

    /// The driver's: its counters, for others to read.
    pub(super) fn report(&self, counters: &UdpCounters) {
        let before = std::mem::replace(&mut self.notes().counters, *counters);
        observe::on_report(self.node, &before, counters);
    }

    /// The driver's: what was left since the last time.
    pub(super) fn collect(&self) -> Errands {
        let mut rung = Vec::new();
        self.bells.take(|port| rung.push(port));
        // After the bells: a port that was opened before it was rung is there when it is answered.
        let mut notes = self.notes();
        Errands { rung, opened: std::mem::take(&mut notes.opened), ending: notes.ending }
    }

    /// The driver's: whether something was left; if not, it is woken when something is.
    pub(super) fn is_waiting(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        let notes = self.notes();
        !self.bells.is_silent() || !notes.opened.is_empty() || notes.ending != Ending::Running
    }

    /// The driver's: the port is gone, its number free.
    pub(super) fn release(&self, id: PortId) {
        self.notes().numbers.release(id);
    }

    /// The driver's last: no port opens from here on.
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

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The doorbell of one NIC's ports.
struct PortBell(Arc<Desk>);

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
impl crate::nicd::Source for Desk {
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
