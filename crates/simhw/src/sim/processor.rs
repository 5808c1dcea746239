//! The hosts' processors: one a host, that tasks, interrupts and firmware take turns on.

use super::executor::{SimHost, Sleep};
use crate::id::NodeId;
use crate::profile::{HostProfile, Ringing};
use crate::time::Instant;

/// The processors of all hosts, and what everything costs on them.
#[derive(Debug)]
pub(super) struct Processors {
    pub(super) profile: HostProfile,
    nodes: Vec<Processor>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    /// What has been asked of it is done.
    free_at: Instant,
    /// The kernel's handlers are done.
    handlers_until: Instant,
    /// The task that ran last.
    task: Option<u32>,
}

impl Processors {
    pub(super) fn new(profile: HostProfile, nodes: usize) -> Self {
        Self { profile, nodes: vec![Processor::default(); nodes] }
    }

    /// When a host's processor is free, and not before `now`.
    pub(super) fn free_at(&self, node: NodeId, now: Instant) -> Instant {
        self.nodes[node.index()].free_at.max(now)
    }

    /// Takes the processor once it is free; when that work is done.
    pub(super) fn take(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        let processor = &mut self.nodes[node.index()];
        processor.free_at = processor.free_at.max(now).plus_nanos(nanos);
        processor.free_at
    }

    /// Takes the processor from whatever runs but another handler; when the handler is done.
    pub(super) fn interrupt(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        let processor = &mut self.nodes[node.index()];
        processor.free_at = processor.free_at.max(now).plus_nanos(nanos);
        processor.handlers_until = processor.handlers_until.max(now).plus_nanos(nanos);
        processor.handlers_until
    }

    /// Tells who waits of a completion; when it is told. Whoever ran has given way meanwhile.
    pub(super) fn notify(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        self.nodes[node.index()].task = None;
        self.interrupt(node, now, nanos)
    }

    /// When the task can run, if that is not now: another one is at work, or the processor turns to
    /// this one first.
    pub(super) fn switch_to(&mut self, node: NodeId, now: Instant, task: u32) -> Option<Instant> {
        let free_at = self.free_at(node, now);
        if free_at > now {
            return Some(free_at);
        }
        let cost = u64::from(self.profile.context_switch_ns);
        let same = self.nodes[node.index()].task.replace(task) == Some(task);
        (!same && cost > 0).then(|| self.take(node, now, cost))
    }

    /// Rings a doorbell; when it is written.
    pub(super) fn ring(&mut self, node: NodeId, now: Instant) -> Instant {
        match self.profile.ringing {
            Ringing::Mapped => self.free_at(node, now),
            Ringing::SystemCall => self.take(node, now, u64::from(self.profile.system_call_ns)),
        }
    }

    /// The host has crashed: nothing is at work.
    pub(super) fn reset(&mut self, node: NodeId) {
        self.nodes[node.index()] = Processor::default();
    }
}

impl SimHost {
    /// Takes this host's processor for `nanos` nanoseconds of work: later, if others are at work, and
    /// longer, if interrupts and firmware take it meanwhile. Without a host profile
    /// ([`World::set_hosts`](super::World::set_hosts)) that is nothing but a sleep.
    ///
    /// # Cancel safety
    /// The work is done even if the future is dropped.
    pub async fn compute(&self, nanos: u64) {
        let now = self.shared.now();
        let taken = self.shared.processors(|processors| processors.take(self.node, now, nanos));
        let at = taken.unwrap_or_else(|| now.plus_nanos(nanos));
        Sleep { shared: &self.shared, at, slot: None }.await;
    }

    /// What this host costs.
    #[must_use]
    pub fn profile(&self) -> HostProfile {
        self.shared.processors(|processors| processors.profile).unwrap_or_default()
    }
}
