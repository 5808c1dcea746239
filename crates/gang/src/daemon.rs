//! A daemon a host: carries out what the root of the tree orders, and reports when its part of the
//! tree has. It talks on a channel of its own, which no user's job can stop.

mod ahead;
mod order;
mod relay;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::profile::HostProfile;
use midplane_simhw::wire;
use thiserror::Error;

use crate::channel::geometry::{FifoSize, Geometry};
use crate::channel::{AttachError, Channel, Closed, Descriptor, SendError};
use crate::context::ChannelContext;
use crate::controller::{ContextId, ContextOptions, ControlError, Controller};
use crate::names::{ChannelId, Epoch, JobId, Place, Rank};
use crate::process::Reins;
use crate::tree::Tree;

use order::Message;
pub use order::{Action, Launch, Order, Outcome};
pub use relay::Relay;

/// The daemons' own job.
const DAEMONS: JobId = JobId(0);
/// Their channel; users' jobs have those after it.
const OWN_CHANNEL: ChannelId = ChannelId(0);
/// Their FIFOs: orders are small and few.
const OWN_FIFOS: Geometry = Geometry {
    send: FifoSize { messages: 80, bytes: 16 << 10 },
    receive: FifoSize { messages: 160, bytes: 16 << 10 },
    message: 1024,
};

/// How contexts are switched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All contexts share a channel's FIFOs; what is in them is copied out and in, as in the paper.
    Copy,
    /// Every context keeps its own; the NIC is told which of them is active.
    Resident,
}

/// What a daemon's work takes on its host, in virtual time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Stopping a process, and seeing that it has: a signal there, a change of state back.
    pub stop: Duration,
    /// Letting a process go on.
    pub resume: Duration,
    /// Saving a context without its messages, and restoring one.
    pub save: Duration,
    /// Restoring a context without its messages.
    pub restore: Duration,
    /// Picoseconds to read a byte of a FIFO, and to write one.
    pub read_ps: u32,
    /// Picoseconds to write a byte of a FIFO.
    pub write_ps: u32,
}

impl Costs {
    /// The paper's cluster (Tables 2 and 3, section 5).
    ///
    /// Read: saving and restoring empty buffers, 0.62 and 0.18 ms; about 40 us for switching a
    /// process, half of it for each of the two. Fitted to the other rows of Table 3: the bytes, as
    /// [`Machine::PM_MYRINET`](midplane_simhw::profile::Machine::PM_MYRINET) has them.
    #[must_use]
    pub const fn paper(host: &HostProfile) -> Self {
        Self {
            stop: Duration::from_micros(20),
            resume: Duration::from_micros(20),
            save: Duration::from_micros(620),
            restore: Duration::from_micros(180),
            read_ps: host.io_read_ps,
            write_ps: host.io_write_ps,
        }
    }

    /// What saving a context takes that holds so many bytes.
    #[must_use]
    pub const fn of_save(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.read_ps as u64 / 1000;
        Duration::from_nanos(self.save.as_nanos() as u64 + nanos)
    }

    /// What restoring a context takes that holds so many bytes.
    #[must_use]
    pub const fn of_restore(&self, bytes: usize) -> Duration {
        let nanos = bytes as u64 * self.write_ps as u64 / 1000;
        Duration::from_nanos(self.restore.as_nanos() as u64 + nanos)
    }
}

/// What all daemons of a cluster have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DaemonConfig {
    /// The cluster's nodes, from 0.
    pub nodes: u16,
    /// Children of a daemon.
    pub arity: u16,
    /// How contexts are switched.
    pub mode: Mode,
    /// The FIFOs of users' channels.
    pub geometry: Geometry,
    /// Users' channels of a node: ranks of one job that it may have.
    pub channels: u16,
    /// What it all takes, in virtual time.
    pub costs: Costs,
}

/// Starts a rank's process: what it runs until it ends.
pub type Start<H> = Arc<
    dyn Fn(H, Launch, Descriptor, Reins) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync,
>;

/// Why a daemon stopped.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DaemonError {
    /// A context could not be opened, switched or closed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemons' channel is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The daemons' channel was not there.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An order does not fit a message of the daemons.
    #[error("the order does not fit: {0}")]
    Order(SendError),
}

/// A rank's process on this node.
#[derive(Debug)]
struct Local {
    job: JobId,
    /// Which of the node's user channels.
    slot: usize,
    context: ContextId,
    reins: Reins,
    saved: Option<ChannelContext>,
    /// The NIC has it as well; saving it takes so much longer.
    copying: Option<Duration>,
}

