//! Work queues and completion queues.

use std::collections::VecDeque;

use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::posted::{End, PostedQueue, cookie, number};
use super::{MAX_SEGMENTS, Nic, NicError, Quiet, SCRATCH_BYTES, ViId};
use crate::attributes::{ViAttributes, ViState};
use crate::command::{
    Ended, FENCE, IMMEDIATE, OPERATION_READ, OPERATION_WRITE, POST_RECEIVE, POST_SEND,
    SEGMENT_BYTES, TABLE, about, segment_bytes,
};
use crate::descriptor::{Completed, Descriptor, Fields, Transfer};

/// One of an interface's two queues.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum WorkQueue {
    /// Sends, writes and reads.
    Send,
    /// Receives.
    Receive,
}

/// A completion queue of a [`Nic`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CqId(pub(super) usize);

/// Why a descriptor was not posted; it comes back untouched.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct PostFailed {
    /// What is wrong.
    pub error: NicError,
    /// As it was handed in.
    pub descriptor: Descriptor,
}

/// One interface, as its host knows it.
#[derive(Debug)]
pub(super) struct ViQueues {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) posted: [PostedQueue; 2],
    pub(super) told: [Option<CqId>; 2],
}

/// All interfaces and completion queues of one NIC.
#[derive(Debug, Default)]
pub(super) struct Queues {
    vis: Vec<Option<ViQueues>>,
    completions: Vec<VecDeque<(ViId, WorkQueue)>>,
}

impl Queues {
    pub(super) fn insert(&mut self, id: ViId, attributes: ViAttributes, told: [Option<CqId>; 2]) {
        let at = id.number.index();
        if at >= self.vis.len() {
            self.vis.resize_with(at + 1, || None);
        }
        let posted = <[PostedQueue; 2]>::default();
        self.vis[at] = Some(ViQueues { id, attributes, state: ViState::Idle, posted, told });
    }

    /// Forgets an interface, and what it still had.
    pub(super) fn remove(&mut self, vi: ViId) {
        for queue in &mut self.completions {
            queue.retain(|(other, _)| *other != vi);
        }
        if let Some(gone) = self.vis.get_mut(vi.number.index()) {
            *gone = None;
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

    /// What each completion queue holds.
    pub(super) fn told(&self) -> impl Iterator<Item = &VecDeque<(ViId, WorkQueue)>> {
        self.completions.iter()
    }

    /// A completion queue that holds what it did.
    pub(super) fn restore_cq(&mut self, told: &[(ViId, WorkQueue)]) {
        self.completions.push(told.iter().copied().collect());
    }

    pub(super) fn id(&self, number: PortId) -> Option<ViId> {
        self.vis.get(number.index())?.as_ref().map(|queues| queues.id)
    }

    pub(super) fn set_state(&mut self, vi: ViId, state: ViState) {
        if let Ok(queues) = self.of(vi) {
            queues.state = state;
        }
    }

    /// What was posted to one queue of an interface.
    #[inline]
    pub(super) fn posted(&mut self, vi: PortId, queue: WorkQueue) -> Option<&mut PostedQueue> {
        Some(&mut self.vis.get_mut(vi.index())?.as_mut()?.posted[queue as usize])
    }

    /// A descriptor has ended, as the NIC tells.
    #[inline]
    pub(super) fn on_ended(&mut self, free_scratch: &mut Vec<u16>, completion: &Completion) {
        let Ended { opcode, vi, cookie, operation, outcome, length, immediate } =
            Ended::of(completion);
        let queue = if opcode == POST_SEND { WorkQueue::Send } else { WorkQueue::Receive };
        let end = End { operation, outcome, length, immediate };
        free_scratch.extend(self.end(vi, queue, number(cookie), end));
    }

    /// So a descriptor has ended; what the table of its segments lay in.
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
        tell(&mut self.completions, queues, queue);
        scratch
    }

    /// So has the first of a direct interface's queue that had not; `false` if there is none. None of those has a
    /// table of its segments.
    #[inline]
    pub(super) fn end_pending(&mut self, vi: PortId, queue: WorkQueue, end: End) -> bool {
        let Some(Some(queues)) = self.vis.get_mut(vi.index()) else { return false };
        let has_ended = queues.posted[queue as usize].end_pending(end);
        if has_ended {
            tell(&mut self.completions, queues, queue);
        }
        has_ended
    }
}

#[inline]
fn tell(completions: &mut [VecDeque<(ViId, WorkQueue)>], queues: &ViQueues, queue: WorkQueue) {
    if let Some(cq) = queues.told[queue as usize]
        && let Some(told) = completions.get_mut(cq.0)
    {
        told.push_back((queues.id, queue));
    }
}

impl Nic {
    /// Makes a completion queue.
    pub fn create_cq(&mut self) -> CqId {
        self.queues.completions.push(VecDeque::new());
        CqId(self.queues.completions.len() - 1)
    }

