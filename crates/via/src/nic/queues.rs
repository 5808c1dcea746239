//! Work queues and completion queues of the host's half.

use std::collections::VecDeque;

use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::posted::{End, PostedQueue, cookie, number};
use super::{MAX_SEGMENTS, Nic, NicError, SCRATCH_BYTES, Unrung, ViId};
use crate::attributes::{ViAttributes, ViState};
use crate::command::{
    Ended, FENCE, IMMEDIATE, OPERATION_READ, OPERATION_WRITE, POST_RECEIVE, POST_SEND,
    SEGMENT_BYTES, TABLE, about, segment_bytes,
};
use crate::descriptor::{Completed, Descriptor, Fields, Transfer};

/// One of an interface's two queues.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum WorkQueue {
    /// The queue of sends, writes and reads.
    Send,
    /// The queue of receives.
    Receive,
}

/// A completion queue of a [`Nic`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CqId(pub(super) usize);

/// Why a descriptor was not posted; returns the descriptor unchanged.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct PostFailed {
    /// The reason for the refusal.
    pub error: NicError,
    /// The descriptor, as it was passed in.
    pub descriptor: Descriptor,
}

/// The host's state of one interface.
#[derive(Debug)]
pub(super) struct ViQueues {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    /// Connection requests that have made the interface pending.
    pub(super) requests: u32,
    pub(super) posted: [PostedQueue; 2],
    pub(super) cqs: [Option<CqId>; 2],
}

/// All interfaces and completion queues of one NIC.
#[derive(Debug, Default)]
pub(super) struct Queues {
    vis: Vec<Option<ViQueues>>,
    completions: Vec<VecDeque<(ViId, WorkQueue)>>,
    /// Descriptors of all queues that have not completed.
    pub(super) unended: usize,
}

impl Queues {
    pub(super) fn insert(&mut self, id: ViId, attributes: ViAttributes, cqs: [Option<CqId>; 2]) {
        let at = id.number.index();
        if at >= self.vis.len() {
            self.vis.resize_with(at + 1, || None);
        }
        let posted = <[PostedQueue; 2]>::default();
        let state = ViState::Idle;
        self.vis[at] = Some(ViQueues { id, attributes, state, requests: 0, posted, cqs });
    }

    /// Removes an interface and its queues.
    pub(super) fn remove(&mut self, vi: ViId) {
        for queue in &mut self.completions {
            queue.retain(|(other, _)| *other != vi);
        }
        if let Some(gone) = self.vis.get_mut(vi.number.index()).and_then(Option::take) {
            self.unended -= gone.posted.iter().map(PostedQueue::unended).sum::<usize>();
        }
    }

