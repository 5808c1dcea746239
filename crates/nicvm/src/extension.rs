//! Extensions: event handlers and state that a unit hosts.
//!
//! An extension is a module of the backplane (DVCM paper, section 3): handlers for commands, control messages, data and
//! timeouts, and procedures for initialisation and deactivation.

use std::any::Any;
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;
use thiserror::Error;

use crate::context::Context;
use crate::transmit::Sent;

/// The first number for extensions that do not belong to this crate.
pub const FIRST_USER_EXTENSION: ExtensionId = ExtensionId(16);

/// An extension's identifier for one of its timeouts; setting one again replaces it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TimeoutId(pub u32);

/// The version number of an extension: assigned by the cluster, and carried by its control messages. Two versions
/// compare correctly while they are less than half the 16-bit range apart.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Epoch(pub u16);

impl Epoch {
    /// The version that a unit starts with.
    #[doc(hidden)]
    pub const FIRST: Self = Self(0);

    /// Returns whether this version is later than `other`.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_newer_than(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i16 > 0
    }

    /// Returns the next version.
    #[must_use]
    #[doc(hidden)]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Reason for which an extension was not installed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InitError {
    /// Another extension has the number.
    #[error("extension {0} is installed already; choose another number, or deactivate it first")]
    Occupied(ExtensionId),
    /// The extension refused its configuration.
    #[error("extension {extension}: {reason}")]
    Refused {
        /// The extension.
        extension: ExtensionId,
        /// The cause, and what to do.
        reason: &'static str,
    },
    /// A handler panicked.
    #[error("extension {0} failed while it was initialised")]
    Trapped(ExtensionId),
    /// The new version did not import the old version's state.
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// An event of an extension of this unit.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum UnitEvent {
    /// A handler of this version panicked; the extension is quarantined.
    Trapped(ExtensionId, Epoch),
    /// This version runs from now on.
    Replaced(ExtensionId, Epoch),
    /// The new version could not start; the old one still runs.
    NotReplaced(ExtensionId, Epoch, InitError),
    /// The extension was taken down on request.
    Withdrawn(ExtensionId),
}

/// Reason for which an extension did not import its predecessor's state.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the state of the previous version can't be imported: {0}")]
pub struct ImportError(pub &'static str);

/// An event of another node's unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerEvent {
    /// The peer answered for the first time, or again after it was down.
    Up(NodeId, Incarnation),
    /// The peer has restarted: messages under way to its former incarnation are lost.
    Restarted(NodeId, Incarnation),
    /// The peer has not answered for `dead_after`: messages under way to it may be lost.
    Down(NodeId),
}

/// An event of the transmit scheduler, for the extension that controls the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransmitEvent {
    /// A message to `destination` waits for the gate to open.
    Held {
        /// The node that it is for.
        destination: NodeId,
    },
    /// All frames that the gate allowed to `destination` have been handed to the line.
    Drained {
        /// The node that they are for.
        destination: NodeId,
        /// When the first bit of them leaves or left the line.
        begins: Instant,
        /// When the last bit of them leaves the line.
        leaves: Instant,
    },
}

/// A module of the backplane. A handler that is not implemented does nothing, except `on_command`, which each extension
/// has. Handlers run one at a time and to completion. The effects that a handler requests from
/// `nic` are carried out when it returns, and dropped if it panics. A panic quarantines the extension: its commands
/// complete with an error at once, and its frames are dropped and counted.
pub trait Extension: Any + Send {
    /// Initialises the extension. Called once, before any other handler.
    ///
    /// # Errors
    /// [`InitError::Refused`] says what is wrong with the configuration.
    fn init(&mut self, _nic: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    /// Handles a command that a local application has posted. The extension must complete every command once, now or
    /// later.
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command);

