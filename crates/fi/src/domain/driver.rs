//! The thread that moves messages of a domain whose application requests `FI_PROGRESS_AUTO`.
//!
//! While the application polls, its polls do the work, and the thread only checks every millisecond whether they
//! continue. After the last poll the thread does the work, and sleeps on the endpoints' descriptors while there is
//! none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{MOST_WAIT, Shared, Waiter};

/// Time without polls after which the thread takes over from the application.
const TAKEOVER: Duration = Duration::from_millis(1);

/// The thread of a domain. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The reason for the thread's next wait.
enum Rest {
    /// The application polls.
    Polled,
    /// There is no work.
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
            // An error means that the thread has panicked.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Runs turns until the domain has no driver any more.
    fn drive(&self, ready: BorrowedFd<'_>, kicks: BorrowedFd<'_>) {
        let mut polls = self.lock().polls;
        loop {
            // An error means that the eventfd was not set.
            let _ = rustix::io::read(kicks, &mut [0; 8]);
            let (descriptor, most) = match self.turn(&mut polls) {
                Some(Rest::Polled) => (kicks, TAKEOVER),
                Some(Rest::Parked) => (ready, MOST_WAIT),
                None => return,
            };
            let most = Timespec::try_from(most).ok();
            // After an interrupt as well, the next turn handles the events.
            let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], most.as_ref());
        }
    }

    /// Works until there is no work left, unless the application has polled since the last turn.
    fn turn(&self, polls: &mut u64) -> Option<Rest> {
        let mut was_idle = false;
        loop {
            let mut core = self.lock();
            core.driver.as_mut()?.is_parked = false;
            let is_polled = std::mem::replace(polls, core.polls) != core.polls;
            if is_polled && !core.is_awaited() {
                return Some(Rest::Polled);
            }
            core.unpark();
            let has_any = core.advance();
            if has_any {
                was_idle = false;
                continue;
            }
            if core.park_endpoints() {
                core.driver.as_mut()?.is_parked = true;
                core.is_driven = true;
                return Some(Rest::Parked);
            }
            // What has arrived has no space, such as in a full queue.
            if std::mem::replace(&mut was_idle, true) {
                return Some(Rest::Polled);
            }
        }
    }
}
