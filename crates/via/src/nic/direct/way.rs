//! One direct interface.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::region::Payload;

use crate::command::{Ended, Ends, POST_RECEIVE, POST_SEND};
use crate::descriptor::Descriptor;
use crate::direct::{Fields, Kind, Lane, Refused};
use crate::nic::ViId;
use crate::nic::operations::{Operation, Operations};
use crate::nic::queues::Queues;
use crate::outcome::{self, AsyncError, DescriptorError};

/// One direct interface.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The connection, if there is one.
    pub(super) ends: Option<Ends>,
    /// The other end was told that this one knows of the connection.
    pub(super) has_greeted: bool,
    /// The other end knows of the connection.
    pub(super) is_open: bool,
    /// Who has greeted last from each node: our number of the connection that it means.
    pub(super) greetings: BTreeMap<NodeId, u16>,
    /// Cookies of the sends that are not all in the other's reach, and bytes of the first that are.
    pub(super) sends: VecDeque<u64>,
    pub(super) sent: usize,
    /// Cookies of the receives that no message has filled, and bytes of the first that have come.
    pub(super) receives: VecDeque<u64>,
    pub(super) came: u32,
    /// The NIC has to be told that the connection is over.
    pub(super) owes_end: bool,
}

/// What a NIC keeps of all interfaces.
pub(super) struct Books<'a> {
    pub(super) queues: &'a mut Queues,
    pub(super) operations: &'a mut Operations,
    pub(super) errors: &'a mut VecDeque<(ViId, AsyncError)>,
}

impl Books<'_> {
    pub(super) fn end(&mut self, ended: Ended) {
        self.queues.end(self.operations, ended);
    }

    pub(super) fn descriptor(&mut self, cookie: u64) -> Option<&Descriptor> {
        match self.operations.get(cookie) {
            Some(Operation::Descriptor { descriptor, .. }) => Some(descriptor),
            _ => None,
        }
    }
}

/// How a descriptor of the queue with this opcode ended.
pub(super) const fn ended(
    opcode: u8,
    vi: PortId,
    cookie: u64,
    outcome: Result<(), DescriptorError>,
    length: u32,
) -> Ended {
    let operation = match opcode {
        POST_RECEIVE => outcome::Operation::Receive,
        _ => outcome::Operation::Send,
    };
    Ended { opcode, vi, cookie, operation, outcome, length, immediate: None }
}

/// Why the connection of an interface is over, beside that it is.
pub(super) type Fault = Option<AsyncError>;

impl Way {
    /// A frame to this interface.
    pub(super) fn on_frame(
        &mut self,
        books: &mut Books<'_>,
        from: NodeId,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let is_known = |ends: &Ends| ends.node == from && ends.connection == fields.connection;
        let is_known = self.ends.as_ref().is_some_and(is_known);
        match fields.kind {
            Kind::Greeting => {
                self.greetings.insert(from, fields.connection);
                self.is_open |= is_known;
                Ok(())
            }
            Kind::Send if is_known => self.take(books, fields, payload),
            Kind::Send => Ok(()),
        }
    }

    /// The next part of a message.
    fn take(
        &mut self,
        books: &mut Books<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let vi = PortId(fields.vi);
        let Some(cookie) = self.receives.front().copied() else {
            return Err(Some(AsyncError::ReceiveQueueEmpty));
        };
        let Some(descriptor) = books.descriptor(cookie) else { return Err(None) };
        let end = fields.offset.checked_add(payload.len() as u32);
        let Some(end) = end.filter(|end| *end <= fields.total && fields.offset == self.came) else {
            // Nobody of ours cuts a message so.
            return Err(None);
        };
        if fields.total as usize > descriptor.bytes() {
            self.receives.pop_front();
            books.end(ended(POST_RECEIVE, vi, cookie, Err(DescriptorError::Length), 0));
            return Err(None);
        }
        scatter(descriptor, fields.offset as usize, payload);
        self.came = end;
        if end == fields.total {
            self.receives.pop_front();
            self.came = 0;
            let ended = ended(POST_RECEIVE, vi, cookie, Ok(()), end);
            books.end(Ended { immediate: fields.immediate, ..ended });
        }
        Ok(())
    }

