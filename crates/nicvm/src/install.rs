//! Extensions installed across a cluster while it runs: on all nodes or on none, in one version.
//!
//! Whoever is asked to coordinates: the module goes down a tree of the members as it comes, each
//! prepares it (checks, translates, starts it, aside) and votes; when all have, they commit, and the
//! new version runs under the next [`Epoch`], which its control messages carry; when one refuses,
//! nothing has changed anywhere. The version before stays ready: rolling back is one commit. A member
//! that was away asks, and catches up. If the coordinator dies in between, the living member of the
//! lowest rank asks all others what they know, and ends it the same way for all: committed if any has,
//! otherwise not at all.
//!
//! An extension that fails is quarantined on its node, its commands end with an error at once, and all
//! members are told; what follows is its [`Policy`].

mod catch_up;
mod change;
mod listed;
mod recovery;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::extension::{Epoch, Extension, InitError, PeerEvent, TimeoutId, UnitEvent};
use crate::timeout::Service;
use change::{Change, Phase};
use wire::{Message, Offer};

pub use listed::Listed;
pub use wire::{ChangeId, Hash, MAX_MEMBERS};

/// The number of the installer.
pub const INSTALLER: ExtensionId = ExtensionId(7);

/// Installs the module in `region` under the number of argument 0, with the [`Policy`] of argument 1;
/// completes when it runs on all members (argument 0: its epoch, 1: how many members), or with
/// [`Status::Refused`] when one has refused (argument 0: which, 1: a [`Refusal`]).
pub const INSTALL: u8 = 1;
/// Goes back to the version before of the number of argument 0, everywhere.
pub const ROLL_BACK: u8 = 2;
/// Takes down what runs under the number of argument 0, everywhere.
pub const QUARANTINE: u8 = 3;
/// Writes what is installed here into `region`: [`Listed`], [`Listed::BYTES`] each.
pub const LIST: u8 = 4;

/// Most bytes of a module that is installed.
pub const MAX_MODULE: usize = 64 << 10;
/// How long a change may stand still before somebody asks after it.
const PATIENCE: Duration = Duration::from_millis(200);
const WATCH: TimeoutId = TimeoutId(u32::MAX);
/// How long a restart waits at first; twice as long each time after.
const BACK_OFF: Duration = Duration::from_millis(10);
/// Restarts after which it stays down.
const RESTARTS: u32 = 8;

/// What follows when an extension fails on some node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Policy {
    /// It stays down there.
    #[default]
    Deactivate = 0,
    /// The cluster goes back to the version before.
    RollBack = 1,
    /// It is started afresh there, after a while that doubles each time, up to eight times.
    Restart = 2,
}

impl Policy {
    const fn of(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Deactivate,
            1 => Self::RollBack,
            2 => Self::Restart,
            _ => return None,
        })
    }
}

/// Why a change did not come about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Refusal {
    /// The module is none for that node, or has failed its checks.
    Module = 1,
    /// Another change is under way there.
    Busy = 2,
    /// The node is gone.
    Lost = 3,
    /// The version that is to run is not there.
    Absent = 4,
    /// It has run a later version since.
    Late = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Module, Self::Busy, Self::Lost, Self::Absent, Self::Late];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u8 == number)
    }
}

/// What makes extensions of modules.
pub trait Loader: Send {
    /// An extension that is ready to be initialised.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    fn load(&self, module: &[u8]) -> Result<Box<dyn Extension>, String>;
}

impl<F: Fn(&[u8]) -> Result<Box<dyn Extension>, String> + Send> Loader for F {
    fn load(&self, module: &[u8]) -> Result<Box<dyn Extension>, String> {
        self(module)
    }
}

/// A command that installs a module everywhere.
#[must_use]
pub fn install(number: ExtensionId, policy: Policy, module: RegionRef, cookie: u64) -> Command {
    let args = [number.0.into(), policy as u64, 0];
    let (extension, opcode) = (INSTALLER, INSTALL);
    Command { extension, opcode, region: module, cookie, args, ..Command::default() }
}

