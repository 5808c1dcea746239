//! State that both ends of a port share besides its rings: registrations, the doorbell, the close.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use atomic_waker::AtomicWaker;

#[cfg(target_os = "linux")]
use super::remote_allocator::RemoteAllocator;
use super::{PortName, RegisterError};
use crate::deferred;
use crate::id::PortId;
use crate::region::{Memory, RegionOptions, RegionRef};

/// The doorbell of a NIC's ports.
pub(crate) trait Bell: Send + Sync {
    /// Notifies the NIC that `port` has commands or changes of registration.
    fn ring(&self, port: PortId);

    /// Called when the application has registered `bytes` of memory: a simulated host is charged for them.
    fn on_registered(&self, _bytes: usize) {}

    /// Called when the application polls and finds no completion: an inline NIC takes a turn.
    fn progress(&self) {}

    /// Called before the application parks, after its last poll: an inline NIC must be woken by its peers from
    /// now on.
    fn rest(&self) {}

    /// Returns for how many nanoseconds an application may busy-poll for a completion before it parks.
    fn spin_nanos(&self) -> u32 {
        0
    }
}

/// A change of a port's registrations; passed through a lock, as it is rare.
#[derive(Debug)]
pub(crate) enum Registration {
    Register { slot: u16, generation: u32, memory: Memory, options: RegionOptions },
    Deregister { slot: u16, generation: u32 },
    Close,
}

/// State that both ends of a port share besides its rings.
pub(crate) struct PortShared {
    changed: AtomicBool,
    closed: AtomicBool,
    waker: AtomicWaker,
    /// True if a waker was registered since the last wake-up.
    waiting: AtomicBool,
    changes: Mutex<Changes>,
    /// Set if the NIC is in another process: registrations and the close go through it.
    #[cfg(target_os = "linux")]
    remote: Option<RemoteAllocator>,
    bell: Box<dyn Bell>,
    id: PortId,
    /// Generations of the port's regions count from here. The number may have been another port's before, and
    /// stale handles of that port's regions must not match this one's.
    first_generation: u32,
}

#[derive(Default)]
struct Changes {
    pending: Vec<Registration>,
    generations: Vec<u32>,
    free: Vec<u16>,
}

impl std::fmt::Debug for PortShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortShared").field("id", &self.id).finish_non_exhaustive()
    }
}

impl PortShared {
    pub(super) fn new(name: PortName, bell: Box<dyn Bell>) -> Self {
        Self {
            changed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            waiting: AtomicBool::new(false),
            changes: Mutex::default(),
            #[cfg(target_os = "linux")]
            remote: None,
            bell,
            id: name.id,
            first_generation: name.epoch << 16,
        }
    }

    /// Creates the application's side of a port whose NIC is in another process.
    #[cfg(target_os = "linux")]
    pub(super) fn far(name: PortName, bell: Box<dyn Bell>, remote: RemoteAllocator) -> Self {
        Self { remote: Some(remote), ..Self::new(name, bell) }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("nothing panics while it holds this lock")
    }

    pub(super) fn ring(&self) {
        self.bell.ring(self.id);
    }

    /// For the application: it has registered `bytes` of memory.
    pub(super) fn on_registered(&self, bytes: usize) {
        self.bell.on_registered(bytes);
    }

    /// For the NIC: returns whether the application has closed its end, and the NIC has yet to handle that.
    pub(super) fn is_closing(&self) -> bool {
        self.changes().pending.iter().any(|change| matches!(change, Registration::Close))
    }

    /// For the application: it has polled and found no completion.
    pub(super) fn progress(&self) {
        self.bell.progress();
    }

    /// For the application: it has polled for the last time before it parks.
    pub(super) fn rest(&self) {
        self.bell.rest();
    }

    /// For the application: returns for how many nanoseconds it may busy-poll before it parks.
    pub(super) fn spin_nanos(&self) -> u32 {
        self.bell.spin_nanos()
    }

    /// For the application: returns whether its NIC has stopped.
    pub(super) fn is_closed(&self) -> bool {
        #[cfg(target_os = "linux")]
        if self.remote.as_ref().is_some_and(|remote| remote.words().is_closed()) {
            return true;
        }
        self.closed.load(Ordering::Acquire)
    }

    /// For the application: registers a waker for the next completion and for the close.
    pub(super) fn wait(&self, waker: &Waker) {
        self.waker.register(waker);
        #[cfg(target_os = "linux")]
        if let Some(remote) = &self.remote {
            remote.words().wait();
        }
        self.waiting.store(true, Ordering::Relaxed);
        // Orders the flag before the next poll of the ring. The waking side fences between publishing and its
        // load of the flag.
        fence(Ordering::SeqCst);
    }

    /// For the NIC: wakes the application after a completion.
    pub(crate) fn wake(&self) {
        deferred::wake(self.waker.take());
    }

    /// For the NIC: wakes the application if it waits. The caller has fenced after publishing.
    pub(super) fn wake_waiting(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            self.wake();
        }
    }

    /// For the NIC: marks the port as closed, because the NIC has stopped.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// For the NIC: returns whether registrations have changed since the last call of `take`.
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// For the NIC: takes the changes of registration since the last call.
    pub(super) fn take(&self) -> Vec<Registration> {
        self.changed.swap(false, Ordering::AcqRel);
        std::mem::take(&mut self.changes().pending)
    }

    /// For the application: registers zeroed memory, and returns it with its slot and generation.
    pub(super) fn register(
        &self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<(Memory, u16, u32), RegisterError> {
        let (slot, generation) = self.claim_slot()?;
        #[cfg(target_os = "linux")]
        if let Some(remote) = &self.remote {
            return match remote.register(slot, generation, bytes, options, &|| self.ring()) {
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

    /// For the application: registers existing memory; `None` if the NIC is in another process.
    #[cfg(target_os = "linux")]
    pub(super) fn register_own(
        &self,
        memory: Memory,
        options: RegionOptions,
    ) -> Result<Option<(u16, u32)>, RegisterError> {
        if self.remote.is_some() {
            return Ok(None);
        }
        let (slot, generation) = self.claim_slot()?;
        self.push(Registration::Register { slot, generation, memory, options });
        Ok(Some((slot, generation)))
    }

    /// Claims a slot for a region, with the slot's next generation.
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
        #[cfg(target_os = "linux")]
        if let Some(remote) = &self.remote {
            remote.deregister(slot, generation);
            self.changes().free.push(slot);
            return self.ring();
        }
        self.changes().free.push(slot);
        self.push(Registration::Deregister { slot, generation });
        self.ring();
    }

    /// For the application: closes the port.
    pub(super) fn drop_port(&self) {
        #[cfg(target_os = "linux")]
        if let Some(remote) = &self.remote {
            return remote.hang_up();
        }
        self.push(Registration::Close);
        self.ring();
    }
}
