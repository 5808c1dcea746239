//! Wake-ups of a waiting process: by itself, and by each of its peers through a separate channel.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::lock::lock;
use crate::passing::Socket;

/// Most events that one system call reports.
const BATCH: usize = 64;
/// Most batches taken at once. A peer with many channels can refill them as fast as they are taken.
const ROUNDS: usize = 16;
/// Number of the process's own event; channels have lower numbers.
const OWN: u64 = u64::MAX;

/// The wake-ups of one process: a descriptor that is readable when there are any.
///
/// No peer has a copy of it, or of another peer's channel. Whatever a peer does to its own channel, it cannot
/// block the wake-ups of another.
#[derive(Debug)]
pub(crate) struct Wakes {
    ready: OwnedFd,
    /// An eventfd that is never read: each write makes `ready` readable again.
    own: OwnedFd,
    channels: Mutex<BTreeMap<u64, Arc<Socket>>>,
}

impl Wakes {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&ready, &own, EventData::new_u64(OWN), EventFlags::IN | EventFlags::ET)?;
        Ok(Arc::new(Self { ready, own, channels: Mutex::default() }))
    }

    /// Adds a wake-up of the process's own.
    pub(crate) fn signal(&self) {
        // This fails only after 2^64 - 1 wake-ups.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Adds a channel; it replaces an earlier one with the same number.
    pub(crate) fn add(&self, number: u64, channel: Arc<Socket>) -> io::Result<()> {
        self.remove(number);
        let (data, flags) = (EventData::new_u64(number), EventFlags::IN | EventFlags::ET);
        epoll::add(&self.ready, &*channel, data, flags)?;
        lock(&self.channels).insert(number, channel);
        Ok(())
    }

    /// Removes a channel, and ignores its wake-ups.
    pub(crate) fn remove(&self, number: u64) {
        if let Some(channel) = lock(&self.channels).remove(&number) {
            // Closing it is not enough: while the peer has a copy of this end, the system keeps it in the set.
            let _ = epoll::delete(&self.ready, &*channel);
        }
    }

    /// Takes the pending wake-ups; returns whether one was this process's own. If some are left, the descriptor is readable
    /// again.
    pub(crate) fn take(&self) -> bool {
        let mut was_own = false;
        for _ in 0..ROUNDS {
            let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let Ok((events, _)) = epoll::wait(&self.ready, &mut events, Some(&now)) else {
                return was_own;
            };
            for event in &*events {
                match event.data.u64() {
                    OWN => was_own = true,
                    number => self.empty(number),
                }
            }
            if events.len() < BATCH {
                return was_own;
            }
        }
        // The next call takes the rest.
        self.signal();
        was_own
    }

    /// Takes the pending wake-ups, as [`Wakes::take`]: calls `each` with the number of each channel that has any, and whether the
    /// peer has closed or misused it.
    pub(crate) fn take_each(&self, mut each: impl FnMut(u64, bool)) {
        for _ in 0..ROUNDS {
            let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let Ok((events, _)) = epoll::wait(&self.ready, &mut events, Some(&now)) else { return };
            for event in &*events {
                let number = event.data.u64();
                let channel = lock(&self.channels).get(&number).cloned();
                if let Some(channel) = channel {
                    let is_gone =
                        !channel.take_wakes() || { event.flags }.contains(EventFlags::HUP);
                    if is_gone {
                        self.remove(number);
                    }
                    each(number, is_gone);
                }
            }
            if events.len() < BATCH {
                return;
            }
        }
        self.signal();
    }

    fn empty(&self, number: u64) {
        let channel = lock(&self.channels).get(&number).cloned();
        if channel.is_some_and(|channel| !channel.take_wakes()) {
            self.remove(number);
        }
    }
}

impl AsFd for Wakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsRawFd for Wakes {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn is_ready(wakes: &Wakes) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(wakes, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn each_wake_up_is_reported_and_none_remains_after_take() {
        let wakes = Wakes::new().unwrap();
        let ends: Vec<_> = (0..200)
            .map(|number| {
                let (ours, theirs) = Socket::pair().unwrap();
                wakes.add(number, Arc::new(ours)).unwrap();
                Socket::new(theirs)
            })
            .collect();
        for _ in 0..3 {
            assert!(!is_ready(&wakes));
            ends[7].wake();
            assert!(is_ready(&wakes));
            assert!(!wakes.take(), "a peer sent the wake-up");
            wakes.signal();
            assert!(is_ready(&wakes));
            assert!(wakes.take());
            ends.iter().for_each(Socket::wake);
            assert!(!wakes.take());
        }
        wakes.remove(7);
        ends[7].wake();
        assert!(!is_ready(&wakes), "the channel was removed");
    }

    #[test]
    fn a_peer_that_fills_its_channel_blocks_no_other_wake_up() {
        let wakes = Wakes::new().unwrap();
        let [(one, hostile), (other, honest)] = [(); 2].map(|()| Socket::pair().unwrap());
        wakes.add(0, Arc::new(one)).unwrap();
        wakes.add(1, Arc::new(other)).unwrap();
        let (hostile, honest) = (Socket::new(hostile), Socket::new(honest));
        for _ in 0..10_000 {
            hostile.wake();
        }
        wakes.take();
        honest.wake();
        assert!(is_ready(&wakes));
        // Nor does a peer that sends descriptors, or closes its channel.
        hostile.send(&[0], &[hostile.as_fd()]).unwrap();
        wakes.take();
        drop(hostile);
        wakes.take();
        honest.wake();
        assert!(is_ready(&wakes));
    }
}
