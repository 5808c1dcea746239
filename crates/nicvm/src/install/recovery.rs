//! Recovery: from extensions that fail, changes that stall, and coordinators that die.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::id::{ExtensionId, NodeId};

use super::change::Phase;
use super::wire::{self, ChangeId, Message};
use super::{
    BACK_OFF, Context, Epoch, Installer, OWED, Policy, RESTARTS, Refusal, STALLED_AFTER, Service,
    TimeoutId, Version, WATCH,
};

/// Time between the attempts of two members of adjacent ranks to roll back the same version: longer than an offer takes
/// to reach the others.
const STAGGER: Duration = Duration::from_millis(2);

impl Installer {
    /// Handles an extension's failure on this node: notifies the cluster, and follows its policy. Returns whether the
    /// policy replaces the version that has failed.
    pub(super) fn on_failure(&mut self, nic: &mut Context<'_>, number: ExtensionId) -> bool {
        let Some(version) = self.versions.get_mut(&number) else { return false };
        version.is_down = true;
        let Version { epoch, policy, restarts, .. } = *version;
        self.send_to_all(nic, &Message::Failed { number, epoch });
        self.on_report(nic, nic.node(), number, epoch);
        match policy {
            Policy::Restart if restarts < RESTARTS => {
                let after = BACK_OFF * (1 << restarts);
                nic.set_timeout(TimeoutId(number.0.into()), Service::Coarse, after);
                true
            }
            // The rollback waits while another change is under way; a node alone has already carried it out.
            Policy::RollBack => {
                let under_way = self.change.as_ref().map(|change| &change.offer);
                let under_way = under_way.filter(|offer| offer.number == number);
                let runs = self.versions.get(&number).map(|version| version.epoch);
                let mut next = under_way.map(|offer| offer.epoch).into_iter().chain(runs);
                next.any(|next| next.is_newer_than(epoch))
            }
            _ => false,
        }
    }

    /// Begins to roll back a version that has failed here. Repeats that until another version runs, none is to, or a
    /// member lacks the version before: the rollback is refused while another change is under way here or on another
    /// member.
    pub(super) fn roll_back_owed(&mut self, nic: &mut Context<'_>) {
        let versions = &self.versions;
        self.owed.retain(|number, epoch| {
            let version = versions.get(number).filter(|version| version.epoch == *epoch);
            version.is_some_and(|version| version.is_down && !version.is_withdrawn)
        });
        let turn = self.attempts as usize % self.owed.len().max(1);
        let Some(number) = self.owed.keys().nth(turn).copied() else {
            self.attempts = 0;
            return;
        };
        let back_off = BACK_OFF * (1 << self.attempts.min(RESTARTS - 1));
        self.attempts += 1;
        nic.set_timeout(OWED, Service::Coarse, back_off + STAGGER * u32::from(self.rank));
        self.roll_back(nic, number, None);
    }

    /// Handles a version that did not start here while it runs on other nodes. If no policy replaces it, takes down the
    /// former version, which still runs here: two versions of an extension don't run side by side.
    pub(super) fn on_not_replaced(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        epoch: Epoch,
    ) {
        if self.runs(number, epoch) && !self.on_failure(nic, number) {
            nic.withdraw(number);
        }
    }

    /// Restarts a version that has failed. If its module does not load, that counts as another failure.
    pub(super) fn restart(&mut self, nic: &mut Context<'_>, number: ExtensionId) {
        let version = self.versions.get_mut(&number);
        let Some(version) = version.filter(|version| version.is_down && !version.is_withdrawn)
        else {
            return;
        };
        version.restarts += 1;
        let module = self.modules.get(&version.hash);
        let Some(Ok(extension)) = module.map(|module| self.loader.load(module)) else {
            self.on_failure(nic, number);
            return;
        };
        version.is_down = false;
        self.counters.restarts += 1;
        nic.replace(number, version.epoch, extension);
    }

