//! The thread that moves messages of a domain whose application asks for `FI_PROGRESS_AUTO`.
//!
//! While the application polls, its polls do the work, and the thread only checks each millisecond whether they continue.
//! After the last one it works itself, and sleeps on the endpoints' descriptors while there is nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{MOST_WAIT, Shared, Waiter};

/// Time after which polls of the application are taken to have ended.
const PATIENCE: Duration = Duration::from_millis(1);

/// The thread of a domain. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The next wait of the thread.
enum Rest {
    /// The application polls.
    Patience,
    /// Nothing is left to do.
    Parked,
}

impl Driver {
    /// Starts the thread, before the domain has endpoints.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let waiter = Waiter::new()?;
        let (ready, kicks) = (rustix::io::dup(&waiter.ready)?, rustix::io::dup(&waiter.own)?);
        shared.lock().driver = Some(waiter);
        let driven = Arc::clone(&shared);
        let run = move || driven.drive(ready.as_fd(), kicks.as_fd());
        let thread = thread::Builder::new().name("midplane-fi auto".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(driver) = self.shared.lock().driver.take() {
            driver.signal();
        }
        if let Some(thread) = self.thread.take() {
            // It has panicked: nothing is left to end.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Works until the domain has no driver any more.
    fn drive(&self, ready: BorrowedFd<'_>, kicks: BorrowedFd<'_>) {
        let mut polls = self.lock().polls;
        loop {
            // It fails if there is nothing to take.
            let _ = rustix::io::read(kicks, &mut [0; 8]);
            let (descriptor, most) = match self.turn(&mut polls) {
                Some(Rest::Patience) => (kicks, PATIENCE),
                Some(Rest::Parked) => (ready, MOST_WAIT),
                None => return,
            };
            let most = Timespec::try_from(most).ok();
            // Interrupted or not, what has happened is seen by the next turn.
            let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], most.as_ref());
        }
    }

    /// Works until nothing is left, unless the application has polled since the last turn.
    fn turn(&self, polls: &mut u64) -> Option<Rest> {
        loop {
            let mut core = self.lock();
            core.driver.as_mut()?.is_parked = false;
            let is_polled = std::mem::replace(polls, core.polls) != core.polls;
            if is_polled && !core.waiter.as_ref().is_some_and(|waiter| waiter.is_parked) {
                return Some(Rest::Patience);
            }
            let has_any = core.advance();
            if has_any {
                continue;
            }
            if core.park_endpoints() {
                core.driver.as_mut()?.is_parked = true;
                core.is_driven = true;
                return Some(Rest::Parked);
            }
        }
    }
}
