//! Extensions installed across a cluster while it runs: on all nodes or on none, in one version.
//!
//! The node that receives the command coordinates. The module travels down a tree of the members; each member checks,
//! translates and prepares it, and votes. When all have voted for it, they commit. The new version runs under the next
//! [`Epoch`], which its control messages carry. If one member refuses, nothing changes anywhere. The previous version's
//! module is kept: rolling back is one commit. A member that was away asks for the installed versions and fetches them.
//! If the coordinator dies before the end, the living member of the lowest rank queries all others and ends the change
//! the same way for all: committed if any has committed, otherwise aborted.
//!
//! An extension that fails is quarantined on its node, its commands complete with an error at once, and all members are
//! notified; its [`Policy`] decides what follows.

mod ballot;
mod catch_up;
mod change;
mod command;
mod listed;
mod module;
mod recovery;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Status};
use sha2::{Digest, Sha256};

use crate::backlog::Backlog;
use crate::context::Context;
use crate::extension::{Epoch, Extension, InitError, PeerEvent, TimeoutId, UnitEvent};
use crate::timeout::Service;
use catch_up::{FETCHING, Fetch, SENDING};
use change::{Change, Phase};
use command::refuse;
use module::LACKS;
use wire::{Message, Offer};

pub(crate) use command::INSTALL;
pub use command::{LIST, Policy, QUARANTINE, ROLL_BACK, Refusal, about, install, list};
pub use listed::Listed;
pub(crate) use wire::ChangeId;
pub use wire::Hash;
pub(crate) use wire::MAX_MEMBERS;

/// The extension number of the installer.
pub const INSTALLER: ExtensionId = ExtensionId(7);

/// Most bytes of a module that can be installed.
pub const MAX_MODULE: usize = 64 << 10;
/// Period after which the members that a change still waits for are sent a message, so that a dead one is detected.
const STALLED_AFTER: Duration = Duration::from_millis(200);
const WATCH: TimeoutId = TimeoutId(u32::MAX);
const RETRY_WAITING: TimeoutId = TimeoutId(u32::MAX - 4);
const OWED: TimeoutId = TimeoutId(u32::MAX - 5);
/// Delay of the first restart, and of the first repeated rollback; doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(10);
/// Restarts after which an extension stays down, and rollbacks after which the delay doubles no more.
const RESTARTS: u32 = 8;

/// Loads extensions from modules.
pub trait Loader: Send {
    /// Loads a module into an extension that is ready to be initialised.
    ///
    /// # Errors
    /// One line that says what is wrong with the module.
    fn load(&self, module: &[u8]) -> Result<Box<dyn Extension>, String>;
}

impl<F: Fn(&[u8]) -> Result<Box<dyn Extension>, String> + Send> Loader for F {
    fn load(&self, module: &[u8]) -> Result<Box<dyn Extension>, String> {
        self(module)
    }
}

/// Returns the hash of a module's bytes.
#[must_use]
pub fn hash(module: &[u8]) -> Hash {
    Hash(Sha256::digest(module).into())
}

/// Counts the work of a node's installer since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct InstallCounters {
    /// Changes that were committed here.
    pub committed: u64,
    /// Changes that were aborted here.
    pub aborted: u64,
    /// Versions that this node has caught up with after it was away.
    pub caught_up: u64,
    /// Failures reported to this node, its own included.
    pub reports: u64,
    /// Restarts after failures.
    pub restarts: u64,
    /// Messages that cannot be parsed or fit no change.
    pub malformed: u64,
}

/// The version that runs under a number.
#[derive(Clone, Copy, Debug)]
struct Version {
    epoch: Epoch,
    hash: Hash,
    policy: Policy,
    former: Option<Hash>,
    is_down: bool,
    /// True if it was taken down on all members: this version never runs again.
    is_withdrawn: bool,
    restarts: u32,
}

impl Version {
    const fn new(epoch: Epoch, hash: Hash, policy: Policy, is_withdrawn: bool) -> Self {
        Self { epoch, hash, policy, former: None, is_down: is_withdrawn, is_withdrawn, restarts: 0 }
    }

    /// Returns whether this version replaces `other` at a member that catches up. The two sides of a partition may give
    /// one epoch to two modules: then the one of the greater hash replaces the other, on all members.
    fn replaces(&self, other: &Self) -> bool {
        let is_tie = self.epoch == other.epoch;
        self.epoch.is_newer_than(other.epoch) || (is_tie && self.hash > other.hash)
    }
}

/// The installer of one node.
pub struct Installer {
    members: Vec<NodeId>,
    rank: u16,
    loader: Box<dyn Loader>,
    versions: BTreeMap<ExtensionId, Version>,
    modules: BTreeMap<Hash, Vec<u8>>,
    /// Members that are known to be down.
    gone: BTreeSet<NodeId>,
    change: Option<Change>,
    /// Versions that have failed here, and that this node still has to roll back.
    owed: BTreeMap<ExtensionId, Epoch>,
    /// Attempts to roll them back since there are any.
    attempts: u32,
    /// The outcomes of the last 64 changes; true if committed.
    ended: BTreeMap<ChangeId, bool>,
    /// Their numbers, the oldest first.
    ended_order: VecDeque<ChangeId>,
    /// Changes that this node has begun.
    changes: u16,
    /// Modules that are being fetched.
    fetching: BTreeMap<ExtensionId, Fetch>,
    /// Modules that members fetch from here, with the bytes of each that were queued.
    sending: BTreeMap<(NodeId, Hash), usize>,
    /// Messages that wait for room: all but the requests for a module's frames, which are repeated, and its pieces.
    backlog: Backlog,
    counters: InstallCounters,
}

