//! Serves the connections of other processes of this host on one thread: peers of a fabric, and clients of a daemon.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::acceptor::Acceptor;
use crate::live::clock::Clock;
use crate::passing::Socket;
use crate::time::Instant;
use crate::wakes::Wakes;

/// Longest time that a connection may take for its handshake.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to another process, and its state.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) socket: Arc<Socket>,
    pub(crate) state: S,
    /// Deadline of the handshake; far in the future once that is complete.
    pub(crate) until: Instant,
}

impl<S> Connection<S> {
    /// Wraps a connection whose handshake begins now.
    pub(crate) fn new(socket: Socket, state: S, now: Instant) -> Self {
        Self { socket: Arc::new(socket), state, until: now + TIMEOUT }
    }
}

/// Handles the connections of a listener.
pub(crate) trait Service: Send + 'static {
    /// The state of a connection; its default is that of one which has sent nothing.
    type State: Default + Send;

    /// Runs before each wait, and may add connections. Returns when the wait must end; zero for no wait.
    fn before_wait(&mut self, connections: &mut Vec<Connection<Self::State>>) -> Instant;

    /// Returns the wake-ups that end a wait.
    fn wakes(&self) -> Option<&Wakes> {
        None
    }

    /// Handles a message of a connection, or its end. Returns whether the connection stays.
    fn on_readable(&mut self, connections: &mut [Connection<Self::State>], index: usize) -> bool;

    /// Handles a connection that was closed.
    fn on_closed(&mut self, state: Self::State);

    /// Handles the end of the listener, with the connections that are open.
    fn on_end(&mut self, _visitors: Vec<Connection<Self::State>>) {}

    /// Runs after each wait and its messages; `is_woken` is true if a wake-up has ended it.
    fn after_wait(&mut self, _visitors: &[Connection<Self::State>], _is_woken: bool) {}
}

/// A running listener; dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Listener {
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Listener {
    /// Starts a thread of this name that serves the connections of `acceptor`.
    pub(crate) fn start(
        name: String,
        acceptor: Acceptor,
        service: impl Service,
    ) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let mut event_loop = EventLoop { stopped, acceptor, connections: Vec::new(), service };
        let thread = std::thread::Builder::new().name(name).spawn(move || event_loop.run())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Both calls fail only if the thread has ended already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        // The service may wake a task on its own thread, and that task may drop this listener: a thread cannot join
        // itself.
        let own = std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}

/// The state of a listener's thread.
struct EventLoop<S: Service> {
    stopped: OwnedFd,
    acceptor: Acceptor,
    connections: Vec<Connection<S::State>>,
    service: S,
}

/// The descriptors that are readable.
struct Ready {
    stop: bool,
    acceptor: bool,
    wakes: bool,
    connections: Vec<bool>,
}

impl<S: Service> Drop for EventLoop<S> {
    fn drop(&mut self) {
        self.service.on_end(std::mem::take(&mut self.connections));
    }
}

impl<S: Service> EventLoop<S> {
    fn run(&mut self) {
        loop {
            let until = self.service.before_wait(&mut self.connections);
            // The deadlines are compared with the time before the wait, so that messages of the wait are handled.
            let now = Clock::now();
            let ready = self.wait(now, until);
            if ready.stop {
                return;
            }
            // From the back: `swap_remove` then moves only connections that were handled already.
            for index in (0..self.connections.len()).rev() {
                let stays = self.connections[index].until > now
                    && (!ready.connections[index]
                        || self.service.on_readable(&mut self.connections, index));
                if !stays {
                    let closed = self.connections.swap_remove(index);
                    self.service.on_closed(closed.state);
                }
            }
            let now = Clock::now();
            let accepted = self.acceptor.accept(ready.acceptor, now).0.into_iter();
            let connections =
                accepted.map(|socket| Connection::new(socket, S::State::default(), now));
            self.connections.extend(connections);
            self.service.after_wait(&self.connections, ready.wakes);
        }
    }

    /// Waits until a descriptor is readable, a handshake's deadline has passed, or the time is `until`.
    fn wait(&self, now: Instant, until: Instant) -> Ready {
        let stop = PollFd::new(&self.stopped, PollFlags::IN);
        let connections = self.connections.iter().map(|it| PollFd::new(&*it.socket, PollFlags::IN));
        let mut polled: Vec<_> =
            [stop, self.acceptor.polled()].into_iter().chain(connections).collect();
        polled.extend(self.service.wakes().map(|wakes| PollFd::new(wakes, PollFlags::IN)));
        let deadlines = self.connections.iter().map(|connection| connection.until);
        let next = deadlines.chain(self.acceptor.paused_until()).fold(until, Instant::min);
        let least = if until == Instant::ZERO { Duration::ZERO } else { Duration::from_millis(1) };
        let left = Timespec::try_from(next.since(now).max(least)).ok();
        // After an error or an interruption, no descriptor is known to be ready.
        let timeout = left.filter(|_| next != Instant::FAR_FUTURE);
        let is_any = poll(&mut polled, timeout.as_ref()).is_ok_and(|count| count > 0);
        let mut ready = polled.iter().map(|one| is_any && !one.revents().is_empty());
        let mut one = || ready.next().unwrap_or(false);
        let (stop, acceptor) = (one(), one());
        let connections = ready.by_ref().take(self.connections.len()).collect();
        Ready { stop, acceptor, connections, wakes: ready.next().unwrap_or(false) }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketAddrUnix;

    use super::*;
    use crate::acceptor::Admitted;

    /// Closes a connection unless it sends exactly one message, of one word.
    struct OneWord;

    impl Service for OneWord {
        type State = ();

        fn before_wait(&mut self, _: &mut Vec<Connection<()>>) -> Instant {
            Instant::FAR_FUTURE
        }

        fn on_readable(&mut self, connections: &mut [Connection<()>], index: usize) -> bool {
            let connection = &mut connections[index];
            let is_new = std::mem::replace(&mut connection.until, Instant::FAR_FUTURE);
            matches!(connection.socket.receive::<1>(), Ok(Some(_))) && is_new != Instant::FAR_FUTURE
        }

        fn on_closed(&mut self, (): ()) {}
    }

    /// Waits until the other end is closed. Returns `false` if it is not closed within `limit`.
    fn is_closed_within(socket: &Socket, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        let count = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)).unwrap();
        count == 1 && matches!(socket.receive::<1>(), Ok(None))
    }

    #[test]
    fn surplus_silent_and_talkative_connections_are_closed() {
        let name = format!("listener test {}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let acceptor = Acceptor::open(&address, Admitted::default(), 3).unwrap();
        let listener = Listener::start(name, acceptor, OneWord).unwrap();
        let connect = || Socket::connect(&address).unwrap();
        let [silent, polite, chatty, surplus] = [connect(), connect(), connect(), connect()];
        assert!(is_closed_within(&surplus, TIMEOUT / 2), "a process has at most three");
        polite.send(&[1], &[]).unwrap();
        chatty.send(&[1], &[]).unwrap();
        chatty.send(&[2], &[]).unwrap();
        assert!(is_closed_within(&chatty, TIMEOUT / 2));
        assert!(!is_closed_within(&silent, Duration::ZERO), "its timeout has not passed");
        assert!(is_closed_within(&silent, 10 * TIMEOUT));
        assert!(!is_closed_within(&polite, Duration::ZERO), "its handshake is complete");
        drop(listener);
        assert!(is_closed_within(&polite, 10 * TIMEOUT), "all end with the listener");
    }
}
