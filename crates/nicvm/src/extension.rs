//! Extensions: event handlers and state that a unit hosts.
//!
//! An extension is a module of the backplane (DVCM paper, section 3): handlers for commands,
//! control messages, data and timeouts, an initialisation and a deactivation procedure.

use std::any::Any;
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;
use thiserror::Error;

use crate::context::Context;
use crate::transmit::Sent;

/// First number for extensions that are not this crate's.
pub const FIRST_USER_EXTENSION: ExtensionId = ExtensionId(16);

/// An extension's name for one of its timeouts; setting one again replaces it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TimeoutId(pub u32);

/// Which version of an extension: counted by the cluster, and carried by its control messages.
/// Comparable as long as two are less than half their range apart.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Epoch(pub u16);

impl Epoch {
    /// The version that a unit starts with.
    pub const FIRST: Self = Self(0);

    /// Whether this is the later of the two.
    #[must_use]
    pub const fn is_newer_than(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i16 > 0
    }

    /// The one after.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Why an extension was not installed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InitError {
    /// Another extension has the number.
    #[error("extension {0} is installed already; choose another number, or deactivate it first")]
    Occupied(ExtensionId),
    /// The extension refused its configuration.
    #[error("extension {extension}: {reason}")]
    Refused {
        /// Which one.
        extension: ExtensionId,
        /// What is wrong, and how to put it right.
        reason: &'static str,
    },
    /// A handler panicked.
    #[error("extension {0} failed while it was initialised")]
    Trapped(ExtensionId),
    /// It does not take over from the version before.
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// What happened to an extension of this unit.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum UnitEvent {
    /// A handler failed; the extension is quarantined.
    Trapped(ExtensionId),
    /// Another version of it runs from now on.
    Replaced(ExtensionId, Epoch),
    /// The version that was to run does not: what ran before still does.
    NotReplaced(ExtensionId, Epoch, InitError),
    /// It was taken down because somebody asked for it.
    Withdrawn(ExtensionId),
}

/// Why an extension does not take what its predecessor left.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the state of the version before does not fit: {0}")]
pub struct ImportError(pub &'static str);

/// What happened to another node's unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerEvent {
    /// It answered for the first time, or again.
    Up(NodeId, Incarnation),
    /// It has restarted: what was under way to its former life is lost.
    Restarted(NodeId, Incarnation),
    /// It has not answered for too long: what was under way to it may be lost.
    Down(NodeId),
}

/// News of the transmit scheduler, for the extension that steers the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransmitNews {
    /// A message to `destination` waits for the gate to open.
    Held {
        /// Whom it is for.
        destination: NodeId,
    },
    /// All that the gate let through to `destination` has been handed to the line.
    Drained {
        /// Whom it was for.
        destination: NodeId,
        /// When the first bit of it left, or leaves.
        begins: Instant,
        /// When the last bit of it leaves.
        leaves: Instant,
    },
}

/// A module of the backplane. Handlers run one at a time and to their end; what one asks of `nic`
/// takes effect when it returns, and not at all if it panics. A handler that panics quarantines its
/// extension: its commands complete with an error at once, its frames are dropped and counted.
pub trait Extension: Any + Send {
    /// Called once, before anything else.
    ///
    /// # Errors
    /// [`InitError::Refused`] says what is wrong with the configuration.
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError>;

    /// A local application has posted a command. Every command is completed once, now or later.
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command);

    /// A control message of the same extension elsewhere: reliable, in order, at most 100 bytes.
    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]);

    /// A data frame of the same extension elsewhere: unreliable, not copied yet.
    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>);

    /// A timeout has passed; never early.
    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId);

    /// A local application has closed a port: what was lent through it is nobody's, and its number
    /// may soon be another's.
    fn on_port_closed(&mut self, _nic: &mut Context<'_>, _port: PortId) {}

    /// The process behind a port stands still ([`Context::stop_port`]). Until it goes on: start no
    /// frame for it, take none, complete nothing, write nothing into its memory; but answer those who
    /// ask whether it is alive. Its packets that waited are withdrawn, with [`Status::Cancelled`]
    /// where they have a token: they are the extension's to send anew.
    ///
    /// [`Status::Cancelled`]: midplane_simhw::port::Status::Cancelled
    fn on_port_stopped(&mut self, _nic: &mut Context<'_>, _port: PortId) {}

    /// It goes on after it `stood` so long: silence in that time means nothing.
    fn on_port_resumed(&mut self, _nic: &mut Context<'_>, _port: PortId, _stood: Duration) {}

    /// Something happened to another unit.
    fn on_peer(&mut self, _nic: &mut Context<'_>, _event: PeerEvent) {}

    /// Something happened to an extension of this unit, this one included.
    fn on_unit(&mut self, _nic: &mut Context<'_>, _event: &UnitEvent) {}

    /// The commands that it has taken and not completed: asked for once, when it is taken down, after a
    /// failure as well, and completed with [`Status::ExtensionDown`]. Without a context, for nothing that
    /// it could ask for would happen. One that holds commands says so, or their applications wait in vain.
    ///
    /// [`Status::ExtensionDown`]: midplane_simhw::port::Status::ExtensionDown
    fn held(&mut self) -> Vec<Command> {
        Vec::new()
    }

    /// Its state, for the version that follows; `None` if that begins anew.
    fn export(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Takes over what the version before has [exported](Self::export), after its own
    /// initialisation.
    ///
    /// # Errors
    /// [`ImportError`]: the version before stays then.
    fn import(&mut self, _state: &[u8]) -> Result<(), ImportError> {
        Ok(())
    }

    /// The gate holds something back, or has let all through. Only for the extension that steers it.
    fn on_transmit(&mut self, _nic: &mut Context<'_>, _news: TransmitNews) {}

    /// A packet that had to wait, and has a token, has left or never will.
    fn on_sent(&mut self, _nic: &mut Context<'_>, _sent: Sent) {}

    /// Called once, last: what others wait for is given back here.
    fn deactivate(&mut self, nic: &mut Context<'_>);
}
