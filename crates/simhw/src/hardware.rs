//! The two interfaces of firmware: the events that it handles, and the operations that its NIC offers.

use std::time::Duration;

use thiserror::Error;

use crate::frame::{Frame, Header};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::port::{Command, Completion};
use crate::profile::Costs;
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::time::{Instant, LineRate};

/// Number of alarms of each NIC.
pub const TIMERS: usize = 4;

/// Longest time that a stopping NIC waits for [`Firmware::may_stop`]: some hundred round trips on any local
/// network, and too short for a user to notice.
#[doc(hidden)]
pub const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// The program of a coprocessor: a state machine without I/O, clock or task.
///
/// A handler that is not implemented does nothing. Each call is one turn. The operations that a turn requests of `hw`
/// take effect at the next [`Hardware::commit`]. Requests that are not committed when the turn ends are dropped.
pub trait Firmware {
    /// Handles the first turn of a NIC that has started.
    fn on_start(&mut self, _hw: &mut impl Hardware) {}
    /// Handles the stop of the NIC: sends its peers the frames that they wait for. Applications post no more
    /// commands.
    fn on_stop(&mut self, _hw: &mut impl Hardware) {}
    /// Returns whether the peers have received what [`Firmware::on_stop`] sent. A NIC that is shut down keeps
    /// running for up to 200 ms until it returns `true`.
    fn may_stop(&self) -> bool {
        true
    }
    /// Handles a doorbell: commands may wait on `port`, or its registrations have changed.
    fn on_doorbell(&mut self, _hw: &mut impl Hardware, _port: PortId) {}
    /// Handles the end of a port: its application has closed it, and all its commands are taken. After this
    /// turn, the number may belong to a port of another application.
    fn on_port_closed(&mut self, _hw: &mut impl Hardware, _port: PortId) {}
    /// Handles a frame that has arrived completely.
    fn on_frame(&mut self, _hw: &mut impl Hardware, _frame: Frame<'_>) {}
    /// Handles the end of a transfer that [`Hardware::dma`] began, or of the writes before a [`Hardware::fence`].
    fn on_dma_done(&mut self, _hw: &mut impl Hardware, _dma: DmaId) {}
    /// Handles an alarm, at or after the instant that it was set to.
    fn on_timer(&mut self, _hw: &mut impl Hardware, _timer: TimerId) {}
}

/// The place from which the bytes of a frame are read.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The NIC's own memory.
    Bytes(Payload<'a>),
    /// Registered memory, gathered when the frame is sent.
    Region(RegionRef),
}

/// A copy between two ranges of registered memory of this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dma {
    /// The range that is read.
    pub from: RegionRef,
    /// The range that is written, at least as long.
    pub to: RegionRef,
}

/// The reason why a frame was not sent.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TransmitRefused {
    /// All transmit slots of the NIC are in use.
    #[error("the transmit queue is full until {until}")]
    Busy {
        /// When the first slot becomes free.
        until: Instant,
    },
    /// The frame's destination has no room for it now; frames to other nodes may have.
    #[error("the queue to the destination is full; try again at {until}")]
    PeerBusy {
        /// When to try again.
        until: Instant,
    },
    /// The payload is longer than [`Hardware::mtu`], or not as long as the header says.
    #[error("a payload must be as long as its header says, at most {mtu} bytes")]
    Length {
        /// Most bytes of one payload.
        mtu: usize,
    },
    /// The region may not be read.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The reason why a transfer was not begun.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum DmaRefused {
    /// One of the ranges may not be accessed, or the second is too short.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The operations that firmware may request of its NIC. Each fabric has one implementation; the trait is
/// object-safe.
pub trait Hardware {
    /// Returns this NIC's node.
    fn node(&self) -> NodeId;

    /// Returns the NIC's incarnation.
    fn incarnation(&self) -> Incarnation;

