//! A cluster of node cores in virtual time: their messages, steps, processes and clients.

mod events;
mod ranks;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use super::network::{End, Message, Network};
use super::node::{Member, Node};
use crate::channel::geometry::Geometry;
use crate::checkpoint::Checkpoint;
use crate::names::JobId;
use crate::node_core::election::Ballot;
use crate::node_core::message::{Cluster as Shape, Program, Reply, Request};
use crate::node_core::replica::Durable;
use crate::node_core::user::{Caller, User};
use crate::node_core::{ClientId, Input, NodeConfig, NodeCore, RootConfig, Step};
use crate::schedule::QueueTree;
use crate::scheduler_core::SchedulerConfig;

pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of memory for each slot of a host.
pub(super) const MEMORY: u64 = 12;
/// Interval between two dials of a host without a parent.
const DIAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(super) enum Event {
    Deliver(u64, End, Message),
    /// A step of a host's incarnation is due.
    Step(u16, u32, u64),
    /// Data arrives on a host's NIC for a job.
    Arrival(u16, u32, JobId),
    /// A rank's process may end or send its state.
    Rank(u16, u32, Member, u32),
    Timeout(u16),
    Dial(u16),
    /// A ballot of one host arrives at another.
    Ballot(u16, u16, Ballot),
    /// A client searches the root again.
    Attach(ClientId),
    Written(u16, JobId, ClientId),
    Read(u16, Caller, Vec<u8>, u8),
    /// An event of the scenario.
    Script(usize),
}

/// A host: its daemon, if it is up, and the host's processes and contexts.
pub(super) struct Host {
    pub(super) core: Option<NodeCore>,
    pub(super) node: Node,
    /// Number of crashes so far.
    pub(super) incarnation: u32,
    /// The state that the daemon has recorded, which survives a crash.
    durable: Durable,
    /// The daemons that this host dials, and the number of dials so far.
    above: Vec<u16>,
    dials: usize,
    /// The step in progress and its number. The next step cancels it.
    step: Option<(u64, Step)>,
    timeout_at: Option<Instant>,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    /// True if the client's user does not own the jobs.
    is_stranger: bool,
    pub(super) request: Request,
    pub(super) replies: Vec<Reply>,
    /// True if the root has crashed, or the client has left.
    pub(super) is_gone: bool,
    /// The root with which the client is connected.
    pub(super) root: Option<u16>,
    /// The client's job, once it was admitted.
    pub(super) job: Option<JobId>,
    /// The hosts of the client's job.
    pub(super) hosts: BTreeSet<u16>,
}

/// Returns the user who owns all jobs, or another user.
fn user(is_stranger: bool) -> User {
    match is_stranger {
        true => User { name: "bob".into(), uid: 1001 },
        false => User { name: "ada".into(), uid: 1000 },
    }
}

pub(super) struct Cluster {
    pub(super) now: Instant,
    pub(super) dice: Rng,
    pub(super) shape: Shape,
    config: SchedulerConfig,
    /// Bytes of memory that jobs may claim on each host; `None` if jobs claim none.
    pub(super) memory: Option<u64>,
    /// True if every host can be the root.
    takes_over: bool,
    /// The host that has given orders in each term; at most one may.
    orders: BTreeMap<u32, u16>,
    /// When a job was last started or resumed.
    pub(super) resumed_at: Instant,
    /// Group of each host. Hosts in other groups can't be reached.
    pub(super) groups: Vec<u8>,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    pub(super) clients: BTreeMap<ClientId, Client>,
    /// Jobs and their clients, on the present root.
    pub(super) jobs: BTreeMap<JobId, ClientId>,
    pub(super) disk: BTreeMap<Vec<u8>, (Program, Checkpoint)>,
    /// Jobs with a rank on a host whose channel never becomes quiescent.
    pub(super) stuck: BTreeSet<(JobId, u16)>,
    /// Hosts that can't be reached.
    pub(super) isolated: BTreeSet<u16>,
    /// Number of faults so far, of daemons and of the network.
    pub(super) faults: u64,
    /// Hosts that are lost, or may be until an instant.
    suspect: BTreeMap<u16, Instant>,
    /// Clients whose job a fault may have ended.
    pub(super) harmed: BTreeSet<ClientId>,
    /// Bytes of each value that a rank puts before a PMI barrier.
    pub(super) value_bytes: usize,
    /// Bytes of the longest report to a root that takes over.
    pub(super) longest_report: u64,
    /// Decides when data arrives for suspended jobs; `None` if no data arrives.
    arrivals: Option<Rng>,
    /// Decides which ranks send their states of their own accord; `None` if none does.
    pub(super) own_saves: Option<Rng>,
    /// Jobs for which a host has reported an arrival since they were suspended.
    pub(super) arrived: BTreeSet<(u16, JobId)>,
    events: BTreeMap<(Instant, u64), Event>,
    sequence: u64,
    pub(super) steps: u64,
}

