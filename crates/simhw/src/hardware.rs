//! The two seams of the firmware: what it is told, and what it may ask of its NIC.

use std::time::Duration;

use thiserror::Error;

use crate::frame::{Frame, Header};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::port::{Command, Completion};
use crate::profile::Costs;
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::time::{Instant, LineRate};

/// Alarms that every NIC has.
pub const TIMERS: usize = 4;

/// A stopped NIC waits no longer than this for its peers to have what it gave back: some hundred round
/// trips on any local network, and not so long that a user would wonder.
pub const STOP_PATIENCE: Duration = Duration::from_millis(200);

/// What a coprocessor runs. Written once: no I/O, no clock, no task.
///
/// Each call is one turn. What it asks of `hw` takes effect at the next [`Hardware::commit`]; a
/// turn that ends without one has asked for nothing since the last.
pub trait Firmware {
    /// A NIC has started, and this is its first turn.
    fn on_start(&mut self, hw: &mut impl Hardware);
    /// The NIC is about to stop: what others wait for is given back. Applications ask for nothing any
    /// more.
    fn on_stop(&mut self, _hw: &mut impl Hardware) {}
    /// Whether what was given back has arrived. A NIC that is shut down goes on for up to
    /// [`STOP_PATIENCE`] until it has.
    fn may_stop(&self) -> bool {
        true
    }
    /// Commands may wait on `port`, or its registrations have changed.
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId);
    /// A port's application is gone, and all its commands are taken; its number may be used again
    /// after this turn, for a port of somebody else.
    fn on_port_closed(&mut self, _hw: &mut impl Hardware, _port: PortId) {}
    /// A frame has arrived whole.
    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>);
    /// A transfer that [`Hardware::dma`] began has ended.
    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId);
    /// An alarm has gone off: not before the instant that it was set to.
    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId);
}

/// Where the bytes of a frame come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The NIC's own memory.
    Bytes(Payload<'a>),
    /// Registered memory, gathered when it is sent.
    Region(RegionRef),
}

/// A copy between two places of registered memory of this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dma {
    /// What is read.
    pub from: RegionRef,
    /// What is written; at least as long.
    pub to: RegionRef,
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TransmitRefused {
    /// The NIC's transmit slots are taken; the first is free again at `until`.
    #[error("the transmit queue is full until {until}")]
    Busy {
        /// When to try again.
        until: Instant,
    },
    /// More bytes than [`Hardware::mtu`], or not as many as the header says.
    #[error("a frame carries what its header says, at most {mtu} bytes")]
    Length {
        /// Most bytes of one payload.
        mtu: usize,
    },
    /// The region may not be read.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Why a transfer was not begun.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum DmaRefused {
    /// One of the ranges may not be touched, or the second is too short.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// What firmware may ask of its NIC. One implementation a fabric; object-safe.
pub trait Hardware {
    /// This NIC's node.
    fn node(&self) -> NodeId;

    /// Which life of the NIC this is.
    fn incarnation(&self) -> Incarnation;

    /// The time of this turn: it does not move within one.
    fn now(&self) -> Instant;

    /// Most bytes that one frame may carry after its header.
    fn mtu(&self) -> usize;

    /// Most bytes that one frame to `to` may carry now and still cross its path as one packet; what
    /// carries more, up to [`Hardware::mtu`], is lost whole with each of its packets. It changes as paths do.
    fn mtu_to(&self, _to: NodeId) -> usize {
        self.mtu()
    }

    /// The rate of the NIC's own line.
    fn line_rate(&self) -> LineRate;

    /// Bytes that a frame with `payload` bytes takes on the wire, with its framing.
    fn wire_bytes(&self, payload: usize) -> u32;

    /// Nanoseconds by which what was given to the line leaves later than [`Hardware::transmit`] said:
    /// urgent frames passed it, or the system was late.
    fn line_lag(&self) -> u64;

    /// What the model charges; `None` on a live fabric, whose costs nobody has told.
    fn costs(&self) -> Option<Costs> {
        None
    }

    /// Counts instructions of the coprocessor: virtual time in `sim`, nothing on a live fabric.
    fn charge(&mut self, instructions: u64);

    /// Sends one frame; `header.length` is the payload's. Frames leave in the order of these calls.
    /// Returns when the frame's last bit will have left the NIC, as far as is known now.
    ///
    /// # Errors
    /// [`TransmitRefused`]; nothing is sent then.
    fn transmit(&mut self, header: &Header, source: Source<'_>)
    -> Result<Instant, TransmitRefused>;

    /// Whether `region` is live, lies within its registration, and grants what `access` asks for:
    /// for handles that came in a command's arguments or from the network.
    ///
    /// # Errors
    /// [`RegionError`] says what is not granted.
    fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError>;

    /// The bytes of registered memory, as they are now: what this turn has asked to be written is
    /// not among them before its commit. The region must give a right to read, local or remote;
    /// which of them is the firmware's to [`check`](Hardware::check).
    ///
    /// # Errors
    /// [`RegionError`] if the range may not be read.
    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError>;

    /// Writes into registered memory, from its range's start. The region must give a right to
    /// write, local or remote.
    ///
    /// # Errors
    /// [`RegionError`]; nothing is written then.
    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError>;

    /// Completes one command of `port`: the application sees it after all earlier writes, and after
    /// the memory of all earlier transmits has been read. Nothing happens if the port is gone.
    fn complete(&mut self, port: PortId, completion: &Completion);

    /// Copies within registered memory of this node; [`Firmware::on_dma_done`] tells of the end.
    ///
    /// # Errors
    /// [`DmaRefused`]; nothing is copied then.
    fn dma(&mut self, transfer: Dma) -> Result<DmaId, DmaRefused>;

    /// Takes the next command of `port`. An abort does not give it back.
    fn next_command(&mut self, port: PortId) -> Option<Command>;

    /// Sets an alarm, instead of what it was set to; [`Instant::FAR_FUTURE`] turns it off.
    ///
    /// # Panics
    /// If there is no such alarm: they are numbered below [`TIMERS`].
    fn set_timer(&mut self, timer: TimerId, at: Instant);

    /// Leaves the frame that is being handled on the link, which stands still until the firmware takes it:
    /// after each turn that something else brings, it is handed the frame again. `false` where links don't
    /// wait, and the frame is gone when the turn ends, as any other; see
    /// [`DiscardPolicy::HoldUp`](crate::switch::DiscardPolicy::HoldUp).
    fn leave(&mut self) -> bool {
        false
    }

    /// All that was asked since the last commit takes effect.
    fn commit(&mut self);

    /// All that was asked since the last commit never happened.
    fn abort(&mut self);
}
