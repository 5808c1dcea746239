//! One direct interface.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::region::{Payload, RegionRef, SharedMemory};

use super::exposed::Exposed;
use crate::attributes::ViAttributes;
use crate::command::Ends;
use crate::descriptor::{Descriptor, Transfer};
use crate::direct::{Fields, Kind, Lane, Refused};
use crate::memory::RemoteMemory;
use crate::nic::posted::End;
use crate::nic::queues::Queues;
use crate::nic::{ViId, WorkQueue};
use crate::outcome::{AsyncError, DescriptorError, Operation};

/// One direct interface.
#[derive(Debug)]
pub(super) struct Way {
    attributes: ViAttributes,
    /// The connection, if there is one.
    pub(super) ends: Option<Ends>,
    /// The other end was told that this one knows of the connection.
    pub(super) has_greeted: bool,
    /// The other end knows of the connection.
    pub(super) is_open: bool,
    /// Who has greeted last from each node: our number of the connection that it means.
    pub(super) greetings: BTreeMap<NodeId, u16>,
    /// Bytes of the first pending send that are in the other's reach.
    sent: usize,
    /// Bytes of the first pending receive that have come.
    came: u32,
    /// The other end's memory that this one has asked for, by name; what has not come is none.
    reach: BTreeMap<u64, Option<SharedMemory>>,
    /// Names of memory that the other end has asked for and is not answered.
    asks: VecDeque<u64>,
    /// The NIC has to be told that the connection is over.
    pub(super) owes_end: bool,
}

/// Memory that one end may ask for before it is answered: ours asks for one at a time.
const MAX_ASKS: usize = 64;

/// What a NIC keeps of all interfaces.
pub(super) struct Books<'a> {
    pub(super) queues: &'a mut Queues,
    pub(super) errors: &'a mut VecDeque<(ViId, AsyncError)>,
}

impl Books<'_> {
    /// The first descriptor of a queue that has not ended.
    #[inline]
    fn pending(&mut self, vi: PortId, queue: WorkQueue) -> Option<&Descriptor> {
        let (_, descriptor) = self.queues.posted(vi, queue)?.pending()?;
        Some(descriptor)
    }

    /// So it has ended; `false` if there is none.
    #[inline]
    fn end(&mut self, vi: PortId, queue: WorkQueue, end: End) -> bool {
        self.queues.end_pending(vi, queue, end)
    }
}

/// How a descriptor of that queue ended, if no bytes were moved.
pub(super) const fn failed(queue: WorkQueue, error: DescriptorError) -> End {
    let operation = match queue {
        WorkQueue::Receive => Operation::Receive,
        WorkQueue::Send => Operation::Send,
    };
    End { operation, outcome: Err(error), length: 0, immediate: None }
}

/// How it ended, if it did what it was posted for.
const fn done(operation: Operation, length: u32, immediate: Option<u32>) -> End {
    End { operation, outcome: Ok(()), length, immediate }
}

/// Why the connection of an interface is over, beside that it is.
pub(super) type Fault = Option<AsyncError>;

