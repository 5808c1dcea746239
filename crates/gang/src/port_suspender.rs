//! Suspends and resumes all of a NIC's work for a process except channels: Virtual Interfaces and messages.
//!
//! While a port is suspended, its packets are withdrawn, credits that peers have granted it are returned, and peers do
//! not treat its silence as a failure. Channels are suspended by
//! [`Controller::stop`](crate::controller::Controller::stop), and via's
//! [`Checkpointer`](midplane_via::checkpointer::Checkpointer) can save Virtual Interfaces.

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Port, PortOptions, Status};

use crate::channel::command::{AWAIT_ARRIVAL, RESUME_PORT, STOP_PORT, WATCH_PORT};
use crate::channel::gang;
use crate::controller::ControlError;

/// Number of the port that daemons open as a [`PortSuspender`].
pub const PORT_SUSPENDER: PortId = PortId(1_024);

/// Number of the port that daemons open as an [`ArrivalWatcher`].
pub const ARRIVAL_WATCHER: PortId = PortId(1_026);

/// A daemon's port whose commands suspend and resume other ports.
#[derive(Debug)]
pub struct PortSuspender {
    port: Port,
    /// The number of the last command, which is its cookie.
    last: u64,
}

impl PortSuspender {
    /// Opens the port that is set by the NIC's [`GangConfig::port_suspender`](crate::GangConfig::port_suspender).
    ///
    /// # Errors
    /// [`ControlError::Open`] if the NIC has no free port, or another process has opened this port.
    pub fn open(host: &impl Host, number: PortId) -> Result<Self, ControlError> {
        let port = host.open_port_with(PortOptions::default().depth(4).number(number))?;
        Ok(Self { port, last: 0 })
    }

    async fn ask(
        &mut self,
        what: &'static str,
        opcode: u8,
        (of, tag): (PortId, u64),
    ) -> Result<(), ControlError> {
        self.last += 1;
        let cookie = self.last;
        self.port.submit(&Command { cookie, ..gang(opcode, [of.0.into(), tag, 0]) })?;
        loop {
            let done = self.port.completion().await?;
            match done.status {
                // The completion of a command whose future was dropped.
                _ if done.cookie != cookie => {}
                Status::Done => return Ok(()),
                status => return Err(ControlError::Refused { what, status }),
            }
        }
    }

    /// Suspends a port, whose process must be suspended before. From then on, the NIC sends, accepts and completes
    /// nothing for it.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the port may be suspended all the same.
    pub async fn suspend(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("stop a port", STOP_PORT, (port, 0)).await
    }

    /// Watches a suspended port: the NIC's [`ArrivalWatcher`] receives the tag once, when data next arrives for the
    /// port. The watch ends when the port is resumed or closed.
    ///
    /// Frames of Virtual Interfaces and of messages count, whether the NIC keeps them for the process or refuses them
    /// until the port is resumed. Requests for connections and answers to the port's own requests count too.
    /// Acknowledgements and probes do not count, nor do frames that arrived before this call.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` if the port is not suspended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the port may be watched all the same.
    pub async fn watch(&mut self, port: PortId, tag: u64) -> Result<(), ControlError> {
        self.ask("watch a port", WATCH_PORT, (port, tag)).await
    }

    /// Resumes a port. Call this before the port's process is resumed or ended.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the port may be resumed all the same.
    pub async fn resume(&mut self, port: PortId) -> Result<(), ControlError> {
        self.ask("resume a port", RESUME_PORT, (port, 0)).await
    }
}

/// A daemon's port that receives reports of arrivals for watched ports.
#[derive(Debug)]
pub struct ArrivalWatcher {
    port: Port,
    /// True while the NIC has an outstanding command of this port.
    is_waiting: bool,
}

impl ArrivalWatcher {
    /// Opens the port that is set by the NIC's [`GangConfig::arrival_watcher`](crate::GangConfig::arrival_watcher).
    ///
    /// # Errors
    /// [`ControlError::Open`] if the NIC has no free port, or another process has opened this port.
    pub fn open(host: &impl Host, number: PortId) -> Result<Self, ControlError> {
        let port = host.open_port_with(PortOptions::default().depth(4).number(number))?;
        Ok(Self { port, is_waiting: false })
    }

    /// Waits for the next arrival, and returns the tag of the watched port. The port may have been resumed meanwhile.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, no arrival is lost.
    pub async fn next(&mut self) -> Result<u64, ControlError> {
        if !self.is_waiting {
            self.port.submit(&gang(AWAIT_ARRIVAL, [0, 0, 0]))?;
            self.is_waiting = true;
        }
        let done = self.port.completion().await?;
        self.is_waiting = false;
        match done.status {
            Status::Done => Ok(done.args[0]),
            status => Err(ControlError::Refused { what: "await an arrival", status }),
        }
    }
}
