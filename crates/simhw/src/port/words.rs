//! The doorbell, the sleepers and the end of a port whose two ends are in two processes.

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

/// The words of a port's segment that are no ring's.
#[derive(Clone, Debug)]
pub(crate) struct Words(Arc<Segment>);

impl Words {
    /// Bytes that they take, at the beginning of their segment.
    pub(super) const BYTES: usize = 2 * LINE;

    pub(crate) const fn new(segment: Arc<Segment>) -> Self {
        Self(segment)
    }

    /// The application's: there is something to look at; whether the NIC's process has to be woken.
    pub(crate) fn ring(&self) -> bool {
        // Whoever finds it rung need not wake anybody: it has not been looked at since.
        if self.0.line(0)[RUNG].swap(1, Ordering::AcqRel) != 0 {
            return false;
        }
        // Between ringing and the look at who sleeps; the sleeper has one the other way round.
        fence(Ordering::SeqCst);
        let asleep = &self.0.line(LINE)[ASLEEP];
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// The NIC's process's: whether it was rung since the last time.
    pub(crate) fn take_bell(&self) -> bool {
        let rung = &self.0.line(0)[RUNG];
        rung.load(Ordering::Relaxed) != 0 && rung.swap(0, Ordering::AcqRel) != 0
    }

    /// The NIC's process's: it is to be woken from now on. A fence and another look must follow.
    pub(crate) fn fall_asleep(&self) {
        self.0.line(LINE)[ASLEEP].store(1, Ordering::Relaxed);
    }

    /// The NIC's process's: it looks by itself.
    pub(crate) fn stay_awake(&self) {
        self.0.line(LINE)[ASLEEP].store(0, Ordering::Relaxed);
    }

    /// The application's: it is woken at the next completion. A fence and another look must follow.
    pub(crate) fn wait(&self) {
        self.0.line(0)[WAITING].store(1, Ordering::Relaxed);
    }

    /// The application's: the NIC has stopped.
    pub(super) fn is_closed(&self) -> bool {
        self.0.line(LINE)[CLOSED].load(Ordering::Acquire) != 0
    }

    /// The application's: changes of registration that the NIC has taken note of.
    pub(super) fn taken(&self) -> u64 {
        self.0.line(LINE)[TAKEN].load(Ordering::Acquire)
    }

    /// The NIC's: whether the application waits and has to be woken; it is told once. A fence must
    /// lie between what was completed and this.
    pub(crate) fn takes_wake(&self) -> bool {
        let waiting = &self.0.line(0)[WAITING];
        waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::Relaxed) != 0
    }

    /// The NIC's: it has taken note of so many changes of registration.
    pub(super) fn set_taken(&self, changes: u64) {
        self.0.line(LINE)[TAKEN].store(changes, Ordering::Release);
    }

    /// The NIC's: it has stopped.
    pub(super) fn close(&self) {
        self.0.line(LINE)[CLOSED].store(1, Ordering::Release);
    }
}
