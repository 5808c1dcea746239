//! A NIC with its firmware, and the calls of the firmware that do not depend on the fabric.

use super::hardware::Nic;
use super::link::Link;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, STOP_TIMEOUT, TIMERS};
use crate::host::OpenError;
use crate::id::PortId;
use crate::port::{Bell, Port, PortNumbers, PortOptions, port};
use crate::region::Payload;
use crate::time::Instant;

/// Frames to the own node and ends of transfers that one turn handles: received frames wait no longer than they take.
const WORK_PER_TURN: usize = 32;

/// A NIC with its firmware.
pub(crate) struct Engine<F, L> {
    pub(crate) firmware: F,
    pub(crate) nic: Nic<L>,
    numbers: PortNumbers,
    port_depth: usize,
    /// Ports that close once the firmware has taken their last command.
    leaving: Vec<PortId>,
    /// Set once the firmware has handled the stop: until when its peers are waited for.
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
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
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
        if !self.close(id) && self.nic.is_leaving(id) && !self.leaving.contains(&id) {
            self.leaving.push(id);
        }
    }

    /// Closes a port whose application is gone and whose last command is taken; returns whether it did.
    fn close(&mut self, id: PortId) -> bool {
        let has_closed = self.nic.has_closed(id);
        if has_closed {
            self.call(|firmware, nic| firmware.on_port_closed(nic, id));
            self.numbers.release(id);
        }
        has_closed
    }

    /// Handles received frames that faults have delayed until now.
    #[cfg(all(any(target_os = "linux", feature = "unstable"), not(all(test, midplane_loom))))]
    pub(crate) fn deliver_delayed(&mut self) {
        while let Some((_, frame)) = self.nic.delayed_frame() {
            self.deliver(&frame);
        }
    }

    /// Handles a frame that was received and checked.
    #[cfg(all(any(target_os = "linux", feature = "unstable"), not(all(test, midplane_loom))))]
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
                self.call(|firmware, nic| firmware.on_frame(nic, frame));
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

    /// Stops the firmware when first called. Returns until when its peers are waited for, or `None` if they are not.
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

    /// Returns until when the peers of a stopping NIC are waited for.
    pub(crate) const fn stopping(&self) -> Option<Instant> {
        self.stopping
    }
}
