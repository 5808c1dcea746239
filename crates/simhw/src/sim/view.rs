//! What can be seen of a world, and set in it, from outside.

use super::network::Traffic;
use super::processor::Processors;
use super::{TraceEvent, World};
use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::medium::MediumStats;
use crate::profile::HostProfile;
use crate::switch::Output;
use crate::time::Instant;
use crate::topology::{LinkId, MediumId};
use crate::trace::Record;

impl<F: Firmware> World<F> {
    /// Sets what hosts cost from now on, all of them; nothing until then.
    pub fn set_hosts(&mut self, profile: HostProfile) {
        self.shared.set_processors(Processors::new(profile, self.nics.len()));
        for nic in &mut self.nics {
            nic.host = profile;
        }
    }

    /// Calls `tracer` for everything that happens from now on; it changes nothing.
    pub fn set_tracer(&mut self, tracer: impl FnMut(TraceEvent) + Send + 'static) {
        self.tracer = Some(Box::new(tracer));
    }

    /// Shows `observer` everything that happens from now on; it changes nothing.
    pub fn observe(&mut self, observer: impl FnMut(&Record<'_>) + Send + 'static) {
        self.network.watch.observer = Some(Box::new(observer));
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Frames, by what became of them.
    #[must_use]
    pub const fn traffic(&self) -> &Traffic {
        &self.network.traffic
    }

    /// Whether a node's NIC runs.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.nics[node.index()].up
    }

    /// Ports that the NIC of `node` has open.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn open_ports(&self, node: NodeId) -> usize {
        self.nics[node.index()].ports.open()
    }

    /// Frames under way.
    #[must_use]
    pub fn frames_under_way(&self) -> usize {
        self.network.frames.len()
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.executor.tasks()
    }

    /// The switch output before `link`; `None` where it begins at a NIC.
    #[must_use]
    pub fn output(&self, link: LinkId) -> Option<&Output> {
        self.network.output(link)
    }

    /// What a shared medium has carried; `None` if there is no such medium.
    #[must_use]
    pub fn medium(&self, medium: MediumId) -> Option<&MediumStats> {
        self.network.shared.stats(medium)
    }

    /// The firmware of `node`, to look at.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn firmware(&self, node: NodeId) -> &F {
        &self.firmware[node.index()]
    }

    /// Events that have happened.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Whether what happens from now on goes into the digest: it does, unless somebody measures what
    /// that costs.
    pub const fn set_digesting(&mut self, on: bool) {
        self.digesting = on;
    }

    /// A number that everything that happened has gone into.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }
}
