//! A NIC with its firmware, and the calls of the firmware that do not depend on the fabric.

use super::hardware::Nic;
use super::link::Link;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, STOP_TIMEOUT, TIMERS};
use crate::host::OpenError;
use crate::id::PortId;
use crate::port::{Bell, NicPort, Port, PortNumbers, PortOptions, port};
use crate::region::Payload;
use crate::time::Instant;

/// Most frames to the own node, and most finished transfers, that one turn handles: bounds how long received frames
/// wait.
const WORK_PER_TURN: usize = 32;

/// A NIC with its firmware.
pub(crate) struct Engine<F, L> {
    pub(crate) firmware: F,
    pub(crate) nic: Nic<L>,
    numbers: PortNumbers,
    port_depth: usize,
    /// Ports that close once the firmware has taken their last command.
    leaving: Vec<PortId>,
    /// When the NIC stops waiting for its peers; set once the firmware has handled the stop.
    stopping: Option<Instant>,
}

impl<F: Firmware, L: Link> Engine<F, L> {
    /// Creates a NIC, and starts its firmware.
    pub(crate) fn new(firmware: F, nic: Nic<L>, port_depth: usize) -> Self {
        let mut engine = Self {
            firmware,
            nic,
            numbers: PortNumbers::default(),
            port_depth,
            leaving: Vec::new(),
            stopping: None,
        };
        engine.call(|firmware, nic| firmware.on_start(nic));
        engine
    }

    /// Calls the firmware once.
    #[inline]
    fn call(&mut self, call: impl FnOnce(&mut F, &mut Nic<L>)) {
        call(&mut self.firmware, &mut self.nic);
        self.nic.end_turn();
    }

    /// Opens a port of an application in this process.
    pub(crate) fn open(
        &mut self,
        options: &PortOptions,
        bell: Box<dyn Bell>,
    ) -> Result<Port, OpenError> {
        let name = self.numbers.claim(self.nic.node, options)?;
        let (port, end) = port(name, options.depth_or(self.port_depth), bell);
        self.nic.open_port(name.id, end);
        Ok(port)
    }

    /// Opens a port for another process.
    #[cfg(target_os = "linux")]
    pub(crate) fn grant(&mut self, options: &PortOptions) -> Result<crate::port::Grant, OpenError> {
        let name = self.numbers.claim(self.nic.node, options)?;
        match crate::port::far_port(name, options.depth_or(self.port_depth)) {
            Ok((end, grant)) => {
                self.nic.open_port(name.id, end);
                Ok(grant)
            }
            Err(error) => {
                self.numbers.release(name.id);
                Err(error)
            }
        }
    }

    /// Handles the doorbell of a port.
    pub(crate) fn ring(&mut self, id: PortId) {
        self.nic.time.renew();
        if let Some(port) = self.nic.ports.at(id) {
            port.sync();
        }
        self.call(|firmware, nic| firmware.on_doorbell(nic, id));
        if !self.nic.ports.at(id).is_some_and(NicPort::sync) {
            self.leave(id);
        }
    }

    /// Closes a port whose application has closed its end, now or once its last command is taken.
    #[cold]
    fn leave(&mut self, id: PortId) {
        if !self.close(id) && self.nic.is_leaving(id) && !self.leaving.contains(&id) {
            self.leaving.push(id);
        }
    }

    /// Closes a port whose application has closed its end and whose last command is taken; returns whether it did.
    fn close(&mut self, id: PortId) -> bool {
        let has_closed = self.nic.has_closed(id);
        if has_closed {
            self.call(|firmware, nic| firmware.on_port_closed(nic, id));
            self.numbers.release(id);
        }
        has_closed
    }

    /// Handles received frames that faults have delayed until now.
    #[cfg(any(target_os = "linux", feature = "unstable"))]
    pub(crate) fn deliver_delayed(&mut self) {
        while let Some((_, frame)) = self.nic.delayed_frame() {
            self.deliver(&frame);
        }
    }

    /// Handles a frame that was received and checked.
    #[cfg(any(target_os = "linux", feature = "unstable"))]
    pub(crate) fn deliver(&mut self, frame: &[u8]) {
        self.nic.counters.frames_received += 1;
        self.nic.counters.bytes_received += frame.len() as u64;
        self.hand(frame);
    }

    /// Hands the firmware a frame that lies in the NIC's memory.
    fn hand(&mut self, frame: &[u8]) {
        match Header::parse(frame) {
            Ok((header, payload)) => {
                let frame = Frame { header, payload: Payload::from(payload) };
                self.nic.hand(&mut self.firmware, frame);
            }
            Err(_) => self.nic.counters.drops.add(DropCause::Malformed),
        }
    }

    /// Handles frames to the own node, ends of transfers, and due alarms.
    pub(crate) fn work(&mut self) {
        self.nic.time.renew();
        for _ in 0..WORK_PER_TURN {
            let Some(frame) = self.nic.looped_frame() else { break };
            self.hand(&frame);
        }
        for _ in 0..WORK_PER_TURN {
            let Some(dma) = self.nic.ended_dma() else { break };
            self.call(|firmware, nic| firmware.on_dma_done(nic, dma));
        }
        L::handle_timeout(&mut self.nic);
        for _ in 0..TIMERS {
            let Some(timer) = self.nic.expired_timer() else { break };
            self.call(|firmware, nic| firmware.on_timer(nic, timer));
        }
        // The firmware may have taken the last command just now.
        for id in std::mem::take(&mut self.leaving) {
            if !self.close(id) && self.nic.is_leaving(id) {
                self.leaving.push(id);
            }
        }
    }

    /// Stops the firmware when first called. Returns when the wait for its peers ends, or `None` if it has ended.
    pub(crate) fn stop(&mut self) -> Option<Instant> {
        let now = self.nic.time.read();
        let until = match self.stopping {
            Some(until) => until,
            None => {
                self.call(|firmware, nic| firmware.on_stop(nic));
                self.nic.wake();
                *self.stopping.insert(now + STOP_TIMEOUT)
            }
        };
        (!self.firmware.may_stop() && now < until).then_some(until)
    }

    /// Returns when a stopping NIC stops waiting for its peers; `None` if the NIC is not stopping.
    pub(crate) const fn stopping(&self) -> Option<Instant> {
        self.stopping
    }
}
