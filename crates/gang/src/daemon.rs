//! Daemons in virtual time: a host's daemon runs its node core on a simulated host.
//!
//! Daemons communicate over a channel of their own, which no user's job can stop. If a daemon is dropped, the jobs
//! with ranks on its host end, and so do the daemons below it in the tree; all others continue.

mod config;
mod executor;
mod messenger;

use std::fmt;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

use crate::contexts::{Contexts, ContextsConfig};
pub use crate::contexts::{Costs, Mode};
use crate::node_core::message::{Cluster, Reply};
use crate::node_core::replica::Durable;
use crate::node_core::{ClientId, Effect, Input, NodeConfig, NodeCore, Peer, Transmit};
use crate::steps::{self, StepQueue, until};
use crate::tree::Tree;
pub use config::{DaemonConfig, DaemonError, Launch, Start, Submission};
pub(crate) use config::{Inbox, NodeEvent};
use executor::Executor;
use messenger::{Message, Messenger};

/// Silence after which a daemon counts as lost, in virtual time. A dropped daemon notifies the others instead.
const PATIENCE: Duration = Duration::from_secs(2);

/// One host's daemon.
///
/// If it is dropped, it ends its processes, and notifies its parent and children. It makes progress only while
/// [`Daemon::serve`] or [`Scheduler::run`](crate::scheduler::Scheduler::run) is polled.
pub struct Daemon<H: Host> {
    host: H,
    tree: Tree,
    pub(crate) core: NodeCore,
    /// `None` once the daemon is dropped.
    messenger: Option<Messenger>,
    steps: StepQueue,
    pub(crate) inbox: Inbox,
    pub(crate) submissions: Vec<Submission>,
    pub(crate) replies: Vec<(ClientId, Reply)>,
    pub(crate) has_quit: bool,
}

impl<H: Host> fmt::Debug for Daemon<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("node", &self.host.node()).finish_non_exhaustive()
    }
}

impl<H: Host> Daemon<H> {
    /// Opens the daemons' channel and the users' channels, and connects to the parent. Spawns a task on `host` that
    /// carries out steps.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, its channels close. Daemons below it end after 2 s of virtual time, so start all of them
    /// again.
    pub async fn open(host: H, config: DaemonConfig, start: Start<H>) -> Result<Self, DaemonError> {
        let DaemonConfig { nodes, arity, mode, geometry, channels, costs, local_rings } = config;
        let messenger = Messenger::open(&host, nodes).await?;
        let cluster = Cluster { hosts: nodes, slots: 1, arity };
        let is_mapped = false;
        let of_contexts =
            ContextsConfig { cluster, mode, geometry, channels, costs, local_rings, is_mapped };
        let contexts = Contexts::open(host.clone(), of_contexts)?;
        let (inbox, steps) = (Inbox::default(), StepQueue::default());
        let executor = Executor::new((host.clone(), config), contexts, start, inbox.clone());
        let done = inbox.clone();
        host.spawn(steps::run(steps.clone(), executor, move |number, result| {
            done.push(NodeEvent::Core(Input::StepDone(number, result)));
        }));
        let node = host.node().0;
        let (patience, has_channels, takes_over) = (PATIENCE, true, false);
        let config = NodeConfig {
            host: node,
            cluster,
            patience,
            has_channels,
            memory: u64::MAX,
            takes_over,
        };
        let mut daemon = Self {
            host,
            tree: Tree::new(nodes, arity),
            core: NodeCore::new(config, None, Durable::default()),
            messenger: Some(messenger),
            steps,
            inbox,
            submissions: Vec::new(),
            replies: Vec::new(),
            has_quit: false,
        };
        if let Some(parent) = daemon.tree.parent(node) {
            daemon.messenger().post(parent, &Message::Hello)?;
            let now = daemon.host.now();
            daemon.core.handle(now, Input::Parent);
            daemon.carry_out()?;
        }
        Ok(daemon)
    }

    /// Carries out orders until the order to quit.
    ///
    /// # Errors
    /// [`DaemonError`]; [`DaemonError::Gone`] once the parent is lost and all jobs on this node have ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the daemon is dropped too.
    pub async fn serve(mut self) -> Result<(), DaemonError> {
        while !self.has_quit {
            if !self.core.has_parent() && self.core.is_empty() {
                let parent = self.tree.parent(self.host.node().0).unwrap_or_default();
                return Err(DaemonError::Gone { node: NodeId(parent) });
            }
            self.turn().await?;
        }
        Ok(())
    }

