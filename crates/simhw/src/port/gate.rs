//! The gate of a port: determines whether the port's host may write to other processes itself, bypassing its NIC.
//!
//! The NIC opens the gate under a number, and may close it at any time. The host reads the number in each post, so a
//! closed gate takes effect at the next post. The host marks its posts, so the NIC knows when the last post under the
//! open gate has ended. From then on the host writes nothing until the NIC opens the gate again.
//!
//! The host stores its mark, then loads the number. The NIC stores the number, then loads the mark. Neither pair may
//! be reordered. On Linux the closing NIC ensures this for both sides with `membarrier`, and a post has no fence.
//! Without that system call, both sides fence.
//!
//! Only correct processes observe the gate. A hostile one can write all memory that its peers share with it: they check
//! what they read.

use std::sync::Arc;

use crate::segment::{LINE, Line, Segment};
use crate::sync::{Ordering, fence, fence_both, is_asymmetric};

/// The word of the first line, which the host writes: not zero while a post is in progress.
const POSTING: usize = 0;
/// The word of the second line, which the NIC writes: the number under which the gate is open, or [`CLOSED`].
const NUMBER: usize = 0;
const CLOSED: u64 = 0;

/// The two lines that both ends share.
#[derive(Clone, Debug)]
struct Words {
    segment: Arc<Segment>,
    offset: usize,
}

impl Words {
    fn host(&self) -> &Line {
        self.segment.line(self.offset)
    }

    fn nic(&self) -> &Line {
        self.segment.line(self.offset + LINE)
    }
}

/// The host's end of its port's gate.
#[derive(Debug)]
#[doc(hidden)]
pub struct HostGate {
    words: Words,
    fences: bool,
}

/// The NIC's end of a port's gate.
#[derive(Debug)]
pub(crate) struct NicGate {
    words: Words,
    last: u64,
}

/// Bytes of a gate in its segment.
pub(crate) const GATE_BYTES: usize = 2 * LINE;

/// Creates both ends of a closed gate at `offset`.
pub(crate) fn gate(segment: &Arc<Segment>, offset: usize) -> (HostGate, NicGate) {
    let words = Words { segment: Arc::clone(segment), offset };
    (HostGate { words: words.clone(), fences: !is_asymmetric() }, NicGate { words, last: CLOSED })
}

/// Clears the mark of a post when dropped, also if the post panics.
struct Mark<'a>(&'a Line);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0[POSTING].store(0, Ordering::Release);
    }
}

impl HostGate {
    /// Calls `post` if the gate is open under `number`, and returns its result. The NIC knows that it is in progress.
    /// Returns `None` if the gate is closed or open under another number. A number is never valid again once the gate
    /// was closed.
    #[inline]
    pub fn post<T>(&mut self, number: u64, post: impl FnOnce() -> T) -> Option<T> {
        let host = self.words.host();
        host[POSTING].store(1, Ordering::Relaxed);
        let mark = Mark(host);
        if self.fences {
            fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        let is_open =
            number != CLOSED && self.words.nic()[NUMBER].load(Ordering::Acquire) == number;
        let posted = is_open.then(post);
        drop(mark);
        posted
    }

    /// Returns whether the gate is open under `number` at the moment.
    #[inline]
    #[must_use]
    pub fn is_open(&self, number: u64) -> bool {
        number != CLOSED && self.words.nic()[NUMBER].load(Ordering::Relaxed) == number
    }
}

impl NicGate {
    /// Opens the gate, if it is closed; returns its number. Returns `None` while a post under an earlier number may be
    /// in progress.
    pub(crate) fn open(&mut self) -> Option<u64> {
        let number = &self.words.nic()[NUMBER];
        if number.load(Ordering::Relaxed) == CLOSED {
            if !self.is_quiet() {
                return None;
            }
            self.last += 1;
            number.store(self.last, Ordering::Release);
        }
        Some(self.last)
    }

