//! Records of a run, for observers; observing does not affect the run.
//!
//! [`World::observe`](crate::sim::World::observe) passes every [`Record`] of a run to a closure. With the
//! feature `trace`, a `Recorder` makes files by two writers: `PcapngWriter` for Wireshark, with the dissector in
//! `docs/wireshark/midplane.lua`, and `PerfettoWriter` for the Perfetto viewer.

#[cfg(feature = "trace")]
mod pcapng;
#[cfg(feature = "trace")]
mod perfetto;
#[cfg(feature = "trace")]
mod recorder;

use crate::drops::DropCause;
use crate::fault::FaultKind;
use crate::frame::Header;
use crate::id::{NodeId, PortId};
use crate::time::Instant;
use crate::topology::LinkId;

#[cfg(feature = "trace")]
pub use pcapng::PcapngWriter;
#[cfg(feature = "trace")]
pub(crate) use perfetto::PerfettoWriter;
#[cfg(feature = "trace")]
pub use recorder::Recorder;

/// A frame as a record shows it.
#[derive(Clone, Copy, Debug)]
pub struct TracedFrame<'a> {
    /// The frame's number, unique in a run. A duplicate has a number of its own.
    pub number: u64,
    /// The frame's header.
    pub header: &'a Header,
    /// The frame's payload.
    pub payload: &'a [u8],
}

/// A part of the hardware that does one thing at a time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Engine {
    /// A NIC's doorbell, busy from the ring until the NIC sees it.
    Doorbell(NodeId),
    /// A NIC's coprocessor.
    Coprocessor(NodeId),
    /// A NIC's DMA engine that reads host memory.
    Gather(NodeId),
    /// A NIC's DMA engine that writes host memory.
    Scatter(NodeId),
    /// One direction of a wire.
    Link(LinkId),
}

/// One event of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A NIC has submitted a frame to its line.
    Sent {
        /// When it happened.
        at: Instant,
        /// The NIC.
        node: NodeId,
        /// The frame.
        frame: TracedFrame<'a>,
    },
    /// The last piece of a frame has reached the end of a link.
    Passed {
        /// When it happened.
        at: Instant,
        /// The link.
        link: LinkId,
        /// The frame.
        frame: TracedFrame<'a>,
    },
    /// The firmware of a NIC has handled a frame.
    Delivered {
        /// When it happened.
        at: Instant,
        /// The NIC.
        node: NodeId,
        /// The frame.
        frame: TracedFrame<'a>,
    },
    /// A frame was dropped.
    Dropped {
        /// When it happened.
        at: Instant,
        /// The cause.
        cause: DropCause,
        /// The last link whose end it reached, if any.
        link: Option<LinkId>,
        /// The frame.
        frame: TracedFrame<'a>,
    },
    /// An engine was busy, or is going to be.
    Busy {
        /// The engine.
        engine: Engine,
        /// When it begins.
        begins: Instant,
        /// When it ends.
        ends: Instant,
        /// The kind of work.
        what: &'static str,
        /// The frame for which it works; for a frame in pieces, given with the last piece only.
        frame: Option<u64>,
    },
    /// The occupancy of a switch output's buffer has changed.
    Queue {
        /// When it happened.
        at: Instant,
        /// The link that leaves the output.
        link: LinkId,
        /// Occupied bytes or cells, in the buffer's unit.
        used: u32,
    },
    /// A completion has become visible to an application.
    Completed {
        /// When it happened.
        at: Instant,
        /// The node.
        node: NodeId,
        /// The port of the completion.
        port: PortId,
    },
    /// A span of the code of a host has ended.
    Span {
        /// The node.
        node: NodeId,
        /// When it began.
        begins: Instant,
        /// When it ended.
        ends: Instant,
        /// Its name and fields.
        name: &'a str,
    },
    /// The code of a host has logged an event.
    Log {
        /// When it happened.
        at: Instant,
        /// The node.
        node: NodeId,
        /// The message and fields.
        text: &'a str,
    },
    /// An incident begins or ends.
    Fault {
        /// When it happened.
        at: Instant,
        /// The kind of fault.
        kind: FaultKind,
        /// True if it begins.
        begins: bool,
    },
}

/// A closure that receives the records of a run.
pub(crate) type Observer = Box<dyn FnMut(&Record<'_>) + Send>;