/// A command about an installed extension: [`ROLL_BACK`], [`QUARANTINE`].
#[must_use]
pub fn about(opcode: u8, number: ExtensionId, cookie: u64) -> Command {
    let args = [number.0.into(), 0, 0];
    Command { extension: INSTALLER, opcode, cookie, args, ..Command::default() }
}

/// A command that lists what is installed on this node.
#[must_use]
pub fn list(region: RegionRef, cookie: u64) -> Command {
    Command { extension: INSTALLER, opcode: LIST, region, cookie, ..Command::default() }
}

/// The hash of a module's content.
#[must_use]
pub fn hash(module: &[u8]) -> Hash {
    Hash(Sha256::digest(module).into())
}

/// What a node's installer has done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct InstallCounters {
    /// Changes that were committed here.
    pub committed: u64,
    /// Changes that were given up here.
    pub aborted: u64,
    /// Versions that were caught up with.
    pub caught_up: u64,
    /// Failures that this node was told of, its own included.
    pub reports: u64,
    /// Restarts after failures.
    pub restarts: u64,
    /// Messages that fit nothing.
    pub malformed: u64,
}

/// What runs under a number.
#[derive(Clone, Copy, Debug)]
struct Version {
    epoch: Epoch,
    hash: Hash,
    policy: Policy,
    former: Option<Hash>,
    is_down: bool,
    restarts: u32,
}

/// The installer of one node.
pub struct Installer {
    members: Vec<NodeId>,
    rank: u16,
    loader: Box<dyn Loader>,
    versions: BTreeMap<ExtensionId, Version>,
    modules: BTreeMap<Hash, Vec<u8>>,
    /// Members that are known to be gone.
    gone: BTreeSet<NodeId>,
    change: Option<Change>,
    /// How changes ended: the last ones.
    ended: BTreeMap<ChangeId, bool>,
    serial: u32,
    /// What is being fetched, and for which number.
    fetching: BTreeMap<Hash, (ExtensionId, Version, Vec<u8>)>,
    counters: InstallCounters,
}

impl std::fmt::Debug for Installer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installer").field("versions", &self.versions).finish_non_exhaustive()
    }
}

impl Installer {
    /// The installer of a cluster of `members`, up to [`MAX_MEMBERS`]; `loader` makes extensions.
    #[must_use]
    pub fn new(members: Vec<NodeId>, loader: impl Loader + 'static) -> Self {
        Self {
            members,
            rank: 0,
            loader: Box::new(loader),
            versions: BTreeMap::new(),
            modules: BTreeMap::new(),
            gone: BTreeSet::new(),
            change: None,
            ended: BTreeMap::new(),
            serial: 0,
            fetching: BTreeMap::new(),
            counters: InstallCounters::default(),
        }
    }

    /// What it has done.
    #[must_use]
    pub const fn counters(&self) -> InstallCounters {
        self.counters
    }

    /// The version and the content of what runs under a number.
    #[must_use]
    pub fn installed(&self, number: ExtensionId) -> Option<(Epoch, Hash)> {
        self.versions.get(&number).map(|version| (version.epoch, version.hash))
    }

