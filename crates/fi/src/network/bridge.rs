//! Copies between rings and pipes: on the application's thread while it polls, otherwise on a thread of its own.

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use midplane_simhw::shm::rings::{RingPair, WakeSet};
use midplane_via::wire::endpoint::{Endpoint, Event};
use midplane_via::wire::pipe::Config;
use midplane_via::wire::socket::Socket;
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::time::{Sleep, sleep};

use super::link::{Link, lock};
use super::{Accept, Dial, Shared};
use crate::endpoint::RING_BYTES;

/// Time without polls after which the thread takes over from the application.
const TAKEOVER: Duration = Duration::from_millis(1);
/// Longest time for which a close sends what waits.
const LEAVE: Duration = Duration::from_secs(5);
/// Turns of the application between two checks for closed rings, which take a system call.
const CLOSED: u32 = 64;

/// All rings and pipes of an endpoint.
#[derive(Debug)]
pub(super) struct Bridge {
    socket: Socket,
    endpoint: Mutex<Endpoint>,
    /// The number of this process's endpoint, sent first in each dialed pipe.
    number: u64,
    links: Slab<Link>,
    wakes: AsyncFd<WakeSet>,
    dialed: Receiver<Dial>,
    accepts: Sender<Accept>,
    shared: Arc<Shared>,
    is_closing: bool,
    /// Ends a close that takes too long; `None` before it begins.
    leave: Option<Pin<Box<Sleep>>>,
    turns: u32,
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
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(WakeSet::new()?, Interest::READABLE)?;
        Ok(Self {
            socket,
            endpoint,
            number,
            links: Slab::new(),
            wakes,
            dialed,
            accepts,
            shared,
            is_closing: false,
            leave: None,
            turns: 0,
        })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Runs one turn, for a thread that polls; returns whether there was any work.
    pub(super) fn poll_now(&mut self) -> bool {
        self.turns += 1;
        let mut is_busy = self.take_dials() | self.pump();
        // One call sends the application's records and receives.
        is_busy |= self.socket.poll_now(&self.endpoint, true).unwrap_or(false);
        if self.turns.is_multiple_of(CLOSED) {
            self.take_closed();
        }
        is_busy |= self.take_events() | self.pump() | self.introduce();
        self.remove_ended();
        is_busy
    }

    /// Sends pending records, and receives nothing.
    pub(super) fn send_now(&mut self) {
        self.take_dials();
        self.pump();
        // An error concerns one datagram, or occurs again in the next turn.
        let _ = self.socket.poll_now(&self.endpoint, false);
    }

    /// Runs turns until there is no work, and is then pending. Ready with `true` at the end.
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
            is_busy |= self.pump();
            is_busy |= self.introduce();
            self.remove_ended();
            if self.is_closing && (self.links.is_empty() || self.is_late(context)) {
                return Poll::Ready(true);
            }
            let endpoint = &self.endpoint;
            if !is_busy && self.links.iter_mut().all(|(_, link)| link.park(endpoint)) {
                return Poll::Pending;
            }
        }
    }

    /// Returns whether the close has taken too long.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let leave = self.leave.get_or_insert_with(|| Box::pin(sleep(LEAVE)));
        leave.as_mut().poll(context).is_ready()
    }

    /// Copies in both directions on all links; returns whether there was anything to copy.
    fn pump(&mut self) -> bool {
        let (now, mut is_busy) = (self.socket.now(), false);
        for (_, link) in &mut self.links {
            is_busy |= link.pump(&self.endpoint, now);
        }
        is_busy
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

    /// Registers a link's rings for wake-ups.
    fn watch(&mut self, key: usize) {
        let link = &mut self.links[key];
        let rings = link.rings.as_ref();
        link.has_left |=
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
        self.take_closed();
        true
    }

    /// Records which rings the endpoint has closed.
    fn take_closed(&mut self) {
        let links = &mut self.links;
        self.wakes.get_ref().take(|number, is_gone| {
            let link = usize::try_from(number).ok().and_then(|key| links.get_mut(key));
            if let Some(link) = link {
                link.has_left |= is_gone;
            }
        });
    }

    /// Passes peers that have sent their numbers to the endpoint.
    fn introduce(&mut self) -> bool {
        let news: Vec<_> =
            self.links.iter().filter(|(_, link)| link.is_new()).map(|(key, _)| key).collect();
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

    /// Removes ended links; the endpoint detects the end by its rings.
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

/// Locks a bridge.
fn held(bridge: &Mutex<Bridge>) -> MutexGuard<'_, Bridge> {
    bridge.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies while the application does not poll. Ends when the endpoint is closed and its records are acknowledged or
/// given up.
pub(super) fn serve(runtime: &Runtime, bridge: &Mutex<Bridge>, shared: &Shared) {
    let mut seen = 0;
    loop {
        let polls = shared.polls.load(Ordering::Acquire);
        let is_polled = std::mem::replace(&mut seen, polls) != polls;
        if is_polled && !shared.is_released.swap(false, Ordering::AcqRel) {
            thread::park_timeout(TAKEOVER);
            continue;
        }
        shared.is_serving.store(true, Ordering::Release);
        let is_done = runtime.block_on(run(bridge, shared, polls));
        shared.is_serving.store(false, Ordering::Release);
        if is_done {
            return;
        }
    }
}

/// Copies until the application polls again; returns `true` at the end.
async fn run(bridge: &Mutex<Bridge>, shared: &Shared, polls: u64) -> bool {
    loop {
        let mut notified = std::pin::pin!(shared.notify.notified());
        let is_done = poll_fn(|context| {
            if notified.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            if shared.polls.load(Ordering::Acquire) != polls {
                return Poll::Ready(Some(false));
            }
            held(bridge).poll(context).map(Some)
        });
        if let Some(is_done) = is_done.await {
            return is_done;
        }
    }
}
