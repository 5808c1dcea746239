//! Departing messages in registered memory, and data packets of rendezvous messages after their CTS.

use bytes::Bytes;

use super::Core;
use super::any_carrier::AnyCarrier;
use super::departures::Route;
use super::peer::Stream;
use crate::memory::Segment;
use crate::message::carrier::{Carrier as _, Posted, Refusal};
use crate::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};
use crate::message::request::{Failure, Request, State};

impl Core {
    /// Sends a message from registered memory. A short one is copied and sent whole.
    pub(super) fn send_memory(
        &mut self,
        carrier: &mut AnyCarrier,
        request: Request,
        route: Route,
        segment: Segment,
    ) {
        if self.is_short(carrier, route.to, segment.len()) {
            let bytes = segment.to_vec();
            if !self.send_at_once(carrier, request, route, &bytes) {
                self.queue_send(request, route.to, bytes.into());
            }
            return;
        }
        if let Some(record) = self.requests.get_mut(request) {
            record.memory = Some(segment);
        }
        self.queue_send(request, route.to, Bytes::new());
    }

    /// Offers the carrier the registered memory of the receive whose CTS is posted next.
    pub(super) fn offer_memory(&self, carrier: &mut AnyCarrier, peer: Peer, receive: u64) {
        let record = self.requests.get(Request::from_handle(receive));
        if let Some(room) = record.and_then(|record| record.memory.as_ref()) {
            carrier.lend(peer, receive, room);
        }
    }

    /// Completes a send whose memory the NIC no longer reads.
    pub(super) fn on_released(&mut self, handle: u64) {
        let send = Request::from_handle(handle);
        let in_use = self.requests.get(send).filter(|record| record.in_use);
        if let Some(status) = in_use.map(|record| record.status) {
            self.complete(send, status, Ok(()));
        }
    }

    /// Sends the next data packet of a rendezvous message; returns `false` if the carrier has no room for it.
    pub(super) fn send_part(
        &mut self,
        carrier: &mut AnyCarrier,
        peer: Peer,
        mut stream: Stream,
    ) -> bool {
        let record = self.requests.get(stream.send).filter(|it| it.state == State::Active);
        let Some(record) = record else { return true };
        let (bytes, status) = (record.bytes.clone(), record.status);
        let memory = record.memory.clone();
        let end = stream.wanted.min(stream.sent + carrier.part(peer, stream.receive));
        let envelope = Envelope {
            length: (end - stream.sent) as u32,
            tag: Tag(0),
            kind: Kind::Data,
            marks: Marks::NONE,
            source: self.own,
            context: Context(0),
            sequence: 0,
            to: stream.receive,
            from: 0,
        };
        let part = stream.sent..end;
        let posted = match memory.and_then(|memory| memory.part(part.clone())) {
            Some(part) if peer == self.own => {
                self.post(carrier, peer, &envelope, &part.to_vec()).map(|()| Posted::Copied)
            }
            Some(part) => carrier.post_memory(peer, &envelope, &part, stream.send.to_handle()),
            None => self.post(carrier, peer, &envelope, &bytes[part]).map(|()| Posted::Copied),
        };
        if posted == Err(Refusal::Full) {
            self.link_mut(peer).expect("links are never removed").streams.push_front(stream);
            return false;
        }
        if posted == Err(Refusal::Lost) {
            self.link_mut(peer).expect("links are never removed").refused = true;
            self.complete(stream.send, status, Err(Failure::PeerLost(peer)));
            return true;
        }
        stream.sent = end;
        if posted == Ok(Posted::InUse) {
            self.requests.get_mut(stream.send).expect("it was just found").in_use = true;
        } else if end == stream.wanted {
            self.complete(stream.send, status, Ok(()));
        } else {
            self.link_mut(peer).expect("links are never removed").streams.push_back(stream);
        }
        true
    }
}
