//! An `async fn` as an extension: a thread on the coprocessor.
//!
//! An extension may be a collection of event handlers, or fit "into the multi-threaded programming model, with one or
//! more threads running on the communication coprocessor" (DVCM paper, section 5). A [`Thread`] is such an extension:
//! its body awaits commands, control messages, frames, peers and timeouts where it needs them, and the framework's
//! handlers resume it at each.
//!
//! ```
//! use std::time::Duration;
//!
//! use midplane_nicvm::extension::FIRST_USER_EXTENSION;
//! use midplane_nicvm::thread::{Nic, Thread};
//! use midplane_nicvm::timeout::Service;
//! use midplane_nicvm::unit::Unit;
//!
//! /// For each command, notifies the node that it names, and replies to the command 50 us later.
//! async fn ask(nic: Nic) {
//!     loop {
//!         let request = nic.command().await;
//!         if nic.send_control(request.node, b"there?").await.is_err() {
//!             continue; // dropped: it ends as cancelled
//!         }
//!         nic.sleep(Service::Exact, Duration::from_micros(50)).await;
//!         request.reply(1, [0; 4]);
//!     }
//! }
//!
//! let mut unit = Unit::default();
//! unit.install(FIRST_USER_EXTENSION, Thread::new(ask))?;
//! # Ok::<(), midplane_nicvm::extension::InitError>(())
//! ```
//!
//! The part of the body between two awaits is one handler: its effects are carried out together when the body awaits
//! again, and dropped if it panics. After a panic, the commands that the body holds complete with an error. Events that
//! arrive while the body awaits something else are kept in the extension's [`Heap`]. Data frames that
//! the body does not await take at most half of it, and further ones are dropped. The events of peers take none of it: of
//! those of one peer, only the newest loss and what follows it are kept.
//!
//! The body may await any future, including other crates' combinators, if this [`Nic`] wakes it. A wake-up by another
//! thread of the process takes effect at the unit's next event.

mod nic;
mod request;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Wake, Waker};
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Status};

use crate::context::Context;
use crate::extension::{Extension, InitError, PeerEvent, TimeoutId};
use crate::heap::Heap;
use crate::timeout::Service;
use nic::{Kept, Kind};

pub use nic::{Event, Message, Nic, Sleep};
pub use request::Request;

/// Resumptions of the body in one handler; after that, it resumes in the next handler.
const WAITS_PER_TURN: usize = 64;
const RESUME: TimeoutId = TimeoutId(u32::MAX);
/// Instructions charged for resuming a body once.
const STEP_INSTRUCTIONS: u64 = 40;

/// True if the body has been woken.
#[derive(Debug)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// An extension whose body is an `async fn`. When the body returns, the extension is taken down.
pub struct Thread {
    nic: Nic,
    body: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    flag: Arc<Flag>,
    /// The memory of the events of peers: at most two for each peer.
    peers: Heap,
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Thread").field("ended", &self.body.is_none()).finish_non_exhaustive()
    }
}

impl Thread {
    /// Creates an extension that runs `body` from its initialisation on.
    pub fn new<F>(body: impl FnOnce(Nic) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let nic = Nic::default();
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Self { body: Some(Box::pin(body(nic.clone()))), nic, flag, peers: Heap::new(usize::MAX) }
    }

    /// Runs one handler: resumes the body until it awaits an event that has not arrived.
    fn run(&mut self, nic: &mut Context<'_>) {
        self.nic.shared().now = nic.now();
        for _ in 0..WAITS_PER_TURN {
            let jobs = std::mem::take(&mut self.nic.shared().jobs);
            let idle = jobs.is_empty();
            for job in jobs {
                job(nic);
            }
            if !idle {
                self.nic.wake();
            }
            if self.flag.0.swap(false, Ordering::Acquire) {
                self.step(nic);
            } else if idle {
                self.nic.shared().ending.clear();
                return;
            }
        }
        // What the last step has asked for: the completion of a command can't wait for a turn that may not come.
        let jobs = std::mem::take(&mut self.nic.shared().jobs);
        for job in jobs {
            job(nic);
        }
        self.nic.wake();
        self.nic.shared().ending.clear();
        nic.set_timeout(RESUME, Service::Exact, Duration::ZERO);
    }

    fn step(&mut self, nic: &mut Context<'_>) {
        let Some(body) = &mut self.body else { return };
        nic.charge(STEP_INSTRUCTIONS);
        let waker = Waker::from(Arc::clone(&self.flag));
        if let Poll::Ready(()) = body.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            self.body = None;
            nic.withdraw(nic.extension());
        }
    }

    /// Keeps an event for the body and resumes it. Returns `false` if the heap has no room.
    fn keep(&mut self, nic: &mut Context<'_>, kind: Kind, bytes: &[u8]) -> bool {
        let heap = if matches!(kind, Kind::Peer(_)) { &self.peers } else { nic.heap() };
        let Ok(bytes) = heap.copy(bytes) else { return false };
        self.nic.shared().kept.push_back(Kept { kind, bytes });
        self.nic.wake();
        self.run(nic);
        true
    }
}

impl Extension for Thread {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.nic.shared().node = nic.node();
        self.run(nic);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let ticket = self.nic.shared().admit(command);
        if !self.keep(nic, Kind::Command(ticket, command), &[]) {
            self.nic.shared().held.remove(&ticket);
            nic.refuse(&command, Status::Refused);
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        let kept = self.keep(nic, Kind::Control(from), message);
        assert!(
            kept,
            "the heap is full: the body takes no events, and a control message must not be lost"
        );
    }

    fn on_data(&mut self, nic: &mut Context<'_>, _: NodeId, frame: &Frame<'_>) {
        // Data frames are unreliable: if there is no room, the frame is lost. Those that the body does not await leave
        // room for the other events.
        let bytes = frame.payload.to_vec();
        if self.keep(nic, Kind::Data(frame.header), &bytes) {
            let most = nic.heap().limit() / 2;
            self.nic.shared().drop_frame_beyond(most);
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        if timeout != RESUME {
            self.nic.shared().fired.insert(timeout);
            self.nic.wake();
        }
        self.run(nic);
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.nic.shared().forget(port);
        self.run(nic);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        // A peer that is up again may have lost messages: the event that says so stays.
        if !matches!(event, PeerEvent::Up(..)) {
            self.nic.shared().forget_older(event);
        }
        self.keep(nic, Kind::Peer(event), &[]);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        self.nic.shared().abandon()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.nic.shared().stops = true;
        self.nic.wake();
        self.run(nic);
        // Dropping the body drops the requests that it holds, which completes them.
        self.body = None;
        self.run(nic);
        for command in self.nic.shared().abandon() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}
