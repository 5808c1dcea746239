//! The end of every turn and the alarm's work: dispatching events to extensions, and frames to the line.

use midplane_simhw::hardware::{Hardware, Source, TransmitRefused};
use midplane_simhw::port::Status;
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;

use super::slot::Handler;
use super::{ALARM, ROUNDS_PER_TURN, Unit};
use crate::context::PortEvent;
use crate::control::MAX_MESSAGE;
use crate::extension::{TransmitEvent, UnitEvent};
use crate::planted::{self, Bug};
use crate::transmit::{News, TRANSMIT_INSTRUCTIONS};

impl Unit {
    /// Ends a turn in which only handlers of commands and data frames ran.
    #[inline]
    pub(super) fn finish_handlers(&mut self, hw: &mut dyn Hardware) {
        if !self.is_quiet() {
            self.finish(hw);
        }
    }

    /// Returns whether the end of the turn has no work: nothing waits to be sent or dispatched, and no alarm has moved.
    #[inline]
    fn is_quiet(&self) -> bool {
        let services = self.services.as_ref().expect("the unit has started");
        !services.needs_turn_end
            && services.transmit.is_idle()
            && services.control.is_idle()
            && services.port_events.is_empty()
            && self.is_settled()
            && self.waiting.is_empty()
            && self.unfinished.is_empty()
            && self.abandoned.is_empty()
    }

    /// Ends any turn: dispatches events, sends frames, sets the alarm.
    pub(super) fn finish(&mut self, hw: &mut dyn Hardware) {
        for _ in 0..ROUNDS_PER_TURN {
            self.settle(hw);
            self.answer_abandoned(hw);
            self.notify_of_ports(hw);
            self.send(hw);
            let services = self.services.as_mut().expect("the unit has started");
            match services.transmit.next_news() {
                Some(news) => self.on_news(hw, news),
                None if self.is_settled() => break,
                None => {}
            }
        }
        self.set_alarm(hw);
        self.services.as_mut().expect("the unit has started").needs_turn_end = false;
    }

    /// Notifies every extension of ports that were suspended or resumed, of arrivals for watched ports, and of changed
    /// admissions.
    pub(super) fn notify_of_ports(&mut self, hw: &mut dyn Hardware) {
        while let Some(news) =
            self.services.as_mut().and_then(|services| services.port_events.pop_front())
        {
            if let PortEvent::Resumed(port, _) = news
                && !self.unfinished.contains(&port)
            {
                // Doorbells rung while the port was suspended were ignored, so its commands are polled again.
                self.unfinished.push(port);
            }
            for number in self.numbers() {
                let _ = self.run(hw, number, Handler::Other, |extension, nic| match news {
                    PortEvent::Stopped(port) => extension.on_port_suspended(nic, port),
                    PortEvent::Resumed(port, suspended_for) => {
                        extension.on_port_resumed(nic, port, suspended_for)
                    }
                    PortEvent::Arrived(port) => extension.on_port_arrival(nic, port),
                    PortEvent::Admission => extension.on_admission(nic),
                });
            }
        }
    }

    pub(super) fn on_news(&mut self, hw: &mut dyn Hardware, news: News) {
        match news {
            News::Gate(news) => self.on_gate_news(hw, news),
            // The version that replaces the sender does not know its tokens.
            News::Sent(number, epoch, _) if self.epoch(number) != Some(epoch) => {}
            News::Sent(number, _, sent) => {
                let _ = self
                    .run(hw, number, Handler::Other, |extension, nic| extension.on_sent(nic, sent));
            }
            News::Trapped(number, epoch) => {
                self.counters.traps += 1;
                self.events.push_back(UnitEvent::Trapped(number, epoch));
                if self.epoch(number) == Some(epoch) {
                    self.take_down(hw, number);
                }
            }
        }
    }

    pub(super) fn on_gate_news(&mut self, hw: &mut dyn Hardware, news: TransmitEvent) {
        let services = self.services.as_mut().expect("the unit has started");
        if let Some(gate_controller) = services.gate_controller {
            let _ = self.run(hw, gate_controller, Handler::Other, |extension, nic| {
                extension.on_transmit(nic, news);
            });
        } else if let TransmitEvent::Held { destination } = news {
            // No extension controls the gate, so it would never open.
            services.transmit.withdraw(hw, Status::ExtensionDown, |waiting| {
                waiting.controlled && waiting.node == destination
            });
            hw.commit();
        }
    }

    pub(super) fn send(&mut self, hw: &mut dyn Hardware) {
        let services = self.services.as_mut().expect("the unit has started");
        services.transmit.retry_at(Instant::FAR_FUTURE);
        if self.send_control(hw) {
            let services = self.services.as_mut().expect("the unit has started");
            services.transmit.pump(hw);
        }
        hw.commit();
    }

    /// Sends control messages, which precede data frames. A frame to a peer that has no room waits, one for each such
    /// peer. Returns `false` if the line takes no more now.
    pub(super) fn send_control(&mut self, hw: &mut dyn Hardware) -> bool {
        let services = self.services.as_mut().expect("the unit has started");
        let waiting = &mut self.waiting;
        let mut at = 0;
        loop {
            if at == waiting.len() {
                let takes = |node| waiting.iter().all(|(header, _)| header.destination != node);
                let transmit = services.control.poll_transmit_to(hw.now(), takes);
                let Some(transmit) = transmit else { return true };
                let mut body = [0; MAX_MESSAGE];
                body[..transmit.body.len()].copy_from_slice(transmit.body);
                let header = transmit.header;
                waiting.push((header, body));
            }
            let (header, body) = &waiting[at];
            hw.charge(TRANSMIT_INSTRUCTIONS);
            let body = Payload::from(&body[..usize::from(header.length)]);
            match hw.transmit(header, Source::Bytes(body)) {
                Err(TransmitRefused::Busy { until }) => {
                    services.transmit.retry_by(until);
                    return false;
                }
                Err(TransmitRefused::PeerBusy { until }) => {
                    services.transmit.retry_by(until);
                    at += 1;
                }
                // A frame that the NIC does not take counts as lost, and the send window resends it.
                Ok(_) | Err(_) => {
                    waiting.remove(at);
                }
            }
        }
    }

    pub(super) fn set_alarm(&mut self, hw: &mut dyn Hardware) {
        let services = self.services.as_ref().expect("the unit has started");
        let control = services.control.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let mut next = control.min(services.timeouts.next()).min(services.transmit.next());
        next = next.min(self.drained_at).min(self.quiet_at);
        if !self.unfinished.is_empty() || services.transmit.has_news() || !self.is_settled() {
            next = hw.now();
        }
        if next != self.alarm {
            self.alarm = next;
            hw.set_timer(ALARM, next);
            hw.commit();
        }
    }

    pub(super) fn expire(&mut self, hw: &mut dyn Hardware) {
        let now = hw.now();
        if self.quiet_at <= now {
            self.quiet_at = Instant::FAR_FUTURE;
        }
        let services = self.services.as_mut().expect("the unit has started");
        services.control.handle_timeout(now);
        let early = if planted::is(Bug::TimeoutEarly) { 100_000 } else { 0 };
        services.timeouts.expire(now.plus_nanos(early));
        while let Some((number, timeout)) =
            self.services.as_mut().and_then(|services| services.timeouts.next_expired())
        {
            let _ = self.run(hw, number, Handler::Timeout, |extension, nic| {
                extension.on_timeout(nic, timeout);
            });
        }
        self.end_former(hw, now);
        self.drain_control(hw);
        for port in std::mem::take(&mut self.unfinished) {
            self.take_commands(hw, port);
        }
    }
}
