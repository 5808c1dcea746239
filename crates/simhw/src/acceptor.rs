//! Accepts connections from processes of this host: peers, and clients of a daemon.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use rustix::process::geteuid;

use crate::passing::{Place, Socket, seqpacket};
use crate::time::Instant;

/// Connections that may wait to be taken.
const BACKLOG: i32 = 1_024;
/// Connections that one call accepts: processes that connect faster wait for the next.
const BATCH: usize = 64;
/// Pause in accepting after the system had no descriptor for a connection: shorter than a client's patience,
/// and long enough to cost no processor time.
const REST: Duration = Duration::from_millis(50);

/// A listening socket, and the users whose processes it admits.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: OwnedFd,
    admitted: Vec<u32>,
    /// Connections that each process may have, those included that are not closed yet.
    most: usize,
    /// Of each process with any: cloned for each of them.
    connections: BTreeMap<u32, Arc<()>>,
    /// The system had no descriptor for a connection that waits, and that makes the listener readable all the time.
    rests_until: Option<Instant>,
}

impl Acceptor {
    /// Listens at `address` for processes of the own user and of the users that are admitted. A process that has
    /// `most` connections gets no further one.
    pub(crate) fn open(
        address: &SocketAddrUnix,
        admitted: Vec<u32>,
        most: usize,
    ) -> rustix::io::Result<Self> {
        let listener = seqpacket()?;
        bind(&listener, address)?;
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, admitted, most, connections: BTreeMap::new(), rests_until: None })
    }

    pub(crate) fn admits(&self, user: u32) -> bool {
        user == geteuid().as_raw() || self.admitted.contains(&user)
    }

    /// Returns what to poll before [`Acceptor::accept`]: no event while it rests.
    pub(crate) fn polled(&self) -> PollFd<'_> {
        let knocks = if self.rests_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        PollFd::new(&self.listener, knocks)
    }

    /// Returns when to call [`Acceptor::accept`] even if the listener is not readable.
    pub(crate) const fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Accepts connections of admitted users, if the listener is readable or has rested long enough.
    pub(crate) fn accept(&mut self, is_ready: bool, now: Instant) -> Vec<Socket> {
        let mut taken = Vec::new();
        let rests = self.rests_until.map_or(!is_ready, |until| now < until);
        if rests {
            return taken;
        }
        self.rests_until = None;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..BATCH {
            match accept_with(&self.listener, flags) {
                Ok(socket) => {
                    let socket = Socket::new(socket);
                    if let Some(place) = self.place_of(&socket) {
                        socket.occupy(place);
                        taken.push(socket);
                    }
                }
                Err(Errno::AGAIN) => break,
                // The process that connected is gone.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    self.rests_until = Some(now + REST);
                    break;
                }
            }
        }
        taken
    }

    /// Returns a place for a connection, unless its process is not admitted or has no place left.
    fn place_of(&mut self, socket: &Socket) -> Option<Place> {
        if !self.admits(socket.user().ok()?) {
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
