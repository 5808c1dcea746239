//! The hosts' processors: one a host, shared by tasks, interrupts and firmware.

use super::executor::{SimHost, Sleep};
use crate::id::NodeId;
use crate::profile::{HostProfile, Ringing};
use crate::time::Instant;

/// The processors of all hosts, and the costs of work on them.
#[derive(Debug)]
pub(super) struct Processors {
    pub(super) profile: HostProfile,
    nodes: Vec<Processor>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    /// When all requested work is done.
    free_at: Instant,
    /// When the kernel's handlers are done.
    handlers_until: Instant,
    /// The task that ran last.
    task: Option<u32>,
}

impl Processors {
    pub(super) fn new(profile: HostProfile, nodes: usize) -> Self {
        Self { profile, nodes: vec![Processor::default(); nodes] }
    }

    /// Returns when a host's processor is free, at least `now`.
    pub(super) fn free_at(&self, node: NodeId, now: Instant) -> Instant {
        self.nodes[node.index()].free_at.max(now)
    }

    /// Occupies the processor for `nanos` once it is free; returns when that work is done.
    pub(super) fn take(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        let processor = &mut self.nodes[node.index()];
        processor.free_at = processor.free_at.max(now).plus_nanos(nanos);
        processor.free_at
    }

    /// Occupies the processor for a handler, which preempts tasks but waits for earlier handlers; returns when the
    /// handler is done.
    pub(super) fn interrupt(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        let processor = &mut self.nodes[node.index()];
        processor.free_at = processor.free_at.max(now).plus_nanos(nanos);
        processor.handlers_until = processor.handlers_until.max(now).plus_nanos(nanos);
        processor.handlers_until
    }

    /// Interrupts the processor to notify the waiting task of a completion; returns when that is done. The next task
    /// pays for a context switch.
    pub(super) fn notify(&mut self, node: NodeId, now: Instant, nanos: u64) -> Instant {
        self.nodes[node.index()].task = None;
        self.interrupt(node, now, nanos)
    }

    /// Returns when the task can run, if that is not now: the processor is busy, or must first switch to this task.
    pub(super) fn switch_to(&mut self, node: NodeId, now: Instant, task: u32) -> Option<Instant> {
        let free_at = self.free_at(node, now);
        if free_at > now {
            return Some(free_at);
        }
        let cost = u64::from(self.profile.context_switch_ns);
        let same = self.nodes[node.index()].task.replace(task) == Some(task);
        (!same && cost > 0).then(|| self.take(node, now, cost))
    }

    /// Rings a doorbell; returns when it is written.
    pub(super) fn ring(&mut self, node: NodeId, now: Instant) -> Instant {
        match self.profile.ringing {
            Ringing::Mapped => self.free_at(node, now),
            Ringing::SystemCall => self.take(node, now, u64::from(self.profile.system_call_ns)),
        }
    }

    /// Resets the processor of a crashed host: no work is left.
    pub(super) fn reset(&mut self, node: NodeId) {
        self.nodes[node.index()] = Processor::default();
    }
}

impl SimHost {
    /// Occupies this host's processor for `nanos` nanoseconds of work. It begins later if others have the
    /// processor, and takes longer if interrupts or firmware preempt it. Without a host profile
    /// ([`World::set_hosts`](super::World::set_hosts)), it only sleeps.
    ///
    /// # Cancel safety
    /// The work is charged even if the future is dropped.
    pub async fn compute(&self, nanos: u64) {
        let now = self.shared.now();
        let taken = self.shared.processors(|processors| processors.take(self.node, now, nanos));
        let at = taken.unwrap_or_else(|| now.plus_nanos(nanos));
        Sleep { shared: &self.shared, at, slot: None }.await;
    }

    /// Returns the costs of this host.
    #[must_use]
    pub fn profile(&self) -> HostProfile {
        self.shared.processors(|processors| processors.profile).unwrap_or_default()
    }
}