impl std::fmt::Debug for Installer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installer").field("versions", &self.versions).finish_non_exhaustive()
    }
}

impl Installer {
    /// Creates the installer of a cluster of up to 256 `members`; `loader` loads their modules.
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
            owed: BTreeMap::new(),
            attempts: 0,
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            changes: 0,
            fetching: BTreeMap::new(),
            sending: BTreeMap::new(),
            backlog: Backlog::new(RETRY_WAITING),
            counters: InstallCounters::default(),
        }
    }

    /// Returns the installer's counters.
    #[must_use]
    pub const fn counters(&self) -> InstallCounters {
        self.counters
    }

    /// Returns the version that runs under a number, and its module's hash.
    #[must_use]
    pub fn installed(&self, number: ExtensionId) -> Option<(Epoch, Hash)> {
        self.versions.get(&number).map(|version| (version.epoch, version.hash))
    }

    /// Returns whether a change is under way.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    fn rank_of(&self, node: NodeId) -> Option<u16> {
        self.members.iter().position(|member| *member == node).map(|rank| rank as u16)
    }

    /// Sends a message as soon as there is room for it. At the backlog's limit it is dropped: the member has then sent
    /// thousands of requests, and taken no answer.
    fn send(&mut self, nic: &mut Context<'_>, to: NodeId, message: &Message<'_>) {
        self.backlog.send(nic, to, &message.emit());
    }

    /// Returns the other members.
    fn others(&self, nic: &Context<'_>) -> Vec<NodeId> {
        self.members.iter().copied().filter(|member| *member != nic.node()).collect()
    }

    fn send_to_all(&mut self, nic: &mut Context<'_>, message: &Message<'_>) {
        for member in self.others(nic) {
            self.send(nic, member, message);
        }
    }

    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) -> Option<()> {
        self.gone.remove(&from);
        let message = Message::parse(message)?;
        match message {
            Message::Offer(offer) => self.on_offer(nic, from, offer),
            Message::Want { id, at } => self.on_want(nic, from, id, at),
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
            Message::Commit { id } => self.on_commit(nic, from, id),
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
            Message::Query { id } => self.on_query(nic, from, id),
            Message::Known { id, knows } => self.on_known(nic, from, id, knows),
            Message::What => self.on_what(nic, from),
            Message::Runs { number, epoch, hash, length, policy, is_withdrawn } => {
                let policy = Policy::of(policy.into())?;
                let version = Version::new(epoch, hash, policy, is_withdrawn);
                self.on_runs(nic, from, number, version, length);
            }
            Message::Fetch { hash } => self.on_fetch(nic, from, hash),
            Message::Piece { hash, at, bytes } => self.on_piece(nic, from, hash, (at, bytes)),
            Message::Failed { number, epoch } => self.on_report(nic, from, number, epoch),
            Message::Withdraw { number, epoch } => self.withdraw(nic, number, epoch),
        }
        Some(())
    }

    /// Returns whether this version runs under a number, or is about to.
    fn runs(&self, number: ExtensionId, epoch: Epoch) -> bool {
        self.versions.get(&number).is_some_and(|version| version.epoch == epoch)
    }

    /// Answers a member's query about the outcome of a change.
    fn on_query(&mut self, nic: &mut Context<'_>, from: NodeId, id: ChangeId) {
        let is_here = self.of(id).is_some();
        let knows = match (self.ended.get(&id), is_here) {
            (Some(true), _) => wire::COMMITTED,
            (Some(false), _) => wire::ABORTED,
            (None, true) => wire::PREPARED,
            (None, false) => {
                // Having answered that it is aborted, this node never takes part in it.
                self.end(id, false);
                wire::ABORTED
            }
        };
        self.send(nic, from, &Message::Known { id, knows });
    }

    fn of(&mut self, id: ChangeId) -> Option<&mut Change> {
        self.change.as_mut().filter(|change| change.offer.id == id)
    }

    fn on_offer(&mut self, nic: &mut Context<'_>, from: NodeId, offer: Offer) {
        let id = offer.id;
        if self.ended.contains_key(&id) {
            let why = Refusal::Late as u8;
            self.send(nic, from, &Message::Refused { id, who: nic.node(), why });
            return;
        }
        if let Some(change) = &self.change {
            if change.offer.id != id {
                let why = Refusal::Busy as u8;
                self.send(nic, from, &Message::Refused { id, who: nic.node(), why });
            }
            return;
        }
        let mut change = Change::new(offer, self.rank, &self.members);
        change.parent = Some(from);
        let coordinator = nic.peer_incarnation(id.coordinator);
        change.lost_coordinator = coordinator.is_some_and(|now| id.is_before(now));
        self.change = Some(change);
        self.spread(nic);
        let runs = self.versions.get(&offer.number);
        let is_late = runs.is_some_and(|version| !offer.epoch.is_newer_than(version.epoch));
        if is_late || offer.length == 0 || self.modules.contains_key(&offer.hash) {
            self.prepare(nic);
        } else {
            self.ask_for_module(nic);
        }
    }

    /// Returns whether the change under way is of an incarnation of its coordinator `node` before this one; `None` if
    /// `node` does not coordinate it.
    fn is_of_former(&self, node: NodeId, incarnation: Incarnation) -> Option<bool> {
        let id = self.change.as_ref()?.offer.id;
        (id.coordinator == node).then(|| id.is_before(incarnation))
    }

    /// Takes down a version that runs under a number here, or that is about to.
    fn withdraw(&mut self, nic: &mut Context<'_>, number: ExtensionId, epoch: Epoch) {
        let version = self.versions.get_mut(&number);
        if let Some(version) = version.filter(|it| it.epoch == epoch && !it.is_withdrawn) {
            (version.is_down, version.is_withdrawn) = (true, true);
            nic.withdraw(number);
        }
        if let Some(fetch) = self.fetching.get_mut(&number) {
            fetch.on_withdrawn(epoch);
        }
        let brings =
            |change: &&mut Change| (change.offer.number, change.offer.epoch) == (number, epoch);
        if let Some(change) = self.change.as_mut().filter(brings) {
            change.is_withdrawn = true;
        }
    }

    /// Handles the report that an extension has failed on some node.
    fn on_report(&mut self, nic: &mut Context<'_>, on: NodeId, number: ExtensionId, epoch: Epoch) {
        self.counters.reports += 1;
        let Some(version) = self.versions.get(&number).filter(|v| v.epoch == epoch) else { return };
        // The node on which it failed carries out the policy.
        if on == nic.node() && version.policy == Policy::RollBack && version.former.is_some() {
            self.owed.insert(number, epoch);
            // While an attempt is recent, the timeout begins the next one: two versions that both fail alternate slowly.
            if self.attempts == 0 {
                self.roll_back_owed(nic);
            }
        }
    }
}

