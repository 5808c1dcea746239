//! A cluster of node cores in virtual time: their messages, steps, processes and front ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::network::{End, Message, Network};
use super::node::{Member, Node, state_of};
use crate::channel::geometry::Geometry;
use crate::checkpoint::Checkpoint;
use crate::names::JobId;
use crate::node_core::election::Ballot;
use crate::node_core::message::{
    self, Cluster as Shape, LONGEST, Program, RankEvent, Reply, Request, Up, Word,
};
use crate::node_core::order::Action;
use crate::node_core::replica::Durable;
use crate::node_core::state_chunk::{self, ChunkKind};
use crate::node_core::user::{Caller, User};
use crate::node_core::{
    ClientId, Contents, Effect, Input, NodeConfig, NodeCore, Peer, Read, RootConfig, Step, Transmit,
};
use crate::schedule::QueueTree;
use crate::scheduler_core::SchedulerConfig;

pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of memory for each slot of a host.
pub(super) const MEMORY: u64 = 12;
/// Interval at which an orphan dials.
const DIAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(super) enum Event {
    Deliver(u64, End, Message),
    /// A step of a host's incarnation is due.
    Step(u16, u32, u64),
    /// Data arrives on a host's NIC for a job.
    Arrival(u16, u32, JobId),
    /// A rank's process may end, or hand its state over.
    Rank(u16, u32, Member, u32),
    Timeout(u16),
    Dial(u16),
    /// A ballot of one host arrives at another.
    Ballot(u16, u16, Ballot),
    /// A front end looks for the root again.
    Attach(ClientId),
    Written(u16, JobId),
    Read(u16, Caller, Vec<u8>, u8),
    /// The scenario's own.
    Script(usize),
}

/// A host: its daemon, if that is up, and what it runs.
pub(super) struct Host {
    pub(super) core: Option<NodeCore>,
    pub(super) node: Node,
    /// Grows with each crash.
    pub(super) incarnation: u32,
    /// What the daemon has recorded, and outlives it.
    durable: Durable,
    /// The daemons that it dials, and how often it has in vain.
    above: Vec<u16>,
    dials: usize,
    /// The step under way, and its number. The next one cancels it.
    step: Option<(u64, Step)>,
    timeout_at: Option<Instant>,
}

/// A front end.
#[derive(Debug)]
pub(super) struct Client {
    /// True if it is of another user than the jobs.
    is_stranger: bool,
    pub(super) request: Request,
    pub(super) replies: Vec<Reply>,
    /// The root has crashed, or it has left.
    pub(super) is_gone: bool,
    /// The root that it is connected with.
    pub(super) root: Option<u16>,
    /// Its job, once it was admitted.
    pub(super) job: Option<JobId>,
    /// The hosts of its job.
    pub(super) hosts: BTreeSet<u16>,
}

