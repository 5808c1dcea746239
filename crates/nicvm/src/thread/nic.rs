//! The NIC as a thread's body uses it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::Duration;

use midplane_simhw::frame::Header;
use midplane_simhw::hardware::{Source, TransmitRefused};
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Command;
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;

use super::RESUME;
use super::request::Request;
use crate::context::{Context, ControlRefused};
use crate::extension::{PeerEvent, TimeoutId};
use crate::heap::{VECTOR_BYTES, Vector};
use crate::timeout::Service;
use crate::transmit::{Packet, Sending};

/// A closure that runs where the unit's context is available.
pub(super) type Job = Box<dyn FnOnce(&mut Context<'_>) + Send>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Command(u64, Command),
    Control(NodeId),
    Data(Header),
    Peer(PeerEvent),
}

/// An event that arrived and was not awaited yet; its bytes, and the event itself, count in a heap.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kind: Kind,
    pub(super) bytes: Vector<u8>,
}

impl Kept {
    /// Returns the bytes of a data frame in the heap; 0 for other events.
    pub(super) fn frame_bytes(&self) -> usize {
        if matches!(self.kind, Kind::Data(_)) { VECTOR_BYTES + self.bytes.len() } else { 0 }
    }
}

/// A control message, or a data frame.
#[derive(Debug)]
pub struct Message {
    /// The sender.
    pub from: NodeId,
    /// The header of a data frame; the default for a control message.
    pub header: Header,
    /// The payload, in the extension's heap.
    pub bytes: Vector<u8>,
}

/// An event that the body awaits.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A command of a local application.
    Command(Request),
    /// A control message: reliable, in order.
    Control(Message),
    /// A data frame: unreliable.
    Data(Message),
    /// An event of another unit.
    Peer(PeerEvent),
    /// The extension is about to end: answer the peers and applications that wait for it.
    Stopped,
}

/// The state shared by the body and the handlers.
pub(super) struct Shared {
    pub(super) node: NodeId,
    pub(super) now: Instant,
    pub(super) kept: VecDeque<Kept>,
    pub(super) jobs: VecDeque<Job>,
    /// Commands that are not completed, by ticket.
    pub(super) held: BTreeMap<u64, Command>,
    /// Commands that this handler completes; they count as held if the handler panics.
    pub(super) ending: Vec<Command>,
    pub(super) fired: BTreeSet<TimeoutId>,
    pub(super) stops: bool,
    tickets: u64,
    timeouts: u32,
    wakers: Vec<Waker>,
}

impl Shared {
    fn wait(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    pub(super) fn admit(&mut self, command: Command) -> u64 {
        self.tickets += 1;
        self.held.insert(self.tickets, command);
        self.tickets
    }

    /// Drops the commands of a closed port.
    pub(super) fn forget(&mut self, port: PortId) {
        self.held.retain(|_, command| command.region.port != port);
        let held = &self.held;
        self.kept.retain(|kept| match kept.kind {
            Kind::Command(ticket, _) => held.contains_key(&ticket),
            _ => true,
        });
    }

    /// Drops the kept events of the peer that `event` is about.
    pub(super) fn forget_older(&mut self, event: PeerEvent) {
        let node = node_of(event);
        self.kept.retain(|kept| !matches!(kept.kind, Kind::Peer(older) if node_of(older) == node));
    }

    /// Drops the newest data frame if those that are kept take more than `most` bytes of the heap.
    pub(super) fn drop_frame_beyond(&mut self, most: usize) {
        let bytes: usize = self.kept.iter().map(Kept::frame_bytes).sum();
        let newest = self.kept.iter().rposition(|kept| matches!(kept.kind, Kind::Data(_)));
        if bytes > most
            && let Some(at) = newest
        {
            self.kept.remove(at);
        }
    }

    /// Takes out all commands that are not completed.
    pub(super) fn abandon(&mut self) -> Vec<Command> {
        let held = std::mem::take(&mut self.held);
        self.ending.drain(..).chain(held.into_values()).collect()
    }
}

const fn node_of(event: PeerEvent) -> NodeId {
    let (PeerEvent::Up(node, _) | PeerEvent::Restarted(node, _) | PeerEvent::Down(node)) = event;
    node
}

/// A handle to the NIC for the body of a [`Thread`](super::Thread). Clones refer to the same NIC.
///
/// Its futures may be dropped at any time: no event is lost by that, and requested effects are carried out.
#[derive(Clone)]
pub struct Nic(Arc<Mutex<Shared>>);

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nic").field("node", &self.node()).finish_non_exhaustive()
    }
}

impl Default for Nic {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            node: NodeId(0),
            now: Instant::ZERO,
            kept: VecDeque::new(),
            jobs: VecDeque::new(),
            held: BTreeMap::new(),
            ending: Vec::new(),
            fired: BTreeSet::new(),
            stops: false,
            tickets: 0,
            timeouts: 0,
            wakers: Vec::new(),
        })))
    }
}

impl Nic {
    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        // No code that could panic runs while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting futures; each polls for its event.
    pub(super) fn wake(&self) {
        // The lock is released first: a waker may run foreign code.
        let wakers = std::mem::take(&mut self.shared().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns this node's number; 0 until the body first runs.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared().node
    }

    /// Returns the time; it does not advance between two awaits.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared().now
    }