    #[inline]
    pub(super) fn of(&mut self, vi: ViId) -> Result<&mut ViQueues, NicError> {
        let queues = self.vis.get_mut(vi.number.index()).and_then(Option::as_mut);
        queues.filter(|queues| queues.id == vi).ok_or(NicError::NoSuchVi)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ViQueues> {
        self.vis.iter().flatten()
    }

    /// Iterates over the contents of the completion queues.
    pub(super) fn completion_queues(&self) -> impl Iterator<Item = &VecDeque<(ViId, WorkQueue)>> {
        self.completions.iter()
    }

    /// Restores a completion queue with its contents.
    pub(super) fn restore_cq(&mut self, entries: &[(ViId, WorkQueue)]) {
        self.completions.push(entries.iter().copied().collect());
    }

    pub(super) fn id(&self, number: PortId) -> Option<ViId> {
        self.vis.get(number.index())?.as_ref().map(|queues| queues.id)
    }

    pub(super) fn set_state(&mut self, vi: ViId, state: ViState) {
        if let Ok(queues) = self.of(vi) {
            queues.state = state;
        }
    }

    /// Returns the descriptors posted to one queue of an interface.
    #[inline]
    pub(super) fn posted(&mut self, vi: PortId, queue: WorkQueue) -> Option<&mut PostedQueue> {
        Some(&mut self.vis.get_mut(vi.index())?.as_mut()?.posted[queue as usize])
    }

    /// Handles the NIC's completion of a descriptor.
    #[inline]
    pub(super) fn on_ended(&mut self, free_scratch: &mut Vec<u16>, completion: &Completion) {
        let Ended { opcode, vi, cookie, operation, outcome, length, immediate } =
            Ended::of(completion);
        let queue = if opcode == POST_SEND { WorkQueue::Send } else { WorkQueue::Receive };
        let end = End { operation, outcome, length, immediate };
        free_scratch.extend(self.end(vi, queue, number(cookie), end));
    }

    /// Completes a descriptor; returns the scratch slot of its segment table, if it had one.
    #[inline]
    pub(super) fn end(
        &mut self,
        vi: PortId,
        queue: WorkQueue,
        number: u64,
        end: End,
    ) -> Option<u16> {
        let queues = self.vis.get_mut(vi.index())?.as_mut()?;
        let scratch = queues.posted[queue as usize].end(number, end)?;
        self.unended -= 1;
        push_completion(&mut self.completions, queues, queue);
        scratch
    }

    /// Completes the first pending descriptor of a queue that the host has. Returns the scratch slot of its segment
    /// table, if it had one; `None` if there is no descriptor.
    #[inline]
    pub(super) fn end_pending(
        &mut self,
        vi: PortId,
        queue: WorkQueue,
        end: End,
    ) -> Option<Option<u16>> {
        let queues = self.vis.get_mut(vi.index())?.as_mut()?;
        let scratch = queues.posted[queue as usize].end_pending(end)?;
        self.unended -= 1;
        push_completion(&mut self.completions, queues, queue);
        Some(scratch)
    }
}

#[inline]
fn push_completion(
    completions: &mut [VecDeque<(ViId, WorkQueue)>],
    queues: &ViQueues,
    queue: WorkQueue,
) {
    if let Some(cq) = queues.cqs[queue as usize]
        && let Some(completed) = completions.get_mut(cq.0)
    {
        completed.push_back((queues.id, queue));
    }
}

impl Nic {
    /// Creates a completion queue.
    pub fn create_cq(&mut self) -> CqId {
        self.queues.completions.push(VecDeque::new());
        CqId(self.queues.completions.len() - 1)
    }

    /// Posts a descriptor to the send queue. The NIC may use its memory until it completes.
    ///
    /// # Errors
    /// [`PostFailed`] returns the descriptor: [`NicError::QueueFull`] until completions are taken,
    /// [`NicError::NoSuchVi`], [`NicError::Closed`]. Errors that the NIC finds in it are the descriptor's
    /// outcome.
    #[inline]
    pub fn post_send(&mut self, vi: ViId, descriptor: Descriptor) -> Result<(), PostFailed> {
        if self.has_queue(vi, WorkQueue::Send) {
            return self.post_kept(vi, WorkQueue::Send, descriptor);
        }
        let command = send_command(vi, &descriptor);
        self.post(vi, WorkQueue::Send, command, descriptor)?;
        self.ring();
        Ok(())
    }

    /// Rings the doorbell for all that was posted so far.
    pub(super) fn ring(&mut self) {
        self.unrung = Unrung::Nothing;
        self.port.ring();
    }

    /// Posts a descriptor to the receive queue. The NIC may use its memory until it completes.
    ///
    /// # Errors
    /// As [`Nic::post_send`].
    #[inline]
    pub fn post_receive(&mut self, vi: ViId, descriptor: Descriptor) -> Result<(), PostFailed> {
        if self.has_queue(vi, WorkQueue::Receive) {
            return self.post_kept(vi, WorkQueue::Receive, descriptor);
        }
        let command = about(vi.number, POST_RECEIVE, 0);
        self.post(vi, WorkQueue::Receive, command, descriptor)?;
        self.ring();
        Ok(())
    }

