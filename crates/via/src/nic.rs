//! The host's half: one process's access to Virtual Interfaces.
//!
//! A [`Nic`] is polled: most calls first process what the hardware has completed. Its `async` functions wait
//! for the hardware. Their futures may be dropped at any point: a completion that a dropped future waited for
//! is processed by the next call.
//!
//! [`descriptor`](crate::descriptor) has a program of two processes: connection, messages, a remote write.

mod connect;
mod error;
mod gated;
mod image;
mod memory;
mod operations;
mod posted;
mod query;
mod queues;

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Port, PortOptions, Status};
use midplane_simhw::region::{ProtectionTag, Region, RegionOptions};
use serde::{Deserialize, Serialize};

use crate::attributes::{ViAttributes, ViState};
use crate::command::{
    AWAIT, CREATE, EVENT, OFFER, PARAMETER_BYTES, POST_RECEIVE, POST_SEND, RECALL, RETURN,
    SEGMENT_BYTES, about,
};
use crate::context::MemoryName;
use crate::outcome::{AsyncError, ConnectError};
use gated::Gated;
use operations::{Operation, Operations};
use queues::Queues;

pub use crate::command::MAX_SEGMENTS;
pub use connect::{ConnectFailed, Request, Ticket};
pub use error::NicError;
pub use image::HeldMemory;
pub use image::{NicContext, NicRestoreError, NicSaveError};
pub use query::NicAttributes;
pub use queues::PostFailed;
pub use queues::{CqId, WorkQueue};

/// Tables of segments and connection requests that may be under way at once.
const SCRATCH_SLOTS: u16 = 64;
const SCRATCH_BYTES: usize = MAX_SEGMENTS * SEGMENT_BYTES;
const _: () = assert!(PARAMETER_BYTES <= SCRATCH_BYTES);

/// A Virtual Interface of the [`Nic`] that has returned it; another `Nic` takes it for one of its own.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ViId {
    number: PortId,
    serial: u32,
}

/// Tracks descriptors that were posted without ringing the doorbell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Unrung {
    #[default]
    Nothing,
    Posted,
    /// Posted, and a poll has found no completion since.
    Idle,
}

/// One process's access to a NIC with Virtual Interfaces.
#[derive(Debug)]
pub struct Nic {
    port: Port,
    node: NodeId,
    queues: Queues,
    operations: Operations,
    scratch: Region,
    free_scratch: Vec<u16>,
    errors: VecDeque<(ViId, AsyncError)>,
    /// Tracks descriptors that were posted without ringing the doorbell.
    unrung: Unrung,
    /// True if the port was full when the command that awaits the next error was to be posted.
    listen_pending: bool,
    /// Completions processed so far.
    handled: u64,
    next_tag: u32,
    next_serial: u32,
    /// The paths that bypass the NIC, if this process has any.
    gated: Option<Gated>,
    /// All memory that was registered, in that order, with the name that other nodes use.
    memories: Vec<(MemoryName, Weak<Region>)>,
    /// Names under which memory was restored.
    restored: BTreeSet<MemoryName>,
}

impl Nic {
    /// Opens the host's NIC. It may be opened several times.
    ///
    /// # Errors
    /// [`NicError::Open`] if it has no port left, [`NicError::NoExtension`] if it does not run Virtual
    /// Interfaces.
    ///
    /// # Cancel safety
    /// If dropped, the port is closed.
    pub async fn open(host: &impl Host, options: PortOptions) -> Result<Self, NicError> {
        let mut port = host.open_port_with(options)?;
        let options = RegionOptions::default().tag(SCRATCH_TAG);
        let scratch = port.register_with(usize::from(SCRATCH_SLOTS) * SCRATCH_BYTES, options)?;
        let gate = port.take_gate();
        let rings = gate.and_then(|gate| Some(Gated::new(host.open_peer_rings()?, gate)));
        let mut nic = Self {
            port,
            node: host.node(),
            queues: Queues::default(),
            operations: Operations::default(),
            scratch,
            free_scratch: (0..SCRATCH_SLOTS).collect(),
            errors: VecDeque::new(),
            unrung: Unrung::Nothing,
            listen_pending: false,
            handled: 0,
            next_tag: 1,
            next_serial: 0,
            gated: rings,
            memories: Vec::new(),
            restored: BTreeSet::new(),
        };
        // Checks that the extension answers, by a query for an interface that does not exist.
        let probe = about(PortId(u16::MAX), crate::command::QUERY, 0);
        let answer = nic.call(probe).await?;
        if matches!(answer.status, Status::Invalid | Status::ExtensionDown) {
            return Err(NicError::NoExtension);
        }
        nic.listen()?;
        Ok(nic)
    }

