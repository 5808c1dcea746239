//! Stops and resumes all that a process has on its NIC beside channels: interfaces, messages, turns.
//!
//! What others wait for is given back, and silence in that time is taken for nothing. Channels have
//! [`Controller::stop`](crate::controller::Controller::stop) for that, which saves them as well; interfaces are saved
//! by [`Interfaces`](crate::interfaces::Interfaces).

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Port, PortClosed, PortOptions, Status};

use crate::channel::command::{RESUME_PORT, STOP_PORT};
use crate::channel::gang;
use crate::controller::ControlError;

/// A daemon's port, by whose commands others are stopped and resumed.
#[derive(Debug)]
pub struct Warden {
    port: Port,
}

impl Warden {
    /// Opens the port that the NIC's [`GangConfig::warden`](crate::GangConfig::warden) names.
    ///
    /// # Errors
    /// [`ControlError::Open`] if somebody has it.
    pub fn open(host: &impl Host, number: PortId) -> Result<Self, ControlError> {
        let port = host.open_port_with(PortOptions::default().depth(4).number(number))?;
        Ok(Self { port })
    }

    async fn ask(
        &mut self,
        what: &'static str,
        opcode: u8,
        of: PortId,
    ) -> Result<(), ControlError> {
        self.port.submit(&gang(opcode, [of.0.into(), 0, 0]))?;
        match self.port.completion().await.map_err(|PortClosed| PortClosed)?.status {
            Status::Done => Ok(()),
            status => Err(ControlError::Refused { what, status }),
        }
    }

    /// The process behind a port stands still; stop it first. When this ends, its NIC neither sends,
    /// takes, nor completes anything for it.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the next order would take the answer for its own.
    pub async fn stop(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("stop a port", STOP_PORT, port).await
    }

    /// It goes on; let it go on afterwards. A process that is to end is resumed first.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the next order would take the answer for its own.
    pub async fn resume(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("resume a port", RESUME_PORT, port).await
    }
}
