//! The interface of a world for observing and configuring it.

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
    /// Sets the costs of all hosts from now on; before, hosts cost nothing.
    pub fn set_hosts(&mut self, profile: HostProfile) {
        self.shared.set_processors(Processors::new(profile, self.nics.len()));
        for nic in &mut self.nics {
            nic.host = profile;
        }
    }

    /// Calls `tracer` for each event from now on; this does not affect the run.
    #[doc(hidden)]
    pub fn set_tracer(&mut self, tracer: impl FnMut(TraceEvent) + Send + 'static) {
        self.tracer = Some(Box::new(tracer));
    }

    /// Passes each record from now on to `observer`; this does not affect the run.
    pub fn observe(&mut self, observer: impl FnMut(&Record<'_>) + Send + 'static) {
        self.network.watch.observer = Some(Box::new(observer));
    }

    /// Returns the time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns counts of frames, by outcome.
    #[must_use]
    pub const fn traffic(&self) -> &Traffic {
        &self.network.traffic
    }

    /// Returns whether a node's NIC runs.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.assert_node(node);
        self.nics[node.index()].up
    }

    /// Returns the number of open ports of `node`.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    #[doc(hidden)]
    pub fn open_ports(&self, node: NodeId) -> usize {
        self.assert_node(node);
        self.nics[node.index()].ports.open()
    }

    /// Returns the number of frames in flight.
    #[must_use]
    #[doc(hidden)]
    pub fn frames_under_way(&self) -> usize {
        self.network.frames.len()
    }

    /// Returns the number of tasks that have not ended.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.executor.tasks()
    }

    /// Returns the switch output that feeds `link`; `None` if the link begins at a NIC.
    #[must_use]
    pub fn output(&self, link: LinkId) -> Option<&Output> {
        self.network.output(link)
    }

    /// Returns the counters of a shared medium; `None` if there is no such medium.
    #[must_use]
    pub fn medium(&self, medium: MediumId) -> Option<&MediumStats> {
        self.network.shared.stats(medium)
    }

    /// Returns the firmware of `node`, to inspect it.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn firmware(&self, node: NodeId) -> &F {
        self.assert_node(node);
        &self.firmware[node.index()]
    }

    /// Returns the number of events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Sets whether events from now on go into the digest. Default: on; turn it off only to measure the
    /// digest's cost.
    #[doc(hidden)]
    pub const fn set_digesting(&mut self, on: bool) {
        self.digesting = on;
    }

    /// Returns the digest of all events so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }
}
