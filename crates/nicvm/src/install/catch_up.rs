//! Catching up: members that were disconnected learn which versions run, and fetch them.
//!
//! A member fetches one module for each extension number, from the first member that reports a newer version. If the
//! pieces stop, it asks all living members again which versions run, and fetches the module from the next that reports
//! it. The sender keeps few pieces in its queue, so that other messages find room there.
//!
//! If the two sides of a partition have installed different modules under one epoch, all members catch up with the
//! module of the greater hash once the sides are connected again.

use std::time::Duration;

use midplane_simhw::id::{ExtensionId, NodeId};

use super::wire::{Hash, Message, PIECE};
use super::{
    Context, Epoch, Installer, MAX_MODULE, STALLED_AFTER, Service, TimeoutId, Version, hash,
};

pub(super) const FETCHING: TimeoutId = TimeoutId(u32::MAX - 2);
pub(super) const SENDING: TimeoutId = TimeoutId(u32::MAX - 3);
/// Control messages to one member that may wait while pieces are queued.
const QUEUED: usize = 64;
/// Time after which more pieces are queued.
const SEND_AFTER: Duration = Duration::from_millis(1);
/// Periods without a piece after which a fetch has stalled, and after which it is given up.
const STALLED: u32 = 2;
const GIVEN_UP: u32 = 10;

/// A module that is being fetched.
pub(super) struct Fetch {
    version: Version,
    from: NodeId,
    length: usize,
    module: Vec<u8>,
    /// Periods that have begun since the last piece.
    idle: u32,
    /// True if another member has reported a module of the same epoch that replaces this one.
    is_tied: bool,
}

impl Fetch {
    /// Notes that version `epoch` was taken down on all members.
    pub(super) fn on_withdrawn(&mut self, epoch: Epoch) {
        if self.version.epoch == epoch {
            self.version = Version { is_down: true, is_withdrawn: true, ..self.version };
        }
    }
}

impl Installer {
    /// Reports the versions that run here to a member that has started or come back.
    pub(super) fn on_what(&mut self, nic: &mut Context<'_>, to: NodeId) {
        for number in self.versions.keys().copied().collect::<Vec<_>>() {
            self.report(nic, to, number);
        }
    }

    /// Reports the version that runs here under a number to a member.
    fn report(&mut self, nic: &mut Context<'_>, to: NodeId, number: ExtensionId) {
        let Some(version) = self.versions.get(&number) else { return };
        let length = self.modules.get(&version.hash).map_or(0, Vec::len) as u32;
        let runs = Message::Runs {
            number,
            epoch: version.epoch,
            hash: version.hash,
            length,
            policy: version.policy as u8,
            is_withdrawn: version.is_withdrawn,
        };
        self.backlog.send(nic, to, &runs.emit());
    }

    /// Handles the report that a version runs on another member, or was taken down on all.
    pub(super) fn on_runs(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        number: ExtensionId,
        version: Version,
        length: u32,
    ) {
        let Version { epoch, hash: content, .. } = version;
        if version.is_withdrawn {
            self.withdraw(nic, number, epoch);
        }
        let is_former = |own: &Version| own.epoch == epoch && own.replaces(&version);
        if self.versions.get(&number).is_some_and(is_former) {
            // The member runs the module of the lesser hash, and may not know of the other.
            self.report(nic, from, number);
        }
        if !self.is_news(number, &version) || length == 0 || length as usize > MAX_MODULE {
            return;
        }
        let brings = (number, epoch);
        let change = self.change.as_mut();
        if let Some(change) = change.filter(|it| (it.offer.number, it.offer.epoch) == brings) {
            // Most often the change brings it.
            change.is_behind = true;
            return;
        }
        if self.modules.contains_key(&content) {
            self.catch_up(nic, number, version);
            return;
        }
        let under_way = self.fetching.get_mut(&number).filter(|fetch| fetch.idle < STALLED);
        if let Some(fetch) = under_way.filter(|fetch| !epoch.is_newer_than(fetch.version.epoch)) {
            fetch.is_tied |= version.replaces(&fetch.version);
            return;
        }
        if self.fetching.is_empty() {
            nic.set_timeout(FETCHING, Service::Coarse, STALLED_AFTER);
        }
        let (length, module) = (length as usize, Vec::new());
        let fetch = Fetch { version, from, length, module, idle: 0, is_tied: false };
        self.fetching.insert(number, fetch);
        self.send(nic, from, &Message::Fetch { hash: content });
    }

    /// Returns whether a version replaces the one that runs under `number`.
    fn is_news(&self, number: ExtensionId, version: &Version) -> bool {
        self.versions.get(&number).is_none_or(|own| version.replaces(own))
    }

