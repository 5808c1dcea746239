//! Members that were away learn which versions run, and fetch them.

use std::collections::btree_map::Entry;

use midplane_simhw::id::{ExtensionId, NodeId};

use super::wire::{Hash, Message};
use super::{Context, Epoch, Installer, MAX_MODULE, Policy, Version, hash};

impl Installer {
    /// Reports the versions that run here to a member that has started or come back.
    pub(super) fn on_what(&self, nic: &mut Context<'_>, to: NodeId) {
        for (number, version) in &self.versions {
            let length = self.modules.get(&version.hash).map_or(0, Vec::len) as u32;
            let runs = Message::Runs {
                number: *number,
                epoch: version.epoch,
                hash: version.hash,
                length,
                policy: version.policy as u8,
            };
            self.send(nic, to, &runs);
        }
    }

    pub(super) fn on_runs(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        (number, epoch): (ExtensionId, Epoch),
        (content, length): (Hash, u32),
        policy: Policy,
    ) {
        let known = self.versions.get(&number);
        let is_news = known.is_none_or(|version| epoch.is_newer_than(version.epoch));
        let comes = self.change.as_ref().is_some_and(|change| change.offer.epoch == epoch);
        if !is_news || comes || length == 0 || length as usize > MAX_MODULE {
            return;
        }
        let former = None;
        let version = Version { epoch, hash: content, policy, former, is_down: false, restarts: 0 };
        if self.modules.contains_key(&content) {
            self.catch_up(nic, number, version);
        } else if let Entry::Vacant(place) = self.fetching.entry(content) {
            place.insert((number, version, Vec::with_capacity(length as usize)));
            self.send(nic, from, &Message::Fetch { hash: content });
        }
    }

    pub(super) fn on_piece(
        &mut self,
        nic: &mut Context<'_>,
        content: Hash,
        at: u32,
        bytes: &[u8],
    ) -> Option<()> {
        let (number, version, module) = self.fetching.get_mut(&content)?;
        if at as usize != module.len() || module.len() + bytes.len() > MAX_MODULE {
            return None;
        }
        module.extend_from_slice(bytes);
        if hash(module) == content {
            let (number, version) = (*number, *version);
            let (_, _, module) = self.fetching.remove(&content)?;
            self.modules.insert(content, module);
            self.catch_up(nic, number, version);
        }
        Some(())
    }

    pub(super) fn catch_up(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        version: Version,
    ) {
        let is_news = |known: &Version| version.epoch.is_newer_than(known.epoch);
        if !self.versions.get(&number).is_none_or(is_news) {
            return;
        }
        let Some(Ok(extension)) = self.modules.get(&version.hash).map(|m| self.loader.load(m))
        else {
            return;
        };
        self.counters.caught_up += 1;
        self.run(nic, number, version.epoch, version.hash, version.policy, extension);
    }
}
