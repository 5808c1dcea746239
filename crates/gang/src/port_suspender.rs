//! Suspends and resumes all that a NIC does for a process, except for channels: Virtual Interfaces and messages.
//!
//! While a port is suspended, its packets are withdrawn, what peers have granted it is returned, and peers do not take
//! its silence for a failure. Channels are suspended by [`Controller::stop`](crate::controller::Controller::stop), and
//! Virtual Interfaces are saved by via's [`Checkpointer`](midplane_via::checkpointer::Checkpointer).

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Port, PortClosed, PortOptions, Status};

use crate::channel::command::{RESUME_PORT, STOP_PORT};
use crate::channel::gang;
use crate::controller::ControlError;

/// A daemon's port whose commands suspend and resume other ports.
#[derive(Debug)]
pub struct PortSuspender {
    port: Port,
}

impl PortSuspender {
    /// Opens the port that the NIC's [`GangConfig::port_suspender`](crate::GangConfig::port_suspender) names.
    ///
    /// # Errors
    /// [`ControlError::Open`] if the NIC has no free port, or another process has this one.
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

    /// Suspends a port. Stop its process first. After this call, the NIC sends, accepts and completes nothing for it.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the next command would receive this one's completion.
    pub async fn suspend(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("stop a port", STOP_PORT, port).await
    }

    /// Resumes a port. Resume its process afterwards. Resume a port before its process is ended.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the next command would receive this one's completion.
    pub async fn resume(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("resume a port", RESUME_PORT, port).await
    }
}