    /// Lends a descriptor to the send queue.
    ///
    /// # Errors
    /// [`PostFailed`] gives the descriptor back: [`NicError::QueueFull`] until completions are
    /// taken, [`NicError::NoSuchVi`], [`NicError::Closed`]. What the NIC finds wrong with it is the
    /// descriptor's outcome.
    #[inline]
    pub fn post_send(&mut self, vi: ViId, descriptor: Descriptor) -> Result<(), PostFailed> {
        if self.is_direct(vi) {
            return self.post_direct(vi, WorkQueue::Send, descriptor);
        }
        let command = send_command(vi, &descriptor);
        self.post(vi, WorkQueue::Send, command, descriptor)?;
        self.ring();
        Ok(())
    }

    /// The doorbell, for all that was posted so far.
    pub(super) fn ring(&mut self) {
        self.quiet = Quiet::Nothing;
        self.port.ring();
    }

    /// Lends a descriptor to the receive queue.
    ///
    /// # Errors
    /// As [`Nic::post_send`].
    #[inline]
    pub fn post_receive(&mut self, vi: ViId, descriptor: Descriptor) -> Result<(), PostFailed> {
        if self.is_direct(vi) {
            return self.post_direct(vi, WorkQueue::Receive, descriptor);
        }
        let command = about(vi.number, POST_RECEIVE, 0);
        self.post(vi, WorkQueue::Receive, command, descriptor)?;
        self.ring();
        Ok(())
    }

    /// The same without a doorbell: the hardware hears of it with what is posted next, or once polls
    /// find nothing. Only for receives that no message can need before.
    pub(crate) fn post_receive_quietly(
        &mut self,
        vi: ViId,
        descriptor: Descriptor,
    ) -> Result<(), PostFailed> {
        if self.is_direct(vi) {
            return self.post_direct(vi, WorkQueue::Receive, descriptor);
        }
        let command = about(vi.number, POST_RECEIVE, 0);
        self.post(vi, WorkQueue::Receive, command, descriptor)?;
        self.quiet = Quiet::Posted;
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
        Ok(())
    }

    /// Posts a descriptor anew that is under way already.
    pub(super) fn post_again(
        &mut self,
        vi: ViId,
        queue: WorkQueue,
        cookie: u64,
    ) -> Result<(), NicError> {
        let Some(posted) = self.queues.posted(vi.number, queue) else { return Ok(()) };
        let Some(descriptor) = posted.get(number(cookie)) else { return Ok(()) };
        // Segments are names: what is lent stays lent.
        let fields = Fields { segments: descriptor.segments.clone(), ..**descriptor };
        let descriptor = Descriptor::from(fields);
        let mut command = match queue {
            WorkQueue::Send => send_command(vi, &descriptor),
            WorkQueue::Receive => about(vi.number, POST_RECEIVE, 0),
        };
        let slot = self.describe(&descriptor, &mut command)?;
        command.cookie = cookie;
        if let Err(error) = self.port.post(&command) {
            self.free_scratch.extend(slot);
            return Err(error.into());
        }
        if let Some(posted) = self.queues.posted(vi.number, queue) {
            posted.set_scratch(number(cookie), slot);
        }
        Ok(())
    }

    /// Puts a descriptor's memory into its command: itself, or a table of it.
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
                    written.expect("a slot holds as many");
                }
                let table = self.scratch.range(start, many.len() * SEGMENT_BYTES);
                command.region = table.expect("a slot of it");
                command.flags |= TABLE;
                command.args[0] |= (many.len() as u64) << 32;
                Ok(Some(slot))
            }
        }
    }

    /// The next descriptor of a queue, if it is done: descriptors come back in the order in which
    /// they were posted.
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

    /// The same, of what was taken from the hardware already: by any poll, for any queue. It costs a
    /// look into memory of this process.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    pub fn taken(&mut self, vi: ViId, queue: WorkQueue) -> Result<Option<Completed>, NicError> {
        Ok(self.queues.of(vi)?.posted[queue as usize].take())
    }

    /// The next descriptor of the send queue, if it is done.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    pub fn send_done(&mut self, vi: ViId) -> Result<Option<Completed>, NicError> {
        self.done(vi, WorkQueue::Send)
    }

    /// The next descriptor of the receive queue, if it is done.
    ///
    /// # Errors
    /// As [`Nic::done`].
    #[inline]
    pub fn receive_done(&mut self, vi: ViId) -> Result<Option<Completed>, NicError> {
        self.done(vi, WorkQueue::Receive)
    }

    /// The next descriptor of a queue, when it is done.
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

    /// The next queue of which a descriptor is done, of those that tell this completion queue.
    #[must_use]
    pub fn cq_done(&mut self, cq: CqId) -> Option<(ViId, WorkQueue)> {
        if self.queues.completions.get(cq.0)?.is_empty() {
            self.poll();
        }
        self.queues.completions.get_mut(cq.0)?.pop_front()
    }

    /// The same, when there is one.
    ///
    /// # Errors
    /// [`NicError::Closed`] once the NIC has stopped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn cq_wait(&mut self, cq: CqId) -> Result<(ViId, WorkQueue), NicError> {
        loop {
            if let Some(told) = self.cq_done(cq) {
                return Ok(told);
            }
            self.progress().await?;
        }
    }
}

/// The command of a descriptor for the send queue, without its memory.
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