/// One host's daemon.
pub struct Daemon<H> {
    host: H,
    config: DaemonConfig,
    relay: Relay<u32>,
    channel: Channel,
    /// Keeps the daemons' channel open.
    _own: Controller,
    users: Vec<Controller>,
    locals: Vec<Local>,
    /// Frozen here, and to be saved while others are not.
    leaving: Vec<JobId>,
    start: Start<H>,
    next_order: u32,
}

impl<H: Host> fmt::Debug for Daemon<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("node", &self.host.node()).finish_non_exhaustive()
    }
}

impl<H: Host> Daemon<H> {
    /// Opens a daemon's channel, and takes hold of those for users' jobs.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// Dropped, its channels are closed.
    pub async fn open(host: H, config: DaemonConfig, start: Start<H>) -> Result<Self, DaemonError> {
        let mut own = Controller::open(&host, OWN_CHANNEL, OWN_FIFOS, false)?;
        let places =
            (0..config.nodes).map(|node| Place { node: NodeId(node), channel: OWN_CHANNEL });
        let (rank, places) = (Rank(host.node().0), places.collect());
        let context = own.open_context(ContextOptions { job: DAEMONS, rank, places }).await?;
        own.start(context, Epoch(1)).await?;
        let channel = Channel::attach(&host, own.descriptor(context)).await?;
        let users = (1..=config.channels).map(|channel| {
            let shared = config.mode == Mode::Copy;
            Controller::open(&host, ChannelId(channel), config.geometry, shared)
        });
        let users = users.collect::<Result<_, _>>()?;
        let tree = Tree::new(config.nodes, config.arity);
        let relay = Relay::new(tree.children(host.node().0));
        Ok(Self {
            host,
            config,
            relay,
            channel,
            _own: own,
            users,
            locals: Vec::new(),
            leaving: Vec::new(),
            start,
            next_order: 0,
        })
    }

    /// Carries out what it is told, until it is told to quit.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// None: dropped, it is no daemon any more, and those below it wait for ever.
    pub async fn serve(mut self) -> Result<(), DaemonError> {
        loop {
            let (from, bytes) = self.next_message().await?;
            let Ok(Message::Order(order)) = wire::decode(&bytes) else { continue };
            let quits = matches!(order.action, Action::Quit);
            let outcome = self.carry(&order).await?;
            let report = Message::Done { number: order.number, outcome };
            self.tell(from, &report).await?;
            if quits {
                while !self.channel.is_flushed() {
                    self.channel.room().await?;
                }
                return Ok(());
            }
        }
    }

    /// Orders everybody to do something, and waits until all have: for the root.
    ///
    /// # Errors
    /// [`DaemonError`].
    ///
    /// # Cancel safety
    /// None: the daemon expects the reports.
    pub async fn order(&mut self, action: Action) -> Result<Outcome, DaemonError> {
        self.next_order += 1;
        let order = Order { number: self.next_order, action };
        self.carry(&order).await
    }

    /// This daemon's host.
    #[must_use]
    pub const fn host(&self) -> &H {
        &self.host
    }

    async fn tell(&mut self, to: Rank, message: &Message) -> Result<(), DaemonError> {
        let too_long = SendError::TooLong { length: wire::LIMIT, most: OWN_FIFOS.message };
        let bytes = wire::encode(message).map_err(|_| DaemonError::Order(too_long))?;
        self.channel.send(to, &bytes).await.map_err(DaemonError::Order)
    }

    /// Hands an order on, carries it out, and waits until all below have.
    async fn carry(&mut self, order: &Order) -> Result<Outcome, DaemonError> {
        self.relay.handle_order(order.clone());
        while let Some((child, order)) = self.relay.poll_order() {
            self.tell(Rank(child), &Message::Order(order)).await?;
        }
        if let Some((number, action)) = self.relay.poll_action() {
            let outcome = self.execute(&action).await?;
            self.relay.handle_own(number, outcome);
        }
        loop {
            if let Some((_, outcome)) = self.relay.poll_done() {
                return Ok(outcome);
            }
            let (from, bytes) = self.next_message().await?;
            if let Ok(Message::Done { number, outcome }) = wire::decode(&bytes) {
                self.relay.handle_report(from.0, number, outcome);
            }
        }
    }

