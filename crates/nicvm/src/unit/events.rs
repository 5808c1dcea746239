//! The events of its NIC that a unit handles.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::frame::{Frame, Kind};
use midplane_simhw::hardware::{Firmware, Hardware};
use midplane_simhw::id::{DmaId, ExtensionId, PortId, TimerId};
use midplane_simhw::port::Status;
use midplane_simhw::time::Instant;

use super::slot::{ExtensionCounters, Handler};
use super::{ANSWERS_FOR, Unit};
use crate::context::UnitServices;
use crate::control::Control;
use crate::planted::{self, Bug};
use crate::timeout::Timeouts;
use crate::transmit::Transmit;

impl Firmware for Unit {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        let control = Control::new(hw.node(), hw.incarnation(), self.config);
        self.services = Some(UnitServices {
            control,
            timeouts: Timeouts::default(),
            transmit: Transmit::default(),
            effects: Vec::new(),
            staged: Vec::new(),
            needs_turn_end: true,
            gate_controller: None,
            control_refused: 0,
            own: VecDeque::new(),
            changes: VecDeque::new(),
            counters: Box::new([ExtensionCounters::default(); 256]),
            stopped: BTreeMap::new(),
            fences: VecDeque::new(),
            port_events: VecDeque::new(),
        });
        for number in self.numbers() {
            self.init(hw, number);
        }
        self.finish(hw);
    }

    fn on_stop(&mut self, hw: &mut impl Hardware) {
        (self.is_stopping, self.quiet_at) = (true, hw.now() + ANSWERS_FOR);
        self.deactivate(hw);
    }

    fn may_stop(&self) -> bool {
        let is_settled =
            self.services.as_ref().is_none_or(|services| services.control.is_settled());
        is_settled && self.quiet_at == Instant::FAR_FUTURE
    }

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        self.take_commands(hw, port);
        self.finish_handlers(hw);
    }

    fn on_port_closed(&mut self, hw: &mut impl Hardware, port: PortId) {
        for number in self.numbers() {
            let _ = self.run(hw, number, Handler::Other, |extension, nic| {
                extension.on_port_closed(nic, port);
            });
        }
        for index in 0..self.slots.len() {
            let former = self.slots[index].as_mut().and_then(|slot| slot.former.take());
            if let Some(former) = former {
                self.call_former(hw, ExtensionId(index as u8), former, |extension, nic| {
                    extension.on_port_closed(nic, port);
                });
            }
        }
        // A frame that still waits would later complete on the port that is given this number next.
        let services = self.services.as_mut().expect("the unit has started");
        services.forget_port(port);
        services.transmit.withdraw(hw, Status::Cancelled, |waiting| waiting.port == Some(port));
        hw.commit();
        self.finish(hw);
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let header = frame.header;
        if header.kind != Kind::Data {
            self.on_control_frame(hw, &frame);
            self.finish(hw);
        } else if self.is_for(hw.node(), hw.incarnation(), &header) {
            self.counters.data_frames += 1;
            let _ = self.run(hw, header.extension, Handler::Frame, |extension, nic| {
                extension.on_data(nic, header.source, &frame);
            });
            self.finish_handlers(hw);
        } else {
            self.counters.stale_frames += 1;
            let services = self.services.as_mut().expect("the unit has started");
            services.control.handle_stale_data(hw.now(), &header);
            self.finish(hw);
        }
    }

    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId) {
        let services = self.services.as_mut().expect("the unit has started");
        let at = services.fences.iter().position(|(ended, ..)| *ended == dma);
        if let Some((_, number, epoch, token)) = at.and_then(|at| services.fences.remove(at))
            && self.epoch(number) == Some(epoch)
        {
            let _ = self.run(hw, number, Handler::Other, |extension, nic| {
                extension.on_written(nic, token);
            });
        }
        self.finish_handlers(hw);
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        if !planted::is(Bug::AlarmAssumed) {
            self.alarm = Instant::FAR_FUTURE;
        }
        self.expire(hw);
        self.finish(hw);
    }
}
