//! Descriptors: what is asked of a Virtual Interface, and what becomes of it.

use std::ops::{Deref, DerefMut};

use crate::memory::{RemoteMemory, Segment};
use crate::outcome::{DescriptorError, Operation};

/// What a descriptor on the send queue does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Transfer {
    /// Sends its segments to the other end's next receive descriptor.
    #[default]
    Send,
    /// Writes its segments to the other end's memory.
    RdmaWrite(RemoteMemory),
    /// Fills its segments from the other end's memory.
    RdmaRead(RemoteMemory),
}

/// What is asked of a Virtual Interface: memory, lent to the NIC until the descriptor is done.
///
/// Its [fields](Fields) lie where they are wherever it goes, as descriptors of the Virtual Interface
/// Architecture lie in memory and are posted by their address: who takes one back and posts it again
/// allocates nothing, and moves a word.
#[derive(Debug, Default)]
pub struct Descriptor(Box<Fields>);

/// The fields of a [`Descriptor`].
#[derive(Debug, Default)]
pub struct Fields {
    /// Its data: gathered from these, or scattered to them, in order; at most
    /// [`MAX_SEGMENTS`](crate::nic::MAX_SEGMENTS).
    pub segments: Vec<Segment>,
    /// What it does on a send queue; a receive queue does not look.
    pub transfer: Transfer,
    /// 32 bits that come with a send, or with a write, which then consumes a receive descriptor.
    pub immediate: Option<u32>,
    /// Waits for all reads before it.
    pub fence: bool,
}

impl Deref for Descriptor {
    type Target = Fields;

    #[inline]
    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for Descriptor {
    #[inline]
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

impl From<Fields> for Descriptor {
    fn from(fields: Fields) -> Self {
        Self(Box::new(fields))
    }
}

impl From<Vec<Segment>> for Descriptor {
    fn from(segments: Vec<Segment>) -> Self {
        Self::from(Fields { segments, ..Fields::default() })
    }
}

impl Descriptor {
    /// A descriptor of one segment.
    #[must_use]
    pub fn of(segment: Segment) -> Self {
        Self::from(vec![segment])
    }

    /// The same with immediate data.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.immediate = Some(value);
        self
    }

    /// The same as a write of the other end's memory.
    #[must_use]
    pub fn write(mut self, to: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaWrite(to);
        self
    }

    /// The same as a read of the other end's memory.
    #[must_use]
    pub fn read(mut self, from: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaRead(from);
        self
    }

    /// The same, but waiting for all reads before it.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Bytes of its segments.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// A descriptor that has come back: its memory is the application's again.
#[derive(Debug)]
pub struct Completed {
    /// As it was posted.
    pub descriptor: Descriptor,
    /// What it did.
    pub operation: Operation,
    /// Whether it did that.
    pub outcome: Result<(), DescriptorError>,
    /// Bytes that were moved.
    pub length: usize,
    /// What came with a message that was received.
    pub immediate: Option<u32>,
}
