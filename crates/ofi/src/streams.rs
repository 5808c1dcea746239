//! Byte streams between processes, over one endpoint of each process.
//!
//! Bytes arrive in order and once, or the stream fails. Each direction has a window: a stream that is not read stops
//! only its own writer.

mod connection;
mod frame;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::CallError;
use crate::endpoint::{Config, Endpoint, Event, PeerId, SendError};
use crate::provider::{Choice, OpenError};
use connection::{Connection, Wakes, register};
use frame::{Frame, HEAD, Kind};
pub use stream::Stream;

/// Most bytes of a frame's payload.
const PIECE: usize = 32 << 10;
/// Most bytes that a stream's sender may send before its reader has consumed any.
const WINDOW: usize = 1 << 20;
/// Most received and most outgoing frames at once: 4 MiB and 2 MiB.
const RECEIVES: usize = 128;
const SENDS: usize = 64;
/// Most frames in flight to one peer.
const SENDS_TO_ONE: usize = SENDS / 2;
/// Most streams of an endpoint, and most that wait to be accepted.
const MOST: usize = 4_096;
const BACKLOG: usize = 64;
/// Most events that are handled before the lock is released for a moment.
const TURN: usize = 64;
/// Period of the search for silent peers; the silence after which a peer is asked whether it is alive; and the silence
/// after which it counts as lost.
const PERIOD: Duration = Duration::from_millis(250);
const ASK: Duration = Duration::from_millis(700);
const SILENCE: Duration = Duration::from_secs(3);
/// Longest wait for a missing frame of a stream whose peer is alive. It may still be in flight, or be repeated.
const MISSING: Duration = Duration::from_secs(5);

/// Time for which a peer gets answers about a stream that was dropped here: longer than it waits for a missing frame.
const ANSWERED: Duration = Duration::from_secs(10);

/// Longest time for which the receiving task lets the last frames leave, once no stream is left.
const LINGER: Duration = Duration::from_secs(3);

/// Opens and accepts streams over one endpoint. Its streams continue after it is dropped. After the last of them, the
/// endpoint closes as soon as its frames have left, or after 3 s.
///
/// If the runtime shuts down before that, dropping the endpoint blocks for up to 1 s while frames are in flight.
#[derive(Debug)]
pub struct Streams {
    shared: Arc<Shared>,
    name: Vec<u8>,
    provider: String,
}

/// The state that streams share with the receiving task.
#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    endpoint: Endpoint,
    connections: BTreeMap<u64, Connection>,
    /// Streams that were dropped here, and whose last frames may still be in flight.
    leaving: BTreeMap<u64, Leaving>,
    /// Streams that peers have opened.
    accepted: VecDeque<u64>,
    acceptor: Option<Waker>,
    /// The receiving task's waker.
    driver: Option<Waker>,
    wakes: Wakes,
    /// When peers without a stream were last searched for, and silent ones.
    searched_at: Instant,
    ticked_at: Instant,
    /// When no stream was left, and none could be opened any more.
    unused_since: Option<Instant>,
    is_closed: bool,
}

/// A stream that was dropped here. Its peer may ask whether this process is alive until the last frames arrive.
#[derive(Debug)]
struct Leaving {
    peer: PeerId,
    /// The answer: [`Kind::Alive`], with the number behind the last frame.
    answer: Frame,
    /// When this is forgotten.
    until: Instant,
}

impl Shared {
    /// Changes the state, and then wakes the tasks concerned. They are woken without the lock, because a waker may drop
    /// a stream.
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let wakes = std::mem::take(&mut state.wakes);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        result
    }
}

