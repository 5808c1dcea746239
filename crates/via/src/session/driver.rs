//! The driver of a process's sessions: one task that moves what they send and receive.

mod active;
mod piping;
mod reading;
mod yielding;

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_simhw::shm::rings::WakeSet;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, Sleep};

use super::core::Event;
use super::frame::Reason;
use super::spin::AdaptiveSpin;
use super::wire::Peer;
use super::{Ended, Session, SharedState, Stream, TransportKind};
use crate::wire::endpoint::PipeId;
use crate::wire::socket::Socket;
use active::{Active, PATIENCE, processor};
use reading::READER_TIMEOUT;

/// Limits how long the driver polls for an answer before it parks. Where this was measured, a wake-up on another
/// processor takes 31 to 60 us, and the answer follows it.
const SPIN: Duration = Duration::from_micros(150);
/// Turns without work after a datagram, before the driver asks the system for more.
const SOCKET_PATIENCE: u32 = 3;
/// Unsuccessful polls in a row after which the driver polls for the full time again.
const FULL_TIME_EACH: u32 = 16;
/// Most halvings of the polling time.
const HALVINGS: u32 = 5;

/// Handles the events of a process's sessions.
pub trait Handler {
    /// Called when a peer has connected over UDP.
    fn on_accepted(&mut self, session: &Arc<Session>);

    /// Called when the peer has described itself.
    fn on_hello(&mut self, session: &Arc<Session>, hello: &[u8]);

    /// Called when the peer has opened a stream to a service. Returns whether it is accepted; dropping the
    /// stream ends it.
    fn on_stream(
        &mut self,
        session: &Arc<Session>,
        service: &str,
        stream: Stream,
    ) -> Result<(), Refusal>;

    /// Called when the peer opens and accepts no more streams.
    fn on_goodbye(&mut self, session: &Arc<Session>);

    /// Called when the session has ended.
    fn on_ended(&mut self, session: &Arc<Session>, why: Ended);
}

/// Why a stream is refused.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such service.
    NoService,
    /// Too many streams wait to be accepted.
    TooMany,
}

/// Moves what the sessions of a process send and receive.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<SharedState>,
    /// Wakes the driver for sessions over shared memory; `None` without any.
    io: Option<AsyncFd<WakeSet>>,
    socket: Option<Socket>,
    /// Numbers of the sessions over UDP, by connection.
    by_pipe: BTreeMap<PipeId, u64>,
    active: Vec<Active>,
    /// All sessions that have not ended, by number.
    all: BTreeMap<u64, Arc<Session>>,
    /// Unsuccessful polls in a row.
    failed_polls: u32,
    is_current_thread: bool,
    /// True on a simulated host, where no time passes while a task polls.
    is_simulated: bool,
    /// Decides whether to poll the socket.
    spin: AdaptiveSpin,
    polls: Polls,
    /// Turns without work before the driver asks the system for received datagrams.
    socket_patience: u32,
    /// Turns without work since the last one with work.
    idle_turns: u32,
    /// True if sessions had something to send since the last turn; and if the socket was not asked for datagrams therefore.
    has_written: bool,
    has_skipped: bool,
    /// True if, in the last turn, no reader took the frame that a session has left to it.
    lets_read: bool,
    /// True if the last turn has found nothing, and a peer that may answer waits for this processor.
    lets_peer_run: bool,
    /// The end of the last long yield to such a peer.
    long_yield: Option<Instant>,
    /// The end of the time in which the driver parks instead of yielding to a peer, because other tasks keep the
    /// processor too long.
    no_yield_until: Option<Instant>,
    /// Ends the time in which readers may leave frames on a wire, while the driver waits.
    reader_timer: Pin<Box<Sleep>>,
}

/// Ends the sessions of a driver whose runtime is dropped, as if it was closed. Empties the list of sessions, since a
/// listed session would keep itself alive.
impl Drop for Driver {
    fn drop(&mut self) {
        self.end_sessions();
        let listed = lock(&self.shared.dirty).take();
        drop(listed);
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Found {
    /// No frame, and none is expected soon.
    Nothing,
    /// Only frames that are left to their readers. The woken readers wake the driver when they write.
    Readers,
    /// No frame, but an answer may arrive soon.
    AnswerExpected,
    /// A frame, or a task that was woken.
    Something,
}

/// The source of received datagrams in the next turn.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Polls {
    /// The driver asks only the runtime for received datagrams.
    No,
    /// The driver asks only the runtime. The next turn asks the system, unless a task of this process gives the driver
    /// work meanwhile.
    Soon,
    /// The driver asks the system.
    Now,
}

impl Driver {
    pub(super) fn new(shared: Arc<SharedState>, socket: Option<Socket>) -> io::Result<Self> {
        let wakes = shared.wakes.clone();
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let io =
            wakes.map(|wakes| AsyncFd::with_interest(wakes, Interest::READABLE)).transpose()?;
        let flavor = Handle::current().runtime_flavor();
        let is_current_thread = flavor == RuntimeFlavor::CurrentThread;
        let all = BTreeMap::new();
        let is_simulated = socket.as_ref().is_some_and(|socket| !socket.is_live());
        Ok(Self {
            shared,
            io,
            socket,
            by_pipe: BTreeMap::new(),
            active: Vec::new(),
            all,
            failed_polls: 0,
            is_current_thread,
            is_simulated,
            spin: AdaptiveSpin::new(is_current_thread),
            polls: Polls::No,
            socket_patience: 0,
            idle_turns: 0,
            has_written: false,
            has_skipped: false,
            lets_read: false,
            lets_peer_run: false,
            long_yield: None,
            no_yield_until: None,
            reader_timer: Box::pin(tokio::time::sleep(READER_TIMEOUT)),
        })
    }