    /// Sends what there is to send, as far as there is room.
    pub(super) fn pump(
        &mut self,
        lane: &mut dyn Lane,
        books: &mut Books<'_>,
        vi: PortId,
        frames: &mut u64,
    ) -> Result<(), Refused> {
        let Some(ends) = self.ends else { return Ok(()) };
        if !self.has_greeted {
            lane.send(ends.node, frame(&ends, Kind::Greeting).to_words(), &[])?;
            self.has_greeted = true;
            *frames += 1;
        }
        while self.is_open
            && let Some(cookie) = self.sends.front().copied()
        {
            let Some(descriptor) = books.descriptor(cookie) else { return Err(Refused::Gone) };
            let total = descriptor.bytes();
            loop {
                let next = (self.sent + lane.mtu()).min(total);
                let fields = Fields {
                    total: total as u32,
                    offset: self.sent as u32,
                    immediate: descriptor.immediate,
                    ..frame(&ends, Kind::Send)
                };
                send_part(lane, ends.node, &fields, descriptor, self.sent..next)?;
                *frames += 1;
                self.sent = next;
                if next == total {
                    break;
                }
            }
            self.sends.pop_front();
            self.sent = 0;
            books.end(ended(POST_SEND, vi, cookie, Ok(()), total as u32));
        }
        Ok(())
    }

    /// Forgets the connection, and gives back all that was posted; whether there was one.
    pub(super) fn flush(&mut self, books: &mut Books<'_>, vi: PortId) -> bool {
        let Self { sends, receives, .. } = self;
        let flushed = Err(DescriptorError::Flushed);
        for cookie in sends.drain(..) {
            books.end(ended(POST_SEND, vi, cookie, flushed, 0));
        }
        for cookie in receives.drain(..) {
            books.end(ended(POST_RECEIVE, vi, cookie, flushed, 0));
        }
        (self.sent, self.came) = (0, 0);
        (self.has_greeted, self.is_open) = (false, false);
        self.ends.take().is_some()
    }
}

/// A frame to the other end of a connection.
const fn frame(ends: &Ends, kind: Kind) -> Fields {
    let (vi, connection) = (ends.remote_vi.0, ends.remote_connection);
    Fields { kind, vi, connection, total: 0, offset: 0, immediate: None }
}

/// Sends these bytes of a descriptor's.
#[inline]
fn send_part(
    lane: &mut dyn Lane,
    to: NodeId,
    fields: &Fields,
    descriptor: &Descriptor,
    range: std::ops::Range<usize>,
) -> Result<(), Refused> {
    let words = fields.to_words();
    if let [one] = &descriptor.segments[..] {
        let part = one.memory().view(one.offset() + range.start, range.len());
        return lane.send(to, words, &[part.expect("a segment is within its memory")]);
    }
    let mut parts = Vec::with_capacity(descriptor.segments.len());
    let mut before = 0;
    for segment in &descriptor.segments {
        let (start, end) = (range.start.max(before), range.end.min(before + segment.len()));
        if start < end {
            let part = segment.memory().view(segment.offset() + start - before, end - start);
            parts.push(part.expect("a segment is within its memory"));
        }
        before += segment.len();
    }
    lane.send(to, words, &parts)
}

/// Puts a payload where it belongs in a descriptor that has room for it.
fn scatter(descriptor: &Descriptor, offset: usize, payload: Payload<'_>) {
    let (mut before, end) = (0, offset + payload.len());
    for segment in &descriptor.segments {
        let (start, stop) = (offset.max(before), end.min(before + segment.len()));
        if start < stop {
            let part = payload.slice(start - offset..stop - offset).expect("a part of it");
            let stored = segment.memory().store(segment.offset() + start - before, part);
            stored.expect("a segment is within its memory");
        }
        before += segment.len();
    }
}
