//! One turn of a NIC's firmware: its event, its requests, and their effects.

use super::World;
use super::event_queue::Event;
use super::nic::{SimHardware, Work};
use crate::frame::{Frame, HEADER_BYTES, Header};
use crate::hardware::{Firmware, Hardware};
use crate::id::NodeId;
use crate::region::Payload;
use crate::time::Instant;
use crate::trace::Engine;

/// The frame that a turn handles, taken out of the pool meanwhile; empty if the turn handles none.
#[derive(Default)]
struct Current {
    header: Header,
    payload: Vec<u8>,
    number: Option<u64>,
    is_looped: bool,
}

impl<F: Firmware> World<F> {
    /// Gives the coprocessor an event, now or when it is free.
    pub(super) fn dispatch(&mut self, node: NodeId, work: Work) {
        let nic = &mut self.nics[node.index()];
        if nic.busy_until <= self.now && nic.inbox.is_empty() {
            self.turn(node, work, true);
            return;
        }
        nic.inbox.push_back(work);
        if nic.inbox.len() == 1 {
            self.schedule_coprocessor(node);
        }
    }

    /// Handles the next waiting event of a coprocessor that has become free.
    pub(super) fn on_coprocessor(&mut self, node: NodeId) {
        if let Some(work) = self.nics[node.index()].inbox.pop_front() {
            self.turn(node, work, false);
        }
        self.schedule_coprocessor(node);
    }

    fn schedule_coprocessor(&mut self, node: NodeId) {
        let nic = &self.nics[node.index()];
        if !nic.inbox.is_empty() {
            let event = Event::Coprocessor { node, restarts: nic.restarts };
            self.queue.schedule(nic.busy_until.max(self.now), event);
        }
    }

    /// Runs one turn of a NIC's firmware. `idle` is true if the coprocessor was not busy.
    fn turn(&mut self, node: NodeId, work: Work, idle: bool) {
        let nic = &mut self.nics[node.index()];
        let mut current = Current::default();
        match work {
            Work::Frame(key) => {
                let arrived = self.network.frames.at(key);
                current = Current {
                    header: arrived.header,
                    payload: std::mem::take(&mut arrived.payload),
                    number: Some(arrived.number),
                    is_looped: arrived.looped,
                };
                nic.held -= HEADER_BYTES as u32 + current.payload.len() as u32;
            }
            Work::Doorbell(port) => nic.answer(port),
            Work::Timer(timer) if !nic.take_alarm(timer) => return,
            _ => {}
        }
        let active_faults = &mut self.network.active_faults;
        let times = if active_faults.is_none() { 1 } else { active_faults.instruction_times(node) };
        let mut hw = SimHardware {
            nic,
            network: &mut self.network,
            queue: &mut self.queue,
            now: self.now,
            current: &current.payload,
            cost_ps: 0,
            times,
            frame: current.number,
            looped: current.is_looped,
            left: false,
        };
        hw.begin_event(idle && !matches!(work, Work::Start | Work::Doorbell(_)));
        let firmware = &mut self.firmware[node.index()];
        call(firmware, &mut hw, work, &current);
        hw.abort();
        while let Some(port) = hw.nic.ports.take_closed(None) {
            firmware.on_port_closed(&mut hw, port);
            hw.abort();
            hw.nic.forget_completions(port);
            self.shared.release_port(node, port);
        }
        let (left, reached) = (hw.left, hw.reached());
        self.keep_busy(node, work, reached, current.number);
        if let Work::Frame(key) = work {
            self.network.frames.at(key).payload = current.payload;
            if left {
                self.leave(node, key);
                return;
            }
            self.nics[node.index()].offered = false;
            self.network.deliver(key);
        }
        if self.network.back_pressure.is_on() {
            self.offer(node);
        }
    }

    /// Occupies the coprocessor until `reached`, or longer with a fault. If the firmware runs on the host, occupies the
    /// host's processor as well.
    fn keep_busy(&mut self, node: NodeId, work: Work, mut reached: Instant, frame: Option<u64>) {
        if !self.network.active_faults.is_none()
            && let Some(by) = self.network.active_faults.overrun(node)
        {
            reached += by;
        }
        let nic = &mut self.nics[node.index()];
        nic.busy_until = reached;
        if nic.host.runs_firmware {
            let (now, nanos) = (self.now, reached.nanos_since(self.now));
            self.shared.processors(|processors| processors.interrupt(node, now, nanos));
        }
        let coprocessor = Engine::Coprocessor(node);
        self.network.watch.busy(coprocessor, self.now, reached, work.name(), frame);
    }
}

/// Calls the handler for `work`.
fn call<F: Firmware>(firmware: &mut F, hw: &mut SimHardware<'_>, work: Work, current: &Current) {
    match work {
        Work::Start => firmware.on_start(hw),
        Work::Doorbell(port) => {
            firmware.on_doorbell(hw, port);
            hw.nic.ports.sync(port);
        }
        Work::Frame(_) => {
            // The frame's buffer may be posted without a doorbell.
            if hw.nic.ports.has_posted(&current.header) {
                firmware.on_doorbell(hw, current.header.port);
                hw.abort();
            }
            let payload = Payload::from(&current.payload[..]);
            firmware.on_frame(hw, Frame { header: current.header, payload });
        }
        Work::DmaDone(dma) => firmware.on_dma_done(hw, dma),
        Work::Timer(timer) => firmware.on_timer(hw, timer),
    }
}