    /// Moves frames until the sessions are closed.
    pub async fn run(mut self, mut handler: impl Handler) {
        loop {
            let mut found = self.turn(&mut handler);
            if poll_fn(|context| Poll::Ready(self.poll_socket(context, &mut handler))).await {
                found = Found::Something;
            }
            if self.shared.is_closed.load(Ordering::Acquire) {
                break;
            }
            self.polls = self.next_polls(found);
            if self.polls == Polls::Now {
                // The peer may need this processor to answer.
                let start = Instant::now();
                rustix::thread::sched_yield();
                self.spin.on_yield(start.elapsed());
            }
            if found > Found::Readers || self.polls > Polls::No {
                if found == Found::AnswerExpected && self.lets_peer_run {
                    self.let_peer_run();
                }
                self.yield_to_tasks(found).await;
            } else {
                if found == Found::Readers && self.reader_timer.is_elapsed() {
                    self.reader_timer.as_mut().reset(Instant::now() + READER_TIMEOUT);
                }
                // The socket was polled by this task just now, and had nothing.
                let mut has_polled = true;
                poll_fn(|context| {
                    if found == Found::Readers
                        && self.reader_timer.as_mut().poll(context).is_ready()
                    {
                        return Poll::Ready(());
                    }
                    let is_polled = std::mem::take(&mut has_polled);
                    self.poll_wake(context, &mut handler, is_polled)
                })
                .await;
            }
        }
        self.end_sessions();
        let movers = self.shared.clone().wait_for_movers();
        piping::both(movers, self.close_socket()).await;
    }

    /// Returns how the next turn polls the socket; [`Polls::No`] lets the driver park.
    fn next_polls(&mut self, found: Found) -> Polls {
        let has_written = std::mem::take(&mut self.has_written);
        if self.by_pipe.is_empty() || self.is_simulated {
            return Polls::No;
        }
        if found > Found::Nothing {
            self.spin.on_work(Instant::now());
            self.socket_patience = if self.is_current_thread { SOCKET_PATIENCE } else { 1 };
            return Polls::No;
        }
        if has_written {
            self.socket_patience = 0;
        }
        if !self.spin.should_poll(Instant::now()) {
            return Polls::No;
        }
        if self.socket_patience > 0 {
            self.socket_patience -= 1;
            return Polls::Soon;
        }
        Polls::Now
    }

    /// Ends all sessions, which notifies peers and the tasks that wait for streams.
    fn end_sessions(&mut self) {
        self.take_dirty();
        for session in std::mem::take(&mut self.all).into_values() {
            self.shared.unwatch(session.number);
            session.keep_stats();
            session.end();
        }
    }

    /// Polls each active session once, and parks those from which nothing is expected.
    fn turn(&mut self, handler: &mut impl Handler) -> Found {
        self.take_dirty();
        self.take_wakes();
        (self.lets_read, self.lets_peer_run) = (false, false);
        let Some(now) = (!self.active.is_empty()).then(Instant::now) else { return Found::Nothing };
        let processor = processor();
        let mut all = Found::Nothing;
        let mut index = 0;
        while index < self.active.len() {
            let found = self.poll_session(index, now, processor, handler);
            all = all.max(found);
            if found == Found::Nothing {
                self.active.swap_remove(index);
            } else {
                index += 1;
            }
        }
        all
    }

