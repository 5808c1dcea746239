//! Wakes the ranks of one host: tasks of one process by wakers, other processes by eventfds.

use std::sync::Arc;
use std::task::Context;

use atomic_waker::AtomicWaker;

#[cfg(all(target_os = "linux", feature = "live"))]
use std::os::fd::OwnedFd;

/// The wake-up mechanisms of all ranks of a job on one host, in the order of its layout.
#[derive(Clone, Debug)]
pub(crate) enum Bells {
    /// The ranks are tasks of this process, which wakers wake.
    Near(Arc<[AtomicWaker]>),
    /// The ranks are processes, which eventfds wake.
    #[cfg(all(target_os = "linux", feature = "live"))]
    Far(Arc<[Arc<OwnedFd>]>),
}

impl Bells {
    /// Creates bells for `ranks` tasks of this process.
    pub(crate) fn near(ranks: usize) -> Self {
        Self::Near((0..ranks).map(|_| AtomicWaker::new()).collect())
    }

    /// Creates bells for `ranks` processes.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub(crate) fn far(ranks: usize) -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};

        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let events = (0..ranks).map(|_| Ok(Arc::new(eventfd(0, flags)?)));
        Ok(Self::Far(events.collect::<std::io::Result<_>>()?))
    }

    /// Returns the eventfds of processes.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub(crate) fn events(&self) -> &[Arc<OwnedFd>] {
        match self {
            Self::Near(_) => &[],
            Self::Far(events) => events,
        }
    }

    /// Wakes a rank.
    pub(super) fn ring(&self, rank: usize) {
        match self {
            Self::Near(wakers) => wakers[rank].wake(),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Far(events) => {
                // Fails only if the eventfd is already signalled.
                let _ = rustix::io::write(&*events[rank], &1_u64.to_ne_bytes());
            }
        }
    }
}

/// The bell by which a rank is woken.
#[derive(Debug)]
pub(super) enum OwnBell {
    Near(Arc<[AtomicWaker]>, usize),
    #[cfg(all(target_os = "linux", feature = "live"))]
    Far(tokio::io::unix::AsyncFd<Arc<OwnedFd>>),
}

impl OwnBell {
    /// Opens the bell of a rank.
    ///
    /// # Panics
    /// If the rank is a process, and the current runtime's I/O is not enabled.
    pub(super) fn open(bells: &Bells, rank: usize) -> std::io::Result<Self> {
        Ok(match bells {
            Bells::Near(wakers) => Self::Near(Arc::clone(wakers), rank),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Bells::Far(events) => Self::Far(watch(Arc::clone(&events[rank]))?),
        })
    }

    /// Has the task of `context` woken when the bell rings. Returns whether it has already rung.
    pub(super) fn hears(&self, context: &mut Context<'_>) -> bool {
        match self {
            Self::Near(wakers, rank) => {
                wakers[*rank].register(context.waker());
                false
            }
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Far(event) => has_rung(event, context),
        }
    }
}

#[cfg(all(target_os = "linux", feature = "live"))]
// Only some of the supported versions of tokio deprecate it, so `expect` would fail with others.
#[allow(deprecated, reason = "the event stays open; the replacement is unsafe")]
fn watch(event: Arc<OwnedFd>) -> std::io::Result<tokio::io::unix::AsyncFd<Arc<OwnedFd>>> {
    tokio::io::unix::AsyncFd::with_interest(event, tokio::io::Interest::READABLE)
}

#[cfg(all(target_os = "linux", feature = "live"))]
fn has_rung(event: &tokio::io::unix::AsyncFd<Arc<OwnedFd>>, context: &mut Context<'_>) -> bool {
    use std::task::Poll;

    while let Poll::Ready(Ok(mut ready)) = event.poll_read_ready(context) {
        if rustix::io::read(&**event.get_ref(), &mut [0; 8]).is_ok() {
            return true;
        }
        ready.clear_ready();
    }
    false
}
