//! Moves an endpoint's datagrams through a UDP socket of tokio, or of a simulated host.
//!
//! If the system supports it, datagrams are sent in trains and received in batches, each with one system call
//! (UDP segmentation and receive offload, `recvmmsg`). Don't-fragment is set: IP fragments none of them.

#[cfg(feature = "sim")]
mod modelled;
#[cfg(target_os = "linux")]
mod reports;
mod system;

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};

use midplane_simhw::lock::lock;
use midplane_simhw::time::Instant;

use super::endpoint::Endpoint;
use system::System;

/// Most trains sent in one turn.
const SENDS_PER_TURN: usize = 64;

/// A UDP socket with its clock.
#[derive(Debug)]
pub struct Socket {
    io: Io,
    clock: Clock,
}

#[derive(Debug)]
enum Io {
    System(Box<System>),
    #[cfg(feature = "sim")]
    Modelled(modelled::Modelled),
}

/// The clock of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(tokio::time::Instant);

impl Clock {
    /// Starts a clock at the present time.
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub(crate) fn now(self) -> Instant {
        let elapsed = self.0.elapsed();
        // Not zero: that marks a timer that was never set.
        Instant::from_nanos(1).plus_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Socket {
    /// Binds a socket; for port 0, the system chooses a port. On a simulated host, it is one of that host.
    ///
    /// # Errors
    /// The system's error: the address is in use, or not one of this host.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or if the runtime's I/O or time is not enabled.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(host) = midplane_simhw::services::VirtualHost::current() {
            let io = midplane_simhw::services::UdpSocket::bind(address)?;
            return Ok(Self::over(Io::Modelled(modelled::Modelled::new(io, host))));
        }
        System::bind(address).map(|io| Self::over(Io::System(Box::new(io))))
    }

    fn over(io: Io) -> Self {
        Self { io, clock: Clock::start() }
    }

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.io {
            Io::System(io) => io.local_addr(),
            #[cfg(feature = "sim")]
            Io::Modelled(modelled) => Ok(modelled.io.local_addr()),
        }
    }

    /// Returns the size in bytes of the system's receive buffer for this socket, for
    /// [`Config::socket_bytes`](super::pipe::Config::socket_bytes).
    #[must_use]
    pub fn receive_bytes(&self) -> u64 {
        match &self.io {
            Io::System(io) => io.receive_bytes(),
            #[cfg(feature = "sim")]
            Io::Modelled(_) => midplane_simhw::services::RECEIVE_BYTES,
        }
    }

    /// Draws a random number: from the system, or on a simulated host from its seed.
    #[cfg(feature = "session")]
    pub(crate) fn random(&self) -> io::Result<u64> {
        match &self.io {
            Io::System(_) => getrandom::u64().map_err(io::Error::other),
            #[cfg(feature = "sim")]
            Io::Modelled(modelled) => Ok(modelled.random()),
        }
    }

    /// Returns whether the socket is one of the system. On a simulated host, no time passes while a task polls, and
    /// no other process shares memory.
    #[cfg(feature = "session")]
    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.io, Io::System(_))
    }

    /// Returns the time by this socket's clock, for calls of its endpoint.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the clock alone.
    #[cfg(feature = "session")]
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Receives datagrams, handles timeouts that are due, and sends what can be sent.
    ///
    /// Ready if the endpoint may have events, or if there is more to do than one turn does: drain
    /// [`Endpoint::poll_event`] and call it again. Pending if all is done: a datagram, a timeout, or room to
    /// send wakes the task. Call it also after any use of the endpoint: otherwise nothing is sent. No lock is
    /// held during a system call, so other threads can read and write meanwhile.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        endpoint: &Mutex<Endpoint>,
    ) -> Poll<io::Result<()>> {
        let clock = self.clock;
        let mut is_busy = match &mut self.io {
            Io::System(io) => io.receive(context, clock, endpoint)?,
            #[cfg(feature = "sim")]
            Io::Modelled(io) => io.receive(context, clock, endpoint),
        };
        let now = clock.now();
        let mut held = lock(endpoint);
        if held.poll_timeout().is_some_and(|at| at <= now) {
            held.handle_timeout(now);
            is_busy = true;
        }
        drop(held);
        is_busy |= match &mut self.io {
            Io::System(io) => io.transmit(Some(context), clock, now, endpoint)?,
            #[cfg(feature = "sim")]
            Io::Modelled(io) => io.transmit(context, now, endpoint),
        };
        if is_busy {
            return Poll::Ready(Ok(()));
        }
        let held = lock(endpoint);
        if held.has_events() {
            return Poll::Ready(Ok(()));
        }
        let Some(timeout) = held.poll_timeout() else { return Poll::Pending };
        drop(held);
        match &mut self.io {
            Io::System(io) => ready!(io.poll_alarm(context, clock, timeout)),
            #[cfg(feature = "sim")]
            Io::Modelled(io) => ready!(io.poll_alarm(context, now, timeout)),
        }
        Poll::Ready(Ok(()))
    }

    /// Runs one turn of [`poll`](Self::poll) without the runtime, for a thread that polls; returns whether there was
    /// anything to do. Asks the system itself for room to send and, if it `receives`, for datagrams. Arranges no
    /// wake-up.
    ///
    /// # Errors
    /// The system's error.
    #[cfg(feature = "session")]
    pub fn poll_now(&mut self, endpoint: &Mutex<Endpoint>, receives: bool) -> io::Result<bool> {
        let clock = self.clock;
        let mut is_busy = receives && self.receive_now(endpoint);
        let now = clock.now();
        let mut held = lock(endpoint);
        if held.poll_timeout().is_some_and(|at| at <= now) {
            held.handle_timeout(now);
            is_busy = true;
        }
        drop(held);
        match &mut self.io {
            Io::System(io) => is_busy |= io.transmit(None, clock, now, endpoint)?,
            #[cfg(feature = "sim")]
            Io::Modelled(_) => {}
        }
        Ok(is_busy)
    }

    /// Passes a batch of datagrams to the endpoint without asking the runtime whether there are any; returns whether
    /// there were. Arranges no wake-up: the task polls.
    #[cfg(feature = "session")]
    pub(crate) fn receive_now(&mut self, endpoint: &Mutex<Endpoint>) -> bool {
        match &mut self.io {
            Io::System(io) => io.receive_now(self.clock, endpoint),
            #[cfg(feature = "sim")]
            Io::Modelled(_) => false,
        }
    }
}
