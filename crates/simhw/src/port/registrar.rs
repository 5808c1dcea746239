//! What both ends of a port share beside its rings: registrations, the doorbell, the end.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use super::{PortName, RegisterError};
use crate::id::PortId;
use crate::region::{Memory, RegionOptions, RegionRef};

/// What a port's doorbell rings.
pub(crate) trait Bell: Send + Sync {
    /// There are commands, or changes of registration, on `port`.
    fn ring(&self, port: PortId);

    /// The application looks for completions and finds none: an inline NIC takes a turn.
    fn progress(&self) {}

    /// The application has looked for the last time before it waits to be woken: an inline NIC is
    /// to be woken by its peers from now on.
    fn rest(&self) {}

    /// How many nanoseconds an application may look for a completion before it waits.
    fn spin_nanos(&self) -> u32 {
        0
    }
}

/// A change of what a port has registered: the control path, behind a lock.
#[derive(Debug)]
pub(crate) enum Registration {
    Register { slot: u16, generation: u32, memory: Memory, options: RegionOptions },
    Deregister { slot: u16, generation: u32 },
    Close,
}

/// What both ends of a port share beside its rings.
pub(crate) struct Registrar {
    changed: AtomicBool,
    closed: AtomicBool,
    waker: AtomicWaker,
    /// A waker was registered since the last time that it was woken.
    waiting: AtomicBool,
    changes: Mutex<Changes>,
    bell: Box<dyn Bell>,
    id: PortId,
    /// Regions' generations count from here: a port's number may have been another's before, and
    /// what firmware still knows of that one's regions must not name this one's.
    first_generation: u32,
}

#[derive(Default)]
struct Changes {
    pending: Vec<Registration>,
    generations: Vec<u32>,
    free: Vec<u16>,
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Registrar {
    pub(super) fn new(name: PortName, bell: Box<dyn Bell>) -> Self {
        Self {
            changed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            waiting: AtomicBool::new(false),
            changes: Mutex::default(),
            bell,
            id: name.id,
            first_generation: name.epoch << 16,
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("nothing panics while it holds this lock")
    }

    pub(super) fn ring(&self) {
        self.bell.ring(self.id);
    }

    /// The NIC's: whether the application's end is gone, which it has not taken note of.
    pub(super) fn is_closing(&self) -> bool {
        self.changes().pending.iter().any(|change| matches!(change, Registration::Close))
    }

    /// The application's: it looks, and finds nothing.
    pub(super) fn progress(&self) {
        self.bell.progress();
    }

    /// The application's: it has looked for the last time before it waits.
    pub(super) fn rest(&self) {
        self.bell.rest();
    }

    /// How many nanoseconds it may look before that.
    pub(super) fn spin_nanos(&self) -> u32 {
        self.bell.spin_nanos()
    }

    /// The application's: its NIC has stopped.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The application's: it is woken at the next completion, and at the end.
    pub(super) fn wait(&self, waker: &Waker) {
        self.waker.register(waker);
        self.waiting.store(true, Ordering::Relaxed);
        // Between this and the last look at the ring; whoever wakes has one between publishing and
        // its look at this.
        fence(Ordering::SeqCst);
    }

    /// The NIC's: something was completed.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// The NIC's: something was completed, and a fence has passed since.
    pub(super) fn wake_waiting(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            self.waker.wake();
        }
    }

    /// The NIC's: it has stopped.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The NIC's: what was registered and deregistered since the last time, if anything was.
    pub(super) fn take(&self) -> Option<Vec<Registration>> {
        // Rarely anything has: a load costs less than a swap.
        if self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel) {
            return Some(std::mem::take(&mut self.changes().pending));
        }
        None
    }

    /// A slot for a region, and which use of it this is.
    pub(super) fn claim_slot(&self) -> Result<(u16, u32), RegisterError> {
        let mut changes = self.changes();
        let slot = match changes.free.pop() {
            Some(slot) => slot,
            None => {
                let slot =
                    u16::try_from(changes.generations.len()).map_err(|_| RegisterError::TooMany)?;
                changes.generations.push(self.first_generation);
                slot
            }
        };
        let generation = &mut changes.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1);
        Ok((slot, *generation))
    }

    pub(super) fn push(&self, change: Registration) {
        self.changes().pending.push(change);
        self.changed.store(true, Ordering::Release);
    }

    pub(crate) fn deregister(&self, region: RegionRef) {
        self.changes().free.push(region.slot);
        self.push(Registration::Deregister { slot: region.slot, generation: region.generation });
        self.ring();
    }
}
