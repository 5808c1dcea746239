//! Posted descriptors: every field of a command is checked here and trusted nowhere.

use midplane_nicvm::context::Context;
use midplane_simhw::port::Command;
use midplane_simhw::region::{RegionRef, Rights};

use super::Via;
use super::endpoint::{Endpoint, ReceiveWork, Segments, SendWork};
use super::receive::Fault;
use crate::attributes::ViState;
use crate::command::{
    Ended, FENCE, IMMEDIATE, MAX_SEGMENTS, OPERATION, OPERATION_READ, OPERATION_WRITE,
    SEGMENT_BYTES, TABLE, segment_of,
};
use crate::nic::WorkQueue;
use crate::outcome::{DescriptorError, Operation};

impl Via {
    pub(super) fn post_send(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let operation = match command.flags & OPERATION {
            OPERATION_WRITE => Operation::RdmaWrite,
            OPERATION_READ => Operation::RdmaRead,
            _ => Operation::Send,
        };
        let Some(endpoint) = self.own(owner, command.port) else {
            return refuse(nic, command, operation, DescriptorError::Format);
        };
        if endpoint.gate.has_host(WorkQueue::Send) {
            return endpoint.return_to_host(nic, WorkQueue::Send, command.cookie);
        }
        if endpoint.state != ViState::Connected {
            let command = &Command { port: endpoint.name, ..*command };
            return refuse(nic, command, operation, DescriptorError::Flushed);
        }
        let rights = match operation {
            Operation::RdmaRead => Rights::LOCAL_WRITE,
            _ => Rights::LOCAL_READ,
        };
        let segments = endpoint.segments(nic, command, rights);
        let checked = segments.and_then(|(segments, length)| {
            endpoint.may_send(command, operation, length)?;
            Ok((segments, length))
        });
        let outcome = checked.as_ref().map(|_| ()).map_err(|error| *error);
        let (segments, length) =
            checked.unwrap_or_else(|_| (Segments::One(RegionRef::default()), 0));
        let [word, first, second] = command.args;
        let moved = std::mem::take(&mut endpoint.gate.begun).min(length);
        endpoint.sends.push_back(SendWork {
            cookie: command.cookie,
            operation,
            segments,
            length,
            immediate: (command.flags & IMMEDIATE != 0).then_some(word as u32),
            remote: RegionRef::from_words([first, second]),
            fence: command.flags & FENCE != 0,
            moved,
            done: outcome.err().map(Err),
        });
        if outcome.is_err() {
            let reliable = endpoint.is_reliable();
            endpoint.reap_sends(nic);
            if reliable {
                let fault = Fault { remote: DescriptorError::Flushed, local: None };
                self.break_link(nic, command.port, fault, DescriptorError::Flushed);
            }
        }
    }

    pub(super) fn post_receive(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let Some(endpoint) = self.own(owner, command.port) else {
            return refuse(nic, command, Operation::Receive, DescriptorError::Format);
        };
        if endpoint.gate.has_host(WorkQueue::Receive) {
            return endpoint.return_to_host(nic, WorkQueue::Receive, command.cookie);
        }
        let named = Command { port: endpoint.name, ..*command };
        if endpoint.state == ViState::Error {
            return refuse(nic, &named, Operation::Receive, DescriptorError::Flushed);
        }
        match endpoint.segments(nic, command, Rights::LOCAL_WRITE) {
            Ok((segments, room)) => {
                let cookie = command.cookie;
                endpoint.receives.push_back(ReceiveWork { cookie, segments, room });
                // A message is expected from now on, so the other end's silence matters.
                self.arm(nic, nic.now().plus_nanos(self.config.dead_after_ns / 4));
            }
            Err(error) => refuse(nic, &named, Operation::Receive, error),
        }
        self.on_filled(nic, command.port, 1);
    }
}

impl Endpoint {
    /// Returns a descriptor's memory and its length; checks that this interface may use all of it.
    fn segments(
        &self,
        nic: &Context<'_>,
        command: &Command,
        rights: Rights,
    ) -> Result<(Segments, u32), DescriptorError> {
        let segments = if command.flags & TABLE == 0 {
            Segments::One(command.region)
        } else {
            Segments::Many(read_table(nic, command)?)
        };
        for segment in segments.as_slice() {
            if segment.length > 0 && nic.check(*segment, self.access(rights)).is_err() {
                return Err(DescriptorError::Protection);
            }
        }
        let length = segments.length().ok_or(DescriptorError::Length)?;
        if length > self.attributes.max_transfer {
            return Err(DescriptorError::Length);
        }
        Ok((segments, length))
    }

    /// Checks that the other end permits such a descriptor.
    fn may_send(
        &self,
        command: &Command,
        operation: Operation,
        length: u32,
    ) -> Result<(), DescriptorError> {
        let Some(link) = &self.link else { return Err(DescriptorError::Flushed) };
        let remote = RegionRef::from_words([command.args[1], command.args[2]]);
        match operation {
            Operation::RdmaWrite if !link.remote.rdma_write => Err(DescriptorError::RdmaProtection),
            Operation::RdmaRead if !link.remote.rdma_read || !self.is_reliable() => {
                Err(DescriptorError::RdmaProtection)
            }
            Operation::RdmaWrite | Operation::RdmaRead
                if remote.offset.checked_add(length).is_none() =>
            {
                Err(DescriptorError::Format)
            }
            _ => Ok(()),
        }
    }
}

fn read_table(nic: &Context<'_>, command: &Command) -> Result<Box<[RegionRef]>, DescriptorError> {
    let count = (command.args[0] >> 32) as usize;
    if count > MAX_SEGMENTS || command.region.length as usize != count * SEGMENT_BYTES {
        return Err(DescriptorError::Format);
    }
    let payload = nic.read(command.region).map_err(|_| DescriptorError::Protection)?;
    let mut bytes = [0; MAX_SEGMENTS * SEGMENT_BYTES];
    payload.copy_to(&mut bytes);
    let (segments, _) = bytes.as_chunks::<SEGMENT_BYTES>();
    Ok(segments[..count].iter().map(|segment| segment_of(*segment)).collect())
}

/// Completes a descriptor that never entered a queue.
fn refuse(nic: &mut Context<'_>, command: &Command, operation: Operation, error: DescriptorError) {
    let ended = Ended {
        opcode: command.opcode,
        vi: command.port,
        cookie: command.cookie,
        operation,
        outcome: Err(error),
        length: 0,
        immediate: None,
    };
    nic.complete(command.region.port, &ended.completion());
}