    /// Whether a change is under way.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    fn rank_of(&self, node: NodeId) -> Option<u16> {
        self.members.iter().position(|member| *member == node).map(|rank| rank as u16)
    }

    fn tell(&self, nic: &mut Context<'_>, to: NodeId, message: &Message<'_>) {
        // A queue that is full is that of a peer which is as good as gone.
        let _ = nic.send_control(to, &message.emit());
    }

    fn tell_all(&self, nic: &mut Context<'_>, message: &Message<'_>) {
        for (rank, member) in self.members.iter().enumerate() {
            if rank != usize::from(self.rank) {
                self.tell(nic, *member, message);
            }
        }
    }

    /// A host wants a change.
    fn begin(&mut self, nic: &mut Context<'_>, command: Command) {
        let number = ExtensionId(command.args[0] as u8);
        let runs = self.versions.get(&number).copied();
        let (module, policy) = match command.opcode {
            INSTALL => {
                let length = command.region.length as usize;
                let policy = Policy::of(command.args[1]);
                let module = nic.read(command.region).ok().map(|bytes| bytes.to_vec());
                match (module, policy) {
                    (Some(module), Some(policy)) if length > 0 && length <= MAX_MODULE => {
                        (Some(module), policy)
                    }
                    _ => {
                        nic.refuse(&command, Status::Invalid);
                        return;
                    }
                }
            }
            _ => (None, runs.map_or(Policy::Deactivate, |version| version.policy)),
        };
        let back = runs.and_then(|version| version.former);
        let content = module.as_deref().map(hash).or(back);
        let (Some(content), None) = (content, &self.change) else {
            let refusal = if self.change.is_some() { Refusal::Busy } else { Refusal::Absent };
            refuse(nic, &command, nic.node(), refusal);
            return;
        };
        if let Some(module) = module {
            self.modules.insert(content, module);
        }
        self.serial += 1;
        let offer = Offer {
            id: ChangeId { coordinator: nic.node(), serial: self.serial },
            number,
            epoch: runs.map_or(Epoch(1), |version| version.epoch.next()),
            hash: content,
            length: if command.opcode == INSTALL { command.region.length } else { 0 },
            policy,
            members: self.living(nic.node()),
        };
        let mut change = Change::new(offer, self.rank, &self.members);
        change.command = Some(command);
        self.change = Some(change);
        self.spread(nic);
        self.prepare(nic);
    }

    /// The members that are not known to be gone, as bits by rank.
    fn living(&self, own: NodeId) -> [u8; 32] {
        let mut bits = [0; 32];
        for (rank, member) in self.members.iter().enumerate() {
            if *member == own || !self.gone.contains(member) {
                bits[rank / 8] |= 1 << (rank % 8);
            }
        }
        bits
    }

    /// Tells the children of the change, and hands them what is here of its module.
    fn spread(&self, nic: &mut Context<'_>) {
        let Some(change) = &self.change else { return };
        for child in &change.children {
            self.tell(nic, *child, &Message::Offer(change.offer));
        }
        if change.offer.length > 0
            && change.parent.is_none()
            && let Some(module) = self.modules.get(&change.offer.hash)
        {
            for (index, bytes) in module.chunks(wire::CHUNK).enumerate() {
                let at = (index * wire::CHUNK) as u32;
                let id = change.offer.id;
                for child in &change.children {
                    self.tell(nic, *child, &Message::Chunk { id, at, bytes });
                }
            }
        }
        nic.set_timeout(WATCH, Service::Coarse, PATIENCE);
    }

    /// The module is whole, or should be here: it is made ready, aside.
    fn prepare(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        let Offer { number, epoch, hash: content, .. } = change.offer;
        let runs = self.versions.get(&number).map(|version| version.epoch);
        let loaded = match self.modules.get(&content) {
            _ if runs.is_some_and(|runs| !epoch.is_newer_than(runs)) => Err(Refusal::Late),
            None => Err(Refusal::Absent),
            Some(module) => self.loader.load(module).map_err(|_| Refusal::Module),
        };
        match loaded {
            Ok(extension) => {
                change.ready = Some(extension);
                self.vote(nic);
            }
            Err(refusal) => self.reject(nic, nic.node(), refusal),
        }
    }

    /// Up the tree: all below, and here, are ready.
    fn vote(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        if change.phase != Phase::Preparing || change.ready.is_none() || !change.waiting.is_empty()
        {
            return;
        }
        let id = change.offer.id;
        if let Some(parent) = change.parent {
            change.phase = Phase::Voted;
            self.tell(nic, parent, &Message::Ready { id });
        } else {
            self.commit(nic);
        }
    }

    /// Somebody refuses: all hear of it.
    fn reject(&mut self, nic: &mut Context<'_>, who: NodeId, refusal: Refusal) {
        let Some(change) = &self.change else { return };
        let id = change.offer.id;
        match change.parent {
            Some(parent) if change.phase != Phase::Recovering => {
                let refused = Message::Refused { id, who, why: refusal as u8 };
                self.tell(nic, parent, &refused);
                self.abort(nic, who, refusal);
            }
            _ => self.abort(nic, who, refusal),
        }
    }

    /// It runs here from now on, and below.
    fn commit(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        let Some(extension) = change.ready.take() else { return };
        let offer = change.offer;
        change.phase = Phase::Committed;
        change.waiting = change.children.iter().copied().collect();
        for child in change.children.clone() {
            self.tell(nic, child, &Message::Commit { id: offer.id });
        }
        self.end(offer.id, true);
        self.run(nic, offer.number, offer.epoch, offer.hash, offer.policy, extension);
        self.counters.committed += 1;
        self.report_done(nic);
    }

    fn run(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        epoch: Epoch,
        content: Hash,
        policy: Policy,
        extension: Box<dyn Extension>,
    ) {
        nic.replace(number, epoch, extension);
        let former = self.versions.get(&number).map(|version| version.hash);
        let former = former.filter(|former| *former != content);
        let version = Version { epoch, hash: content, policy, former, is_down: false, restarts: 0 };
        self.versions.insert(number, version);
        let kept = |hash: &Hash| {
            self.versions.values().any(|v| v.hash == *hash || v.former == Some(*hash))
        };
        let gone: Vec<Hash> = self.modules.keys().filter(|hash| !kept(hash)).copied().collect();
        for hash in gone {
            self.modules.remove(&hash);
        }
    }

    /// Up the tree: it runs here and below.
    fn report_done(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        if change.phase != Phase::Committed || !change.waiting.is_empty() {
            return;
        }
        let id = change.offer.id;
        let (parent, command, offer) = (change.parent, change.command.take(), change.offer);
        self.change = None;
        if let Some(parent) = parent {
            self.tell(nic, parent, &Message::Done { id });
        }
        if let Some(command) = command {
            let members: u32 = offer.members.iter().map(|byte| byte.count_ones()).sum();
            let args = [offer.epoch.0.into(), members.into(), 0, 0];
            let port = command.region.port;
            nic.complete(port, &Completion { args, ..ended(&command, Status::Done) });
        }
    }

    /// Nothing has changed here, and nothing does below.
    fn abort(&mut self, nic: &mut Context<'_>, who: NodeId, refusal: Refusal) {
        let Some(change) = self.change.take() else { return };
        let id = change.offer.id;
        if refusal == Refusal::Lost && who != nic.node() {
            // Others have found it out: the next change goes without it.
            self.gone.insert(who);
        }
        for child in &change.children {
            let abort = Message::Abort { id, who, why: refusal as u8 };
            self.tell(nic, *child, &abort);
        }
        self.counters.aborted += 1;
        self.end(id, false);
        if let Some(command) = change.command {
            refuse(nic, &command, who, refusal);
        }
    }

    fn end(&mut self, id: ChangeId, committed: bool) {
        self.ended.insert(id, committed);
        while self.ended.len() > 64 {
            self.ended.pop_first();
        }
    }

    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) -> Option<()> {
        self.gone.remove(&from);
        let message = Message::parse(message)?;
        match message {
            Message::Offer(offer) => self.on_offer(nic, from, offer),
            Message::Chunk { id, at, bytes } => self.on_chunk(nic, id, at, bytes),
            Message::Ready { id } => {
                if let Some(change) = self.of(id) {
                    change.waiting.remove(&from);
                    self.vote(nic);
                }
            }
            Message::Refused { id, who, why } => {
                let refusal = Refusal::of(why)?;
                if self.of(id).is_some() {
                    self.reject(nic, who, refusal);
                }
            }
            Message::Commit { id } => {
                if self.of(id).is_some() {
                    self.commit(nic);
                }
            }
            Message::Abort { id, who, why } => {
                let refusal = Refusal::of(why)?;
                if self.of(id).is_some_and(|change| change.phase != Phase::Committed) {
                    self.abort(nic, who, refusal);
                }
            }
            Message::Done { id } => {
                if let Some(change) = self.of(id) {
                    change.waiting.remove(&from);
                    self.report_done(nic);
                }
            }
            Message::Query { id } => {
                let is_here = self.of(id).is_some();
                let knows = match (self.ended.get(&id), is_here) {
                    (Some(true), _) => wire::COMMITTED,
                    (Some(false), _) => wire::ABORTED,
                    (None, true) => wire::PREPARED,
                    (None, false) => {
                        // It will never take part now.
                        self.end(id, false);
                        wire::ABORTED
                    }
                };
                self.tell(nic, from, &Message::Known { id, knows });
            }
            Message::Known { id, knows } => self.on_known(nic, from, id, knows),
            Message::What => self.on_what(nic, from),
            Message::Runs { number, epoch, hash, length, policy } => {
                self.on_runs(
                    nic,
                    from,
                    (number, epoch),
                    (hash, length),
                    Policy::of(policy.into())?,
                );
            }
            Message::Fetch { hash } => {
                if let Some(module) = self.modules.get(&hash) {
                    for (index, bytes) in module.chunks(wire::PIECE).enumerate() {
                        let at = (index * wire::PIECE) as u32;
                        self.tell(nic, from, &Message::Piece { hash, at, bytes });
                    }
                }
            }
            Message::Piece { hash, at, bytes } => self.on_piece(nic, hash, at, bytes)?,
            Message::Failed { number, epoch } => self.on_report(nic, from, number, epoch),
            Message::Withdraw { number, epoch } => self.withdraw(nic, number, epoch),
        }
        Some(())
    }

    fn of(&mut self, id: ChangeId) -> Option<&mut Change> {
        self.change.as_mut().filter(|change| change.offer.id == id)
    }

    fn on_offer(&mut self, nic: &mut Context<'_>, from: NodeId, offer: Offer) {
        let id = offer.id;
        if self.ended.contains_key(&id) {
            let why = Refusal::Late as u8;
            self.tell(nic, from, &Message::Refused { id, who: nic.node(), why });
            return;
        }
        if let Some(change) = &self.change {
            if change.offer.id != id {
                let why = Refusal::Busy as u8;
                self.tell(nic, from, &Message::Refused { id, who: nic.node(), why });
            }
            return;
        }
        let mut change = Change::new(offer, self.rank, &self.members);
        change.parent = Some(from);
        self.change = Some(change);
        self.spread(nic);
        if offer.length == 0 {
            self.prepare(nic);
        }
    }

    /// A part of the module: it goes on at once.
    fn on_chunk(&mut self, nic: &mut Context<'_>, id: ChangeId, at: u32, bytes: &[u8]) {
        let Some(change) = self.of(id) else { return };
        let (children, offer) = (change.children.clone(), change.offer);
        // In order, from one sender: control messages are.
        if at as usize != change.module.len() || bytes.len() > offer.length as usize - at as usize {
            return;
        }
        change.module.extend_from_slice(bytes);
        let is_whole = change.module.len() == offer.length as usize;
        for child in children {
            self.tell(nic, child, &Message::Chunk { id, at, bytes });
        }
        if !is_whole {
            return;
        }
        let module = self.of(id).map(|change| std::mem::take(&mut change.module));
        let module = module.unwrap_or_default();
        if hash(&module) == offer.hash {
            self.modules.insert(offer.hash, module);
            self.prepare(nic);
        } else {
            self.reject(nic, nic.node(), Refusal::Module);
        }
    }

    /// What runs under a number is taken down here.
    fn withdraw(&mut self, nic: &mut Context<'_>, number: ExtensionId, epoch: Epoch) {
        if let Some(version) = self.versions.get_mut(&number)
            && version.epoch == epoch
            && !version.is_down
        {
            version.is_down = true;
            nic.withdraw(number);
        }
    }

    /// An extension has failed on some node.
    fn on_report(&mut self, nic: &mut Context<'_>, on: NodeId, number: ExtensionId, epoch: Epoch) {
        self.counters.reports += 1;
        let Some(version) = self.versions.get(&number).filter(|v| v.epoch == epoch) else { return };
        // The node that it failed on sees to it.
        if on == nic.node() && version.policy == Policy::RollBack && version.former.is_some() {
            self.begin(nic, about(ROLL_BACK, number, 0));
        }
    }

    fn list(&self, nic: &mut Context<'_>, command: &Command) {
        let mut bytes = Vec::new();
        for (number, version) in &self.versions {
            let counts = nic.counters(*number);
            let listed = Listed {
                number: *number,
                epoch: version.epoch,
                hash: version.hash,
                is_down: version.is_down,
                has_former: version.former.is_some(),
                counts: [
                    counts.commands,
                    counts.controls,
                    counts.frames,
                    counts.timeouts,
                    counts.traps,
                ],
            };
            bytes.extend(listed.emit());
        }
        let length = bytes.len().min(command.region.length as usize);
        let to = command.region.part(0, length as u32).expect("no longer than it");
        if length > 0 && nic.write(to, Payload::from(&bytes[..length])).is_err() {
            nic.refuse(command, Status::Region);
            return;
        }
        let args = [self.versions.len() as u64, 0, 0, 0];
        let done = Completion { length: length as u64, args, ..ended(command, Status::Done) };
        nic.complete(command.region.port, &done);
    }
}

