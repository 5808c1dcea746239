//! The gossip of a process: messages outside any session, through the socket of its sessions over UDP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::byte_pipe::Pipes;
use super::{Sessions, SharedState};
use crate::wire::gossip::Counters;

/// Sends and receives messages of gossip: see [`wire::gossip`](crate::wire::gossip).
#[derive(Clone, Debug)]
pub struct Gossip {
    shared: Arc<SharedState>,
    pipes: Arc<Pipes>,
}

impl Sessions {
    /// Starts gossip in the cluster of this name, sealed with the key of the sessions over UDP if they have
    /// one. Returns `None` without UDP.
    ///
    /// # Errors
    /// The system's error: it has no random numbers.
    pub fn begin_gossip(&self, cluster: &str) -> io::Result<Option<Gossip>> {
        let Some(pipes) = self.0.pipes.clone() else { return Ok(None) };
        let mut run = [0; 16];
        getrandom::fill(&mut run).map_err(io::Error::other)?;
        pipes.endpoint().begin_gossip(cluster, run);
        let gossip = Gossip { shared: Arc::clone(&self.0), pipes };
        gossip.set_time();
        Ok(Some(gossip))
    }
}

impl Gossip {
    /// Reads the system's time of day. Call it every few seconds: with a key, gossip refuses messages of another time.
    pub fn set_time(&self) {
        self.with(|gossip, now| gossip.set_time(now, milliseconds()));
    }

    /// Sends a message, which may be lost. Returns `false` if it has no bytes, or more than
    /// [`MAX_MESSAGE`](crate::wire::gossip::MAX_MESSAGE).
    pub fn send(&self, to: SocketAddr, message: &[u8]) -> bool {
        let is_sent = self.with(|gossip, now| gossip.send(now, to, message));
        // A driver that is about to wait checks this after it has registered its waker.
        self.shared.has_gossip.store(true, Ordering::Release);
        self.shared.driver.wake();
        is_sent == Some(true)
    }

    /// Receives a message, with its sender's address. One task may wait at a time.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<(SocketAddr, Vec<u8>)> {
        self.pipes.gossip.register(context.waker());
        match self.with(|gossip, _| gossip.poll_message()).flatten() {
            Some(message) => Poll::Ready(message),
            None => Poll::Pending,
        }
    }

    /// Returns the counters of gossip.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.with(|gossip, _| gossip.counters()).unwrap_or_default()
    }

    fn with<R>(
        &self,
        ask: impl FnOnce(&mut crate::wire::gossip::Gossip, midplane_simhw::time::Instant) -> R,
    ) -> Option<R> {
        let now = self.pipes.clock.now();
        self.pipes.endpoint().gossip().map(|gossip| ask(gossip, now))
    }
}

#[expect(clippy::disallowed_methods, reason = "the clocks of hosts are compared")]
fn milliseconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use midplane_simhw::seal::Key;

    use super::super::{Ended, Handler, Refusal, Session, Stream};
    use super::*;
    use crate::wire::gossip::MAX_MESSAGE;
    use crate::wire::pipe::Config;
    use crate::wire::socket::Socket;

    /// A handler that expects no session.
    struct Nothing;

    impl Handler for Nothing {
        fn on_accepted(&mut self, _: &Arc<Session>) {}
        fn on_hello(&mut self, _: &Arc<Session>, _: &[u8]) {}
        fn on_stream(&mut self, _: &Arc<Session>, _: &str, _: Stream) -> Result<(), Refusal> {
            Err(Refusal::NoService)
        }
        fn on_goodbye(&mut self, _: &Arc<Session>) {}
        fn on_ended(&mut self, _: &Arc<Session>, _: Ended) {}
    }

    /// Starts a process that gossips; returns it with its address. Its driver runs until the test ends.
    fn process(key: Option<&Key>) -> (Gossip, SocketAddr) {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let config = Config::default().key(key.cloned());
        let (sessions, driver) = Sessions::new(Some((socket, config)), None).unwrap();
        tokio::spawn(driver.run(Nothing));
        (sessions.begin_gossip("c").unwrap().unwrap(), address)
    }

    #[test]
    fn processes_gossip_through_the_socket_of_their_sessions() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let key = Key::new(1, [1; 32]);
            gossip_with(Some(&key)).await;
            gossip_with(None).await;
            let (sessions, _driver) = Sessions::new(None, None).unwrap();
            assert!(sessions.begin_gossip("c").unwrap().is_none(), "without UDP");
        });
    }

    async fn gossip_with(key: Option<&Key>) {
        let ((one, own), (other, address)) = (process(key), process(key));
        let (thief, _) = process(Some(&Key::new(1, [2; 32])));
        assert!(thief.send(address, b"no"));
        let message = vec![7; MAX_MESSAGE];
        let sent = message.clone();
        // Sends repeatedly, since datagrams may be lost, on loopback too.
        let sending = tokio::spawn(async move {
            loop {
                one.set_time();
                assert!(one.send(address, &sent));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
        let (from, received) = poll_fn(|context| other.poll_receive(context)).await;
        assert!(received == message && from == own);
        while other.counters().refused == 0 {
            thief.send(address, b"no");
            tokio::task::yield_now().await;
        }
        sending.abort();
    }
}