    async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            self.host.sleep_until(self.host.now() + time).await;
        }
    }

    async fn execute(&mut self, action: &Action) -> Result<Outcome, DaemonError> {
        match action {
            Action::Launch(launch) => self.launch(launch).await?,
            Action::Freeze(jobs) => self.freeze(jobs).await?,
            Action::Leave(jobs) => {
                self.freeze(jobs).await?;
                self.leaving.clone_from(jobs);
            }
            Action::Save(jobs) => self.save(jobs).await?,
            Action::Restore(jobs) => self.restore(jobs).await?,
            Action::Run(jobs) => self.run(jobs).await?,
            Action::Switch { stop, run } => {
                self.save(stop).await?;
                let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
                self.restore(&jobs).await?;
                self.run(run).await?;
            }
            Action::End(job) => self.end(*job).await?,
            Action::Exchange { .. } | Action::Join { .. } => {}
            Action::Cut(_) | Action::Look | Action::Quit => {}
        }
        let mut ended = BTreeMap::new();
        for local in self.locals.iter().filter(|local| local.reins.has_ended()) {
            *ended.entry(local.job).or_default() += 1;
        }
        Ok(Outcome { ended: ended.into_iter().collect(), ..Outcome::default() })
    }

    fn of_jobs(&self, jobs: &[JobId]) -> Vec<usize> {
        let is_one = |at: &usize| jobs.contains(&self.locals[*at].job);
        (0..self.locals.len()).filter(is_one).collect()
    }

    async fn launch(&mut self, launch: &Launch) -> Result<(), DaemonError> {
        let node = self.host.node();
        let places = launch.places();
        let own = (0_u16..).zip(&places).filter(|(_, place)| place.node == node);
        for (rank, place) in own {
            let slot = usize::from(place.channel.0 - 1);
            let (job, rank) = (launch.job, Rank(rank));
            let options = ContextOptions { job, rank, places: places.clone() };
            let controller = &mut self.users[slot];
            let context = controller.open_context(options).await?;
            let reins = Reins::new();
            reins.stop(self.host.now());
            let descriptor = controller.descriptor(context);
            let program = (self.start)(self.host.clone(), *launch, descriptor, reins.clone());
            self.host.spawn(reins.hold(program));
            let fresh = ChannelContext::fresh(rank, self.config.geometry);
            let saved = (self.config.mode == Mode::Copy).then_some(fresh);
            self.locals.push(Local { job, slot, context, reins, saved, copying: None });
        }
        Ok(())
    }

    async fn freeze(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        let all = self.of_jobs(jobs);
        for &at in &all {
            self.locals[at].reins.stop(self.host.now());
        }
        self.pause(self.config.costs.stop * all.len() as u32).await;
        for at in all {
            let Local { slot, context, .. } = self.locals[at];
            self.users[slot].stop(context).await?;
        }
        Ok(())
    }

    async fn save(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        self.leaving.clear();
        if self.config.mode == Mode::Resident {
            return Ok(());
        }
        for at in self.of_jobs(jobs) {
            let Local { slot, context, copying, .. } = self.locals[at];
            if let Some(left) = copying {
                self.pause(left).await;
                self.users[slot].forget(context).await?;
                self.locals[at].copying = None;
                continue;
            }
            let saved = self.users[slot].save(context, true).await?;
            self.pause(self.config.costs.of_save(saved.bytes())).await;
            self.locals[at].saved = Some(saved);
        }
        Ok(())
    }

    async fn restore(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        for at in self.of_jobs(jobs) {
            let Local { slot, context, .. } = self.locals[at];
            if let Some(saved) = self.locals[at].saved.take() {
                self.pause(self.config.costs.of_restore(saved.bytes())).await;
                self.users[slot].restore(context, &saved).await?;
            }
        }
        Ok(())
    }

    async fn run(&mut self, jobs: &[(JobId, Epoch)]) -> Result<(), DaemonError> {
        for (job, epoch) in jobs {
            for at in self.of_jobs(&[*job]) {
                let Local { slot, context, .. } = self.locals[at];
                self.users[slot].start(context, *epoch).await?;
                self.pause(self.config.costs.resume).await;
                self.locals[at].reins.resume(self.host.now());
            }
        }
        Ok(())
    }

    async fn end(&mut self, job: JobId) -> Result<(), DaemonError> {
        for at in self.of_jobs(&[job]).into_iter().rev() {
            let Local { slot, context, reins, .. } = self.locals.remove(at);
            reins.kill();
            self.users[slot].close_context(context).await?;
        }
        Ok(())
    }
}
