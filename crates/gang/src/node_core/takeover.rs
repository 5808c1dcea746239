//! Changes of the root: a daemon follows a new root, becomes the root, or loses the root.

use midplane_simhw::time::Instant;

use super::election::{Election, Turn};
use super::inventory;
use super::message::{Down, Up};
use super::replica::{Change, Durable, Position, Table};
use super::{Effect, JobManager, NodeCore, Transmit};

impl NodeCore {
    /// Passes an event to the election, and acts on its result.
    pub(super) fn elect(
        &mut self,
        now: Instant,
        event: impl FnOnce(&mut Election, &mut Durable) -> Option<Turn>,
    ) {
        let Some(election) = &mut self.election else { return };
        let before = (self.durable.term, self.durable.vote);
        let turn = event(election, &mut self.durable);
        self.is_recorded &= before == (self.durable.term, self.durable.vote);
        let ballots = std::mem::take(&mut election.out);
        self.transmits.extend(ballots.into_iter().map(|(to, ballot)| Transmit::Ballot(to, ballot)));
        match turn {
            None => {}
            Some(Turn::Seek) => self.leave(),
            Some(Turn::Follow(root)) => {
                self.leave();
                self.tree = self.tree.rooted_at(root);
                let above = self.tree.above(self.config.host).collect();
                self.effects.push_back(Effect::Seek(above));
            }
            Some(Turn::Lead) => self.lead(now),
        }
    }

    /// Leaves the tree of the root, or stops being the root. The jobs on this node are kept.
    fn leave(&mut self) {
        self.effects.push_back(Effect::Seek(Vec::new()));
        self.effects.push_back(Effect::Root(None));
        self.detach();
        self.agent.orphan();
        if let Some(manager) = self.manager.take() {
            self.standby = Some(manager.retire());
            self.waiting.clear();
            self.effects.push_back(Effect::Deposed);
        }
    }

    /// Becomes the root of the present term.
    fn lead(&mut self, now: Instant) {
        let host = self.config.host;
        let Some(config) = self.standby.take() else { return };
        self.tree = self.tree.rooted_at(host);
        self.durable.position = Position { term: self.durable.term, change: 1 };
        self.is_recorded = false;
        self.holds.clear();
        let table = &self.durable.table;
        let mut manager = JobManager::take_over(now, &self.config, config, table);
        let unknown = manager.joined(now, self.agent.rejoin(now));
        self.agent.drop_jobs(&unknown);
        self.manager = Some(manager);
        self.effects.push_back(Effect::Root(Some(host)));
    }

    /// Returns whether a host may become a child now.
    pub(super) fn admits(&self, host: u16) -> bool {
        let is_rooted = self.manager.is_some() || self.parent_heard.is_some();
        self.election.is_none() || is_rooted && self.tree.is_within(host, self.config.host)
    }

    /// Sends the table to an admitted child.
    pub(super) fn welcome(&mut self, host: u16) {
        let Some(root) = self.election.as_ref().and_then(Election::root) else { return };
        let Durable { position, table, .. } = &self.durable;
        let welcome = Down::Welcome { root, position: *position, table: table.clone() };
        self.send_child(host, welcome);
    }

    /// Joins the tree of a root, if it is the root of this daemon's term.
    pub(super) fn welcomed(
        &mut self,
        now: Instant,
        root: u16,
        (position, table): (Position, Table),
    ) {
        let Some(election) = &mut self.election else { return };
        let is_it = election.root() == Some(root) && position.term == self.durable.term;
        if !self.has_dialled || self.parent_heard.is_some() || self.manager.is_some() || !is_it {
            return;
        }
        election.joined();
        self.begin_beating(now);
        (self.parent_heard, self.root_heard) = (Some(now), now);
        (self.durable.position, self.durable.table) = (position, table);
        self.is_recorded = false;
        let inventory = self.agent.rejoin(now);
        inventory::split(&inventory).for_each(|part| self.up(now, part));
        self.up(now, Up::Holds { host: self.config.host, position });
        self.effects.push_back(Effect::Root(Some(root)));
    }

    /// Handles a change of the root's table.
    pub(super) fn take_change(&mut self, now: Instant, position: Position, change: Change) {
        let Position { term, change: number } = self.durable.position;
        if position != (Position { term, change: number + 1 }) {
            return;
        }
        self.send_children(&Down::Change(position, change.clone()));
        self.durable.table.apply(change);
        self.durable.position = position;
        self.is_recorded = false;
        self.up(now, Up::Holds { host: self.config.host, position });
    }

    /// Sends the changes of the root's table to all daemons.
    pub(super) fn replicate(&mut self, now: Instant) {
        while let Some(change) = self.manager.as_mut().and_then(JobManager::poll_change) {
            self.durable.position.change += 1;
            self.is_recorded = false;
            self.durable.table.apply(change.clone());
            self.everywhere(now, Down::Change(self.durable.position, change));
        }
    }

    /// Records that a host has stored the root's table up to a position.
    pub(super) fn note_held(&mut self, host: u16, position: Position) {
        if position.term == self.durable.term && host < self.config.cluster.hosts {
            self.holds.insert(host, position.change);
        }
    }

    /// Makes the progress of a root that depends on a majority.
    pub(super) fn settle_takeover(&mut self, now: Instant) {
        let (Some(election), Some(manager)) = (&self.election, &mut self.manager) else { return };
        let majority = election.majority();
        let mut held: Vec<u64> = self.holds.values().copied().collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        // The root's own table counts as one of the majority.
        let own = self.durable.position.change;
        manager.commit(held.get(majority - 2).map_or(0, |change| own.min(*change)));
        let was_taking_over = manager.is_taking_over();
        manager.poll_takeover(now);
        if !manager.is_taking_over() && manager.connected() < majority {
            return self.elect(now, |election, own| {
                election.seek(now, own);
                Some(Turn::Seek)
            });
        }
        if was_taking_over && !manager.is_taking_over() {
            for (caller, request) in std::mem::take(&mut self.waiting) {
                self.request(now, caller, request);
            }
        }
    }
}