    /// Posts a receive without a doorbell: the hardware is notified with the next post, or once polls find
    /// nothing. Only for receives that no message can need before then.
    pub(crate) fn post_receive_quietly(
        &mut self,
        vi: ViId,
        descriptor: Descriptor,
    ) -> Result<(), PostFailed> {
        if self.has_queue(vi, WorkQueue::Receive) {
            return self.post_kept(vi, WorkQueue::Receive, descriptor);
        }
        let command = about(vi.number, POST_RECEIVE, 0);
        self.post(vi, WorkQueue::Receive, command, descriptor)?;
        self.unrung = Unrung::Posted;
        Ok(())
    }

    #[inline]
    fn post(
        &mut self,
        vi: ViId,
        queue: WorkQueue,
        mut command: Command,
        descriptor: Descriptor,
    ) -> Result<(), PostFailed> {
        if !self.has_room() {
            return Err(PostFailed { error: NicError::QueueFull, descriptor });
        }
        let scratch = match self.describe(&descriptor, &mut command) {
            Ok(scratch) => scratch,
            Err(error) => return Err(PostFailed { error, descriptor }),
        };
        let queues = match self.queues.of(vi) {
            Ok(queues) => queues,
            Err(error) => {
                self.free_scratch.extend(scratch);
                return Err(PostFailed { error, descriptor });
            }
        };
        let posted = &mut queues.posted[queue as usize];
        command.cookie = cookie(vi.number, queue, posted.next_number());
        if let Err(error) = self.port.post(&command) {
            self.free_scratch.extend(scratch);
            return Err(PostFailed { error: error.into(), descriptor });
        }
        posted.push(descriptor, scratch);
        self.queues.unended += 1;
        Ok(())
    }

    /// Posts all descriptors of a queue, from number `from` on, to the NIC. If that fails, returns the number of the
    /// next one with the error of the port.
    pub(super) fn post_from(
        &mut self,
        vi: ViId,
        queue: WorkQueue,
        mut from: u64,
    ) -> Result<(), (u64, NicError)> {
        while let Some(posted) = self.queues.posted(vi.number, queue)
            && let Some(number) = posted.next_unended(from)
        {
            self.post_again(vi, queue, number).map_err(|error| (number, error))?;
            from = number + 1;
        }
        Ok(())
    }

    /// Posts to the NIC a descriptor that the host has.
    fn post_again(&mut self, vi: ViId, queue: WorkQueue, number: u64) -> Result<(), NicError> {
        let Some(posted) = self.queues.posted(vi.number, queue) else { return Ok(()) };
        let Some(descriptor) = posted.get(number) else { return Ok(()) };
        // Cloning segments copies references, not the memory.
        let fields = Fields { segments: descriptor.segments.clone(), ..**descriptor };
        let descriptor = Descriptor::from(fields);
        let mut command = match queue {
            WorkQueue::Send => send_command(vi, &descriptor),
            WorkQueue::Receive => about(vi.number, POST_RECEIVE, 0),
        };
        let slot = self.describe(&descriptor, &mut command)?;
        command.cookie = cookie(vi.number, queue, number);
        if let Err(error) = self.port.post(&command) {
            self.free_scratch.extend(slot);
            return Err(error.into());
        }
        if let Some(posted) = self.queues.posted(vi.number, queue) {
            self.free_scratch.extend(posted.set_posted(number, slot));
        }
        Ok(())
    }