impl Extension for Installer {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        let rank = self.rank_of(nic.node()).filter(|_| self.members.len() <= MAX_MEMBERS);
        self.rank = rank.ok_or_else(|| InitError::Refused {
            extension: nic.extension(),
            reason: "this node is not among the cluster's members, or they are more than 256",
        })?;
        self.tell_all(nic, &Message::What);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            INSTALL | ROLL_BACK => self.begin(nic, command),
            QUARANTINE => {
                let number = ExtensionId(command.args[0] as u8);
                let Some(version) = self.versions.get(&number).copied() else {
                    refuse(nic, &command, nic.node(), Refusal::Absent);
                    return;
                };
                let withdraw = Message::Withdraw { number, epoch: version.epoch };
                self.tell_all(nic, &withdraw);
                self.withdraw(nic, number, version.epoch);
                nic.complete(command.region.port, &ended(&command, Status::Done));
            }
            LIST => self.list(nic, &command),
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        let member = self.rank_of(from).is_some();
        if !member || self.on_message(nic, from, message).is_none() {
            self.counters.malformed += 1;
        }
    }

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {
        self.counters.malformed += 1;
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        if timeout == WATCH {
            self.watch(nic);
            return;
        }
        self.restart(nic, ExtensionId(timeout.0 as u8));
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        if let Some(change) = &mut self.change {
            change.command.take_if(|command| command.region.port == port);
        }
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        match event {
            PeerEvent::Up(node, _) => {
                self.gone.remove(&node);
                if self.rank_of(node).is_some() {
                    // It may have missed something, or we have.
                    self.on_what(nic, node);
                    self.tell(nic, node, &Message::What);
                }
            }
            PeerEvent::Down(node) => {
                self.gone.insert(node);
                self.on_lost(nic, node);
            }
            PeerEvent::Restarted(node, _) => {
                self.on_lost(nic, node);
                if self.rank_of(node).is_some() {
                    self.on_what(nic, node);
                }
            }
        }
    }

    fn on_unit(&mut self, nic: &mut Context<'_>, event: &UnitEvent) {
        match event {
            UnitEvent::Trapped(number) | UnitEvent::NotReplaced(number, ..) => {
                self.on_failure(nic, *number);
            }
            UnitEvent::Replaced(..) | UnitEvent::Withdrawn(_) => {}
        }
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.abort(nic, nic.node(), Refusal::Lost);
    }
}

fn ended(command: &Command, status: Status) -> Completion {
    let Command { opcode, flags, cookie, .. } = *command;
    Completion { status, opcode, flags, cookie, ..Completion::default() }
}

fn refuse(nic: &mut Context<'_>, command: &Command, who: NodeId, refusal: Refusal) {
    let args = [who.0.into(), refusal as u64, 0, 0];
    nic.complete(command.region.port, &Completion { args, ..ended(command, Status::Refused) });
}