    /// Draws 32 bytes that no other process can guess; each call returns new ones. A live NIC reads them from
    /// the operating system. A simulated NIC draws them from a random stream of the simulation's seed.
    ///
    /// # Panics
    /// If the operating system has no randomness.
    fn secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the operating system has randomness");
        secret
    }

    /// Returns the time of this turn; it is constant within one turn.
    fn now(&self) -> Instant;

    /// Returns the most bytes that one frame may carry after its header.
    fn mtu(&self) -> usize;

    /// Returns the most bytes that one frame to `to` may carry now and still cross its path as one packet. A
    /// longer frame, up to [`Hardware::mtu`], is lost whole if any of its packets is lost. The value changes
    /// with the path.
    fn mtu_to(&self, _to: NodeId) -> usize {
        self.mtu()
    }

    /// Returns the rate of the NIC's own line.
    fn line_rate(&self) -> LineRate;

    /// Returns the bytes that a frame with `payload` bytes takes on the wire, including framing.
    fn wire_bytes(&self, payload: usize) -> u32;

    /// Returns by how many nanoseconds queued frames leave later than [`Hardware::transmit`] returned: urgent frames
    /// have overtaken them, or the system was late.
    fn line_lag(&self) -> u64;

    /// Returns the costs that the model charges; `None` on a live fabric, whose costs are unknown.
    fn costs(&self) -> Option<Costs> {
        None
    }

    /// Charges `instructions` of the coprocessor: virtual time in `sim`, nothing on a live fabric.
    fn charge(&mut self, instructions: u64);

    /// Sends one frame. The firmware fills in the whole header: `source` and `incarnation` are this NIC's, and `length` is
    /// that of the payload. Frames leave in the order of these calls.
    /// Returns when the frame's last bit leaves the NIC, as far as is known now.
    ///
    /// # Errors
    /// [`TransmitRefused`]; the frame is then not sent.
    fn transmit(&mut self, header: &Header, source: Source<'_>)
    -> Result<Instant, TransmitRefused>;

    /// Checks that `region` is registered, lies within its registration, and grants `access`. Use it for
    /// handles from a command's arguments or from the network.
    ///
    /// # Errors
    /// [`RegionError`] if any of the three fails.
    fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError>;

    /// Returns the current bytes of registered memory; writes of this turn become visible at its commit. The
    /// region must grant a right to read, local or remote; which of the two the firmware
    /// [checks](Hardware::check) itself.
    ///
    /// # Errors
    /// [`RegionError`] if the range may not be read.
    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError>;

    /// Writes to registered memory, from the start of the range. The region must grant a right to write, local
    /// or remote.
    ///
    /// # Errors
    /// [`RegionError`]; nothing is then written.
    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError>;

    /// Completes one command of `port`. The application sees the completion after all earlier writes, and after
    /// the memory of all earlier transmits has been read. If the port is closed, this has no effect.
    fn complete(&mut self, port: PortId, completion: &Completion);

    /// Copies within registered memory of this node; [`Firmware::on_dma_done`] reports the end.
    ///
    /// # Errors
    /// [`DmaRefused`]; nothing is then copied.
    fn dma(&mut self, transfer: Dma) -> Result<DmaId, DmaRefused>;

    /// Requests a report by [`Firmware::on_dma_done`] once all earlier writes are in memory, those of this turn
    /// included. Returns `None` if there is none to wait for: the commit itself puts writes into memory, as on every
    /// live fabric.
    fn fence(&mut self) -> Option<DmaId> {
        None
    }

    /// Takes the next command of `port`. [`Hardware::abort`] does not put it back.
    fn next_command(&mut self, port: PortId) -> Option<Command>;

    /// Applies the registrations and deregistrations of `port` so far. Otherwise they are applied when the NIC handles
    /// the port's doorbell or takes its next command. By default does nothing, for hardware whose registrations take
    /// effect at once.
    #[doc(hidden)]
    fn apply_registrations(&mut self, _port: PortId) {}

    /// Opens the gate of `port`, at once: from now on its host may write to other processes itself, if it has the
    /// returned number. If the gate is already open, returns its number. Returns `None` if the port has no gate, or the
    /// last post before it was closed may still be in progress.
    #[doc(hidden)]
    fn open_gate(&mut self, _port: PortId) -> Option<u64> {
        None
    }

    /// Closes the gate of `port`, at once: no post begins until it is opened again, under another number. Returns
    /// whether no post is in progress. If one is, call again later; the gate stays closed.
    #[doc(hidden)]
    fn close_gate(&mut self, _port: PortId) -> bool {
        true
    }

    /// Sets an alarm to `at`, in place of its previous instant; [`Instant::FAR_FUTURE`] turns it off.
    ///
    /// # Panics
    /// If there is no such alarm: their numbers are below [`TIMERS`].
    fn set_timer(&mut self, timer: TimerId, at: Instant);

    /// Leaves the frame that is being handled on the link, which stalls until the firmware takes the frame. The
    /// firmware handles the frame again after each turn with another cause. Returns `false` where links do not
    /// wait: the frame is then dropped at the end of the turn, as any other. See
    /// [`DiscardPolicy::BackPressure`](crate::switch::DiscardPolicy::BackPressure).
    fn leave(&mut self) -> bool {
        false
    }

    /// Puts all requests since the last commit into effect.
    fn commit(&mut self);

    /// Discards all requests since the last commit.
    fn abort(&mut self);
}
