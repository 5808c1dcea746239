//! Descriptors that wake threads.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::endpoint::Endpoint;

/// A descriptor that is readable when an event has occurred since the domain was parked for it. Each waiting thread has
/// its own, so that no thread takes the wake-up of another one.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ready: OwnedFd,
    /// An eventfd for events of this process.
    pub(super) own: OwnedFd,
    pub(super) is_parked: bool,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&ready, &own, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { ready, own, is_parked: false })
    }

    /// Makes the descriptor readable.
    pub(super) fn signal(&self) {
        // It fails only after 2^64 - 1 signals.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Withdraws the signals so far.
    pub(super) fn clear(&self) {
        // An error means that the eventfd was not set.
        let _ = rustix::io::read(&self.own, &mut [0; 8]);
    }

    /// Makes the descriptor readable when a peer of an endpoint wakes this process, or connects.
    pub(super) fn watch(&self, endpoint: &Endpoint) -> io::Result<()> {
        for descriptor in endpoint.descriptors() {
            epoll::add(&self.ready, descriptor, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
    }
}
