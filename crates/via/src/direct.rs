//! Virtual Interfaces whose data goes from process to process, past the NIC.
//!
//! The NIC makes an interface with [`direct`](crate::attributes::ViAttributes::direct) set, connects it
//! and tells of its end as of any other. What is sent over it the sending process writes into the other's
//! reach itself, through a [`Lane`], and the receiving one copies it into the memory that it has posted:
//! the shortest way between two processes of one host. A send is done once it lies in the other's reach; where
//! that has no room, it leaves with one of its process's next polls. The price: nothing admits, counts or schedules what
//! goes there, it does not stand still with a process's port, and an interface can't be made to follow its
//! process to another host.
//!
//! Memory that the other end may write and read (`rdma_write` and `rdma_read`) is mapped there. Processors map no
//! memory to be written and not read: so the other end of a direct interface can't write memory that it may not
//! read, and such a write ends with [`RdmaProtection`](crate::outcome::DescriptorError::RdmaProtection). The first
//! write asks the owner's process, which looks at rights and tag and then shows it; from then on a write is one copy, and its owner's
//! process takes part only where it brings immediate data. Whom it was shown may write it for as long as it is
//! registered, though the connection may be over: deregister it to take it back. What is registered so is shared
//! with nobody else, and nothing else lies in it. There are no remote reads, for what can be mapped can be written.
//!
//! An end sends nothing before the other has said that it knows of the connection too, with a greeting over
//! the same lane: so nothing comes for a connection that an interface does not have yet, and what comes for
//! one that it has no more is dropped.

use std::fmt;
use std::task::Waker;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::{Payload, Region, SharedMemory};

/// Words that go before a payload.
pub const WORDS: usize = 5;

/// What has come over a lane.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// A frame.
    Frame {
        /// Who sent it.
        from: NodeId,
        /// Its words.
        words: [u64; WORDS],
        /// Its payload; its sender may be writing it.
        payload: Payload<'a>,
    },
    /// Memory that another process shows: it may be written here.
    Shown {
        /// Whose it is.
        from: NodeId,
        /// What it calls it.
        name: [u64; 2],
        /// The memory.
        memory: SharedMemory,
    },
    /// A process is gone: nothing more comes from it, and nothing goes there, unless another one takes its place.
    Left(NodeId),
}

/// Why a frame did not go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// There is no room now, or the other is not there yet.
    Full,
    /// There is no such process, or none any more.
    Gone,
}

/// Carries frames between the processes of one host: from one process in order, each once, until it is
/// gone.
pub trait Lane: fmt::Debug + Send {
    /// The node that this process is.
    fn node(&self) -> NodeId;

    /// Most bytes of a payload.
    fn mtu(&self) -> usize;

    /// Sends a frame whose payload is gathered from `parts`: in the other's reach when this returns.
    ///
    /// # Errors
    /// [`Refused`]; nothing is sent then.
    fn send(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), Refused>;

    /// Shows another process a region that was registered to be shared: [`Arrival::Shown`] comes there, earlier or
    /// later than what is sent at the same time.
    ///
    /// # Errors
    /// [`Refused`]; nothing is shown then.
    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), Refused>;

    /// What has come next, if anything has.
    fn poll(&mut self) -> Option<Arrival<'_>>;

    /// Has `waker` woken once something has come, or there is room where a frame was refused; `false` if
    /// that may be so already, and nothing is armed.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;
}

/// What a frame's words say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fields {
    pub(crate) kind: Kind,
    /// The interface that it goes to, and that end's number of the connection.
    pub(crate) vi: u16,
    pub(crate) connection: u16,
    /// Bytes of the message, and where in it the payload begins.
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) immediate: Option<u32>,
    /// Which memory it is about, as a region's first word.
    pub(crate) memory: u64,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Its sender knows of the connection: it may be sent to.
    Greeting = 1,
    /// A message, or a part of one.
    Send = 2,
    /// Its sender wants to write that memory: it is to be shown it.
    Ask = 3,
    /// It may not.
    Deny = 4,
    /// That many bytes were written, and the immediate data goes with them.
    Written = 5,
}

impl Fields {
    #[inline]
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let where_to = u64::from(self.vi) | u64::from(self.connection) << 16;
        let immediate = self.immediate.map_or(0, |value| 1 << 32 | u64::from(value));
        let part = u64::from(self.total) | u64::from(self.offset) << 32;
        [where_to | (self.kind as u64) << 32, part, immediate, self.memory, 0]
    }

    /// What any words say; `None` where that is nothing of ours.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(crate) fn of(words: [u64; WORDS]) -> Option<Self> {
        let [first, part, immediate, memory, _] = words;
        let kind = match first >> 32 {
            1 => Kind::Greeting,
            2 => Kind::Send,
            3 => Kind::Ask,
            4 => Kind::Deny,
            5 => Kind::Written,
            _ => return None,
        };
        Some(Self {
            kind,
            vi: first as u16,
            connection: (first >> 16) as u16,
            total: part as u32,
            offset: (part >> 32) as u32,
            immediate: (immediate >> 32 != 0).then_some(immediate as u32),
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_survive_and_any_are_some_or_none(
            vi: u16, connection: u16, total: u32, offset: u32, immediate: Option<u32>, memory: u64,
            any: [u64; WORDS],
        ) {
            let fields = Fields { kind: Kind::Ask, vi, connection, total, offset, immediate, memory };
            prop_assert_eq!(Fields::of(fields.to_words()), Some(fields));
            if let Some(fields) = Fields::of(any) {
                prop_assert_eq!(Fields::of(fields.to_words()), Some(fields));
            }
        }
    }
}
