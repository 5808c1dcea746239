//! Runs the same operations on the hosts, for comparison: at each step, an application receives and sends a message.
//!
//! They use the unit's message service, which is unreliable: an operation waits for a lost message until the caller
//! gives up.

use std::collections::BTreeMap;

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::NodeId;
use midplane_simhw::port::{Port, PortClosed, PortOptions, PostError, RegisterError, Status};
use midplane_simhw::region::Region;
use thiserror::Error;

use super::{Operation, tree};
use crate::messages;

/// Buffers for messages that arrive early.
const BUFFERS: usize = 64;
/// The tag bit of an empty message, which travels as one byte.
const EMPTY: u32 = 1 << 31;

/// Reason for which a host's operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The port can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory can't be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The port accepts no command.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// A message completed with an error.
    #[error("a message ended as {0:?}")]
    Ended(Status),
    /// The message has more bytes than the group was opened for.
    #[error("{bytes} bytes, but the group was made for {most}: open it for more")]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes for which the group was opened.
        most: usize,
    },
}

/// One member of a group whose hosts do the work.
#[derive(Debug)]
pub struct HostGroup {
    port: Port,
    memory: Region,
    bytes: usize,
    members: Vec<NodeId>,
    rank: u16,
    number: u32,
    /// Messages that arrived before they were awaited, by member and tag.
    early: BTreeMap<(NodeId, u32), Vec<Vec<u8>>>,
    sending: bool,
}

impl HostGroup {
    /// Joins the group of `members`, in the order of their ranks, for messages of up to `bytes`. All members' first
    /// port must have the same number.
    ///
    /// # Errors
    /// [`GroupError`] says why it can't.
    ///
    /// # Panics
    /// If this node is not a member.
    pub fn new(host: &impl Host, members: Vec<NodeId>, bytes: usize) -> Result<Self, GroupError> {
        Self::with(host, PortOptions::default(), members, bytes)
    }

    /// Creates a group like [`HostGroup::new`], with a port of the given options. Members that have opened other ports
    /// choose one with a fixed number.
    ///
    /// # Errors
    /// [`GroupError`] says why it can't.
    ///
    /// # Panics
    /// If this node is not a member.
    pub fn with(
        host: &impl Host,
        options: PortOptions,
        members: Vec<NodeId>,
        bytes: usize,
    ) -> Result<Self, GroupError> {
        let rank = members.iter().position(|member| *member == host.node()).expect("a member");
        let mut port = host.open_port_with(options)?;
        let bytes = bytes.max(8);
        let memory = port.register((BUFFERS + 1) * bytes)?;
        let mut group = Self {
            port,
            memory,
            bytes,
            members,
            rank: rank as u16,
            number: 0,
            early: BTreeMap::new(),
            sending: false,
        };
        for slot in 0..BUFFERS {
            group.post_buffer(slot)?;
        }
        group.port.ring();
        Ok(group)
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.members.len() as u16
    }

    /// Waits for all members.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a member whose operation was dropped is out of step with the others.
    pub async fn barrier(&mut self) -> Result<(), GroupError> {
        for round in 0..tree::rounds(self.size()) {
            let (to, from) = tree::partners(self.rank, round, self.size());
            self.send(to, round, &[]).await?;
            self.receive(from, round).await?;
        }
        self.number += 1;
        Ok(())
    }

    /// Copies the root's bytes to all members, by a binomial tree.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a member whose operation was dropped is out of step with the others.
    pub async fn broadcast(&mut self, root: u16, bytes: &mut Vec<u8>) -> Result<(), GroupError> {
        let size = self.size();
        let place = tree::place_of(self.rank, root, size);
        if place > 0 {
            *bytes = self.receive(tree::rank_at(tree::parent(place), root, size), 0).await?;
        }
        for child in tree::children(place, size) {
            self.send(tree::rank_at(child, root, size), 0, bytes).await?;
        }
        self.number += 1;
        Ok(())
    }

    /// Combines all members' words at the root, by a binomial tree.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a member whose operation was dropped is out of step with the others.
    pub async fn reduce(
        &mut self,
        root: u16,
        operation: Operation,
        words: &mut [u8],
    ) -> Result<(), GroupError> {
        let size = self.size();
        let place = tree::place_of(self.rank, root, size);
        for child in tree::children(place, size).rev() {
            let part = self.receive(tree::rank_at(child, root, size), 0).await?;
            operation.combine(words, &part);
        }
        if place > 0 {
            self.send(tree::rank_at(tree::parent(place), root, size), 0, words).await?;
        }
        self.number += 1;
        Ok(())
    }

