//! A daemon between its sockets and its processes: everything that happens comes here, one thing at a time.

mod asked;
mod children;

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::time::Instant;
use midplane_simhw::wire;
use tokio::sync::{mpsc, oneshot};

use super::channels::Told;
use super::clock::now;
use super::link::{Frame, Receiver, Sender};
use super::local::Local;
use super::message::{Cluster, Down, Request, Up};
use super::parcel::{self, Part, What};
use super::precedence;
use super::root::{ClientId, Read, Root, Write};
use super::snapshot::{Said, Word};
use super::streams;
use crate::daemon::{Action, Order, Relay};
use crate::names::JobId;
use crate::tree::Tree;
pub(super) use children::Refusal;
use children::{Child, Refusals};

use super::message::Program;

/// How long streams of a job that is gone may stay open.
const LINGER: Duration = Duration::from_secs(2);

/// How long after each other it is looked whether processes stand still, when they take their time.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What happens.
pub(super) enum Event {
    /// Whoever is above says something.
    Above(Down),
    /// Somebody is above now.
    Below(mpsc::UnboundedSender<Up>),
    /// Nobody is above any longer.
    Cut,
    /// A daemon below says who it is.
    Adopted { host: u16, connection: u64, to: mpsc::UnboundedSender<Down> },
    /// It says something.
    FromBelow(u16, u64, Up),
    /// Its connection is gone.
    Lost(u16, u64),
    /// A host's link for a job's streams.
    Streams { host: u16, job: JobId, link: Box<(Sender, Receiver)> },
    /// It is through.
    StreamsDone(u16, JobId),
    /// A job is gone for a while.
    Overdue(JobId),
    /// Input has arrived for a job.
    Arrived(JobId),
    /// A front end asks.
    Asked(ClientId, Request, mpsc::Sender<Frame>),
    /// It wants to feed a job.
    Feeds(JobId, oneshot::Sender<mpsc::Sender<Frame>>),
    /// It is gone.
    ClientGone(ClientId),
    /// A daemon was refused.
    Refused(Refusal),
    /// The channels have done something.
    Channels(Told),
    /// A rank here says something about checkpoints.
    Said(JobId, u16, Said),
    /// A job's checkpoint is written, or why not.
    Written(JobId, Result<(), String>),
    /// A checkpoint was read for a front end, or why not.
    Read(Box<Read>),
}

/// Where links to the root begin.
pub(super) type DialRoot = Box<dyn Fn(JobId, mpsc::Receiver<Frame>, mpsc::Sender<Frame>)>;

/// A daemon between its sockets and its processes.
pub(super) struct Hub {
    host: u16,
    cluster: Cluster,
    patience: Duration,
    relay: Relay<Program>,
    order_began: Instant,
    local: Local,
    /// A job whose ranks here are being started.
    launching: Option<JobId>,
    root: Option<Root>,
    above: Option<mpsc::UnboundedSender<Up>>,
    below: BTreeMap<u16, Child>,
    tree: Tree,
    refusals: Refusals,
    events: mpsc::UnboundedSender<Event>,
    dial_root: DialRoot,
}

impl Hub {
    pub(super) fn new(
        (host, cluster, patience): (u16, Cluster, Duration),
        local: Local,
        root: Option<Root>,
        events: mpsc::UnboundedSender<Event>,
        dial_root: DialRoot,
    ) -> Self {
        let (above, below) = (None, BTreeMap::new());
        let (relay, order_began) = (Relay::new([]), Instant::ZERO);
        let tree = Tree::new(cluster.hosts, cluster.arity);
        Self {
            host,
            cluster,
            patience,
            relay,
            order_began,
            local,
            launching: None,
            root,
            above,
            below,
            tree,
            refusals: Refusals::default(),
            events,
            dial_root,
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Above(down) => self.hear_above(down),
            Event::Cut => self.cut(),
            Event::Below(above) => {
                let _ = above.send(Up::Here(self.hosts()));
                self.above = Some(above);
            }
            Event::Adopted { host, connection, to } => self.adopt(host, connection, to),
            Event::Refused(refusal) => self.refusals.report(now(), refusal),
            Event::FromBelow(host, connection, up) => {
                if self.is_below(host, connection) {
                    self.hear_below(host, up);
                }
            }
            Event::Lost(host, connection) => {
                if self.is_below(host, connection) {
                    self.lose(host);
                }
            }
            Event::Streams { host, job, link } => self.streams(host, job, *link),
            Event::StreamsDone(host, job) => {
                if let Some(root) = &mut self.root {
                    root.streams_done(now(), job, host);
                }
            }
            Event::Overdue(job) => {
                if let Some(root) = &mut self.root {
                    root.overdue(now(), job);
                }
            }
            Event::Asked(client, request, reply) => self.asked(client, request, reply),
            Event::Feeds(job, to) => {
                if let Some(feed) = self.root.as_mut().and_then(|root| root.take_feed(job)) {
                    let _ = to.send(feed);
                }
            }
            Event::Arrived(job) => {
                if let Some(root) = &mut self.root {
                    root.arrived(job);
                }
            }
            Event::Channels(told) => self.local.handle_channels(told),
            Event::Said(job, rank, Said::Able) => self.up(Up::Able { job, rank }),
            Event::Said(job, rank, Said::Left) => self.up(Up::Left { job, rank }),
            Event::Said(job, rank, Said::Part(part)) => self.up(Up::Part { job, rank, part }),
            Event::Written(job, written) => {
                let go = self.root.as_mut().is_some_and(|root| root.written(now(), job, written));
                self.say_if(go, job);
            }
            Event::Read(read) => self.restore(*read),
            Event::ClientGone(client) => {
                if let Some(root) = &mut self.root {
                    root.client_gone(now(), client);
                }
            }
        }
    }

