//! The descriptors that a process has posted, as the gate at the host completes them.

use std::collections::VecDeque;

use midplane_simhw::id::PortId;
use midplane_simhw::region::Rights;

use crate::attributes::ViAttributes;
use crate::descriptor::{Descriptor, Transfer};
use crate::memory::Segment;
use crate::nic::posted::End;
use crate::nic::queues::Queues;
use crate::nic::{ViId, WorkQueue};
use crate::outcome::{AsyncError, DescriptorError, Operation};

/// The tables that a [`Nic`](crate::nic::Nic) has of all its interfaces.
pub(super) struct Tables<'a> {
    pub(super) queues: &'a mut Queues,
    pub(super) free_scratch: &'a mut Vec<u16>,
    pub(super) errors: &'a mut VecDeque<(ViId, AsyncError)>,
}

impl Tables<'_> {
    /// Returns the first descriptor of a queue that has not completed.
    #[inline]
    pub(super) fn pending(&mut self, vi: PortId, queue: WorkQueue) -> Option<&Descriptor> {
        let (_, descriptor) = self.queues.posted(vi, queue)?.pending()?;
        Some(descriptor)
    }

    /// Completes the first pending descriptor of a queue; returns `false` if there is none.
    #[inline]
    pub(super) fn end(&mut self, vi: PortId, queue: WorkQueue, end: End) -> bool {
        let ended = self.queues.end_pending(vi, queue, end);
        ended.is_some_and(|scratch| {
            self.free_scratch.extend(scratch);
            true
        })
    }

    /// Flushes the descriptors that the host has, because the connection has ended.
    pub(super) fn flush(&mut self, vi: PortId) {
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            while let Some(number) = self.queues.posted(vi, queue).and_then(|it| it.first_kept()) {
                let end = failed(queue, DescriptorError::Flushed);
                self.free_scratch.extend(self.queues.end(vi, queue, number, end));
            }
        }
    }
}

/// Makes the result of a descriptor that has moved no bytes.
pub(super) const fn failed(queue: WorkQueue, error: DescriptorError) -> End {
    let operation = match queue {
        WorkQueue::Receive => Operation::Receive,
        WorkQueue::Send => Operation::Send,
    };
    End { operation, outcome: Err(error), length: 0, immediate: None }
}

pub(super) const fn done(operation: Operation, length: u32, immediate: Option<u32>) -> End {
    End { operation, outcome: Ok(()), length, immediate }
}

/// Returns the error of an invalid descriptor, or `None`.
pub(super) fn refusal(
    descriptor: &Descriptor,
    queue: WorkQueue,
    owner: PortId,
    attributes: &ViAttributes,
) -> Option<DescriptorError> {
    let rights = match (queue, &descriptor.transfer) {
        (WorkQueue::Send, Transfer::Send | Transfer::RdmaWrite(_)) => Rights::LOCAL_READ,
        _ => Rights::LOCAL_WRITE,
    };
    let may_use = |segment: &Segment| segment.memory().is_of(owner, attributes.tag, rights);
    if !descriptor.segments.iter().all(may_use) {
        return Some(DescriptorError::Protection);
    }
    let is_long = descriptor.bytes() > attributes.max_transfer as usize;
    is_long.then_some(DescriptorError::Length)
}
