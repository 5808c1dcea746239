//! What both ends of a port share beside its rings: registrations, the doorbell, the end.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use atomic_waker::AtomicWaker;

#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
use super::ground::Ground;
use super::{PortName, RegisterError};
use crate::deferred;
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
    /// Where the NIC is in another process: registrations and the end go there.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    ground: Option<Ground>,
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
            #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
            ground: None,
            bell,
            id: name.id,
            first_generation: name.epoch << 16,
        }
    }

    /// The application's side of a port whose NIC is in another process.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(super) fn far(name: PortName, bell: Box<dyn Bell>, ground: Ground) -> Self {
        Self { ground: Some(ground), ..Self::new(name, bell) }
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
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if self.ground.as_ref().is_some_and(|ground| ground.words().is_closed()) {
            return true;
        }
        self.closed.load(Ordering::Acquire)
    }

    /// The application's: it is woken at the next completion, and at the end.
    pub(super) fn wait(&self, waker: &Waker) {
        self.waker.register(waker);
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if let Some(ground) = &self.ground {
            ground.words().wait();
        }
        self.waiting.store(true, Ordering::Relaxed);
        // Between this and the last look at the ring; whoever wakes has one between publishing and
        // its look at this.
        fence(Ordering::SeqCst);
    }

    /// The NIC's: something was completed.
    pub(crate) fn wake(&self) {
        deferred::wake(self.waker.take());
    }

    /// The NIC's: something was completed, and a fence has passed since.
    pub(super) fn wake_waiting(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            self.wake();
        }
    }

    /// The NIC's: it has stopped.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// The NIC's: whether something was registered or deregistered since the last time.
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// The NIC's: what was registered and deregistered since the last time.
    pub(super) fn take(&self) -> Vec<Registration> {
        self.changed.swap(false, Ordering::AcqRel);
        std::mem::take(&mut self.changes().pending)
    }

    /// The application's: zeroed memory that the NIC knows by a slot and a generation.
    pub(super) fn register(
        &self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<(Memory, u16, u32), RegisterError> {
        let (slot, generation) = self.claim_slot()?;
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if let Some(ground) = &self.ground {
            return match ground.register(slot, generation, bytes, options, &|| self.ring()) {
                Ok(memory) => Ok((memory, slot, generation)),
                Err(error) => {
                    self.changes().free.push(slot);
                    Err(error)
                }
            };
        }
        let memory = Memory::new(bytes);
        self.push(Registration::Register { slot, generation, memory: memory.clone(), options });
        Ok((memory, slot, generation))
    }

    /// The application's: registers memory that there is; `None` where the NIC is in another process.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(super) fn register_own(
        &self,
        memory: Memory,
        options: RegionOptions,
    ) -> Result<Option<(u16, u32)>, RegisterError> {
        if self.ground.is_some() {
            return Ok(None);
        }
        let (slot, generation) = self.claim_slot()?;
        self.push(Registration::Register { slot, generation, memory, options });
        Ok(Some((slot, generation)))
    }

    /// A slot for a region, and which use of it this is.
    fn claim_slot(&self) -> Result<(u16, u32), RegisterError> {
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

    fn push(&self, change: Registration) {
        self.changes().pending.push(change);
        self.changed.store(true, Ordering::Release);
    }

    pub(crate) fn deregister(&self, region: RegionRef) {
        let (slot, generation) = (region.slot, region.generation);
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if let Some(ground) = &self.ground {
            ground.deregister(slot, generation);
            self.changes().free.push(slot);
            return self.ring();
        }
        self.changes().free.push(slot);
        self.push(Registration::Deregister { slot, generation });
        self.ring();
    }

    /// The application's: the port is dropped.
    pub(super) fn drop_port(&self) {
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if let Some(ground) = &self.ground {
            return ground.hang_up();
        }
        self.push(Registration::Close);
        self.ring();
    }
}