    /// Returns the node that it is on.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Returns its port, by which a daemon that suspends this process names it to the NIC.
    #[must_use]
    pub const fn port(&self) -> PortId {
        self.port.id()
    }

    /// Creates an interface whose queues are polled directly.
    ///
    /// # Errors
    /// [`NicError::TooManyVis`] if the NIC has no more.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the NIC may keep an interface that this process cannot name, until the
    /// NIC is closed.
    pub async fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, NicError> {
        self.create_vi_with(attributes, None, None).await
    }

    /// Creates an interface whose queues may report to completion queues, which are then polled instead.
    ///
    /// # Errors
    /// As [`Nic::create_vi`].
    ///
    /// # Cancel safety
    /// As [`Nic::create_vi`].
    pub async fn create_vi_with(
        &mut self,
        attributes: ViAttributes,
        send_queue: Option<CqId>,
        receive_queue: Option<CqId>,
    ) -> Result<ViId, NicError> {
        let [first, second] = attributes.to_words();
        let command = Command { args: [first, second, 0], ..about(PortId(0), CREATE, 0) };
        let answer = self.call(command).await?;
        if answer.status != Status::Done {
            return Err(NicError::TooManyVis);
        }
        self.next_serial = self.next_serial.wrapping_add(1);
        let vi = ViId { number: answer.port, serial: self.next_serial };
        self.queues.insert(vi, attributes, [send_queue, receive_queue]);
        self.add_path(vi, attributes);
        Ok(vi)
    }

    /// Destroys an interface that is not connected. Its posted descriptors first complete as flushed.
    ///
    /// # Errors
    /// [`NicError::InUse`] if it is connected, or a connection is pending.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the NIC destroys the interface all the same, if it is not connected.
    /// Call it again.
    pub async fn destroy_vi(&mut self, vi: ViId) -> Result<(), NicError> {
        self.queues.of(vi)?;
        let answer = self.call(about(vi.number, crate::command::DESTROY, 0)).await?;
        match ConnectError::of(answer.args[0]) {
            // `Gone`: an earlier call destroyed it, and its future was dropped.
            Ok(()) | Err(ConnectError::Gone) => {}
            Err(_) => return Err(NicError::InUse),
        }
        self.remove_path(vi);
        self.forget_errors(vi);
        self.queues.remove(vi);
        Ok(())
    }

    /// Returns the next asynchronous error of an interface of this NIC.
    pub fn next_error(&mut self) -> Option<(ViId, AsyncError)> {
        if self.errors.is_empty() {
            self.poll_all();
        }
        self.taken_error()
    }

    /// Drops the asynchronous errors of an interface's former connection.
    fn forget_errors(&mut self, vi: ViId) {
        self.errors.retain(|(other, _)| *other != vi);
    }

    /// Returns the next asynchronous error among those already received, without polling the hardware.
    pub(crate) fn taken_error(&mut self) -> Option<(ViId, AsyncError)> {
        self.errors.pop_front()
    }