    /// Closes the gate. Returns whether no post is in progress: if so, the host writes nothing until the gate opens.
    pub(crate) fn close(&self) -> bool {
        let number = &self.words.nic()[NUMBER];
        if number.load(Ordering::Relaxed) != CLOSED {
            number.store(CLOSED, Ordering::Relaxed);
            fence_both();
        }
        self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        // Acquires the writes of the last post.
        self.words.host()[POSTING].load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, not(midplane_models)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;

    fn both() -> (HostGate, NicGate) {
        gate(&Arc::new(Segment::private(GATE_BYTES)), 0)
    }

    proptest! {
        /// Checks all orders of moves and posts, also of posts in progress when the gate closes.
        #[test]
        fn a_post_passes_under_the_number_of_the_open_gate_only(moves: Vec<(u8, u64)>) {
            let (mut host, mut nic) = both();
            let (mut open, mut last) = (None, 0);
            for (what, number) in moves {
                match what % 4 {
                    0 => {
                        last += u64::from(open.is_none());
                        open = Some(last);
                        prop_assert_eq!(nic.open(), open);
                    }
                    1 => {
                        open = None;
                        prop_assert!(nic.close());
                    }
                    2 => {
                        let number = number % (last + 2);
                        let passed = host.post(number, || nic.close());
                        prop_assert_eq!(passed, (open == Some(number)).then_some(false));
                        open = open.filter(|open| *open != number);
                    }
                    _ => {
                        let number = number % (last + 2);
                        prop_assert_eq!(host.is_open(number), open == Some(number));
                    }
                }
            }
        }
    }

    #[test]
    fn a_post_that_never_ends_keeps_the_gate_from_being_opened_and_from_being_quiet() {
        let (mut host, mut nic) = both();
        let number = nic.open().unwrap();
        // Like a process that is killed while it posts, or a hostile one.
        std::mem::forget(Mark(host.words.host()));
        host.words.host()[POSTING].store(u64::MAX, Ordering::Relaxed);
        assert!(!nic.close());
        assert!(!nic.close());
        assert_eq!(nic.open(), None);
        assert!(!host.is_open(number));
        // If the process was only suspended, its next post clears the mark.
        assert_eq!(host.post(number, || ()), None);
        assert!(nic.close());
        assert_eq!(nic.open(), Some(number + 1));
    }

    #[test]
    fn a_post_that_panics_is_over() {
        let (mut host, mut nic) = both();
        let number = nic.open().unwrap();
        let panic = || host.post(number, || panic!("as a carrier may"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).unwrap_err();
        assert!(nic.close());
    }

    /// Two threads write to the same value, each only while the gate lets it.
    #[test]
    fn host_and_nic_never_write_at_once() {
        let (mut host, mut nic) = both();
        let written = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (shown, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (seen, stopped, count) = (Arc::clone(&shown), Arc::clone(&stop), Arc::clone(&written));
        let poster = std::thread::spawn(move || {
            let mut passed = 0_u64;
            while stopped.load(Ordering::Relaxed) == 0 {
                let write = || {
                    let next = count[0].load(Ordering::Relaxed) + 1;
                    count[0].store(next, Ordering::Relaxed);
                    count[1].store(next, Ordering::Relaxed);
                };
                passed += u64::from(host.post(seen.load(Ordering::Relaxed), write).is_some());
            }
            passed
        });
        let mut taken = 0_u64;
        while taken < 10_000 {
            let Some(number) = nic.open() else { continue };
            shown.store(number, Ordering::Relaxed);
            while !nic.close() {
                std::hint::spin_loop();
            }
            let next = written[0].load(Ordering::Relaxed) + 1;
            assert_eq!(written[1].load(Ordering::Relaxed) + 1, next, "a post is whole");
            written[0].store(next, Ordering::Relaxed);
            written[1].store(next, Ordering::Relaxed);
            taken += 1;
        }
        stop.store(1, Ordering::Relaxed);
        assert_eq!(poster.join().unwrap() + taken, written[0].load(Ordering::Relaxed));
    }
}
