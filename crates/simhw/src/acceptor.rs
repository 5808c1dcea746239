//! Accepts connections from processes of this host: peers, and clients of a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use rustix::process::geteuid;

use crate::lock::lock;
use crate::passing::{Place, Socket, seqpacket};
use crate::time::Instant;

/// Backlog of the listening socket, in connections.
const BACKLOG: i32 = 1_024;
/// Most connections that one call of [`Acceptor::accept`] accepts; the others wait for the next call.
const BATCH: usize = 64;
/// Pause in accepting after the system had no free descriptor. It is shorter than a client's timeout, and long
/// enough to cost no processor time.
const PAUSE: Duration = Duration::from_millis(50);

/// The users whose processes are admitted besides the own user's. Clones share the list.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct Admitted(Arc<Mutex<BTreeSet<u32>>>);

impl Admitted {
    /// Admits processes of a user from now on.
    pub fn add(&self, user: u32) {
        lock(&self.0).insert(user);
    }

    /// Admits no further processes of a user. Those that are connected remain.
    pub fn remove(&self, user: u32) {
        lock(&self.0).remove(&user);
    }

    pub(crate) fn admits(&self, user: u32) -> bool {
        user == geteuid().as_raw() || lock(&self.0).contains(&user)
    }
}

/// A listening socket, and the users whose processes it admits.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: OwnedFd,
    admitted: Admitted,
    /// Most connections of one process, including those that are not yet closed.
    most: usize,
    /// One entry per connected process. Each connection holds a clone, so that the strong count is the number
    /// of connections plus one.
    connections: BTreeMap<u32, Arc<()>>,
    /// When accepting resumes. Set when the system had no free descriptor: a connection that waits then makes
    /// the listener readable all the time.
    paused_until: Option<Instant>,
}

impl Acceptor {
    /// Listens at `address` for processes of admitted users. A process may have at most `most` connections.
    pub(crate) fn open(
        address: &SocketAddrUnix,
        admitted: Admitted,
        most: usize,
    ) -> rustix::io::Result<Self> {
        let listener = seqpacket()?;
        bind(&listener, address)?;
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, admitted, most, connections: BTreeMap::new(), paused_until: None })
    }

    /// Returns what to poll before [`Acceptor::accept`]. While accepting pauses, it polls for no event.
    pub(crate) fn polled(&self) -> PollFd<'_> {
        let events = if self.paused_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        PollFd::new(&self.listener, events)
    }

    /// Returns when to call [`Acceptor::accept`] although the listener is not readable.
    pub(crate) const fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Accepts connections of admitted users, if the listener is readable or a pause has ended. Also returns whether no
    /// connection waits any more.
    pub(crate) fn accept(&mut self, is_ready: bool, now: Instant) -> (Vec<Socket>, bool) {
        self.accept_most(BATCH, is_ready, now)
    }

    /// Accepts as [`Acceptor::accept`] does, but at most `most` connections.
    pub(crate) fn accept_most(
        &mut self,
        most: usize,
        is_ready: bool,
        now: Instant,
    ) -> (Vec<Socket>, bool) {
        let mut taken = Vec::new();
        let is_paused = self.paused_until.map_or(!is_ready, |until| now < until);
        if is_paused {
            return (taken, false);
        }
        self.paused_until = None;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..most {
            match accept_with(&self.listener, flags) {
                Ok(socket) => {
                    let socket = Socket::new(socket);
                    if let Some(place) = self.place_of(&socket) {
                        socket.occupy(place);
                        taken.push(socket);
                    }
                }
                Err(Errno::AGAIN) => return (taken, true),
                // The connecting process has closed its end.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    self.paused_until = Some(now + PAUSE);
                    break;
                }
            }
        }
        (taken, false)
    }

    /// Reserves a place for a connection. `None` if its process is not admitted or has its most connections.
    fn place_of(&mut self, socket: &Socket) -> Option<Place> {
        if !self.admitted.admits(socket.user().ok()?) {
            return None;
        }
        self.connections.retain(|_, its| Arc::strong_count(its) > 1);
        let its = self.connections.entry(socket.process().ok()?).or_default();
        (Arc::strong_count(its) <= self.most).then(|| Arc::new(Arc::clone(its)))
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