    /// Processes completions of the hardware, and frames that bypassed it; returns whether there were any. While all
    /// data bypasses the hardware, this polls it rarely: [`Nic::next_error`], [`Nic::connected`] and [`Nic::requested`]
    /// poll it each time.
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.gated.is_none() {
            return self.poll_port();
        }
        let has_come = self.poll_rings();
        if self.is_port_due() { self.poll_port() | has_come } else { has_come }
    }

    fn poll_all(&mut self) -> bool {
        self.poll_rings() | self.poll_port()
    }

    fn poll_port(&mut self) -> bool {
        if self.listen_pending {
            self.listen_pending = self.listen().is_err();
        }
        let first = self.port.poll();
        let Some(first) = &first else {
            match self.unrung {
                Unrung::Nothing => {}
                // A caller that took the last completion polls once more before it continues.
                Unrung::Posted => self.unrung = Unrung::Idle,
                // A second poll found nothing: ring for what was posted without a doorbell.
                Unrung::Idle => self.ring_if_unrung(),
            }
            return false;
        };
        self.on_completion(first);
        while let Some(completion) = self.port.take() {
            self.on_completion(&completion);
        }
        true
    }

    /// Rings the doorbell if descriptors were posted without it.
    fn ring_if_unrung(&mut self) {
        if std::mem::take(&mut self.unrung) != Unrung::Nothing {
            self.port.ring();
        }
    }

    /// Waits until the hardware has completed something.
    ///
    /// # Errors
    /// [`NicError::Closed`] once the NIC has stopped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[doc(hidden)]
    pub async fn progress(&mut self) -> Result<(), NicError> {
        poll_fn(|context| self.poll_progress(context)).await
    }

    /// Processes what the hardware has completed. If there was nothing, the task is woken once there is
    /// something.
    pub(crate) fn poll_progress(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NicError>> {
        let before = self.handled;
        self.poll_all();
        if self.handled == before {
            self.ring_if_unrung();
            // Another process may have opened its rings, or taken frames from them, meanwhile.
            self.catch_up();
        }
        if self.handled != before {
            return Poll::Ready(Ok(()));
        }
        if self.gated.as_mut().is_some_and(|gated| !gated.arm_wakeup(context.waker())) {
            // Something may have arrived meanwhile.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let completion = match pin!(self.port.completion()).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(completion) => completion,
        };
        Poll::Ready(completion.map_err(NicError::from).map(|completion| {
            self.on_completion(&completion);
        }))
    }

    /// Returns how many completions of the hardware were processed so far. A caller that finds nothing new, and
    /// this unchanged since its last poll, may wait.
    #[must_use]
    #[doc(hidden)]
    pub const fn handled(&self) -> u64 {
        self.handled
    }

    #[inline]
    fn on_completion(&mut self, completion: &Completion) {
        self.handled += 1;
        if matches!(completion.opcode, POST_SEND | POST_RECEIVE) {
            if completion.status == Status::Cancelled {
                return self.on_returned(completion);
            }
            self.queues.on_ended(&mut self.free_scratch, completion);
            return;
        }
        // The cookie names a descriptor, not an operation: the completion says only that the wait has ended.
        if completion.opcode == AWAIT {
            return;
        }
        if matches!(completion.opcode, OFFER | RECALL | RETURN) {
            return self.on_gate(completion);
        }
        match self.operations.get(completion.cookie) {
            Some(operation) => {
                self.free_scratch.extend(operation.scratch.take());
                operation.completion = Some(*completion);
                if !operation.wanted {
                    self.operations.remove(completion.cookie);
                }
                self.on_connected(completion);
            }
            None if completion.opcode == EVENT => self.on_error(completion),
            None => {}
        }
    }

    fn on_error(&mut self, completion: &Completion) {
        // The extension is gone, or holds such a command already, and has refused this one: retries would never end.
        if completion.status != Status::Done {
            return;
        }
        let vi = self.queues.id(completion.port);
        if let (Some(vi), Some(error)) = (vi, AsyncError::of(completion.args[0])) {
            if error.ends_connection() {
                self.unlink_path(vi.number);
            }
            // If the host has ended the connection itself, it has already reported that.
            if !self.is_broken(vi.number) {
                if error.ends_connection() {
                    self.queues.set_state(vi, ViState::Error);
                }
                if error.is_kept(self.errors.len()) {
                    self.errors.push_back((vi, error));
                }
            }
        }
        // If the port is full, its completions are to be taken first: a later poll retries.
        self.listen_pending = self.listen().is_err();
    }

    fn listen(&mut self) -> Result<(), NicError> {
        let command = about(PortId(0), EVENT, u64::MAX);
        Ok(self.port.submit(&command)?)
    }

    /// Posts a command whose completion will be ignored.
    fn start_unwatched(&mut self, command: Command) -> Result<(), NicError> {
        let cookie = self.start(command, None)?;
        self.forget(cookie);
        Ok(())
    }

    /// Posts a command that is no descriptor; returns its cookie.
    fn start(&mut self, command: Command, scratch: Option<u16>) -> Result<u64, NicError> {
        let operation = Operation { scratch, completion: None, wanted: true };
        let cookie = self.operations.insert(operation);
        if let Err(error) = self.port.submit(&Command { cookie, ..command }) {
            self.operations.remove(cookie);
            self.free_scratch.extend(scratch);
            return Err(error.into());
        }
        Ok(cookie)
    }

    /// Returns the completion of such a command, if it has arrived, and forgets the command.
    fn finished(&mut self, cookie: u64) -> Option<Completion> {
        let completion = self.operations.get(cookie)?.completion?;
        self.operations.remove(cookie);
        Some(completion)
    }

    pub(crate) async fn call(&mut self, command: Command) -> Result<Completion, NicError> {
        let cookie = self.start(command, None)?;
        let call = Call { nic: self, cookie };
        loop {
            if let Some(completion) = call.nic.finished(cookie) {
                return Ok(completion);
            }
            call.nic.progress().await?;
        }
    }

    /// Marks a command under way as ignored.
    fn forget(&mut self, cookie: u64) {
        if let Some(operation) = self.operations.get(cookie) {
            operation.wanted = false;
        }
    }
}

