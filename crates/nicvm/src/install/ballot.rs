//! All or none: an offer travels down the tree, votes travel up, and the change commits or aborts.

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::{Command, Completion, Status};

use super::change::{Change, Phase};
use super::wire::{ChangeId, Hash, Message, Offer};
use super::{Context, Epoch, Extension, Installer, Policy, Refusal, TimeoutId, Version, refuse};

impl Installer {
    /// Begins a change as its coordinator. The module is here; its length is 0 if all members should have it.
    pub(super) fn begin(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        (content, length, policy): (Hash, u32, Policy),
        command: Option<Command>,
    ) {
        self.changes = self.changes.wrapping_add(1);
        let runs = self.versions.get(&number);
        let offer = Offer {
            id: ChangeId::new(nic.node(), nic.incarnation(), self.changes),
            number,
            epoch: runs.map_or(Epoch(1), |version| version.epoch.next()),
            hash: content,
            length,
            policy,
            members: self.living(nic.node()),
        };
        let mut change = Change::new(offer, self.rank, &self.members);
        change.command = command;
        self.change = Some(change);
        self.spread(nic);
        self.prepare(nic);
    }

    /// Returns the members that are not known to be down, as bits by rank.
    fn living(&self, own: NodeId) -> [u8; 32] {
        let mut bits = [0; 32];
        for (rank, member) in self.members.iter().enumerate() {
            if *member == own || !self.gone.contains(member) {
                bits[rank / 8] |= 1 << (rank % 8);
            }
        }
        bits
    }