    /// Returns this daemon's host.
    #[must_use]
    pub const fn host(&self) -> &H {
        &self.host
    }

    fn messenger(&mut self) -> &mut Messenger {
        self.messenger.as_mut().expect("it is taken when the daemon is dropped")
    }

    /// Waits for the next event, and handles all events that have happened.
    ///
    /// # Cancel safety
    /// If the future is dropped, no event is lost.
    pub(crate) async fn turn(&mut self) -> Result<(), DaemonError> {
        let (host, inbox) = (self.host.clone(), self.inbox.clone());
        let timeout = self.core.poll_timeout();
        let due = async {
            match timeout {
                Some(at) => host.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let other = async {
            let _ = until(inbox.ready(), due).await;
        };
        if let Some(received) = until(self.messenger().receive(), other).await {
            let (from, message) = received?;
            self.receive(self.host.now(), from, message);
        }
        self.progress()
    }

    /// Handles all events that have happened on this node.
    pub(crate) fn progress(&mut self) -> Result<(), DaemonError> {
        while let Some(event) = self.inbox.pop() {
            let now = self.host.now();
            match event {
                NodeEvent::Core(input) => self.core.handle(now, input),
                NodeEvent::Submit(submission) => self.submissions.push(submission),
            }
        }
        self.core.handle_timeout(self.host.now());
        self.carry_out()
    }

    fn receive(&mut self, now: Instant, from: u16, message: Message) {
        let is_parent = self.tree.parent(self.host.node().0) == Some(from);
        let connection = from.into();
        // The core ignores messages of a lost daemon. A child that is lost never connects again.
        let input = match message {
            Message::Hello if self.tree.parent(from) == Some(self.host.node().0) => {
                Input::Child { host: from, connection }
            }
            Message::Up(up) => Input::Up(connection, up),
            Message::Down(down) if is_parent => Input::Down(down),
            Message::Bye if is_parent => Input::Disconnected(Peer::Parent),
            Message::Bye => Input::Disconnected(Peer::Child(connection)),
            Message::Hello | Message::Down(_) => return,
        };
        self.core.handle(now, input);
    }

    /// Carries out the core's effects.
    fn carry_out(&mut self) -> Result<(), DaemonError> {
        loop {
            while let Some(transmit) = self.core.poll_transmit() {
                match transmit {
                    Transmit::Up(up) => {
                        if let Some(parent) = self.tree.parent(self.host.node().0) {
                            self.messenger().post(parent, &Message::Up(up))?;
                        }
                    }
                    Transmit::Down(child, down) => {
                        self.messenger().post(child as u16, &Message::Down(down))?;
                    }
                    // No elections are held, because host 0 is always the root.
                    Transmit::Ballot(..) => {}
                }
            }
            let Some(effect) = self.core.poll_effect() else { return Ok(()) };
            match effect {
                Effect::Step(number, step) => self.steps.push((number, step)),
                Effect::Reply(client, reply) => self.replies.push((client, reply)),
                Effect::Quit => self.has_quit = true,
                // The core ignores what still arrives over the connection.
                Effect::Disconnect(_) => {}
                // Processes in virtual time have no signals, no terminals and no part in checkpoints.
                Effect::Say(..) | Effect::BarrierOut(..) | Effect::Signal(..) => {}
                Effect::Resize(..) => {}
                Effect::Write(_) | Effect::Read { .. } | Effect::Refused(_) => {}
                Effect::Collect(_) | Effect::Serve(..) => {}
                Effect::Seek(_) | Effect::Root(_) | Effect::Deposed => {}
            }
        }
    }
}

impl<H: Host> Drop for Daemon<H> {
    fn drop(&mut self) {
        self.steps.close();
        let Some(mut messenger) = self.messenger.take() else { return };
        if !self.has_quit {
            let parent = self.tree.parent(self.host.node().0).filter(|_| self.core.has_parent());
            for peer in self.core.children().chain(parent) {
                // This message is short, so it never fails with `TooLong`.
                let _ = messenger.post(peer, &Message::Bye);
            }
        }
        let host = self.host.clone();
        self.host.spawn(async move { messenger.finish(&host).await });
    }
}