    fn poll_session(
        &mut self,
        index: usize,
        now: Instant,
        processor: usize,
        handler: &mut impl Handler,
    ) -> Found {
        let spin = self.spin();
        let active = &mut self.active[index];
        let session = Arc::clone(&active.session);
        let mut core = session.lock();
        let must_not_yield = self.no_yield_until.is_some_and(|until| now < until);
        let peer = match core.unpark(processor) {
            Peer::Here if must_not_yield => Peer::Parked,
            peer => peer,
        };
        let any = active.pump(&mut core, now, self.is_simulated);
        core.wake_writers();
        if core.is_dirty || core.is_behind() {
            core.flush();
        }
        self.spin.on_turn(active.count(&mut core));
        let wakers = core.take_wakers(self.is_current_thread);
        let events = std::mem::take(&mut core.events);
        let mut found =
            if any || !wakers.is_empty() { Found::Something } else { Found::AnswerExpected };
        let is_piped = session.transport() != TransportKind::Shm;
        // With several threads, a yield is a system call, and woken tasks run just as soon while the driver waits.
        let waits = is_piped && !self.is_current_thread;
        if found == Found::AnswerExpected && is_piped {
            // Datagrams activate the session again: there is no ring to poll.
            active.idle_turns = active.idle_turns.max(PATIENCE + 1);
        }
        if found == Found::Something {
            if active.idle_turns > 0 {
                self.failed_polls = 0;
            }
            (active.last, active.idle_turns) = (now, 0);
            active.patience = if self.is_current_thread { PATIENCE } else { 1 };
            if waits && !any {
                found = if core.park() { Found::Nothing } else { Found::Readers };
            }
        } else if active.idle_turns > active.patience.max(1)
            && (peer == Peer::Parked || now >= active.last + spin)
        {
            // This counts even if tasks used the time. Otherwise, a halved time would never grow again.
            if peer != Peer::Parked {
                self.failed_polls = self.failed_polls.wrapping_add(1);
            }
            let is_parked = core.park();
            self.lets_read |= !is_parked && active.has_rested;
            found = match is_parked {
                true => Found::Nothing,
                false if waits => Found::Readers,
                false => Found::Something,
            };
        } else {
            active.idle_turns += 1;
            if peer == Peer::Here && active.idle_turns > active.patience {
                self.lets_peer_run = true;
                active.unanswered = 0;
            }
        }
        drop(core);
        wakers.into_iter().for_each(std::task::Waker::wake);
        for event in events {
            self.dispatch(&session, event, handler);
        }
        found
    }

    /// Returns how long the driver polls at present.
    fn spin(&self) -> Duration {
        if self.failed_polls.is_multiple_of(FULL_TIME_EACH) {
            SPIN
        } else {
            SPIN / (1 << self.failed_polls.min(HALVINGS))
        }
    }

    fn dispatch(&mut self, session: &Arc<Session>, event: Event, handler: &mut impl Handler) {
        match event {
            Event::Hello(hello) => handler.on_hello(session, &hello),
            Event::Goodbye => handler.on_goodbye(session),
            Event::Ended(why) => {
                self.all.remove(&session.number);
                self.shared.unwatch(session.number);
                handler.on_ended(session, why);
            }
            Event::Opened { stream, service } => {
                let handle = Stream::new(Arc::clone(session), stream);
                match handler.on_stream(session, &service, handle) {
                    Ok(()) => session.with(|core| core.accept(stream)),
                    Err(Refusal::NoService) => session.refuse(stream, Reason::NoService),
                    Err(Refusal::TooMany) => session.refuse(stream, Reason::TooMany),
                }
            }
        }
    }

    /// Activates the sessions that have something to flush, and adds new ones.
    fn take_dirty(&mut self) {
        let dirty = lock(&self.shared.dirty).as_mut().map(std::mem::take);
        for session in dirty.into_iter().flatten() {
            session.is_listed.store(false, Ordering::Relaxed);
            self.has_written = true;
            self.activate(session);
        }
    }

    fn activate(&mut self, session: Arc<Session>) {
        let number = session.number;
        // A stream dropped after its session's end activates the session again: it is not added.
        if session.ended().is_none() {
            if let Some(pipe) = session.pipe.get().filter(|_| session.is_over_udp()) {
                self.by_pipe.entry(*pipe).or_insert(number);
            }
            self.all.entry(number).or_insert_with(|| Arc::clone(&session));
        }
        if !session.has_begun.load(Ordering::Acquire) {
            return;
        }
        match self.active.iter_mut().find(|active| active.session.number == number) {
            Some(active) => active.idle_turns = 0,
            None => self.active.push(Active::new(session)),
        }
    }

    /// Takes the wake-ups that the runtime has reported.
    fn take_wakes(&mut self) {
        let Some(io) = &self.io else { return };
        let mut context = Context::from_waker(std::task::Waker::noop());
        if let Poll::Ready(Ok(mut ready)) = io.poll_read_ready(&mut context) {
            ready.clear_ready();
            self.on_wakes();
        }
    }

    fn on_wakes(&mut self) {
        let mut reported = Vec::new();
        if let Some(wakes) = &self.shared.wakes {
            wakes.take(|number, is_gone| reported.push((number, is_gone)));
        }
        self.take_dirty();
        for (number, is_gone) in reported {
            let Some(session) = self.all.get(&number).cloned() else { continue };
            if is_gone {
                session.lock().on_wire_ended();
            }
            self.activate(session);
        }
    }

    /// Waits until there is something to do. If `is_polled`, the socket wakes this task already.
    fn poll_wake(
        &mut self,
        context: &mut Context<'_>,
        handler: &mut impl Handler,
        is_polled: bool,
    ) -> Poll<()> {
        self.shared.driver.register(context.waker());
        let is_dirty = lock(&self.shared.dirty).as_ref().is_some_and(|dirty| !dirty.is_empty());
        let has_gossip = self.shared.has_gossip.swap(false, Ordering::Acquire);
        if is_dirty || has_gossip || self.shared.is_closed.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !is_polled && self.poll_socket(context, handler) {
            return Poll::Ready(());
        }
        let Some(io) = &self.io else { return Poll::Pending };
        match io.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                self.on_wakes();
                Poll::Ready(())
            }
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }
}
