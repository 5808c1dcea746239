//! What a run shows to whoever watches it; watching changes nothing.
//!
//! [`World::observe`](crate::sim::World::observe) hands every [`Record`] of a run to a closure. With
//! the feature `trace` there are two that write files: [`PcapngWriter`], for Wireshark with the
//! dissector in `docs/wireshark/midplane.lua`, and [`PerfettoWriter`], for the Perfetto viewer.

#[cfg(feature = "trace")]
mod pcapng;
#[cfg(feature = "trace")]
mod perfetto;

use crate::drops::DropCause;
use crate::fault::FaultKind;
use crate::frame::Header;
use crate::id::{NodeId, PortId};
use crate::time::Instant;
use crate::topology::LinkId;

#[cfg(feature = "trace")]
pub use pcapng::PcapngWriter;
#[cfg(feature = "trace")]
pub use perfetto::PerfettoWriter;

/// A frame, as it is seen somewhere.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Which frame: no two of a run have the same number. A doubled frame is another one.
    pub number: u64,
    /// The frame's header.
    pub header: &'a Header,
    /// What it carries.
    pub payload: &'a [u8],
}

/// What works on one thing at a time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Engine {
    /// A NIC's way from a doorbell's ringing to its being seen.
    Doorbell(NodeId),
    /// A NIC's coprocessor.
    Coprocessor(NodeId),
    /// A NIC's DMA engine out of host memory.
    Gather(NodeId),
    /// A NIC's DMA engine into host memory.
    Scatter(NodeId),
    /// One direction of a wire.
    Link(LinkId),
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A NIC has given a frame to its line.
    Sent {
        /// When.
        at: Instant,
        /// Which NIC.
        node: NodeId,
        /// The frame.
        frame: Sighting<'a>,
    },
    /// The last piece of a frame is at the end of a link.
    Passed {
        /// When.
        at: Instant,
        /// Which link.
        link: LinkId,
        /// The frame.
        frame: Sighting<'a>,
    },
    /// The firmware of a NIC has had a frame.
    Delivered {
        /// When.
        at: Instant,
        /// Which NIC.
        node: NodeId,
        /// The frame.
        frame: Sighting<'a>,
    },
    /// A frame went no further.
    Dropped {
        /// When.
        at: Instant,
        /// Why.
        cause: DropCause,
        /// The link that it was last seen on, if it had left its NIC.
        link: Option<LinkId>,
        /// The frame.
        frame: Sighting<'a>,
    },
    /// An engine was busy, or is going to be.
    Busy {
        /// Which engine.
        engine: Engine,
        /// From when on.
        begins: Instant,
        /// Until when.
        ends: Instant,
        /// What it did.
        what: &'static str,
        /// The frame that it did it for; of a frame in pieces, with the last of them.
        frame: Option<u64>,
    },
    /// What is in the buffer of a switch's output has changed.
    Queue {
        /// When.
        at: Instant,
        /// The link after the output.
        link: LinkId,
        /// Bytes or cells, as the buffer counts.
        used: u32,
    },
    /// An application can see a completion.
    Completed {
        /// When.
        at: Instant,
        /// Which node.
        node: NodeId,
        /// Whose it is.
        port: PortId,
    },
    /// An incident begins or ends.
    Fault {
        /// When.
        at: Instant,
        /// What.
        kind: FaultKind,
        /// Whether it begins.
        begins: bool,
    },
}

/// Who is told what happens.
pub(crate) type Observer = Box<dyn FnMut(&Record<'_>) + Send>;