/// The user of all jobs, or another.
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
    /// Bytes of memory that jobs may claim on each host; `None` if they claim none.
    pub(super) memory: Option<u64>,
    /// True if every host can be the root.
    takes_over: bool,
    /// The host that has given orders in each term.
    orders: BTreeMap<u32, u16>,
    /// When a job was started or resumed last.
    pub(super) resumed_at: Instant,
    /// Hosts in another group can't be reached.
    pub(super) groups: Vec<u8>,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    pub(super) clients: BTreeMap<ClientId, Client>,
    /// Jobs and their front ends, on the present root.
    pub(super) jobs: BTreeMap<JobId, ClientId>,
    pub(super) disk: BTreeMap<Vec<u8>, (Program, Checkpoint)>,
    /// Jobs with a rank on a host whose channel never becomes steady.
    pub(super) stuck: BTreeSet<(JobId, u16)>,
    /// Hosts that can't be reached.
    pub(super) isolated: BTreeSet<u16>,
    /// Faults so far, of daemons and of the network.
    pub(super) faults: u64,
    /// Hosts that are lost, or may be up to a time.
    suspect: BTreeMap<u16, Instant>,
    /// Front ends whose job a fault may have ended.
    pub(super) harmed: BTreeSet<ClientId>,
    /// Bytes of what each rank puts in a PMI barrier.
    pub(super) value_bytes: usize,
    /// Bytes of the longest report to a root that takes over.
    pub(super) longest_report: u64,
    /// Chooses when data arrives for suspended jobs; `None` if none does.
    arrivals: Option<Rng>,
    /// Jobs that hosts have reported an arrival of in this suspension.
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
            // The seeds that docs/tests.md names are others.
            arrivals: (seed % 3 == 1).then(|| Rng::new(seed, "arrivals")),
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

    /// Handles events up to a time. Returns the script's next event, if one comes first.
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

    /// Has a host dial these daemons.
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

    /// Crashes a host's daemon. Its processes die with it, its contexts vanish, its connections end or go silent.
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

    /// Disconnects the front ends of a root that is none any longer.
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

    /// Has a front end that has lost its root look for another.
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

    /// Notes that the hosts whose way to the root leads over a host may be lost, and their jobs with them.
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
        let hosts: BTreeSet<u16> = (0..).map_while(|rank| core.host_of(job, rank)).collect();
        let is_suspect = |host: &u16| self.suspect.get(host).is_some_and(|until| self.now < *until);
        // Of jobs that are stopped together, it is not known whose channel is stuck.
        let is_stuck = |host: &u16| self.stuck.iter().any(|(_, stuck)| stuck == host);
        if hosts.iter().any(|host| is_suspect(host) || is_stuck(host)) {
            self.harmed.insert(client);
        }
        self.clients.get_mut(&client).expect("it has sent a request").hosts = hosts;
    }

    /// Has a connection go silent.
    pub(super) fn silence(&mut self, number: u64) {
        let Some(connection) = self.network.connections.get_mut(&number) else { return };
        connection.is_silent = true;
        let child = connection.child;
        self.suspect(child);
    }

    /// Breaks a connection: both ends are told.
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

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver(number, end, message) => self.deliver(number, end, message),
            Event::Step(host, incarnation, number) => self.step_due(host, incarnation, number),
            Event::Arrival(host, incarnation, job) => {
                if self.hosts[usize::from(host)].incarnation == incarnation {
                    self.call(host, |core, now| core.handle(now, Input::Arrived(job)));
                }
            }
            Event::Rank(host, incarnation, member, turn) => {
                self.rank_due(host, incarnation, member, turn);
            }
            Event::Timeout(host) => {
                let it = &mut self.hosts[usize::from(host)];
                if it.timeout_at.take_if(|at| *at <= self.now).is_some() {
                    self.call(host, |core, now| core.handle_timeout(now));
                }
            }
            Event::Dial(host) => self.dial(host),
            Event::Ballot(from, to, ballot) => {
                if self.reaches(from, to) {
                    self.call(to, |core, now| core.handle(now, Input::Ballot(from, ballot)));
                }
            }
            Event::Attach(client) => self.attach(client),
            Event::Written(host, job) => {
                self.call(host, |core, now| core.handle(now, Input::Written(job, Ok(0))));
            }
            Event::Read(host, caller, folder, weight) => {
                let read = self.disk.get(&folder).cloned().ok_or_else(|| "nothing there".into());
                let read = read.map(|(program, saved)| (program, Contents::States(saved)));
                self.call(host, |core, now| {
                    core.handle(now, Input::Read(Box::new(Read { caller, weight, read })))
                });
            }
            Event::Script(_) => unreachable!("the script takes it"),
        }
    }

    fn deliver(&mut self, number: u64, end: End, message: Message) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let (child, parent) = (connection.child, connection.parent);
        if !self.network.receives(number, end) {
            return;
        }
        match message {
            Message::Hello => self.call(parent, |core, now| {
                core.handle(now, Input::Child { host: child, connection: number })
            }),
            Message::Up(up) => {
                self.call(parent, |core, now| core.handle(now, Input::Up(number, up)))
            }
            Message::Down(down) => {
                self.call(child, |core, now| core.handle(now, Input::Down(down)))
            }
            Message::Closed => {
                self.network.close(number, end);
                match end {
                    End::Child => {
                        self.call(child, |core, now| {
                            core.handle(now, Input::Disconnected(Peer::Parent))
                        });
                        self.at(DIAL, Event::Dial(child));
                    }
                    End::Parent => {
                        let peer = Peer::Child(number);
                        self.call(parent, |core, now| core.handle(now, Input::Disconnected(peer)));
                    }
                }
            }
        }
    }

    /// Returns whether both hosts are up and reach each other.
    fn reaches(&self, from: u16, to: u16) -> bool {
        let is_up =
            |at: u16| self.hosts[usize::from(at)].core.is_some() && !self.isolated.contains(&at);
        is_up(from) && is_up(to) && self.groups[usize::from(from)] == self.groups[usize::from(to)]
    }

    /// Has an orphan dial the daemons above it, the nearest first; after each refusal, one that is a step higher.
    fn dial(&mut self, host: u16) {
        if self.hosts[usize::from(host)].core.is_none() || self.network.above(host).is_some() {
            return;
        }
        let it = &mut self.hosts[usize::from(host)];
        it.dials += 1;
        let it = &self.hosts[usize::from(host)];
        if it.above.is_empty() {
            return;
        }
        let first = if self.takes_over { (it.dials - 1) % it.above.len() } else { 0 };
        let parent = it.above.iter().skip(first).copied().find(|at| self.reaches(host, *at));
        let Some(parent) = parent else { return self.at(DIAL, Event::Dial(host)) };
        let number = self.network.open(self.now, host, parent);
        let at = self.network.send(self.now, number, End::Parent, &mut self.dice);
        self.at_time(
            at.expect("it was just opened"),
            Event::Deliver(number, End::Parent, Message::Hello),
        );
        self.call(host, |core, now| core.handle(now, Input::Parent));
    }

    /// Calls a core, and carries out what it asks for.
    pub(super) fn call(&mut self, host: u16, input: impl FnOnce(&mut NodeCore, Instant)) {
        let Some(core) = &mut self.hosts[usize::from(host)].core else { return };
        input(core, self.now);
        loop {
            let recorded = self.core(host).and_then(|core| core.poll_record().cloned());
            if let Some(durable) = recorded {
                self.hosts[usize::from(host)].durable = durable;
            }
            while let Some(transmit) = self.core(host).and_then(NodeCore::poll_transmit) {
                self.transmit(host, transmit);
            }
            let Some(effect) = self.core(host).and_then(NodeCore::poll_effect) else { break };
            self.carry_out(host, effect);
        }
        let at = self.core(host).and_then(|core| core.poll_timeout());
        let it = &mut self.hosts[usize::from(host)];
        if let Some(at) = at.filter(|at| it.timeout_at.is_none_or(|old| *at < old)) {
            it.timeout_at = Some(at);
            self.at_time(at.max(self.now), Event::Timeout(host));
        }
    }

    fn core(&mut self, host: u16) -> Option<&mut NodeCore> {
        self.hosts[usize::from(host)].core.as_mut()
    }

    fn transmit(&mut self, host: u16, transmit: Transmit) {
        let (number, to, message) = match transmit {
            Transmit::Up(up) => {
                self.check_length(&up);
                self.check_arrival(host, &up);
                match self.network.above(host) {
                    Some(number) => (number, End::Parent, Message::Up(up)),
                    None => return,
                }
            }
            Transmit::Down(number, down) => {
                self.check_order(host, &down);
                (number, End::Child, Message::Down(down))
            }
            Transmit::Ballot(to, ballot) => {
                if self.reaches(host, to) {
                    let after = Duration::from_micros(self.dice.between(20, 2_000));
                    self.at(after, Event::Ballot(host, to, ballot));
                }
                return;
            }
        };
        if let Some(at) = self.network.send(self.now, number, to, &mut self.dice) {
            self.at_time(at, Event::Deliver(number, to, message));
        }
    }

    /// A link carries no longer message.
    fn check_length(&mut self, up: &Up) {
        if let Up::Joined { at, bytes, .. } = up {
            let length = wire::encode_long(up).unwrap().len();
            assert!(length <= LONGEST, "a message of {length} bytes");
            self.longest_report = self.longest_report.max(at + bytes.len() as u64);
        }
    }

    /// A host reports one arrival for each suspension of a job.
    fn check_arrival(&mut self, host: u16, up: &message::Up) {
        if let message::Up::Arrived { host: own, job } = up
            && *own == host
        {
            assert!(self.arrived.insert((host, *job)), "{job} has arrived twice on host {host}");
        }
    }

    /// Has data arrive for suspended jobs, some of it twice.
    fn arrive(&mut self, host: u16, jobs: &[JobId]) {
        let incarnation = self.hosts[usize::from(host)].incarnation;
        let Some(mut rng) = self.arrivals.take() else { return };
        for job in jobs {
            for _ in 0..rng.below(3) {
                let after = Duration::from_micros(rng.below(20_000));
                self.at(after, Event::Arrival(host, incarnation, *job));
            }
        }
        self.arrivals = Some(rng);
    }

    /// In a term, one root gives orders.
    fn check_order(&mut self, host: u16, down: &message::Down) {
        let core = self.hosts[usize::from(host)].core.as_ref().expect("it has sent this");
        if matches!(down, message::Down::Order(_)) && core.manager.is_some() {
            let first = *self.orders.entry(core.durable.term).or_insert(host);
            assert_eq!(first, host, "two roots order in term {}", core.durable.term);
        }
    }

    fn reply(&mut self, client: ClientId, reply: Reply) {
        let it = self.clients.get_mut(&client).expect("a front end");
        match &reply {
            Reply::Accepted(job) if it.job.is_some() => return assert_eq!(it.job, Some(*job)),
            // The root of a minority, which does not know yet that it is none.
            Reply::Refused(_) if it.job.is_some() && it.replies.len() == 1 => {
                it.root = None;
                return self.at(DIAL, Event::Attach(client));
            }
            Reply::Accepted(job) => {
                it.job = Some(*job);
                it.replies.push(reply.clone());
                self.jobs.insert(*job, client);
                return self.admitted(client, *job);
            }
            Reply::Over(over) => drop(self.jobs.remove(&over.job)),
            _ => {}
        }
        self.clients.get_mut(&client).expect("a front end").replies.push(reply);
    }

    fn carry_out(&mut self, host: u16, effect: Effect) {
        match effect {
            Effect::Step(number, step) => self.begin_step(host, number, step),
            Effect::Reply(client, reply) => self.reply(client, reply),
            Effect::Seek(above) => self.seek(host, above),
            Effect::Root(_) => {}
            Effect::Deposed => self.disconnect(host),
            Effect::Say(job, word) => self.say(host, job, word),
            Effect::Signal(..) | Effect::Resize(..) => {}
            Effect::BarrierOut(job, _) => self.leave_barrier(host, job),
            Effect::Write(write) => {
                let program = Program::from_json(&write.checkpoint.program).unwrap();
                self.disk.insert(write.folder, (program, write.checkpoint));
                let after = self.up_to(5_000);
                self.at(after, Event::Written(host, write.job));
            }
            Effect::Read { caller, folder, weight, .. } => {
                let after = self.up_to(5_000);
                self.at(after, Event::Read(host, caller, folder, weight));
            }
            Effect::Disconnect(Peer::Parent) => {
                if let Some(number) = self.network.above(host) {
                    self.close(number, End::Child);
                    self.at(DIAL, Event::Dial(host));
                }
            }
            Effect::Disconnect(Peer::Child(number)) => self.close(number, End::Parent),
            Effect::Refused(_) => {}
            Effect::Quit => unreachable!("nothing orders it"),
            Effect::Collect(_) | Effect::Serve(..) => unreachable!("the user is not root"),
        }
    }

    fn begin_step(&mut self, host: u16, number: u64, step: Step) {
        let incarnation = self.hosts[usize::from(host)].incarnation;
        let took = match &step {
            Step::Resume(_) => Duration::ZERO,
            _ => Duration::from_micros(self.dice.below(300)),
        };
        self.hosts[usize::from(host)].step = Some((number, step));
        self.at(took, Event::Step(host, incarnation, number));
    }

    fn step_due(&mut self, host: u16, incarnation: u32, number: u64) {
        let it = &self.hosts[usize::from(host)];
        let is_it = it.incarnation == incarnation
            && it.step.as_ref().is_some_and(|(other, _)| *other == number);
        if !is_it {
            return;
        }
        // A channel to a node that is gone is never steady.
        if let Some((_, Step::Channels(action))) = &it.step
            && matches!(action, Action::Freeze(_) | Action::Leave(_))
            && action.jobs().any(|job| {
                it.node.has(job) && (self.lacks_a_host(job) || self.stuck.contains(&(job, host)))
            })
        {
            return self.at(Duration::from_millis(1), Event::Step(host, incarnation, number));
        }
        let (_, step) = self.hosts[usize::from(host)].step.take().expect("it was just seen");
        let done = self.take_step(host, &step);
        self.call(host, |core, now| core.handle(now, Input::StepDone(number, Ok(done))));
    }

    fn take_step(&mut self, host: u16, step: &Step) -> crate::node_core::StepOutcome {
        match step {
            Step::Suspend(jobs) => {
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    self.hosts[usize::from(host)].node.suspend(self.now, member);
                }
            }
            Step::Resume(jobs) => {
                self.resumed_at = self.now;
                self.arrived.retain(|(at, job)| *at != host || !jobs.contains(job));
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    self.hosts[usize::from(host)].node.resume(self.now, member);
                    self.enter_barrier(host, member);
                    self.schedule_rank(host, member);
                }
            }
            Step::Kill(jobs) => {
                for member in self.hosts[usize::from(host)].node.ranks_of(jobs) {
                    self.end_rank(host, member, message::End::Killed(9));
                    self.hosts[usize::from(host)].node.processes.remove(&member);
                }
            }
            Step::Channels(
                Action::Switch { stop, .. } | Action::Exchange { stop, .. } | Action::Save(stop),
            ) => {
                self.all_are_frozen(host, stop);
                self.arrive(host, stop);
            }
            _ => {}
        }
        let own = match step {
            Step::Open(launch, _) | Step::Start(launch, _) => {
                let places = self.shape.places(launch);
                let here = (0_u16..).zip(places).filter(|(_, place)| place.node.0 == host);
                here.map(|(rank, place)| (rank, place.channel.0)).collect()
            }
            _ => Vec::new(),
        };
        let node = &mut self.hosts[usize::from(host)].node;
        let done = node.carry_out(step, &own);
        let claimed = node.claimed();
        assert!(
            self.memory.is_none_or(|most| claimed <= most),
            "host {host} gives {claimed} bytes"
        );
        done
    }

    /// A context that is saved while another is active in the same epoch loses the messages that are under way.
    fn all_are_frozen(&self, host: u16, jobs: &[JobId]) {
        for job in jobs.iter().filter(|job| self.is_unharmed(**job)) {
            let Some((own, _)) = self.hosts[usize::from(host)].node.epochs(*job).next() else {
                continue;
            };
            let mut all = self.hosts.iter().flat_map(|host| host.node.epochs(*job));
            let active = all.any(|(epoch, is_active)| is_active && !epoch.is_newer_than(own));
            assert!(!active, "job {job} is saved on host {host} while it is active elsewhere");
        }
    }

    /// Returns whether no fault can have ended a job.
    fn is_unharmed(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|client| !self.harmed.contains(client))
    }

    /// Returns whether the context of a job's rank is on no host.
    fn lacks_a_host(&self, job: JobId) -> bool {
        let Some(client) = self.jobs.get(&job) else { return true };
        let has = |host: &u16| self.hosts[usize::from(*host)].node.has(job);
        !self.clients[client].hosts.iter().all(has)
    }

    fn say(&mut self, host: u16, job: JobId, word: Word) {
        for member in self.hosts[usize::from(host)].node.ranks_of(&[job]) {
            let node = &mut self.hosts[usize::from(host)].node;
            let process = node.processes.get_mut(&member).expect("it was just listed");
            match word {
                Word::Ask => process.is_asked = true,
                Word::Go => process.waits = false,
                Word::Dump(_) => unreachable!("the user is not root"),
            }
            process.update(self.now);
            self.schedule_rank(host, member);
        }
    }

    /// Has a rank enter the next PMI barrier, if its job has more of them.
    fn enter_barrier(&mut self, host: u16, member: Member) {
        let process = self.hosts[usize::from(host)].node.processes.get_mut(&member);
        let process = process.filter(|it| {
            it.end.is_none()
                && !it.is_inside
                && it.runs_since.is_some()
                && it.barriers < member.0.0 % 3
        });
        let Some(process) = process else { return };
        process.is_inside = true;
        process.barriers += 1;
        process.update(self.now);
        let value = "v".repeat(self.value_bytes);
        let event = RankEvent::BarrierIn(vec![(member.1.to_string(), value)]);
        self.call(host, |core, now| core.handle(now, Input::Rank(member.0, member.1, event)));
    }

    /// Lets the ranks of a job leave the PMI barrier, which all of its ranks have entered.
    fn leave_barrier(&mut self, host: u16, job: JobId) {
        for member in self.hosts[usize::from(host)].node.ranks_of(&[job]) {
            let node = &mut self.hosts[usize::from(host)].node;
            let process = node.processes.get_mut(&member).expect("it was just listed");
            assert!(process.is_inside || process.end.is_some(), "{member:?} leaves no barrier");
            process.is_inside = false;
            process.update(self.now);
            self.enter_barrier(host, member);
            self.schedule_rank(host, member);
        }
    }

    /// Schedules a rank's end, or the time at which it hands its state over.
    fn schedule_rank(&mut self, host: u16, member: Member) {
        let it = &self.hosts[usize::from(host)];
        let (incarnation, process) = (it.incarnation, &it.node.processes[&member]);
        let Some(since) = process.runs_since else { return };
        let ends = since + process.works_for.saturating_sub(process.ran);
        let (turn, hands_over) = (process.turn, process.is_asked);
        let saves = self.now + Duration::from_micros(self.dice.below(2_000));
        let at = if hands_over { ends.min(saves) } else { ends };
        self.at_time(at.max(self.now), Event::Rank(host, incarnation, member, turn));
    }

    fn rank_due(&mut self, host: u16, incarnation: u32, member: Member, turn: u32) {
        let now = self.now;
        let it = &mut self.hosts[usize::from(host)];
        let process = it.node.processes.get_mut(&member).filter(|it| it.turn == turn);
        let Some(process) = process.filter(|_| it.incarnation == incarnation) else { return };
        let Some(since) = process.runs_since else { return };
        let ran = process.ran + Duration::from_nanos(now.nanos_since(since));
        if ran >= process.works_for {
            return self.end_rank(host, member, message::End::Exited(0));
        }
        if std::mem::take(&mut process.is_asked) {
            process.waits = true;
            process.update(now);
            for chunk in state_chunk::split(ChunkKind::State, state_of(ran).into()) {
                let event = RankEvent::Chunk(chunk);
                self.call(host, |core, now| {
                    core.handle(now, Input::Rank(member.0, member.1, event))
                });
            }
        }
    }

    /// Ends a rank's process, and reports that.
    pub(super) fn end_rank(&mut self, host: u16, member: Member, end: message::End) {
        let now = self.now;
        let process = self.hosts[usize::from(host)].node.processes.get_mut(&member);
        let Some(process) = process.filter(|process| process.end.is_none()) else { return };
        process.end = Some(end);
        process.update(now);
        let event = RankEvent::Ended(end);
        self.call(host, |core, now| core.handle(now, Input::Rank(member.0, member.1, event)));
    }

    /// Has a front end of the jobs' user send a request.
    pub(super) fn request(&mut self, request: Request) -> ClientId {
        self.request_as(false, request)
    }

    /// Has a stranger ask for everything that may be done with a job, and requires that all is refused.
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
                // There is no root.
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
