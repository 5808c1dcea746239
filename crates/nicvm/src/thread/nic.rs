//! What a thread's body has of its NIC.

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

use super::GO_ON;
use super::request::Request;
use crate::context::{Context, ControlRefused};
use crate::extension::{PeerEvent, TimeoutId};
use crate::heap::Vector;
use crate::timeout::Service;
use crate::transmit::{Packet, Sending};

/// Something that is to be done where there is a context.
pub(super) type Job = Box<dyn FnOnce(&mut Context<'_>) + Send>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Command(u64, Command),
    Control(NodeId),
    Data(Header),
    Peer(PeerEvent),
}

/// What has come and was not waited for yet; its bytes, and it itself, count in the heap.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kind: Kind,
    pub(super) bytes: Vector<u8>,
}

/// A control message, or a data frame.
#[derive(Debug)]
pub struct Message {
    /// Who has sent it.
    pub from: NodeId,
    /// Of a data frame: its header.
    pub header: Header,
    /// What it says, in the extension's heap.
    pub bytes: Vector<u8>,
}

/// Something that has come.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A command of a local application.
    Command(Request),
    /// A control message: reliable, in order.
    Control(Message),
    /// A data frame: unreliable.
    Data(Message),
    /// News of another unit.
    Peer(PeerEvent),
    /// The extension is to end: what others wait for is given back now.
    Stopped,
}

/// What the body and the handlers share.
pub(super) struct Shared {
    pub(super) node: NodeId,
    pub(super) now: Instant,
    pub(super) kept: VecDeque<Kept>,
    pub(super) jobs: VecDeque<Job>,
    /// Commands that are not completed, by ticket.
    pub(super) held: BTreeMap<u64, Command>,
    /// Those that this handler completes: held, should it fail.
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

    /// A port is gone: its commands are nobody's.
    pub(super) fn forget(&mut self, port: PortId) {
        self.held.retain(|_, command| command.region.port != port);
        let held = &self.held;
        self.kept.retain(|kept| match kept.kind {
            Kind::Command(ticket, _) => held.contains_key(&ticket),
            _ => true,
        });
    }

    /// All commands that are not completed.
    pub(super) fn abandon(&mut self) -> Vec<Command> {
        let held = std::mem::take(&mut self.held);
        self.ending.drain(..).chain(held.into_values()).collect()
    }
}

/// A NIC, as the body of a [`Thread`](super::Thread) sees it. Clones are the same one.
///
/// What waits may be dropped at any time: nothing is lost with it, and what it had asked for happens.
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
        // Nothing that could panic runs while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all that waits: each looks whether what it waits for has come.
    pub(super) fn wake(&self) {
        // Not while it is locked: wakers may be anybody's.
        let wakers = std::mem::take(&mut self.shared().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// This node; 0 until the body first runs.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared().node
    }

    /// The time; it does not move between two waits.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared().now
    }

    /// Does something with the unit's [`Context`]: all that handlers may do. In the same turn.
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
    /// Dropped, it has taken nothing.
    pub async fn command(&self) -> Request {
        match self.next(|kind| matches!(kind, Kind::Command(..))).await {
            Event::Command(request) => request,
            _ => unreachable!("only commands were asked for"),
        }
    }

    /// Waits for the next control message.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn control(&self) -> Message {
        match self.next(|kind| matches!(kind, Kind::Control(_))).await {
            Event::Control(message) => message,
            _ => unreachable!("only control messages were asked for"),
        }
    }

    /// Waits for the next data frame.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn data(&self) -> Message {
        match self.next(|kind| matches!(kind, Kind::Data(_))).await {
            Event::Data(message) => message,
            _ => unreachable!("only data frames were asked for"),
        }
    }

    /// Waits for whatever comes next; [`Event::Stopped`] once all that came before is taken.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn event(&self) -> Event {
        poll_fn(|cx| match self.take(cx, |_| true) {
            Poll::Pending if self.shared().stops => Poll::Ready(Event::Stopped),
            polled => polled,
        })
        .await
    }

    /// Waits until the extension is to end. The body runs once more then, up to its next wait.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost: ask again.
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

    /// Waits for so long, and never less; by as much longer as `service` says.
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

/// Time that passes: [`Nic::sleep`]. Dropped before its end it is taken back.
#[derive(Debug)]
#[must_use = "nothing happens before it is waited for"]
pub struct Sleep {
    nic: Nic,
    service: Service,
    at: Instant,
    /// Set, and not over.
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
                // The last one is the thread's own.
                shared.timeouts = (shared.timeouts + 1) % GO_ON.0;
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