    /// Loads the offered module beside the running version, and votes. Called once the module is complete, or should be
    /// present.
    pub(super) fn prepare(&mut self, nic: &mut Context<'_>) {
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

    /// Votes up the tree, if this member and all below it are ready.
    pub(super) fn vote(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        if change.phase != Phase::Preparing || change.ready.is_none() || !change.waiting.is_empty()
        {
            return;
        }
        let id = change.offer.id;
        if let Some(parent) = change.parent {
            change.phase = Phase::Voted;
            self.send(nic, parent, &Message::Ready { id });
        } else {
            self.commit(nic);
        }
    }

    /// Refuses the change: notifies the parent, and aborts here and below.
    pub(super) fn reject(&mut self, nic: &mut Context<'_>, who: NodeId, refusal: Refusal) {
        let Some(change) = &self.change else { return };
        let id = change.offer.id;
        match change.parent {
            Some(parent) if change.phase != Phase::Recovering => {
                let refused = Message::Refused { id, who, why: refusal as u8 };
                self.send(nic, parent, &refused);
                self.abort(nic, who, refusal);
            }
            _ => self.abort(nic, who, refusal),
        }
    }

    /// Handles a commit from the parent, or from the leader that ends the change of a dead coordinator.
    pub(super) fn on_commit(&mut self, nic: &mut Context<'_>, from: NodeId, id: ChangeId) {
        let Some(change) = self.of(id) else {
            // The sender need not wait: the change is done here, or this member has restarted since its vote.
            self.send(nic, from, &Message::Done { id });
            if self.ended.get(&id) != Some(&true) {
                // This member lacks the version, so it catches up.
                self.send(nic, from, &Message::What);
            }
            return;
        };
        if change.parent != Some(from) {
            // The leader notifies every member itself, so this member neither forwards nor waits.
            change.leader = Some(from);
            change.children.clear();
            change.waiting.clear();
        }
        self.commit(nic);
        self.report_done(nic);
    }

    /// Commits the change here, and forwards the commit to the children.
    pub(super) fn commit(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        let Some(extension) = change.ready.take() else { return };
        let (offer, lost_coordinator) = (change.offer, change.lost_coordinator);
        let (is_withdrawn, is_behind) = (change.is_withdrawn, change.is_behind);
        change.phase = Phase::Committed;
        change.waiting = change.children.iter().copied().collect();
        for child in change.children.clone() {
            self.send(nic, child, &Message::Commit { id: offer.id });
        }
        self.end(offer.id, true);
        let version = Version::new(offer.epoch, offer.hash, offer.policy, is_withdrawn);
        self.run(nic, offer.number, version, extension);
        self.counters.committed += 1;
        let coordinator = offer.id.coordinator;
        if lost_coordinator && !self.gone.contains(&coordinator) {
            // It has restarted, and may have caught up with the former version meanwhile.
            self.on_what(nic, coordinator);
        }
        if is_behind {
            // The other member may run another module of the same epoch.
            self.send_to_all(nic, &Message::What);
        }
        self.report_done(nic);
    }

    /// Runs a version, unless it was taken down on all members.
    pub(super) fn run(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        version: Version,
        extension: Box<dyn Extension>,
    ) {
        // The timeout would restart the former version.
        nic.cancel_timeout(TimeoutId(number.0.into()));
        let runs = self.versions.get(&number).copied();
        // Of two modules of one epoch, the one that stays keeps what all members know of both: the version before them,
        // and whether they were taken down.
        let tied = runs.filter(|own| own.epoch == version.epoch);
        let is_withdrawn = version.is_withdrawn || tied.is_some_and(|own| own.is_withdrawn);
        if is_withdrawn {
            nic.withdraw(number);
        } else {
            nic.replace(number, version.epoch, extension);
        }
        let former = tied.map_or_else(|| runs.map(|own| own.hash), |own| own.former);
        let former = former.filter(|former| *former != version.hash);
        let version = Version { former, is_down: is_withdrawn, is_withdrawn, ..version };
        self.versions.insert(number, version);
        self.drop_unused();
    }

    /// Drops the modules that no version and no change needs.
    fn drop_unused(&mut self) {
        // The change under way may be another one than that of this version.
        let offered = self.change.as_ref().map(|change| change.offer.hash);
        let kept = |hash: &Hash| {
            offered == Some(*hash)
                || self.versions.values().any(|v| v.hash == *hash || v.former == Some(*hash))
        };
        let gone: Vec<Hash> = self.modules.keys().filter(|hash| !kept(hash)).copied().collect();
        for hash in gone {
            self.modules.remove(&hash);
        }
    }

    /// Reports up the tree that the version runs here and below.
    pub(super) fn report_done(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        if change.phase != Phase::Committed || !change.waiting.is_empty() {
            return;
        }
        let id = change.offer.id;
        let whom = [change.parent, change.leader];
        let (command, offer) = (change.command.take(), change.offer);
        self.change = None;
        for node in whom.into_iter().flatten() {
            self.send(nic, node, &Message::Done { id });
        }
        if let Some(command) = command {
            let members: u32 = offer.members.iter().map(|byte| byte.count_ones()).sum();
            let args = [offer.epoch.0.into(), members.into(), 0, 0];
            let port = command.region.port;
            nic.complete(port, &Completion { args, ..Completion::of(&command, Status::Done) });
        }
    }

    /// Aborts the change here and below; nothing was changed.
    pub(super) fn abort(&mut self, nic: &mut Context<'_>, who: NodeId, refusal: Refusal) {
        let Some(change) = self.change.take() else { return };
        let id = change.offer.id;
        // A coordinator whose loss this member has noticed is among those that are down, or has restarted.
        let is_known = change.lost_coordinator && who == id.coordinator;
        if refusal == Refusal::Lost && who != nic.node() && !is_known {
            // The member is down, so the next change excludes it.
            self.gone.insert(who);
        }
        for child in &change.children {
            let abort = Message::Abort { id, who, why: refusal as u8 };
            self.send(nic, *child, &abort);
        }
        self.counters.aborted += 1;
        self.drop_unused();
        self.end(id, false);
        if change.is_behind {
            self.send_to_all(nic, &Message::What);
        }
        let number = change.offer.number;
        let is_lasting = matches!(refusal, Refusal::Module | Refusal::Absent);
        if id.coordinator == nic.node() && change.offer.length == 0 && is_lasting {
            // Further attempts to roll back would be refused as well.
            self.owed.remove(&number);
        }
        if self.versions.get(&number).is_some_and(|version| version.is_down) {
            // A rollback of a version that did not start here: the one before it must not run beside other nodes'.
            nic.withdraw(number);
        }
        if let Some(command) = change.command {
            refuse(nic, &command, who, refusal);
        }
    }

    pub(super) fn end(&mut self, id: ChangeId, committed: bool) {
        if self.ended.insert(id, committed).is_none() {
            self.ended_order.push_back(id);
        }
        while self.ended_order.len() > 64 {
            self.ended_order.pop_front().map(|oldest| self.ended.remove(&oldest));
        }
    }
}