    /// Combines all members' words at every member: by recursive doubling, or if their number is no power of two, by
    /// reduce and broadcast.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a member whose operation was dropped is out of step with the others.
    pub async fn all_reduce(
        &mut self,
        operation: Operation,
        words: &mut Vec<u8>,
    ) -> Result<(), GroupError> {
        if !self.size().is_power_of_two() {
            self.reduce(0, operation, words).await?;
            return self.broadcast(0, words).await;
        }
        for round in 0..tree::rounds(self.size()) {
            let partner = self.rank ^ 1 << round;
            self.send(partner, round, words).await?;
            let part = self.receive(partner, round).await?;
            operation.combine(words, &part);
        }
        self.number += 1;
        Ok(())
    }

    /// Collects all members' parts, in a ring, and returns them in the order of their ranks.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a member whose operation was dropped is out of step with the others.
    pub async fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        let size = self.size();
        let mut parts = vec![Vec::new(); size.into()];
        parts[usize::from(self.rank)] = own.to_vec();
        let (next, before) = ((self.rank + 1) % size, (self.rank + size - 1) % size);
        for round in 0..size - 1 {
            let of = |back: u16| usize::from((self.rank + size - back) % size);
            let part = parts[of(round)].clone();
            let place = of(round + 1);
            self.send(next, round as u8, &part).await?;
            parts[place] = self.receive(before, round as u8).await?;
        }
        self.number += 1;
        Ok(parts)
    }

    /// Waits until all messages of this member have left. Call it before dropping the group.
    ///
    /// # Errors
    /// [`GroupError`] says why it failed.
    pub async fn flush(&mut self) -> Result<(), GroupError> {
        while self.sending {
            self.take_completion().await?;
        }
        Ok(())
    }

    fn tag(&self, round: u8) -> u32 {
        (self.number << 8 | u32::from(round)) & !EMPTY
    }

    fn post_buffer(&mut self, slot: usize) -> Result<(), GroupError> {
        let range = self.memory.range((slot + 1) * self.bytes, self.bytes).expect("within it");
        Ok(self.port.post(&messages::receive(range, slot as u64))?)
    }

    async fn send(&mut self, to: u16, round: u8, bytes: &[u8]) -> Result<(), GroupError> {
        if bytes.len() > self.bytes {
            return Err(GroupError::TooLong { bytes: bytes.len(), most: self.bytes });
        }
        // The NIC reads the previous message's memory until that message has completed.
        while self.sending {
            self.take_completion().await?;
        }
        // A region must not be empty, so an empty message sends one byte.
        let length = bytes.len().max(1);
        let empty = if bytes.is_empty() { EMPTY } else { 0 };
        self.memory.write(0, bytes).expect("it fits");
        let range = self.memory.range(0, length).expect("it fits");
        let node = self.members[usize::from(to)];
        let mut command = messages::send(node, self.port.id(), range, u64::MAX);
        command.args[0] = (self.tag(round) | empty).into();
        self.port.submit(&command)?;
        self.sending = true;
        Ok(())
    }

    async fn receive(&mut self, from: u16, round: u8) -> Result<Vec<u8>, GroupError> {
        let key = (self.members[usize::from(from)], self.tag(round));
        loop {
            if let Some(waiting) = self.early.get_mut(&key) {
                let first = waiting.remove(0);
                if waiting.is_empty() {
                    self.early.remove(&key);
                }
                return Ok(first);
            }
            self.take_completion().await?;
        }
    }

    /// Takes one completion from the port.
    async fn take_completion(&mut self) -> Result<(), GroupError> {
        let done = self.port.completion().await?;
        if done.status != Status::Done {
            return Err(GroupError::Ended(done.status));
        }
        if done.opcode == messages::SEND {
            self.sending = false;
            return Ok(());
        }
        let (slot, tag) = (done.cookie as usize, done.args[0] as u32);
        let length = if tag & EMPTY == 0 { done.length as usize } else { 0 };
        let mut bytes = vec![0; length];
        self.memory.read((slot + 1) * self.bytes, &mut bytes).expect("within it");
        self.early.entry((done.node, tag & !EMPTY)).or_default().push(bytes);
        self.post_buffer(slot)?;
        self.port.ring();
        Ok(())
    }
}