    /// Handles a control message of the same extension on another node: reliable, in order, at most 100 bytes.
    fn on_control(&mut self, _nic: &mut Context<'_>, _from: NodeId, _message: &[u8]) {}

    /// Handles a data frame of the same extension on another node: unreliable, and read in place.
    fn on_data(&mut self, _nic: &mut Context<'_>, _from: NodeId, _frame: &Frame<'_>) {}

    /// Handles a timeout that has passed; never called early.
    fn on_timeout(&mut self, _nic: &mut Context<'_>, _timeout: TimeoutId) {}

    /// Handles the report that a [`Context::fence`] of this version with this token asked for: all writes before it are
    /// in memory. A version that has been replaced gets no such report.
    fn on_written(&mut self, _nic: &mut Context<'_>, _token: u64) {}

    /// Handles the closing of a port by its local application: memory registered through it has no owner, and its
    /// number may soon be reused.
    fn on_port_closed(&mut self, _nic: &mut Context<'_>, _port: PortId) {}

    /// Handles the suspension of a port ([`Context::suspend_port`]). Until the port is resumed, the extension must
    /// start no frame for it, accept none, complete nothing, and write nothing into its memory. It must still answer
    /// peers that ask whether the port is alive, and report data that arrives for the port ([`Context::note_arrival`]).
    /// The port's waiting packets are withdrawn, with [`Status::Cancelled`] where they have a token; the extension
    /// sends them anew after the resumption.
    ///
    /// [`Status::Cancelled`]: midplane_simhw::port::Status::Cancelled
    #[doc(hidden)]
    fn on_port_suspended(&mut self, _nic: &mut Context<'_>, _port: PortId) {}

    /// Handles the resumption of a port that was suspended for `stood`. A peer's silence in that time shows no failure.
    #[doc(hidden)]
    fn on_port_resumed(&mut self, _nic: &mut Context<'_>, _port: PortId, _stood: Duration) {}

    /// Handles the first arrival of data for a suspended port that is watched ([`Context::watch_port`]). The extension
    /// that the data is for keeps or refuses it until the port is resumed.
    #[doc(hidden)]
    fn on_port_arrival(&mut self, _nic: &mut Context<'_>, _port: PortId) {}

    /// Handles the installation or removal of an admission ([`Context::has_admission`]). While there is one, no gate of
    /// a port may be open.
    #[doc(hidden)]
    fn on_admission(&mut self, _nic: &mut Context<'_>) {}

    /// Handles an event of another unit.
    fn on_peer(&mut self, _nic: &mut Context<'_>, _event: PeerEvent) {}

    /// Handles an event of an extension of this unit, including this one.
    fn on_unit(&mut self, _nic: &mut Context<'_>, _event: &UnitEvent) {}

    /// Returns the commands that the extension has taken and not completed. Called once when the extension is taken
    /// down, even after a panic; the unit completes them with [`Status::ExtensionDown`]. There is no context, because
    /// no effect would be carried out. An extension that holds commands must implement this, or their applications wait
    /// forever.
    ///
    /// [`Status::ExtensionDown`]: midplane_simhw::port::Status::ExtensionDown
    fn outstanding_commands(&mut self) -> Vec<Command> {
        Vec::new()
    }

    /// Returns the extension's state for the next version; `None` if that starts without it.
    fn export(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Imports the state that the previous version [exported](Self::export). Called after `init`.
    ///
    /// # Errors
    /// [`ImportError`]; then the previous version stays.
    fn import(&mut self, _state: &[u8]) -> Result<(), ImportError> {
        Ok(())
    }

    /// Handles the scheduler's report that the gate holds a frame or has let all through. Called only on the gate's
    /// controller.
    fn on_transmit(&mut self, _nic: &mut Context<'_>, _news: TransmitEvent) {}

    /// Handles the end of a packet of this version that had to wait and has a token: it has left, or never will. A
    /// version that has been replaced gets no such report.
    fn on_sent(&mut self, _nic: &mut Context<'_>, _sent: Sent) {}

    /// Deactivates the extension: returns credits, grants and commands that others wait for. Called once, as the last
    /// handler.
    fn deactivate(&mut self, _nic: &mut Context<'_>) {}
}