    /// Runs `job` with the unit's [`Context`], in the same turn: it may do all that handlers may.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, it still takes effect, and its result is lost.
    pub async fn with<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Context<'_>) -> R + Send + 'static,
    ) -> R {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let lock = |result: &Mutex<Option<R>>| {
            result.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        self.shared().jobs.push_back(Box::new(move |nic| {
            let done = job(nic);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }));
        poll_fn(|cx| {
            lock(&result).map_or_else(
                || {
                    self.shared().wait(cx.waker());
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }

    /// Sends a control message to the same extension of another node, as [`Context::send_control`].
    ///
    /// # Errors
    /// [`ControlRefused`] says why it is not sent.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, it still takes effect, and its result is lost.
    pub async fn send_control(&self, to: NodeId, message: &[u8]) -> Result<(), ControlRefused> {
        let message = message.to_vec();
        self.with(move |nic| nic.send_control(to, &message)).await
    }

    /// Sends a data frame to the same extension of another node, as [`Context::send_packet`].
    ///
    /// # Errors
    /// [`TransmitRefused`] says why it is not sent.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, it still takes effect, and its result is lost.
    pub async fn send_data(&self, to: NodeId, bytes: &[u8]) -> Result<Sending, TransmitRefused> {
        let bytes = bytes.to_vec();
        self.with(move |nic| {
            let source = Source::Bytes(Payload::from(&bytes[..]));
            nic.send_packet(&Packet { source, ..Packet::to(to) })
        })
        .await
    }

    /// Waits for the next command of a local application.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn command(&self) -> Request {
        match self.next(|kind| matches!(kind, Kind::Command(..))).await {
            Event::Command(request) => request,
            _ => unreachable!("only commands were asked for"),
        }
    }

    /// Waits for the next control message.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn control(&self) -> Message {
        match self.next(|kind| matches!(kind, Kind::Control(_))).await {
            Event::Control(message) => message,
            _ => unreachable!("only control messages were asked for"),
        }
    }

    /// Waits for the next data frame.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn data(&self) -> Message {
        match self.next(|kind| matches!(kind, Kind::Data(_))).await {
            Event::Data(message) => message,
            _ => unreachable!("only data frames were asked for"),
        }
    }

    /// Waits for the next event of any kind; once the extension is about to end and all events are taken, returns
    /// [`Event::Stopped`].
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn event(&self) -> Event {
        poll_fn(|cx| match self.take(cx, |_| true) {
            Poll::Pending if self.shared().stops => Poll::Ready(Event::Stopped),
            polled => polled,
        })
        .await
    }

    /// Waits until the extension is about to end. The body then runs once more, up to its next await.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: call it again.
    pub async fn stopped(&self) {
        poll_fn(|cx| {
            let mut shared = self.shared();
            if shared.stops {
                return Poll::Ready(());
            }
            shared.wait(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Waits for at least `time`; `service` bounds how much longer.
    pub fn sleep(&self, service: Service, time: Duration) -> Sleep {
        Sleep { at: self.now() + time, nic: self.clone(), service, timeout: None }
    }

    async fn next(&self, is: impl Fn(&Kind) -> bool + Copy) -> Event {
        poll_fn(|cx| self.take(cx, is)).await
    }

    fn take(&self, cx: &task::Context<'_>, is: impl Fn(&Kind) -> bool) -> Poll<Event> {
        let mut shared = self.shared();
        let at = shared.kept.iter().position(|kept| is(&kept.kind));
        let Some(Kept { kind, bytes }) = at.and_then(|at| shared.kept.remove(at)) else {
            shared.wait(cx.waker());
            return Poll::Pending;
        };
        Poll::Ready(match kind {
            Kind::Command(ticket, command) => {
                Event::Command(Request::new(command, ticket, self.clone()))
            }
            Kind::Control(from) => {
                Event::Control(Message { from, header: Header::default(), bytes })
            }
            Kind::Data(header) => Event::Data(Message { from: header.source, header, bytes }),
            Kind::Peer(event) => Event::Peer(event),
        })
    }
}

/// The future of [`Nic::sleep`]. Dropping it cancels its timeout.
#[derive(Debug)]
#[must_use = "nothing happens before it is waited for"]
pub struct Sleep {
    nic: Nic,
    service: Service,
    at: Instant,
    /// The timeout that is set and has not expired.
    timeout: Option<TimeoutId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut shared = this.nic.shared();
        match this.timeout {
            Some(timeout) if shared.fired.remove(&timeout) => {
                this.timeout = None;
                return Poll::Ready(());
            }
            Some(_) => {}
            None => {
                let timeout = TimeoutId(shared.timeouts);
                // The last number is the thread's own timeout.
                shared.timeouts = (shared.timeouts + 1) % RESUME.0;
                this.timeout = Some(timeout);
                let (service, at) = (this.service, this.at);
                shared.jobs.push_back(Box::new(move |nic| {
                    nic.set_timeout_at(timeout, service, at);
                }));
            }
        }
        shared.wait(cx.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timeout) = self.timeout {
            let mut shared = self.nic.shared();
            if !shared.fired.remove(&timeout) {
                shared.jobs.push_back(Box::new(move |nic| nic.cancel_timeout(timeout)));
            }
        }
    }
}