impl Streams {
    /// Opens an endpoint, and starts the receiving task.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn open(choice: &Choice) -> Result<Self, OpenError> {
        let config = Config::new(HEAD + PIECE).receives(RECEIVES).sends(SENDS);
        let mut endpoint = Endpoint::open(choice, &config)?;
        endpoint.linger();
        let (name, provider) = (endpoint.name().to_vec(), endpoint.provider().name.clone());
        let shared = Arc::new(Shared(Mutex::new(State {
            endpoint,
            connections: BTreeMap::new(),
            leaving: BTreeMap::new(),
            accepted: VecDeque::new(),
            acceptor: None,
            driver: None,
            wakes: Vec::new(),
            searched_at: Instant::now(),
            ticked_at: Instant::now(),
            unused_since: None,
            is_closed: false,
        })));
        tokio::spawn(run(Arc::clone(&shared)));
        Ok(Self { shared, name, provider })
    }

    /// Returns the name by which peers connect.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the name of the provider.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Opens a stream to the process whose endpoint has this name. Writes wait until the process has accepted the
    /// stream.
    ///
    /// # Errors
    /// The provider's, or [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if there are too many streams.
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if too many frames are in flight, to the peer or in all: try again later.
    pub fn connect(&self, name: &[u8]) -> io::Result<Stream> {
        let opened = self.shared.with(|state| {
            let peer = state.endpoint.insert(name)?;
            let id = state.add(peer, None)?;
            let open = Frame { to: 0, number: 0, kind: Kind::Open, value: id };
            let sent = state.send(peer, open, &self.name);
            sent.map(|()| id).inspect_err(|_| drop(state.connections.remove(&id)))
        });
        Ok(Stream::new(Arc::clone(&self.shared), opened?))
    }

    /// Returns the next stream that a peer has opened; `None` once the endpoint has failed.
    ///
    /// # Cancel safety
    /// Dropping the future loses no stream.
    pub async fn accept(&self) -> Option<Stream> {
        poll_fn(|context| {
            let next = self.shared.with(|state| {
                if let Some(id) = state.accepted.pop_front() {
                    return Poll::Ready(Some(id));
                }
                if state.is_closed {
                    return Poll::Ready(None);
                }
                register(&mut state.acceptor, context.waker(), &mut state.wakes);
                Poll::Pending
            });
            next.map(|id| Some(Stream::new(Arc::clone(&self.shared), id?)))
        })
        .await
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let unaccepted = self.shared.with(|state| {
            state.is_closed = true;
            state.wake_driver();
            std::mem::take(&mut state.accepted)
        });
        // Dropping the streams refuses them.
        unaccepted.into_iter().for_each(|id| drop(Stream::new(Arc::clone(&self.shared), id)));
    }
}

/// Receives until all streams and the [`Streams`] are dropped and their frames have left, or the endpoint fails.
async fn run(shared: Arc<Shared>) {
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll_fn(|context| {
        shared.with(|state| {
            let polled = state.turn(context, &mut period);
            if polled.is_ready() {
                state.close();
            } else if state.has_ended(Instant::now()) {
                return Poll::Ready(());
            }
            polled
        })
    })
    .await;
}