    /// Handles a change that has stalled: sends a message to each member that it waits for, so that a dead one is
    /// detected. Queries the coordinator, whose decision is lost if a member on the path to it has restarted.
    pub(super) fn watch(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &self.change else { return };
        let id = change.offer.id;
        let mut whom: BTreeSet<NodeId> = change.waiting.clone();
        whom.extend(change.parent);
        whom.insert(id.coordinator);
        whom.remove(&nic.node());
        let is_undecided = matches!(change.phase, Phase::Preparing | Phase::Voted);
        for node in whom {
            if is_undecided && node == id.coordinator {
                self.send(nic, node, &Message::Query { id });
            } else {
                self.send(nic, node, &Message::What);
            }
        }
        nic.set_timeout(WATCH, Service::Coarse, STALLED_AFTER);
    }

    /// Handles the loss of a member: stops waiting for its answers.
    pub(super) fn on_lost(&mut self, nic: &mut Context<'_>, node: NodeId) {
        let Some(change) = &mut self.change else { return };
        change.lost_coordinator |= change.offer.id.coordinator == node;
        match change.phase {
            Phase::Committed => {
                // The member catches up when it comes back.
                if change.waiting.remove(&node) {
                    self.report_done(nic);
                }
            }
            Phase::Recovering => {
                change.waiting.remove(&node);
                self.decide(nic);
            }
            Phase::Preparing | Phase::Voted
                if change.lost_coordinator || change.parent == Some(node) =>
            {
                self.recover(nic);
            }
            Phase::Preparing | Phase::Voted => {
                if change.waiting.contains(&node) {
                    self.reject(nic, node, Refusal::Lost);
                }
            }
        }
    }

    /// Handles the loss of the coordinator or the parent. If the coordinator is down, or has restarted and so does not
    /// know the change, the living member of the lowest rank determines the outcome.
    pub(super) fn recover(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &self.change else { return };
        let (id, takes_part) = (change.offer.id, change.takes_part(&self.members));
        if !change.lost_coordinator && !self.gone.contains(&id.coordinator) {
            // The coordinator is alive, and decides; only the path to it is lost.
            self.send(nic, id.coordinator, &Message::Query { id });
            return;
        }
        let is_living = |member: &NodeId| *member != id.coordinator && !self.gone.contains(member);
        let living: Vec<NodeId> = takes_part.into_iter().filter(is_living).collect();
        let others: Vec<NodeId> =
            living.iter().copied().filter(|member| *member != nic.node()).collect();
        if living.first() == Some(&nic.node()) {
            let change = self.change.as_mut().expect("it is under way");
            change.phase = Phase::Recovering;
            change.any_committed = false;
            change.waiting = others.iter().copied().collect();
            change.children = others.clone();
            for member in others {
                self.send(nic, member, &Message::Query { id });
            }
            self.decide(nic);
        } else if let Some(leader) = living.first() {
            // The query makes the leader notice that the coordinator is down.
            self.send(nic, *leader, &Message::Query { id });
        }
    }

    pub(super) fn on_known(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        id: ChangeId,
        knows: u8,
    ) {
        let Some(change) = self.of(id) else { return };
        if change.phase != Phase::Recovering {
            // An answer of the coordinator itself, or of a member that knows the outcome.
            let restarted = change.lost_coordinator && from == id.coordinator;
            match knows {
                _ if restarted => {}
                wire::COMMITTED => self.commit(nic),
                wire::ABORTED if change.phase != Phase::Committed => {
                    // The sender is alive; so the coordinator is too, if it is the sender.
                    let coordinator = id.coordinator;
                    let why = if from == coordinator { Refusal::Late } else { Refusal::Lost };
                    self.abort(nic, coordinator, why);
                }
                _ => {}
            }
            return;
        }
        change.waiting.remove(&from);
        change.any_committed |= knows == wire::COMMITTED;
        self.decide(nic);
    }

    /// Ends the change once all living members have answered.
    pub(super) fn decide(&mut self, nic: &mut Context<'_>) {
        let Some(change) = &mut self.change else { return };
        if change.phase != Phase::Recovering || !change.waiting.is_empty() {
            return;
        }
        if change.any_committed {
            self.commit(nic);
        } else {
            let coordinator = change.offer.id.coordinator;
            self.abort(nic, coordinator, Refusal::Lost);
        }
    }
}