    /// Puts a descriptor's memory into its command: its only segment, or a table of its segments.
    fn describe(
        &mut self,
        descriptor: &Descriptor,
        command: &mut Command,
    ) -> Result<Option<u16>, NicError> {
        match &descriptor.segments[..] {
            [] => Ok(None),
            [one] => {
                command.region = one.region();
                Ok(None)
            }
            many if many.len() > MAX_SEGMENTS => Err(NicError::TooManySegments(many.len())),
            many => {
                let slot = self.free_scratch.pop().ok_or(NicError::QueueFull)?;
                let start = usize::from(slot) * SCRATCH_BYTES;
                for (at, segment) in many.iter().enumerate() {
                    let bytes = segment_bytes(segment.region());
                    let written = self.scratch.write(start + at * SEGMENT_BYTES, &bytes);
                    written.expect("a slot holds MAX_SEGMENTS");
                }
                let table = self.scratch.range(start, many.len() * SEGMENT_BYTES);
                command.region = table.expect("every slot is within the scratch region");
                command.flags |= TABLE;
                command.args[0] |= (many.len() as u64) << 32;
                Ok(Some(slot))
            }
        }
    }

    /// Polls, then takes the next descriptor of a queue, if it has completed. Descriptors complete in the order
    /// in which they were posted.
    ///
    /// # Errors
    /// [`NicError::NoSuchVi`] if the interface was destroyed.
    #[inline]
    pub fn done(&mut self, vi: ViId, queue: WorkQueue) -> Result<Option<Completed>, NicError> {
        if self.queues.of(vi)?.posted[queue as usize].has_ended() || self.poll() {
            self.taken(vi, queue)
        } else {
            Ok(None)
        }
    }

    /// Takes the next descriptor of a queue, if an earlier poll of any queue has completed it. Reads only
    /// memory of this process.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    #[doc(hidden)]
    pub fn taken(&mut self, vi: ViId, queue: WorkQueue) -> Result<Option<Completed>, NicError> {
        Ok(self.queues.of(vi)?.posted[queue as usize].take())
    }

    /// Takes the next descriptor of the send queue, if it has completed.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    pub fn send_done(&mut self, vi: ViId) -> Result<Option<Completed>, NicError> {
        self.done(vi, WorkQueue::Send)
    }

    /// Takes the next descriptor of the receive queue, if it has completed.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    pub fn receive_done(&mut self, vi: ViId) -> Result<Option<Completed>, NicError> {
        self.done(vi, WorkQueue::Receive)
    }

    /// Waits until the next descriptor of a queue has completed, and takes it.
    ///
    /// # Errors
    /// As [`Nic::done`]; [`NicError::Closed`] once the NIC has stopped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn wait(&mut self, vi: ViId, queue: WorkQueue) -> Result<Completed, NicError> {
        loop {
            if let Some(completed) = self.done(vi, queue)? {
                return Ok(completed);
            }
            self.progress().await?;
        }
    }

    /// Takes the next entry of a completion queue: the queue in which a descriptor has completed.
    #[must_use]
    pub fn cq_done(&mut self, cq: CqId) -> Option<(ViId, WorkQueue)> {
        if self.queues.completions.get(cq.0)?.is_empty() {
            self.poll();
        }
        self.queues.completions.get_mut(cq.0)?.pop_front()
    }

    /// Waits for the next entry of a completion queue.
    ///
    /// # Errors
    /// [`NicError::Closed`] once the NIC has stopped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn cq_wait(&mut self, cq: CqId) -> Result<(ViId, WorkQueue), NicError> {
        loop {
            if let Some(entry) = self.cq_done(cq) {
                return Ok(entry);
            }
            self.progress().await?;
        }
    }
}

/// Makes the command of a descriptor for the send queue, without its memory.
fn send_command(vi: ViId, descriptor: &Descriptor) -> Command {
    let (operation, remote) = match descriptor.transfer {
        Transfer::Send => (0, [0; 2]),
        Transfer::RdmaWrite(to) => (OPERATION_WRITE, to.words()),
        Transfer::RdmaRead(from) => (OPERATION_READ, from.words()),
    };
    let immediate = descriptor.immediate;
    let mut flags = operation;
    if immediate.is_some() {
        flags |= IMMEDIATE;
    }
    if descriptor.fence {
        flags |= FENCE;
    }
    let args = [u64::from(immediate.unwrap_or(0)), remote[0], remote[1]];
    Command { flags, args, ..about(vi.number, POST_SEND, 0) }
}