impl Cluster {
    pub(super) fn new(seed: u64, shape: Shape, config: SchedulerConfig, takes_over: bool) -> Self {
        let mut cluster = Self {
            now: Instant::ZERO,
            dice: Rng::new(seed, "cluster"),
            shape,
            config,
            memory: (seed % 7 == 3).then_some(MEMORY * u64::from(shape.slots)),
            takes_over,
            orders: BTreeMap::new(),
            resumed_at: Instant::ZERO,
            groups: vec![0; shape.hosts.into()],
            hosts: Vec::new(),
            network: Network::default(),
            clients: BTreeMap::new(),
            jobs: BTreeMap::new(),
            disk: BTreeMap::new(),
            stuck: BTreeSet::new(),
            isolated: BTreeSet::new(),
            faults: 0,
            suspect: BTreeMap::new(),
            harmed: BTreeSet::new(),
            value_bytes: 1,
            longest_report: 0,
            // The seeds in docs/tests.md have other remainders, so data arrives in none of their runs.
            arrivals: (seed % 3 == 1).then(|| Rng::new(seed, "arrivals")),
            // As for arrivals.
            own_saves: (seed % 5 == 2).then(|| Rng::new(seed, "own saves")),
            arrived: BTreeSet::new(),
            events: BTreeMap::new(),
            sequence: 0,
            steps: 0,
        };
        for _ in 0..shape.hosts {
            let node = Node::default();
            cluster.hosts.push(Host {
                core: None,
                node,
                incarnation: 0,
                durable: Durable::default(),
                above: Vec::new(),
                dials: 0,
                step: None,
                timeout_at: None,
            });
        }
        (0..shape.hosts).for_each(|host| cluster.boot(host));
        cluster
    }

    fn up_to(&mut self, micros: u64) -> Duration {
        Duration::from_micros(self.dice.below(micros))
    }

    pub(super) fn at(&mut self, after: Duration, event: Event) {
        self.at_time(self.now + after, event);
    }

    fn at_time(&mut self, at: Instant, event: Event) {
        self.events.insert((at, self.sequence), event);
        self.sequence += 1;
    }

    /// Handles events up to an instant. Returns early with the number of the script's event, if one comes first.
    pub(super) fn run_until(&mut self, end: Instant) -> Option<usize> {
        while let Some(first) = self.events.first_entry() {
            let at = first.key().0;
            if at > end {
                break;
            }
            let event = first.remove();
            self.now = at;
            self.steps += 1;
            if let Event::Script(number) = event {
                return Some(number);
            }
            self.handle(event);
        }
        self.now = end;
        None
    }