impl Way {
    pub(super) const fn new(attributes: ViAttributes) -> Self {
        Self {
            attributes,
            ends: None,
            has_greeted: false,
            is_open: false,
            greetings: BTreeMap::new(),
            sent: 0,
            came: 0,
            reach: BTreeMap::new(),
            asks: VecDeque::new(),
            owes_end: false,
        }
    }

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
            _ if !is_known => Ok(()),
            Kind::Send => self.take(books, fields, payload),
            Kind::Written => self.on_written(books, fields),
            Kind::Ask if self.asks.len() >= MAX_ASKS => Err(None),
            Kind::Ask => {
                self.asks.push_back(fields.memory);
                Ok(())
            }
            Kind::Deny => self.on_denied(books, fields),
        }
    }

    /// The other end shows memory that this one has asked for, if it has.
    pub(super) fn on_shown(
        &mut self,
        from: NodeId,
        connection: u16,
        name: u64,
        memory: SharedMemory,
    ) {
        let is_known = |ends: &Ends| ends.node == from && ends.connection == connection;
        if self.ends.as_ref().is_some_and(is_known)
            && let Some(place @ None) = self.reach.get_mut(&name)
        {
            *place = Some(memory);
        }
    }

    /// The other end does not let this one write some of its memory.
    fn on_denied(&self, books: &mut Books<'_>, fields: &Fields) -> Result<(), Fault> {
        // What has come was asked for and given: that stands.
        if let Some(None) = self.reach.get(&fields.memory) {
            Self::fail_write(books, PortId(fields.vi));
            return Err(None);
        }
        Ok(())
    }

    /// The write in turn touches what it may not.
    fn fail_write(books: &mut Books<'_>, vi: PortId) {
        let end = failed(WorkQueue::Send, DescriptorError::RdmaProtection);
        books.end(vi, WorkQueue::Send, End { operation: Operation::RdmaWrite, ..end });
    }

    /// The other end has written memory of ours, and its immediate data has come.
    fn on_written(&self, books: &mut Books<'_>, fields: &Fields) -> Result<(), Fault> {
        if !self.attributes.rdma_write {
            return Err(Some(AsyncError::RdmaWriteProtection));
        }
        let is_too_long = fields.total > self.attributes.max_transfer;
        if self.came != 0 || fields.immediate.is_none() || is_too_long {
            // Nobody of ours does that.
            return Err(None);
        }
        let end = done(Operation::RemoteRdmaWrite, fields.total, fields.immediate);
        if books.end(PortId(fields.vi), WorkQueue::Receive, end) {
            Ok(())
        } else {
            Err(Some(AsyncError::ReceiveQueueEmpty))
        }
    }

    /// The next part of a message.
    #[inline]
    fn take(
        &mut self,
        books: &mut Books<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let vi = PortId(fields.vi);
        let Some(descriptor) = books.pending(vi, WorkQueue::Receive) else {
            return Err(Some(AsyncError::ReceiveQueueEmpty));
        };
        let end = fields.offset.checked_add(payload.len() as u32);
        let Some(end) = end.filter(|end| *end <= fields.total && fields.offset == self.came) else {
            // Nobody of ours cuts a message so.
            return Err(None);
        };
        if fields.total as usize > descriptor.bytes() {
            let too_long = failed(WorkQueue::Receive, DescriptorError::Length);
            books.end(vi, WorkQueue::Receive, too_long);
            return Err(None);
        }
        scatter(descriptor, fields.offset as usize, payload);
        self.came = end;
        if end == fields.total {
            self.came = 0;
            let received = done(Operation::Receive, end, fields.immediate);
            books.end(vi, WorkQueue::Receive, received);
        }
        Ok(())
    }

    /// Sends what there is to send, as far as there is room.
    pub(super) fn pump(
        &mut self,
        lane: &mut dyn Lane,
        books: &mut Books<'_>,
        exposed: &Exposed,
        vi: PortId,
        frames: &mut u64,
    ) -> Result<(), Refused> {
        let Some(ends) = self.ends else { return Ok(()) };
        if !self.has_greeted {
            lane.send(ends.node, frame(&ends, Kind::Greeting).to_words(), &[])?;
            self.has_greeted = true;
            *frames += 1;
        }
        self.answer(lane, exposed, &ends, frames)?;
        while self.is_open
            && let Some(descriptor) = books.pending(vi, WorkQueue::Send)
        {
            let total = descriptor.bytes();
            if let Transfer::RdmaWrite(to) = descriptor.transfer {
                match self.write(lane, descriptor, &ends, to)? {
                    Write::Done => self.end_send(books, vi, Operation::RdmaWrite, total),
                    Write::Waits => return Ok(()),
                    Write::Denied => {
                        Self::fail_write(books, vi);
                        return Err(Refused::Gone);
                    }
                }
                *frames += 1;
                continue;
            }
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
            self.end_send(books, vi, Operation::Send, total);
        }
        Ok(())
    }

    /// The send in turn is all in the other's reach.
    fn end_send(&mut self, books: &mut Books<'_>, vi: PortId, operation: Operation, bytes: usize) {
        self.sent = 0;
        books.end(vi, WorkQueue::Send, done(operation, bytes as u32, None));
    }

    /// Shows the other end what it has asked for and may write.
    fn answer(
        &mut self,
        lane: &mut dyn Lane,
        exposed: &Exposed,
        ends: &Ends,
        frames: &mut u64,
    ) -> Result<(), Refused> {
        while let Some(memory) = self.asks.front().copied() {
            let asker = u64::from(ends.remote_vi.0) | u64::from(ends.remote_connection) << 16;
            match exposed.find(memory, &self.attributes) {
                Some(region) => lane.show(ends.node, [memory, asker], &region)?,
                None => {
                    let denial = Fields { memory, ..frame(ends, Kind::Deny) };
                    lane.send(ends.node, denial.to_words(), &[])?;
                }
            }
            self.asks.pop_front();
            *frames += 1;
        }
        Ok(())
    }

    /// Writes a descriptor's bytes where they belong in the other end's memory, once that is in reach.
    fn write(
        &mut self,
        lane: &mut dyn Lane,
        descriptor: &Descriptor,
        ends: &Ends,
        to: RemoteMemory,
    ) -> Result<Write, Refused> {
        let [memory, _] = to.words();
        let (offset, total) = (RegionRef::from_words(to.words()).offset, descriptor.bytes());
        let place = match self.reach.get(&memory) {
            Some(Some(place)) => place,
            Some(None) => return Ok(Write::Waits),
            None => {
                let ask = Fields { memory, ..frame(ends, Kind::Ask) };
                lane.send(ends.node, ask.to_words(), &[])?;
                self.reach.retain(|_, known| known.as_ref().is_none_or(|it| !it.is_revoked()));
                self.reach.insert(memory, None);
                return Ok(Write::Waits);
            }
        };
        let end = (offset as usize).checked_add(total);
        let ends_within = end.is_some_and(|end| end <= place.len());
        if place.is_revoked() || !ends_within {
            return Ok(Write::Denied);
        }
        // Where the news of it found no room before, it is written already.
        if self.sent < total {
            gather(descriptor, |at, part| {
                place.store(offset as usize + at, part).expect("it ends within");
            });
            self.sent = total;
        }
        if let Some(immediate) = descriptor.immediate {
            let (total, immediate) = (total as u32, Some(immediate));
            let news = Fields { total, immediate, ..frame(ends, Kind::Written) };
            lane.send(ends.node, news.to_words(), &[])?;
        }
        Ok(Write::Done)
    }

    /// Forgets the connection, and gives back all that was posted; whether there was one.
    pub(super) fn flush(&mut self, books: &mut Books<'_>, vi: PortId) -> bool {
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            while books.end(vi, queue, failed(queue, DescriptorError::Flushed)) {}
        }
        self.reach.clear();
        self.asks.clear();
        (self.sent, self.came) = (0, 0);
        (self.has_greeted, self.is_open) = (false, false);
        self.ends.take().is_some()
    }
}

/// A frame to the other end of a connection.
const fn frame(ends: &Ends, kind: Kind) -> Fields {
    let (vi, connection) = (ends.remote_vi.0, ends.remote_connection);
    Fields { kind, vi, connection, total: 0, offset: 0, immediate: None, memory: 0 }
}

/// How far a write has come.
enum Write {
    Done,
    /// The other end's memory is not in reach yet.
    Waits,
    /// It is not to be written like that.
    Denied,
}

/// Hands out the parts of a descriptor, each with where in its message it begins.
fn gather(descriptor: &Descriptor, mut part: impl FnMut(usize, Payload<'_>)) {
    let mut at = 0;
    for segment in &descriptor.segments {
        let bytes = segment.memory().view(segment.offset(), segment.len());
        part(at, bytes.expect("a segment is within its memory"));
        at += segment.len();
    }
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
