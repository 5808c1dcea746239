//! Descriptors: requests to a Virtual Interface, and their results.

use std::ops::{Deref, DerefMut};

use crate::memory::{RemoteMemory, Segment};
use crate::outcome::{DescriptorError, Operation};

/// The operation of a descriptor on the send queue.
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

/// A request to a Virtual Interface. The NIC may use its memory until the descriptor completes.
///
/// Its [fields](Fields) stay at one address, as descriptors of the Virtual Interface Architecture lie in memory
/// and are posted by their address. Posting a completed descriptor again allocates nothing and moves one word.
#[derive(Debug, Default)]
pub struct Descriptor(Box<Fields>);

/// The fields of a [`Descriptor`].
#[derive(Debug, Default)]
pub struct Fields {
    /// Its data: gathered from or scattered to these segments, in order; at most
    /// [`MAX_SEGMENTS`](crate::nic::MAX_SEGMENTS). The NIC of a reliable interface sends each segment in frames of its
    /// own. That of an unreliable one fills frames across segments by a copy, so that fewer frames can be lost.
    pub segments: Vec<Segment>,
    /// Its operation on a send queue; ignored on a receive queue.
    pub transfer: Transfer,
    /// 32 bits of immediate data that accompany a send or a write. Such a write consumes a receive descriptor.
    pub immediate: Option<u32>,
    /// True if the descriptor starts only once all reads posted before it have completed.
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
    /// Makes a descriptor of one segment.
    #[must_use]
    pub fn of(segment: Segment) -> Self {
        Self::from(vec![segment])
    }

    /// Adds 32 bits of immediate data.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.immediate = Some(value);
        self
    }

    /// Makes the descriptor a write to the other end's memory.
    #[must_use]
    pub fn write(mut self, to: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaWrite(to);
        self
    }

    /// Makes the descriptor a read of the other end's memory.
    #[must_use]
    pub fn read(mut self, from: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaRead(from);
        self
    }

    /// Makes the descriptor wait for all reads posted before it.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Returns the bytes of all its segments.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// A completed descriptor: its memory belongs to the application again.
#[derive(Debug)]
pub struct Completed {
    /// The descriptor, as it was posted.
    pub descriptor: Descriptor,
    /// The operation that it performed.
    pub operation: Operation,
    /// Success, or why it failed.
    pub outcome: Result<(), DescriptorError>,
    /// Number of bytes transferred.
    pub length: usize,
    /// Immediate data of a received message.
    pub immediate: Option<u32>,
}