    /// Starts a host's daemon.
    pub(super) fn boot(&mut self, host: u16) {
        let (cluster, takes_over) = (self.shape, self.takes_over);
        let (patience, memory) = (PATIENCE, self.memory.unwrap_or(u64::MAX));
        let config = NodeConfig { host, cluster, patience, has_channels: true, memory, takes_over };
        let slots = self.shape.hosts * self.shape.slots;
        let root = (takes_over || host == 0).then(|| RootConfig {
            policy: Box::new(QueueTree::new(slots)),
            scheduler: self.config,
            geometry: Some(Geometry::PM),
            most_saved: 1 << 20,
            check_every: Duration::from_millis(40),
            names: Vec::new(),
            has_streams: false,
        });
        let it = &mut self.hosts[usize::from(host)];
        it.core = Some(NodeCore::new(config, root, it.durable.clone()));
        if !takes_over && host != 0 {
            let tree = crate::tree::Tree::new(self.shape.hosts, self.shape.arity);
            self.seek(host, tree.above(host).collect());
        }
        self.call(host, |core, now| core.handle_timeout(now));
    }

    /// Makes a host dial these daemons.
    fn seek(&mut self, host: u16, above: Vec<u16>) {
        let it = &mut self.hosts[usize::from(host)];
        (it.above, it.dials) = (above, 0);
        if !self.hosts[usize::from(host)].above.is_empty() {
            self.at(Duration::ZERO, Event::Dial(host));
        }
    }

    /// Returns the root of the latest term.
    pub(super) fn root(&self) -> Option<u16> {
        let term = |host: &u16| {
            let core = self.hosts[usize::from(*host)].core.as_ref()?;
            core.manager.is_some().then_some(core.durable.term)
        };
        let roots = (0..self.shape.hosts).filter(|host| term(host).is_some());
        roots.max_by_key(|host| term(host))
    }

    /// Calls the root's core, if there is one.
    pub(super) fn call_root(&mut self, input: impl FnOnce(&mut NodeCore, Instant)) {
        if let Some(root) = self.root() {
            self.call(root, input);
        }
    }

    /// Crashes a host's daemon. Its processes and contexts are lost, and its connections end or go silent.
    pub(super) fn crash(&mut self, host: u16, is_silent: bool) {
        self.suspect(host);
        let it = &mut self.hosts[usize::from(host)];
        if it.core.take().is_none() {
            return;
        }
        it.incarnation += 1;
        (it.node, it.step, it.timeout_at) = (Node::default(), None, None);
        for (number, end) in self.network.ends_of(host) {
            if is_silent {
                self.silence(number);
            }
            self.close(number, end);
        }
        self.disconnect(host);
    }

    /// Disconnects the clients of a host that is no longer the root.
    fn disconnect(&mut self, host: u16) {
        if !self.takes_over && host == 0 {
            self.jobs.clear();
            self.stuck.clear();
        }
        let mut lost = Vec::new();
        for (number, client) in &mut self.clients {
            if client.root.take_if(|root| *root == host).is_some() {
                let is_over = client.replies.iter().any(|it| matches!(it, Reply::Over(_)));
                client.is_gone |= !self.takes_over || client.job.is_none() && !is_over;
                lost.push(*number);
            }
        }
        lost.iter().for_each(|client| self.at(DIAL, Event::Attach(*client)));
    }

    /// Makes a client that has lost its root search another.
    fn attach(&mut self, client: ClientId) {
        let root = self.root();
        let it = self.clients.get_mut(&client).expect("it has sent a request");
        let is_over = it.replies.iter().any(|it| matches!(it, Reply::Over(_)));
        let Some(job) = it.job.filter(|_| !is_over && !it.is_gone && it.root.is_none()) else {
            return;
        };
        match root {
            Some(root) => {
                it.root = Some(root);
                let caller = Caller { client, user: user(it.is_stranger) };
                let request = Request::Attach(job);
                self.call(root, |core, now| core.handle(now, Input::Request(caller, request)));
            }
            None => self.at(DIAL, Event::Attach(client)),
        }
    }

