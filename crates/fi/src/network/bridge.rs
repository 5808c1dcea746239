//! The thread between rings and pipes.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use midplane_simhw::shm::rings::{RingPair, WakeSet};
use midplane_via::wire::endpoint::{Endpoint, Event};
use midplane_via::wire::pipe::Config;
use midplane_via::wire::socket::Socket;
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::link::{Link, lock};
use super::{Accept, Dial, Shared};
use crate::endpoint::RING_BYTES;

/// All of the thread's state.
#[derive(Debug)]
pub(super) struct Bridge {
    socket: Socket,
    endpoint: Mutex<Endpoint>,
    /// The number of this process's endpoint, which begins each dialed pipe.
    number: u64,
    links: Slab<Link>,
    wakes: AsyncFd<WakeSet>,
    dialed: Receiver<Dial>,
    accepts: Sender<Accept>,
    shared: Arc<Shared>,
    is_closing: bool,
}

impl Bridge {
    /// Binds the socket. It must be called within a runtime.
    pub(super) fn open(
        address: SocketAddr,
        config: Config,
        number: u64,
        (dialed, accepts): (Receiver<Dial>, Sender<Accept>),
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let socket = Socket::bind(address)?;
        let config = config.socket_bytes(socket.receive_bytes());
        let endpoint = Mutex::new(Endpoint::new(config, getrandom::u64()?));
        // Not all versions of tokio that will do deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(WakeSet::new()?, Interest::READABLE)?;
        let (links, is_closing) = (Slab::new(), false);
        Ok(Self { socket, endpoint, number, links, wakes, dialed, accepts, shared, is_closing })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Copies until the endpoint is closed, and what it has sent is acknowledged or given up.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut notified = std::pin::pin!(shared.notify.notified());
            let is_done = poll_fn(|context| {
                if notified.as_mut().poll(context).is_ready() {
                    return Poll::Ready(false);
                }
                self.poll(context)
            });
            if is_done.await {
                return;
            }
        }
    }

    /// Does all that can be done; pending if nothing is left. Ready with `true` at the end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            let mut is_busy = self.take_dials();
            match self.socket.poll(context, &self.endpoint) {
                Poll::Ready(Ok(())) => is_busy = true,
                Poll::Ready(Err(_)) => return Poll::Ready(true),
                Poll::Pending => {}
            }
            is_busy |= self.take_events();
            is_busy |= self.take_wakes(context);
            for (_, link) in &mut self.links {
                is_busy |= link.pump(&self.endpoint, self.socket.now());
            }
            is_busy |= self.introduce();
            self.remove_ended();
            if self.is_closing && self.links.is_empty() {
                return Poll::Ready(true);
            }
            let endpoint = &self.endpoint;
            if !is_busy && self.links.iter_mut().all(|(_, link)| link.park(endpoint)) {
                return Poll::Pending;
            }
        }
    }

    fn take_dials(&mut self) -> bool {
        match self.dialed.try_recv() {
            Ok((to, rings)) => {
                let mut endpoint = lock(&self.endpoint);
                let id = endpoint.dial(self.socket.now(), to);
                if let Some(pipe) = endpoint.pipe(id) {
                    pipe.write(&[IoSlice::new(&self.number.to_le_bytes())]);
                }
                drop(endpoint);
                let key = self.links.insert(Link::new(id, Some(rings)));
                self.watch(key);
                true
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => {
                let is_new = !std::mem::replace(&mut self.is_closing, true);
                if is_new {
                    lock(&self.endpoint).set_accepting(false);
                    self.links.iter_mut().for_each(|(_, link)| link.has_left = true);
                }
                is_new
            }
        }
    }

    /// Watches for wake-ups of a link's rings.
    fn watch(&mut self, key: usize) {
        let link = &mut self.links[key];
        let rings = link.rings.as_ref();
        link.has_left =
            rings.is_some_and(|rings| self.wakes.get_ref().add(key as u64, rings).is_err());
    }

    fn take_events(&mut self) -> bool {
        let mut has_any = false;
        loop {
            let event = lock(&self.endpoint).poll_event();
            let Some(event) = event else { return has_any };
            has_any = true;
            match event {
                Event::Accepted(pipe, _) => {
                    self.links.insert(Link::new(pipe, None));
                }
                Event::Ended(pipe, _) => {
                    let is_it = |link: &&mut Link| link.pipe == pipe;
                    let mut links = self.links.iter_mut().map(|(_, link)| link);
                    if let Some(link) = links.find(is_it) {
                        link.has_ended = true;
                    }
                }
                Event::Established(_) | Event::Progress(_) => {}
            }
        }
    }

    fn take_wakes(&mut self, context: &mut Context<'_>) -> bool {
        let Poll::Ready(Ok(mut ready)) = self.wakes.poll_read_ready(context) else { return false };
        ready.clear_ready();
        let links = &mut self.links;
        self.wakes.get_ref().take(|number, is_gone| {
            let link = usize::try_from(number).ok().and_then(|key| links.get_mut(key));
            if let Some(link) = link {
                link.has_left |= is_gone;
            }
        });
        true
    }

    /// Hands peers to the endpoint that have said their numbers.
    fn introduce(&mut self) -> bool {
        let is_new = |link: &Link| link.rings.is_none() && link.incoming.len() >= 8;
        let news: Vec<_> =
            self.links.iter().filter(|(_, link)| is_new(link)).map(|(key, _)| key).collect();
        for key in &news {
            let link = &mut self.links[*key];
            let number: Vec<_> = link.incoming.drain(..8).collect();
            let number = u64::from_le_bytes(number.try_into().expect("eight bytes"));
            let Ok([mine, theirs]) = RingPair::local(RING_BYTES) else {
                link.has_left = true;
                continue;
            };
            link.rings = Some(mine);
            self.watch(*key);
            // The first fails only if the endpoint is closed, the second after 2^64 - 1 peers.
            let _ = self.accepts.send((theirs, number));
            let _ = rustix::io::write(&self.shared.accepted, &1_u64.to_ne_bytes());
        }
        !news.is_empty()
    }

    /// Removes links from which nothing more comes; the endpoint notices by the end of its rings.
    fn remove_ended(&mut self) {
        let endpoint = &self.endpoint;
        let is_over = |link: &Link| link.is_over(endpoint);
        let over: Vec<_> =
            self.links.iter().filter(|(_, link)| is_over(link)).map(|(key, _)| key).collect();
        for key in over {
            self.wakes.get_ref().remove(key as u64);
            let link = self.links.remove(key);
            lock(&self.endpoint).release(link.pipe);
        }
    }
}