    /// Handles a piece of a module. Pieces of a fetch that was replaced, or has ended, are ignored.
    pub(super) fn on_piece(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        content: Hash,
        (at, bytes): (u32, &[u8]),
    ) {
        let fits = |fetch: &Fetch| {
            fetch.from == from
                && fetch.version.hash == content
                && at as usize == fetch.module.len()
                && fetch.module.len() + bytes.len() <= fetch.length
        };
        let wanted = self.fetching.iter_mut().find(|(_, fetch)| fits(fetch));
        let Some((number, fetch)) = wanted.filter(|_| !bytes.is_empty()) else { return };
        fetch.module.extend_from_slice(bytes);
        fetch.idle = 0;
        if fetch.module.len() < fetch.length {
            return;
        }
        if hash(&fetch.module) != content {
            // The sender's module is not the requested one. The next report of any member begins a new fetch.
            fetch.idle = STALLED;
            return;
        }
        let number = *number;
        let Some(fetch) = self.fetching.remove(&number) else { return };
        self.modules.insert(content, fetch.module);
        self.catch_up(nic, number, fetch.version);
        if fetch.is_tied {
            // That member reports the other module again.
            self.report_to_all(nic);
        }
    }

    /// Notices fetches that have stalled. Called every [`STALLED_AFTER`] while modules are fetched.
    pub(super) fn watch_fetches(&mut self, nic: &mut Context<'_>) {
        let mut fetching = std::mem::take(&mut self.fetching);
        fetching.values_mut().for_each(|fetch| fetch.idle += 1);
        fetching
            .retain(|number, fetch| fetch.idle < GIVEN_UP && self.is_news(*number, &fetch.version));
        self.fetching = fetching;
        self.ask_about_stalled(nic);
        if !self.fetching.is_empty() {
            nic.set_timeout(FETCHING, Service::Coarse, STALLED_AFTER);
        }
    }

    /// Asks all living members which versions run, if a fetch has stalled.
    fn ask_about_stalled(&mut self, nic: &mut Context<'_>) {
        if self.fetching.values().all(|fetch| fetch.idle < STALLED) {
            return;
        }
        for member in self.others(nic) {
            if !self.gone.contains(&member) {
                self.send(nic, member, &Message::What);
            }
        }
    }

    /// Handles the loss of a member, or its restart: it neither sends nor fetches any more.
    pub(super) fn on_fetch_lost(&mut self, nic: &mut Context<'_>, node: NodeId) {
        self.sending.retain(|(to, _), _| *to != node);
        let from = self.fetching.values_mut().filter(|fetch| fetch.from == node);
        let mut lost = false;
        for fetch in from {
            fetch.idle = fetch.idle.max(STALLED);
            lost = true;
        }
        if lost {
            self.ask_about_stalled(nic);
        }
    }

    /// Begins to send a module to a member.
    pub(super) fn on_fetch(&mut self, nic: &mut Context<'_>, to: NodeId, content: Hash) {
        if self.modules.contains_key(&content) {
            self.sending.insert((to, content), 0);
            self.send_pieces(nic);
        }
    }

    /// Queues the next pieces of the modules that members fetch, as far as their queues are short.
    pub(super) fn send_pieces(&mut self, nic: &mut Context<'_>) {
        let mut sending = std::mem::take(&mut self.sending);
        sending.retain(|(to, content), at| {
            let Some(module) = self.modules.get(content) else { return false };
            while *at < module.len() && nic.control_pending(*to) < QUEUED {
                let bytes = &module[*at..module.len().min(*at + PIECE)];
                let piece = Message::Piece { hash: *content, at: *at as u32, bytes };
                if nic.send_control(*to, &piece.emit()).is_err() {
                    break;
                }
                *at += bytes.len();
            }
            *at < module.len()
        });
        self.sending = sending;
        if !self.sending.is_empty() {
            nic.set_timeout(SENDING, Service::Exact, SEND_AFTER);
        }
    }

    pub(super) fn catch_up(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        version: Version,
    ) {
        if !self.is_news(number, &version) {
            return;
        }
        let Some(Ok(extension)) = self.modules.get(&version.hash).map(|m| self.loader.load(m))
        else {
            return;
        };
        let runs = self.versions.get(&number);
        let is_tie = runs.is_some_and(|own| own.epoch == version.epoch);
        self.counters.caught_up += 1;
        self.run(nic, number, version, extension);
        if is_tie {
            // The members on this side of the former partition may still run the other module.
            self.report_to_all(nic);
        }
    }

    /// Reports the versions that run here to all other members.
    fn report_to_all(&mut self, nic: &mut Context<'_>) {
        for member in self.others(nic) {
            self.on_what(nic, member);
        }
    }
}