/// A caller that waits for a command; if dropped, the command's completion is ignored.
#[derive(Debug)]
struct Call<'a> {
    nic: &'a mut Nic,
    cookie: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.nic.forget(self.cookie);
    }
}

/// The tag of memory that no interface may use.
const SCRATCH_TAG: ProtectionTag = ProtectionTag(u32::MAX);

#[cfg(test)]
pub(crate) mod tests {
    use midplane_nicvm::unit::Unit;
    use midplane_simhw::link::LinkProfile;
    use midplane_simhw::profile::NicProfile;
    use midplane_simhw::sim::World;
    use midplane_simhw::switch::{Buffer, SwitchProfile};
    use midplane_simhw::time::LineRate;
    use midplane_simhw::topology::Topology;

    use super::*;
    use crate::command::VIA;
    use crate::descriptor::Descriptor;
    use crate::firmware::{Via, ViaConfig};

    /// Makes two nodes whose NICs run Virtual Interfaces.
    pub(crate) fn world() -> World<Unit> {
        let link = LinkProfile::plain(LineRate::mbps(1000), std::time::Duration::ZERO);
        let star = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(1 << 16)));
        World::new(&star, NicProfile::MODERN, 1, |_, _| {
            let mut unit = Unit::default();
            unit.install(VIA, Via::new(ViaConfig::default())).expect("it is the first");
            unit
        })
    }

    /// If the NIC reports an error while the port is full, the host awaits the next error as soon as completions
    /// were taken; once the NIC refuses, it stops.
    #[test]
    fn a_full_port_awaits_the_next_error_once_it_has_room() {
        let mut world = world();
        let host = world.host(NodeId(0));
        let ended = world.block_on(NodeId(0), async move {
            let mut nic = Nic::open(&host, PortOptions::default().depth(8)).await.unwrap();
            let vi = nic.create_vi(ViAttributes::default()).await.unwrap();
            // Sends of an idle interface complete at once; they are not taken yet.
            while nic.post_send(vi, Descriptor::default()).is_ok() {}
            nic.on_error(&Completion { opcode: EVENT, ..Completion::default() });
            assert!(nic.listen_pending, "the port is full");
            let before = nic.handled();
            while nic.handled() < before + 7 {
                nic.progress().await.unwrap();
            }
            nic.poll();
            assert!(!nic.listen_pending, "it was asked again");
            // The first command still waits, so the second one is refused.
            while nic.handled() < before + 8 {
                nic.progress().await.unwrap();
            }
            host.sleep_until(host.now() + std::time::Duration::from_millis(1)).await;
            assert!(!nic.poll(), "it was not asked for a third time");
        });
        ended.expect("nothing waits for ever");
    }
}