impl State {
    /// Handles received frames and timeouts.
    fn turn(&mut self, context: &mut Context<'_>, period: &mut Interval) -> Poll<()> {
        register(&mut self.driver, context.waker(), &mut self.wakes);
        while period.poll_tick(context).is_ready() {
            let now = Instant::now();
            self.on_paused(now);
            self.find_silent(now);
            self.forget_peers(now);
        }
        let mut payload = Vec::new();
        for _ in 0..TURN {
            let polled = self.endpoint.poll_event(context, false, |event| match event {
                Event::Frame { from, bytes } => {
                    let frame = Frame::parse(bytes).map(|frame| (from, frame));
                    payload.clear();
                    payload.extend_from_slice(bytes.get(HEAD..).unwrap_or_default());
                    Ok(frame)
                }
                Event::Lost { to, .. } => Err(to),
            });
            match polled {
                Poll::Ready(Ok(Ok(Some((from, frame))))) => self.on_frame(from, frame, &payload),
                // No peer of this version sends such a frame.
                Poll::Ready(Ok(Ok(None))) => {}
                Poll::Ready(Ok(Err(to))) => self.on_lost(to),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => {
                    self.serve_waiting();
                    return Poll::Pending;
                }
            }
        }
        self.serve_waiting();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn on_frame(&mut self, from: Option<PeerId>, frame: Frame, payload: &[u8]) {
        let now = Instant::now();
        if frame.kind == Kind::Open {
            return self.on_open(frame.value, payload);
        }
        let Some(connection) = self.connections.get_mut(&frame.to) else {
            return self.on_late(from, frame);
        };
        connection.heard_at = now;
        match frame.kind {
            Kind::Accept => connection.on_accept(frame.value, &mut self.wakes),
            Kind::Ask => {
                connection.on_number(frame.number, now);
                if let Some(answer) = connection.frame(Kind::Alive, 0) {
                    let peer = connection.peer;
                    // If there is no space, the frames in flight show that this process is alive.
                    let _ = self.send(peer, answer, &[]);
                }
            }
            Kind::Alive => connection.on_number(frame.number, now),
            // The other kinds have sequence numbers.
            _ => connection.on_ordered(frame, payload, now, &mut self.wakes),
        }
    }

    /// Handles a frame for a stream that was dropped.
    fn on_late(&mut self, from: Option<PeerId>, frame: Frame) {
        match (frame.kind, self.leaving.get(&frame.to)) {
            (Kind::Ask, Some(&Leaving { peer, answer, .. })) => {
                let _ = self.send(peer, answer, &[]);
            }
            // It was dropped before the peer accepted it: no frame with a number precedes the reset.
            (Kind::Accept, _) => {
                let reset = Frame { to: frame.value, number: 0, kind: Kind::Reset, value: 0 };
                let _ = from.map(|from| self.send(from, reset, &[]));
            }
            _ => {}
        }
    }

    fn on_open(&mut self, remote: u64, name: &[u8]) {
        if self.accepted.len() >= BACKLOG {
            return;
        }
        let Ok(peer) = self.endpoint.insert(name) else { return };
        let Ok(id) = self.add(peer, Some(remote)) else { return };
        if !self.answer_open(id) {
            self.connections.remove(&id);
            return;
        }
        self.accepted.push_back(id);
        self.wakes.extend(self.acceptor.take());
    }

    /// Reports to the peer that its stream is accepted; if there is no space, the receiving task retries. Returns `false`
    /// if the peer can't be reached.
    fn answer_open(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let (peer, Some(remote)) = (connection.peer, connection.remote) else { return true };
        let accept = Frame { to: remote, number: 0, kind: Kind::Accept, value: id };
        let sent = self.send(peer, accept, &[]);
        let must_wait = sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.owes_accept = must_wait;
        }
        sent.is_ok() || must_wait
    }

    /// Adds a connection under a random number, which no other process can guess.
    fn add(&mut self, peer: PeerId, remote: Option<u64>) -> io::Result<u64> {
        if self.is_closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.connections.len() >= MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let id = getrandom::u64().map_err(io::Error::other)?;
        self.connections.insert(id, Connection::new(peer, remote, Instant::now()));
        Ok(id)
    }

