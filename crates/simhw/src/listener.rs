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

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Visitor<S> {
    pub(crate) socket: Arc<Socket>,
    pub(crate) state: S,
    /// When its handshake is overdue; far in the future once that is complete.
    pub(crate) until: Instant,
}

impl<S> Visitor<S> {
    /// Begins a handshake.
    pub(crate) fn new(socket: Socket, state: S, now: Instant) -> Self {
        Self { socket: Arc::new(socket), state, until: now + TIMEOUT }
    }
}

/// The kind of a listener's visitors.
pub(crate) trait Service: Send + 'static {
    /// The state of a connection; its default is that of one which has sent nothing.
    type State: Default + Send;

    /// Works before a wait, and may add connections. Returns until when the wait may last; zero for not at all.
    fn before_wait(&mut self, visitors: &mut Vec<Visitor<Self::State>>) -> Instant;

    /// Returns the wake-ups that end a wait.
    fn wakes(&self) -> Option<&Wakes> {
        None
    }

    /// Handles a message of a connection, or its end. Returns whether the connection stays.
    fn on_readable(&mut self, visitors: &mut [Visitor<Self::State>], index: usize) -> bool;

    /// Handles a connection that was closed.
    fn on_closed(&mut self, state: Self::State);

    /// Handles the end of the listener, with the connections that are open.
    fn on_end(&mut self, _visitors: Vec<Visitor<Self::State>>) {}

    /// Works after a wait and its messages; `is_woken` if the wake-ups have ended it.
    fn after_wait(&mut self, _visitors: &[Visitor<Self::State>], _is_woken: bool) {}
}

/// A running listener; dropping it ends it.
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
        let mut event_loop = EventLoop { stopped, acceptor, visitors: Vec::new(), service };
        let thread = std::thread::Builder::new().name(name).spawn(move || event_loop.run())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Both calls fail only if the thread has ended already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        // The service may wake tasks on its own thread, and one of them may be the last owner.
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
    visitors: Vec<Visitor<S::State>>,
    service: S,
}

/// The descriptors that are readable.
struct Ready {
    stop: bool,
    acceptor: bool,
    wakes: bool,
    visitors: Vec<bool>,
}

impl<S: Service> Drop for EventLoop<S> {
    fn drop(&mut self) {
        self.service.on_end(std::mem::take(&mut self.visitors));
    }
}

impl<S: Service> EventLoop<S> {
    fn run(&mut self) {
        loop {
            let until = self.service.before_wait(&mut self.visitors);
            // A connection is overdue if it was so before the wait: what has arrived since is handled.
            let now = Clock::now();
            let ready = self.wait(now, until);
            if ready.stop {
                return;
            }
            // From the back, so that a removal moves no index that is still to come.
            for index in (0..self.visitors.len()).rev() {
                let stays = self.visitors[index].until > now
                    && (!ready.visitors[index]
                        || self.service.on_readable(&mut self.visitors, index));
                if !stays {
                    let closed = self.visitors.swap_remove(index);
                    self.service.on_closed(closed.state);
                }
            }
            let now = Clock::now();
            let accepted = self.acceptor.accept(ready.acceptor, now).into_iter();
            let visitors = accepted.map(|socket| Visitor::new(socket, S::State::default(), now));
            self.visitors.extend(visitors);
            self.service.after_wait(&self.visitors, ready.wakes);
        }
    }

    /// Waits until a descriptor is readable, a handshake is overdue, or it is `until`.
    fn wait(&self, now: Instant, until: Instant) -> Ready {
        let stop = PollFd::new(&self.stopped, PollFlags::IN);
        let visitors = self.visitors.iter().map(|v| PollFd::new(&*v.socket, PollFlags::IN));
        let mut polled: Vec<_> =
            [stop, self.acceptor.polled()].into_iter().chain(visitors).collect();
        polled.extend(self.service.wakes().map(|wakes| PollFd::new(wakes, PollFlags::IN)));
        let deadlines = self.visitors.iter().map(|visitor| visitor.until);
        let next = deadlines.chain(self.acceptor.paused_until()).fold(until, Instant::min);
        let least = if until == Instant::ZERO { Duration::ZERO } else { Duration::from_millis(1) };
        let left = Timespec::try_from(next.since(now).max(least)).ok();
        // After an error or an interruption, no descriptor is known to be ready.
        let timeout = left.filter(|_| next != Instant::FAR_FUTURE);
        let is_any = poll(&mut polled, timeout.as_ref()).is_ok_and(|count| count > 0);
        let mut ready = polled.iter().map(|one| is_any && !one.revents().is_empty());
        let mut one = || ready.next().unwrap_or(false);
        let (stop, acceptor) = (one(), one());
        let visitors = ready.by_ref().take(self.visitors.len()).collect();
        Ready { stop, acceptor, visitors, wakes: ready.next().unwrap_or(false) }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketAddrUnix;

    use super::*;
    use crate::acceptor::Admitted;

    /// Closes what sends anything but one word, once.
    struct OneWord;

    impl Service for OneWord {
        type State = ();

        fn before_wait(&mut self, _: &mut Vec<Visitor<()>>) -> Instant {
            Instant::FAR_FUTURE
        }

        fn on_readable(&mut self, visitors: &mut [Visitor<()>], index: usize) -> bool {
            let visitor = &mut visitors[index];
            let is_new = std::mem::replace(&mut visitor.until, Instant::FAR_FUTURE);
            matches!(visitor.socket.receive::<1>(), Ok(Some(_))) && is_new != Instant::FAR_FUTURE
        }

        fn on_closed(&mut self, (): ()) {}
    }

    /// Waits until the other end is closed; `false` if it is not within `limit`.
    fn is_closed_within(socket: &Socket, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        let count = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)).unwrap();
        count == 1 && matches!(socket.receive::<1>(), Ok(None))
    }

    #[test]
    fn connections_that_are_silent_too_many_or_go_on_after_their_word_are_closed() {
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
        assert!(!is_closed_within(&silent, Duration::ZERO), "it has its time");
        assert!(is_closed_within(&silent, 10 * TIMEOUT));
        assert!(!is_closed_within(&polite, Duration::ZERO), "it has greeted");
        drop(listener);
        assert!(is_closed_within(&polite, 10 * TIMEOUT), "all end with the listener");
    }
}