    /// Records as possibly lost all hosts below a host, and their jobs.
    fn suspect(&mut self, at: u16) {
        self.faults += 1;
        if self.takes_over {
            return;
        }
        let above = |host: &u16| Some(self.network.connections[&self.network.above(*host)?].parent);
        let is_lost = |host: &u16| std::iter::successors(Some(*host), above).any(|host| host == at);
        let lost: BTreeSet<u16> = (0..self.shape.hosts).filter(is_lost).collect();
        let until = self.now + PATIENCE * 10;
        self.suspect.extend(lost.iter().map(|host| (*host, until)));
        let is_harmed = |it: &Client| !it.hosts.is_disjoint(&lost);
        let harmed = self.clients.iter().filter(|(_, it)| is_harmed(it));
        self.harmed.extend(harmed.map(|(client, _)| *client));
    }

    fn admitted(&mut self, client: ClientId, job: JobId) {
        let root = self.root().expect("it has just replied");
        let core = self.hosts[usize::from(root)].core.as_ref().expect("it is up");
        let hosts: BTreeSet<u16> =
            (0..).map_while(|rank| core.root()?.host_of(job, rank)).collect();
        let is_suspect = |host: &u16| self.suspect.get(host).is_some_and(|until| self.now < *until);
        // If jobs are suspended together, each of them may be the one whose channel is stuck.
        let is_stuck = |host: &u16| self.stuck.iter().any(|(_, stuck)| stuck == host);
        if hosts.iter().any(|host| is_suspect(host) || is_stuck(host)) {
            self.harmed.insert(client);
        }
        self.clients.get_mut(&client).expect("it has sent a request").hosts = hosts;
    }

    /// Makes a connection silent.
    pub(super) fn silence(&mut self, number: u64) {
        let Some(connection) = self.network.connections.get_mut(&number) else { return };
        connection.is_silent = true;
        let child = connection.child;
        self.suspect(child);
    }

    /// Breaks a connection, and notifies both ends.
    pub(super) fn break_connection(&mut self, number: u64) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        self.suspect(connection.child);
        for end in [End::Child, End::Parent] {
            let after = self.up_to(3_000);
            self.at(after, Event::Deliver(number, end, Message::Closed));
        }
    }

    fn close(&mut self, number: u64, end: End) {
        let other = if end == End::Child { End::Parent } else { End::Child };
        if let Some(at) = self.network.send(self.now, number, other, &mut self.dice) {
            self.at_time(at, Event::Deliver(number, other, Message::Closed));
        }
        self.network.close(number, end);
    }

    /// Sends a request of a client of the jobs' user.
    pub(super) fn request(&mut self, request: Request) -> ClientId {
        self.request_as(false, request)
    }

    /// Sends all requests that control a job as another user, and checks that all are refused.
    pub(super) fn strangers_are_refused(&mut self, job: JobId) {
        let folder = b"/nonexistent/stolen".to_vec();
        let checkpoint = Request::Checkpoint { job, folder, end: true };
        let signal = Request::Kill { job, signal: Some(9) };
        let end = Request::Kill { job, signal: None };
        for request in [checkpoint, signal, end, Request::Attach(job)] {
            let client = self.request_as(true, request);
            let it = &self.clients[&client];
            let is_refused = match it.replies.last() {
                Some(Reply::Refused(why)) => why.contains("only ada and root"),
                // There is no root, so there is no reply.
                None => it.is_gone,
                _ => false,
            };
            assert!(is_refused, "{it:?}");
        }
    }

    fn request_as(&mut self, is_stranger: bool, request: Request) -> ClientId {
        let client = self.clients.len() as u64 + 1;
        let root = self.root();
        let (replies, hosts, job) = (Vec::new(), BTreeSet::new(), None);
        let is_gone = root.is_none();
        let made =
            Client { is_stranger, request: request.clone(), replies, is_gone, root, job, hosts };
        self.clients.insert(client, made);
        let caller = Caller { client, user: user(is_stranger) };
        self.call_root(|core, now| core.handle(now, Input::Request(caller, request)));
        client
    }

    pub(super) fn explain(&self) -> String {
        let cores = self.hosts.iter().filter_map(|host| host.core.as_ref());
        cores.map(|core| core.explain(self.now) + "\n").collect()
    }
}
