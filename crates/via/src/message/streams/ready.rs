//! The streams that may be readable or writable, marked by their wakers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use atomic_waker::AtomicWaker;

/// A bit for each stream, and the waker of the task that waits for any of them.
#[derive(Debug)]
pub(super) struct Ready {
    bits: Box<[AtomicU64]>,
    waiting: AtomicWaker,
}

/// The waker of one stream.
struct One {
    ready: Arc<Ready>,
    number: usize,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.set(self.number);
        self.ready.waiting.wake();
    }
}

impl Ready {
    pub(super) fn new(streams: usize) -> Arc<Self> {
        let bits = (0..streams.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { bits, waiting: AtomicWaker::new() })
    }

    /// Returns a waker that sets the stream's bit, and wakes the waiting task.
    pub(super) fn waker(self: &Arc<Self>, number: usize) -> Waker {
        Waker::from(Arc::new(One { ready: Arc::clone(self), number }))
    }

    pub(super) fn set(&self, number: usize) {
        self.bits[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
    }

    pub(super) fn is_any(&self) -> bool {
        self.bits.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears all bits; appends the numbers of those that were set.
    pub(super) fn take(&self, numbers: &mut Vec<usize>) {
        for (index, word) in self.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                numbers.push(64 * index + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Registers the task that the next wake of any stream wakes.
    pub(super) fn arm(&self, waker: &Waker) {
        self.waiting.register(waker);
    }
}