    /// Sends a frame; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no space for it.
    fn send(&mut self, to: PeerId, frame: Frame, payload: &[u8]) -> io::Result<()> {
        // A peer that accepts nothing leaves half of the free slots to the others. The second leaves half of these, and so
        // on: a few such peers stop no other.
        let most = SENDS_TO_ONE.min(self.endpoint.room());
        if self.endpoint.outstanding(to) >= most {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let parts: [&[u8]; 2] = [&frame.emit(), payload];
        let sent = match frame.kind {
            // The last frame of a sender must leave before the endpoint closes.
            Kind::End => self.endpoint.send_completed(to, &parts),
            _ => self.endpoint.send(to, &parts),
        };
        self.wake_driver();
        sent.map_err(|error| match error {
            SendError::Full => io::ErrorKind::WouldBlock.into(),
            error => io::Error::other(error),
        })
    }

    fn on_lost(&mut self, to: Option<PeerId>) {
        let is_hit = |connection: &&mut Connection| to.is_none_or(|to| connection.peer == to);
        let hit = self.connections.values_mut().filter(is_hit);
        hit.for_each(|connection| {
            connection.fail(io::ErrorKind::ConnectionReset, &mut self.wakes);
        });
    }

    /// Sends answers and credit for which there was no space before, and wakes the tasks that wait for space.
    fn serve_waiting(&mut self) {
        if self.endpoint.room() == 0 {
            return;
        }
        let mut owing = Vec::new();
        for (id, connection) in &mut self.connections {
            self.wakes.extend(connection.writer.take());
            owing.extend((connection.owes_credit() || connection.owes_accept).then_some(*id));
        }
        for id in owing {
            let owes_accept = self.connections.get(&id).is_some_and(|it| it.owes_accept);
            if owes_accept
                && !self.answer_open(id)
                && let Some(connection) = self.connections.get_mut(&id)
            {
                connection.fail(io::ErrorKind::ConnectionReset, &mut self.wakes);
            }
            self.return_credit(id);
        }
    }

    /// Extends the waits of all streams by the time in which this process did not run: its peers were not silent in it.
    fn on_paused(&mut self, now: Instant) {
        let pause = (now - self.ticked_at).saturating_sub(PERIOD);
        self.ticked_at = now;
        for connection in self.connections.values_mut() {
            connection.heard_at = (connection.heard_at + pause).min(now);
            if let Some(since) = &mut connection.missing_since {
                *since = (*since + pause).min(now);
            }
        }
    }

    /// Asks silent peers whether they live. Fails the streams of peers that do not answer, and those that miss a frame.
    fn find_silent(&mut self, now: Instant) {
        let mut asked = Vec::new();
        for connection in self.connections.values_mut() {
            let silence = now - connection.heard_at;
            if connection.missing_since.is_some_and(|since| now - since >= MISSING) {
                connection.fail(io::ErrorKind::ConnectionReset, &mut self.wakes);
            }
            if silence >= SILENCE {
                connection.fail(io::ErrorKind::TimedOut, &mut self.wakes);
            } else if silence >= ASK {
                asked.extend(connection.frame(Kind::Ask, 0).map(|ask| (connection.peer, ask)));
            }
        }
        for (peer, ask) in asked {
            let _ = self.send(peer, ask, &[]);
        }
    }

    /// Removes peers that had no stream for a while, so that a peer with ever new names occupies no memory. Frees the
    /// slots of peers that accept nothing and of which no stream has heard.
    fn forget_peers(&mut self, now: Instant) {
        if now - self.searched_at >= SILENCE {
            self.searched_at = now;
            self.leaving.retain(|_, leaving| now < leaving.until);
            let open = self.connections.values().map(|connection| connection.peer);
            let used: BTreeSet<PeerId> =
                open.chain(self.leaving.values().map(|leaving| leaving.peer)).collect();
            self.endpoint.forget_idle(|peer| used.contains(&peer));
            let alive = self.connections.values().filter(|connection| connection.is_alive());
            // The last bytes of streams that were dropped lately may still be under way.
            let leaving = self.leaving.values();
            let recent = leaving.filter(|it| it.until - now > ANSWERED - SILENCE);
            let recent = recent.map(|leaving| leaving.peer);
            let alive: BTreeSet<PeerId> =
                alive.map(|connection| connection.peer).chain(recent).collect();
            self.endpoint.free_stuck(|peer| alive.contains(&peer));
        }
    }

    /// Wakes the receiving task. This waker of tokio's runs no code of the task, so the lock may be held.
    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Returns whether no stream is left, and its frames have left or had enough time for that.
    fn has_ended(&mut self, now: Instant) -> bool {
        if !self.is_closed || !self.connections.is_empty() {
            return false;
        }
        let is_late = now - *self.unused_since.get_or_insert(now) >= LINGER;
        if is_late {
            self.endpoint.abandon();
        }
        is_late || self.endpoint.is_idle()
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.on_lost(None);
        self.wakes.extend(self.acceptor.take());
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests;
