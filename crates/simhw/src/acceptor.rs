//! Takes in processes of this host that map memory of this one: peers, and clients of a daemon.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use rustix::process::geteuid;

use crate::passing::{Socket, seqpacket};
use crate::time::Instant;

/// Connections that may wait to be taken.
const BACKLOG: i32 = 1_024;
/// Connections that are taken in a row: whoever connects faster holds nobody up.
const BATCH: usize = 64;
/// How long nobody is taken in where the system has no descriptor for who knocks: less than a
/// client waits, and long enough to cost nothing.
const DEAF: Duration = Duration::from_millis(50);

/// A place where processes knock.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: OwnedFd,
    admitted: Vec<u32>,
    /// Who knocks could not be taken in, and would be heard all the time.
    deaf_until: Option<Instant>,
}

impl Acceptor {
    /// Listens at `address`, for processes of the own user and of those that are admitted.
    pub(crate) fn open(address: &SocketAddrUnix, admitted: Vec<u32>) -> rustix::io::Result<Self> {
        let listener = seqpacket()?;
        bind(&listener, address)?;
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, admitted, deaf_until: None })
    }

    pub(crate) fn admits(&self, user: u32) -> bool {
        user == geteuid().as_raw() || self.admitted.contains(&user)
    }

    /// What to wait for before [`Acceptor::accept`]: nothing while it is deaf.
    pub(crate) fn polled(&self) -> PollFd<'_> {
        let knocks = if self.deaf_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        PollFd::new(&self.listener, knocks)
    }

    /// When to call [`Acceptor::accept`] whether anybody knocks or not.
    pub(crate) const fn deaf_until(&self) -> Option<Instant> {
        self.deaf_until
    }

    /// Takes in those of the users that are admitted, if anybody knocks or it is no longer deaf.
    pub(crate) fn accept(&mut self, is_ready: bool, now: Instant) -> Vec<Socket> {
        let mut taken = Vec::new();
        let is_deaf = self.deaf_until.map_or(!is_ready, |until| now < until);
        if is_deaf {
            return taken;
        }
        self.deaf_until = None;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..BATCH {
            match accept_with(&self.listener, flags) {
                Ok(socket) => {
                    let socket = Socket::new(socket);
                    if socket.user().is_ok_and(|user| self.admits(user)) {
                        taken.push(socket);
                    }
                }
                Err(Errno::AGAIN) => break,
                // Whoever it was has gone.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    self.deaf_until = Some(now + DEAF);
                    break;
                }
            }
        }
        taken
    }
}
