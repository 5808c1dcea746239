//! The handling of received frames.

use super::super::flow::{Flow, MAX_WINDOW};
use super::super::frame::{FIN, Header, Incoming, Kind, MAX_CONTROL, Reason};
use super::{BUDGET, Core, Direct, Event, MAX_STREAMS, MOVE_AFTER};
use crate::session::MAX_SERVICE;

impl Core {
    /// Handles one frame; returns `None` if it violates the protocol.
    pub(super) fn handle(
        &mut self,
        incoming: Incoming,
        direct: Option<&mut Direct<'_, '_>>,
    ) -> Option<()> {
        let header = Header::parse(incoming.words)?;
        if header.kind == Kind::Data {
            return self.on_data(header, incoming, direct);
        }
        if incoming.length > MAX_CONTROL {
            return None;
        }
        let mut payload = vec![0; incoming.length];
        self.wire.read(&mut payload);
        match header.kind {
            Kind::Hello => {
                // Only the newest counts, so that no peer makes this process store many. It takes the place of
                // the first, so that a peer's description always comes before its streams.
                match self.events.iter_mut().find(|event| matches!(event, Event::Hello(_))) {
                    Some(earlier) => *earlier = Event::Hello(payload),
                    None => self.events.push_back(Event::Hello(payload)),
                }
            }
            Kind::Goodbye => self.events.push_back(Event::Goodbye),
            Kind::Open => return self.on_open(header, payload),
            _ => return self.on_control(header),
        }
        // A correct peer does not send so many events before they are handled.
        (self.events.len() <= MAX_STREAMS).then_some(())
    }

    fn on_open(&mut self, header: Header, payload: Vec<u8>) -> Option<()> {
        let is_theirs = header.stream % 2 != self.next % 2;
        let is_long = payload.len() > MAX_SERVICE;
        if !is_theirs || is_long || self.flows.contains_key(&header.stream) {
            return None;
        }
        let service = String::from_utf8(payload).ok()?;
        let window = self.first_window();
        self.committed += window;
        self.opened_by_peer += 1;
        let mut flow = Flow::new(window, header.value, false);
        if self.opened_by_peer > MAX_STREAMS {
            if self.opened_by_peer > 2 * MAX_STREAMS {
                return None;
            }
            (flow.reset, flow.due.reset) = (Some(Reason::TooMany), Some(Reason::TooMany));
            flow.is_dropped = true;
            self.counted.refused += 1;
            self.flows.insert(header.stream, flow);
            self.queue(header.stream);
            return Some(());
        }
        self.flows.insert(header.stream, flow);
        self.events.push_back(Event::Opened { stream: header.stream, service });
        Some(())
    }

    /// Handles a frame about a stream. If the stream has ended here, the peer sent the frame before it knew that, and
    /// the frame is ignored.
    fn on_control(&mut self, header: Header) -> Option<()> {
        let Some(flow) = self.flows.get_mut(&header.stream) else { return Some(()) };
        match header.kind {
            Kind::Accepted => {
                flow.is_accepted = true;
                flow.send.limit = flow.send.limit.max(header.value);
                self.wakers.extend(flow.take_wakers());
            }
            Kind::Credit => {
                flow.send.limit = flow.send.limit.max(header.value);
                self.wakers.extend(flow.send.waker.take());
            }
            Kind::Blocked => self.widen(header.stream),
            Kind::Stop => {
                flow.send.is_stopped = true;
                self.wakers.extend(flow.send.waker.take());
            }
            Kind::Reset => {
                flow.reset = flow.reset.or_else(|| Some(Reason::of(header.value)));
                flow.due = Default::default();
                self.wakers.extend(flow.take_wakers());
                self.forget_if_over(header.stream);
            }
            _ => return None,
        }
        Some(())
    }

    /// Ends a turn of the driver; returns whether data of several streams have arrived in it.
    pub(in crate::session) fn end_turn(&mut self) -> bool {
        std::mem::take(&mut self.turn).1
    }

    /// Doubles a stream's window: the peer waits for credit although the application reads as fast as it can.
    fn widen(&mut self, stream: u32) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let receive = &mut flow.receive;
        let keeps_up = receive.held.is_empty();
        let is_long = receive.received >= MOVE_AFTER;
        let grows = receive.window.min(MAX_WINDOW - receive.window);
        if keeps_up && self.committed + grows <= BUDGET {
            receive.window += grows;
            self.consumed(stream, 0);
        }
        if is_long {
            self.ask_to_move(stream);
        }
    }

    fn on_data(
        &mut self,
        header: Header,
        incoming: Incoming,
        direct: Option<&mut Direct<'_, '_>>,
    ) -> Option<()> {
        let (former, has_several) = self.turn;
        self.turn = (header.stream, has_several || former != 0 && former != header.stream);
        let Self { wire, flows, .. } = self;
        let Some(flow) = flows.get_mut(&header.stream) else {
            wire.skip();
            return Some(());
        };
        if incoming.left == incoming.length {
            flow.receive.received += incoming.length as u64;
            self.counted.bytes_received += incoming.length as u64;
            let is_ended = flow.receive.is_finished || flow.receive.end.is_some();
            if flow.receive.received > flow.receive.granted || is_ended {
                return None;
            }
        }
        let mut left = incoming.left;
        let mut taken = 0;
        if let Some(direct) = direct.filter(|direct| direct.stream == header.stream) {
            if flow.receive.held.is_empty() {
                taken = left.min(direct.into.remaining());
                wire.append(taken, direct.into);
                left -= taken;
            }
            if left > 0 {
                self.parts = self.parts.wrapping_add(1);
                self.consumed(header.stream, taken as u64);
                return Some(());
            }
        }
        let is_lost = flow.is_dropped || flow.reset.is_some();
        if is_lost {
            taken += left;
            wire.skip();
        } else if left > 0 {
            flow.receive.held.add(left, |out| wire.read(out));
        } else if incoming.length == 0 {
            wire.skip();
        }
        if header.flags & FIN != 0 {
            if header.value > 0 && header.value < flow.receive.received {
                return None;
            }
            if flow.reset.is_none() {
                flow.on_end(header.value);
            }
        }
        self.wakers.extend(flow.receive.waker.take());
        self.consumed(header.stream, taken as u64);
        self.reset_if_cut(header.stream);
        self.forget_if_over(header.stream);
        Some(())
    }
}
