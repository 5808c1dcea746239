//! The flags that both processes of a port share: doorbell, waiting application, parked NIC, close.

use std::sync::Arc;

use crate::segment::{LINE, Segment};
use crate::sync::{Ordering, fence};

/// Words of the first line, which the application writes (and the NIC's process clears).
const RUNG: usize = 0;
const WAITING: usize = 1;
/// Words of the second line, which the NIC's process writes.
const ASLEEP: usize = 0;
const CLOSED: usize = 1;
const TAKEN: usize = 2;

/// The flags of a port, in the first two lines of its segment.
#[derive(Clone, Debug)]
pub(crate) struct PortControlBlock(Arc<Segment>);

impl PortControlBlock {
    /// Bytes of the block, at the beginning of its segment.
    pub(super) const BYTES: usize = 2 * LINE;

    pub(crate) const fn new(segment: Arc<Segment>) -> Self {
        Self(segment)
    }

    /// For the application: rings the doorbell. Returns `true` if the NIC's process must be woken.
    pub(crate) fn ring(&self) -> bool {
        // If it is rung already, the NIC has yet to take it and needs no wake-up.
        if self.0.line(0)[RUNG].swap(1, Ordering::AcqRel) != 0 {
            return false;
        }
        // Orders the doorbell before the load of the parked flag; the parking side fences in the opposite
        // order.
        fence(Ordering::SeqCst);
        let asleep = &self.0.line(LINE)[ASLEEP];
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// For the NIC's process: takes the doorbell; returns whether it was rung.
    pub(crate) fn take_bell(&self) -> bool {
        let rung = &self.0.line(0)[RUNG];
        rung.load(Ordering::Relaxed) != 0 && rung.swap(0, Ordering::AcqRel) != 0
    }

    /// For the NIC's process: requests a wake-up at the next ring. A fence and another poll must follow.
    pub(crate) fn arm_wakeup(&self) {
        self.0.line(LINE)[ASLEEP].store(1, Ordering::Relaxed);
    }

    /// For the NIC's process: withdraws the request for a wake-up, because it polls by itself.
    pub(crate) fn disarm_wakeup(&self) {
        self.0.line(LINE)[ASLEEP].store(0, Ordering::Relaxed);
    }

    /// For the application: requests a wake-up at the next completion. A fence and another poll must follow.
    pub(crate) fn wait(&self) {
        self.0.line(0)[WAITING].store(1, Ordering::Relaxed);
    }

    /// For the application: returns whether the NIC has stopped.
    pub(super) fn is_closed(&self) -> bool {
        self.0.line(LINE)[CLOSED].load(Ordering::Acquire) != 0
    }

    /// For the application: returns how many changes of registration the NIC has taken.
    pub(super) fn taken(&self) -> u64 {
        self.0.line(LINE)[TAKEN].load(Ordering::Acquire)
    }

    /// For the NIC: takes the application's request for a wake-up; `true` if it must be woken. The caller must
    /// fence between publishing and this call.
    pub(crate) fn takes_wake(&self) -> bool {
        let waiting = &self.0.line(0)[WAITING];
        waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::Relaxed) != 0
    }

    /// For the NIC: publishes how many changes of registration it has taken.
    pub(super) fn set_taken(&self, changes: u64) {
        self.0.line(LINE)[TAKEN].store(changes, Ordering::Release);
    }

    /// For the NIC: marks the port as closed, because the NIC has stopped.
    pub(super) fn close(&self) {
        self.0.line(LINE)[CLOSED].store(1, Ordering::Release);
    }
}