impl Extension for Installer {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        let rank = self.rank_of(nic.node()).filter(|_| self.members.len() <= MAX_MEMBERS);
        self.rank = rank.ok_or_else(|| InitError::Refused {
            extension: nic.extension(),
            reason: "this node is not among the cluster's members, or they are more than 256",
        })?;
        self.send_to_all(nic, &Message::What);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            INSTALL => self.install(nic, command),
            ROLL_BACK => self.roll_back(nic, ExtensionId(command.args[0] as u8), Some(command)),
            QUARANTINE => self.quarantine(nic, &command),
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

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        if self.on_part(nic, from, frame).is_none() {
            self.counters.malformed += 1;
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        match timeout {
            WATCH => return self.watch(nic),
            LACKS => return self.ask_for_module(nic),
            FETCHING => return self.watch_fetches(nic),
            SENDING => return self.send_pieces(nic),
            RETRY_WAITING => return self.backlog.retry(nic),
            OWED => return self.roll_back_owed(nic),
            _ => {}
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
            PeerEvent::Up(node, incarnation) => {
                self.gone.remove(&node);
                if self.is_of_former(node, incarnation) == Some(true) {
                    self.on_lost(nic, node);
                }
                if self.rank_of(node).is_some() {
                    // Either side may have missed a version.
                    self.on_what(nic, node);
                    self.send(nic, node, &Message::What);
                }
            }
            PeerEvent::Down(node) => {
                self.backlog.forget(node);
                self.gone.insert(node);
                self.on_fetch_lost(nic, node);
                self.on_lost(nic, node);
            }
            PeerEvent::Restarted(node, incarnation) => {
                self.backlog.forget(node);
                self.gone.remove(&node);
                self.on_fetch_lost(nic, node);
                // The offer of a coordinator may arrive before the report of its restart.
                if self.is_of_former(node, incarnation) != Some(false) {
                    self.on_lost(nic, node);
                }
                if self.rank_of(node).is_some() {
                    self.on_what(nic, node);
                }
            }
        }
    }

    fn on_unit(&mut self, nic: &mut Context<'_>, event: &UnitEvent) {
        match event {
            UnitEvent::Trapped(number, epoch) => {
                // The version that replaces it, if that is another one, has not failed.
                if self.runs(*number, *epoch) {
                    self.on_failure(nic, *number);
                }
            }
            UnitEvent::NotReplaced(number, epoch, _) => self.on_not_replaced(nic, *number, *epoch),
            UnitEvent::Replaced(..) | UnitEvent::Withdrawn(_) => {}
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        self.change.as_mut().and_then(|change| change.command.take()).into_iter().collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        let is_preparing =
            self.change.as_ref().map(|change| change.phase) == Some(Phase::Preparing);
        // After this member's vote, another member decides how the change ends.
        if is_preparing {
            self.reject(nic, nic.node(), Refusal::Lost);
        }
    }
}