    fn hear_above(&mut self, down: Down) {
        match down {
            Down::Order(order) => self.begin(order),
            Down::Signal { job, signal } => self.signal(job, signal),
            Down::Resize { job, size } => self.resize(job, size),
            Down::Ask(job) => self.say(job, Word::Ask),
            Down::Go(job) => self.say(job, Word::Go),
            Down::Part { host, job, rank, part } => self.part(host, job, rank, part),
            Down::Cut => self.cut(),
            Down::Probe => self.up(Up::Present),
        }
    }

    /// Does all that can be done now; returns when it has something to do again by itself.
    pub(super) fn turn(&mut self) -> Option<Instant> {
        let mut idle = false;
        while !idle {
            idle = true;
            for (job, rank, end) in self.local.ended() {
                self.up(Up::Ended { job, rank, end });
            }
            if let Some(order) = self.root.as_mut().and_then(|root| root.poll_order(now())) {
                self.begin(order);
                idle = false;
            }
            while let Some((host, order)) = self.relay.poll_order() {
                if let Some(child) = self.below.get(&host) {
                    let _ = child.to.send(Down::Order(order));
                }
            }
            if let Some((number, action)) = self.relay.poll_action() {
                if let Action::Launch(launch) = &action {
                    let host_of = |rank| self.cluster.host_of(launch.first + rank);
                    let here = (0..launch.ranks).any(|rank| host_of(rank) == self.host);
                    self.launching = here.then_some(launch.job);
                }
                self.local.execute(number, action);
            }
            if let Some((number, outcome)) = self.local.poll_done() {
                if let Some(job) = self.launching.take() {
                    self.carry(job);
                }
                self.tell_cut();
                self.relay.handle_own(number, outcome);
            }
            if let Some((number, outcome)) = self.relay.poll_done() {
                match &mut self.root {
                    Some(root) => root.handle_outcome(now(), &outcome),
                    None => self.up(Up::Report { number, outcome }),
                }
                idle = false;
            }
            idle &= !self.lose_silent();
        }
        let news = self.root.as_mut().map(|root| root.drain(now())).unwrap_or_default();
        news.go.into_iter().for_each(|job| self.say(job, Word::Go));
        news.writes.into_iter().for_each(|write| self.write(write));
        for job in news.lingering {
            let events = self.events.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LINGER).await;
                let _ = events.send(Event::Overdue(job));
            });
        }
        let silent = self.relay.waits_for().next().map(|_| self.order_began + self.patience);
        let slice = self.root.as_ref().and_then(|root| root.scheduler_core.poll_timeout());
        let look = self.local.looks_again().then(|| now() + LOOK_AGAIN);
        silent.into_iter().chain(self.probed_until()).chain(slice).chain(look).min()
    }

    /// A child of this process has changed.
    pub(super) const fn children_changed(&mut self) {
        self.local.children_changed();
    }

    /// Returns in words what this daemon waits for.
    pub(super) fn explain(&self) -> String {
        let Self { host, order_began, below, local, .. } = self;
        let since = Duration::from_nanos(now().nanos_since(*order_began));
        let waits: Vec<u16> = self.relay.waits_for().collect();
        let scheduler_core = self.root.as_ref().map(|root| &root.scheduler_core);
        format!(
            "host {host}: the last order began {since:?} ago; hosts that have not reported: {waits:?}; hosts below: \
             {below:?}; {scheduler_core:?}; {}",
            local.explain()
        )
    }

    /// Ends all that runs here.
    pub(super) fn end_all(&mut self) {
        self.local.kill_all();
    }

    /// Whether all of it has ended.
    pub(super) fn is_empty(&mut self) -> bool {
        let _ = self.local.ended();
        self.local.is_empty()
    }

    fn hosts(&self) -> Vec<u16> {
        let below = self.below.values().flat_map(|child| child.hosts.iter().copied());
        std::iter::once(self.host).chain(below).collect()
    }

    fn begin(&mut self, order: Order<Program>) {
        self.order_began = now();
        self.relay.handle_order(order);
    }

    fn up(&mut self, up: Up) {
        match (&mut self.root, &self.above) {
            (Some(root), _) => match up {
                Up::Ended { job, rank, end } => {
                    let go = root.rank_ended(now(), job, rank, end);
                    self.say_if(go, job);
                }
                Up::Here(hosts) => root.hosts_here(&hosts),
                Up::Gone(hosts) => root.hosts_gone(now(), &hosts),
                Up::Able { job, rank } => root.able(job, rank),
                Up::Left { job, rank } => {
                    let go = root.left(job, rank);
                    self.say_if(go, job);
                }
                Up::Part { job, rank, part } => {
                    let go = root.hear_part(now(), job, rank, &part);
                    self.say_if(go, job);
                }
                Up::Report { .. } | Up::Present => {}
            },
            (None, Some(above)) => drop(above.send(up)),
            // Whoever was above has given up what this is about.
            (None, None) => {}
        }
    }

    /// The way to the root is gone: nobody counts on what runs here.
    fn cut(&mut self) {
        self.above = None;
        self.local.kill_all();
        self.tell_below(&Down::Cut);
    }

    fn tell_below(&self, down: &Down) {
        for child in self.below.values() {
            let _ = child.to.send(down.clone());
        }
    }

    fn signal(&self, job: JobId, signal: i32) {
        self.local.signal(job, signal);
        self.tell_below(&Down::Signal { job, signal });
    }

    /// Says something to all ranks of a job.
    fn say(&self, job: JobId, word: Word) {
        self.local.say(job, word);
        self.tell_below(&match word {
            Word::Ask => Down::Ask(job),
            Word::Go => Down::Go(job),
        });
    }

    fn say_if(&self, go: bool, job: JobId) {
        if go {
            self.say(job, Word::Go);
        }
    }

    /// Hands a part of what a rank goes on from to where that will be.
    fn part(&mut self, host: u16, job: JobId, rank: u16, part: Part) {
        if host == self.host {
            self.local.take_part(job, rank, &part);
        } else if let Some(child) = self.below.values().find(|child| child.hosts.contains(&host)) {
            let _ = child.to.send(Down::Part { host, job, rank, part });
        }
    }

    /// Tells the root what channels here were found to hold.
    fn tell_cut(&mut self) {
        for (job, context) in self.local.take_cut() {
            let rank = context.rank.0;
            // Without it the root says which rank's is missing.
            let Ok(bytes) = wire::encode_long(&context) else { continue };
            for part in parcel::cut(What::Context, bytes.into()) {
                self.up(Up::Part { job, rank, part });
            }
        }
    }

    /// Writes a checkpoint, and goes on meanwhile.
    fn write(&self, write: Write) {
        let Write { job, checkpoint, folder, go } = write;
        self.say_if(go, job);
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            precedence::give_up();
            let written = checkpoint.write_to(&folder).map_err(|error| error.to_string());
            let _ = events.send(Event::Written(job, written));
        });
    }

    /// A checkpoint was read: its job is taken, or refused.
    fn restore(&mut self, read: Read) {
        let Some(root) = &mut self.root else { return };
        let Some((job, parts)) = root.restore(now(), read) else { return };
        for (host, rank, part) in parts {
            self.part(host, job, rank, part);
        }
    }

    fn resize(&self, job: JobId, size: (u16, u16)) {
        self.local.resize(job, size);
        self.tell_below(&Down::Resize { job, size });
    }

    /// Starts what carries the streams of a job's ranks here.
    fn carry(&mut self, job: JobId) {
        let (output, from_ranks) = mpsc::channel(streams::QUEUE);
        let opened: Vec<_> =
            self.local.take_opened().into_iter().map(|(_, opened)| opened).collect();
        let (mut input, host) = (None, self.host);
        match &mut self.root {
            Some(root) => {
                let Some((reply, from_front)) = root.ends_of(job, host) else { return };
                input = from_front;
                let (events, mut from_ranks) = (self.events.clone(), from_ranks);
                tokio::spawn(async move {
                    while let Some(frame) = from_ranks.recv().await {
                        let _ = reply.send(frame).await;
                    }
                    let _ = events.send(Event::StreamsDone(host, job));
                });
            }
            None => {
                let (to_rank, from_root) = mpsc::channel(streams::QUEUE);
                input.replace(from_root);
                (self.dial_root)(job, from_ranks, to_rank);
            }
        }
        for opened in opened {
            let own = if opened.rank == 0 { input.take() } else { None };
            streams::carry(opened, &output, own);
        }
    }

    fn streams(&mut self, host: u16, job: JobId, link: (Sender, Receiver)) {
        let Some(root) = &mut self.root else { return };
        let ranks = root.ranks_on(job, host);
        if ranks.is_empty() {
            return;
        }
        let Some(ends) = root.ends_of(job, host) else { return };
        let events = self.events.clone();
        tokio::spawn(async move {
            streams::at_root(link, &ranks, ends).await;
            let _ = events.send(Event::StreamsDone(host, job));
        });
    }
}
