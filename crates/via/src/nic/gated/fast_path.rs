//! One interface's path that bypasses the NIC: sends and receives over the host's rings.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::peer_rings::{PeerRings, SendRefused};
use midplane_simhw::port::HostGate;
use midplane_simhw::region::{Payload, RegionRef, SharedMemory};

use super::bytes::{gather, scatter};
use super::exposed::Exposed;
use super::frame::{Fields, Kind};
use super::tables::{Tables, done, failed};
use crate::attributes::ViAttributes;
use crate::command::Ends;
use crate::descriptor::{Descriptor, Transfer};
use crate::memory::RemoteMemory;
use crate::nic::WorkQueue;
use crate::outcome::{AsyncError, DescriptorError, Operation};

/// Most requests to map memory that one end may have pending; a correct host has one at a time.
const MAX_MAP_REQUESTS: usize = 64;

/// Most frames that an interface keeps until the port reports that the host has their queue. The port is polled after
/// each frame, so a correct peer needs room only for frames that arrive while the rings are drained.
const MAX_EARLY: usize = 1024;

/// The holder of a work queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Holder {
    #[default]
    Nic,
    Host,
    /// The host, which has yet to report to the NIC that it returns the queue.
    Returning,
}

/// One work queue of an interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Side {
    pub(super) holder: Holder,
    /// True if the host could take over the queue, and has not offered that to the NIC.
    pub(super) wants: bool,
    /// Commands under way: the offer, and the wait for a recall.
    pub(super) has_offered: bool,
    pub(super) awaits_recall: bool,
    /// The number of the next descriptor that the host has to post to the NIC, which has the queue again.
    pub(super) posts_from: Option<u64>,
}

impl Side {
    /// Returns whether descriptors are not to be posted to the NIC now.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.holder != Holder::Nic || self.posts_from.is_some()
    }
}

/// One interface's state of the bypass.
#[derive(Debug)]
pub(super) struct FastPath {
    attributes: ViAttributes,
    /// The send queue and the receive queue.
    pub(super) sides: [Side; 2],
    /// The node of the other end, while it is connected.
    pub(super) peer: Option<NodeId>,
    /// The connection for which a queue was granted.
    ends: Option<Ends>,
    /// The number under which the gate is open.
    number: u64,
    /// Bytes of the first pending send that were sent.
    sent: usize,
    /// Bytes of the first pending receive that were received.
    received: u32,
    /// Memory of the other end that this one has requested, by name; `None` until it arrives.
    mapped: BTreeMap<u64, Option<SharedMemory>>,
    /// True if the first pending send is a write whose bytes are written, and whose immediate data is not sent.
    has_written: bool,
    /// True if a send can't be done over the rings, and needs the NIC.
    needs_nic: bool,
    /// Names of memory that the other end has requested, and that this end has not answered.
    map_requests: VecDeque<u64>,
    /// Early frames: frames for the receive queue, which the NIC may be granting right now.
    early: Vec<(Fields, Vec<u8>)>,
    /// True if the host has yet to report the connection's end to the NIC.
    pub(super) owes_end: bool,
    /// True if the host has ended the connection, and reported that.
    pub(super) is_broken: bool,
}

/// An error that breaks a connection, besides the break itself; `None` if there is none.
pub(super) type Fault = Option<AsyncError>;

/// Why an interface does not send now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stop {
    /// The ring has no room.
    Full,
    /// The other process has exited.
    Gone,
    /// The gate is closed.
    Closed,
    /// Only the NIC can perform the next send.
    NeedsNic,
}

impl From<SendRefused> for Stop {
    fn from(refused: SendRefused) -> Self {
        if refused == SendRefused::Full { Self::Full } else { Self::Gone }
    }
}

/// The rings and the gate through which an interface sends.
pub(super) struct Rings<'a> {
    pub(super) rings: &'a mut dyn PeerRings,
    pub(super) gate: &'a mut HostGate,
    pub(super) exposed: &'a Exposed,
    /// Number of frames sent.
    pub(super) frames: u64,
}

impl Rings<'_> {
    /// Sends a frame through the gate.
    #[inline]
    fn send(
        &mut self,
        number: u64,
        to: NodeId,
        fields: Fields,
        parts: &[Payload<'_>],
    ) -> Result<(), Stop> {
        let rings = &mut *self.rings;
        let sent = self.gate.post(number, || rings.send_parts(to, fields.to_words(), parts));
        sent.ok_or(Stop::Closed)??;
        self.frames += 1;
        Ok(())
    }
}

impl FastPath {
    pub(super) fn new(attributes: ViAttributes) -> Self {
        Self {
            attributes,
            sides: [Side::default(); 2],
            peer: None,
            ends: None,
            number: 0,
            sent: 0,
            received: 0,
            mapped: BTreeMap::new(),
            has_written: false,
            needs_nic: false,
            map_requests: VecDeque::new(),
            early: Vec::new(),
            owes_end: false,
            is_broken: false,
        }
    }

    #[inline]
    pub(super) fn has(&self, queue: WorkQueue) -> bool {
        self.sides[queue as usize].holder == Holder::Host
    }

    /// Returns whether the host has the send queue, and the gate is open.
    pub(super) fn may_send(&self, gate: &HostGate) -> bool {
        self.has(WorkQueue::Send) && gate.is_open(self.number)
    }

    /// Handles a new connection: the host may take over both queues.
    pub(super) fn link(&mut self, peer: NodeId) {
        (self.peer, self.is_broken, self.needs_nic) = (Some(peer), false, false);
        self.sides.iter_mut().for_each(|side| side.wants = true);
    }

    /// Handles the grant of a queue by the NIC.
    pub(super) fn take(&mut self, queue: WorkQueue, ends: Ends, number: u64) {
        (self.ends, self.peer) = (Some(ends), Some(ends.node));
        self.sides[queue as usize].holder = Holder::Host;
        if queue == WorkQueue::Send {
            self.number = number;
        }
    }

    /// Begins to return a queue. If it `needs_nic`, the NIC keeps the send queue for as long as the connection lasts.
    pub(super) fn give_up(&mut self, queue: WorkQueue, needs_nic: bool) {
        self.needs_nic |= needs_nic;
        let side = &mut self.sides[queue as usize];
        if side.holder == Holder::Host {
            side.holder = Holder::Returning;
        }
    }

    /// Returns how many bytes of a queue's first pending message were sent or received.
    pub(super) const fn progress(&self, queue: WorkQueue) -> u32 {
        match queue {
            WorkQueue::Send => self.sent as u32,
            WorkQueue::Receive => self.received,
        }
    }

    /// Handles the NIC's acceptance of a returned queue.
    pub(super) fn returned(&mut self, queue: WorkQueue) {
        let side = &mut self.sides[queue as usize];
        (side.holder, side.posts_from) = (Holder::Nic, Some(0));
        side.wants = queue == WorkQueue::Receive || !self.needs_nic;
        match queue {
            WorkQueue::Send => {
                (self.sent, self.has_written) = (0, false);
                self.mapped.clear();
            }
            WorkQueue::Receive => self.received = 0,
        }
    }

    /// Returns whether a frame belongs to the current connection.
    fn is_known(&self, from: NodeId, connection: u16) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.node == from && ends.connection == connection)
    }

    /// Returns whether a frame may be for the receive queue, which the NIC may be granting right now.
    pub(super) fn may_be_early(&self, from: NodeId, fields: &Fields) -> bool {
        let receives = &self.sides[WorkQueue::Receive as usize];
        let is_offered = receives.has_offered && receives.holder == Holder::Nic;
        is_offered && fields.kind != Kind::MapDenied && self.peer == Some(from)
    }

    /// Keeps a frame until the NIC grants the queue that it is for. Fails if the other end sends too many before.
    pub(super) fn keep_early(&mut self, fields: Fields, payload: Payload<'_>) -> Result<(), Fault> {
        if self.early.len() >= MAX_EARLY {
            return Err(None);
        }
        self.early.push((fields, payload.to_vec()));
        Ok(())
    }

    pub(super) const fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Drops the early frames, because the NIC does not grant their queue.
    pub(super) fn drop_early(&mut self) {
        self.early = Vec::new();
    }

    /// Handles the early frames, if the host now has the receive queue.
    pub(super) fn deliver_early(&mut self, tables: &mut Tables<'_>) -> Result<(), Fault> {
        let Some(peer) = self.peer.filter(|_| self.has(WorkQueue::Receive)) else { return Ok(()) };
        std::mem::take(&mut self.early).into_iter().try_for_each(|(fields, payload)| {
            self.on_frame(tables, peer, &fields, Payload::from(&payload[..]))
        })
    }

    /// Handles a frame to this interface.
    #[inline]
    pub(super) fn on_frame(
        &mut self,
        tables: &mut Tables<'_>,
        from: NodeId,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        if !self.is_known(from, fields.connection) {
            return Ok(());
        }
        match fields.kind {
            Kind::Send if self.has(WorkQueue::Receive) => self.receive(tables, fields, payload),
            Kind::Written if self.has(WorkQueue::Receive) => self.on_written(tables, fields),
            Kind::Send | Kind::Written => Ok(()),
            Kind::MapRequest if self.map_requests.len() >= MAX_MAP_REQUESTS => Err(None),
            Kind::MapRequest => {
                self.map_requests.push_back(fields.memory);
                Ok(())
            }
            Kind::MapDenied => {
                self.needs_nic |= matches!(self.mapped.get(&fields.memory), Some(None));
                Ok(())
            }
        }
    }

    /// Handles memory that the other end shares, if this one has requested it.
    pub(super) fn on_shown(
        &mut self,
        from: NodeId,
        connection: u16,
        name: u64,
        memory: SharedMemory,
    ) {
        if self.is_known(from, connection)
            && let Some(place @ None) = self.mapped.get_mut(&name)
        {
            *place = Some(memory);
        }
    }

    /// Handles the immediate data of a write to this process's memory.
    fn on_written(&self, tables: &mut Tables<'_>, fields: &Fields) -> Result<(), Fault> {
        if !self.attributes.rdma_write {
            return Err(Some(AsyncError::RdmaWriteProtection));
        }
        let is_too_long = fields.total > self.attributes.max_transfer;
        if self.received != 0 || fields.immediate.is_none() || is_too_long {
            // No correct host sends that.
            return Err(None);
        }
        let end = done(Operation::RemoteRdmaWrite, fields.total, fields.immediate);
        if tables.end(PortId(fields.vi), WorkQueue::Receive, end) {
            Ok(())
        } else {
            Err(Some(AsyncError::ReceiveQueueEmpty))
        }
    }

    /// Receives the next part of a message.
    #[inline]
    fn receive(
        &mut self,
        tables: &mut Tables<'_>,
        fields: &Fields,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let vi = PortId(fields.vi);
        let Some(descriptor) = tables.pending(vi, WorkQueue::Receive) else {
            return Err(Some(AsyncError::ReceiveQueueEmpty));
        };
        let end = fields.offset.checked_add(payload.len() as u32);
        let Some(end) = end.filter(|end| *end <= fields.total && fields.offset == self.received)
        else {
            // No correct host cuts a message like this.
            return Err(None);
        };
        if fields.total as usize > descriptor.bytes() {
            let too_long = failed(WorkQueue::Receive, DescriptorError::Length);
            tables.end(vi, WorkQueue::Receive, too_long);
            return Err(None);
        }
        scatter(descriptor, fields.offset as usize, payload);
        self.received = end;
        if end == fields.total {
            self.received = 0;
            let received = done(Operation::Receive, end, fields.immediate);
            tables.end(vi, WorkQueue::Receive, received);
        }
        Ok(())
    }

    /// Sends pending frames, as far as there is room.
    #[inline]
    pub(super) fn pump(
        &mut self,
        out: &mut Rings<'_>,
        tables: &mut Tables<'_>,
        vi: PortId,
    ) -> Result<(), Stop> {
        let Some(ends) = self.ends else { return Ok(()) };
        if !self.map_requests.is_empty() {
            self.answer(out, &ends)?;
        }
        if !self.has(WorkQueue::Send) {
            return Ok(());
        }
        if self.needs_nic {
            return Err(Stop::NeedsNic);
        }
        while let Some(descriptor) = tables.pending(vi, WorkQueue::Send) {
            let total = descriptor.bytes();
            let operation = match descriptor.transfer {
                Transfer::Send => {
                    self.send(out, descriptor, &ends)?;
                    Operation::Send
                }
                Transfer::RdmaWrite(to) => match self.write(out, descriptor, &ends, to)? {
                    true => Operation::RdmaWrite,
                    false if out.gate.is_open(self.number) => return Ok(()),
                    false => return Err(Stop::Closed),
                },
                Transfer::RdmaRead(_) => return Err(Stop::NeedsNic),
            };
            (self.sent, self.has_written) = (0, false);
            tables.end(vi, WorkQueue::Send, done(operation, total as u32, None));
        }
        Ok(())
    }

    /// Sends the rest of a message.
    #[inline]
    fn send(
        &mut self,
        out: &mut Rings<'_>,
        descriptor: &Descriptor,
        ends: &Ends,
    ) -> Result<(), Stop> {
        let total = descriptor.bytes();
        loop {
            let next = (self.sent + out.rings.mtu()).min(total);
            let fields = Fields {
                total: total as u32,
                offset: self.sent as u32,
                immediate: descriptor.immediate,
                ..Fields::to(ends, Kind::Send)
            };
            send_part(out, (self.number, ends.node), fields, descriptor, self.sent..next)?;
            self.sent = next;
            if next == total {
                return Ok(());
            }
        }
    }

    /// Answers the other end's requests to map memory. Answers carry no data, so they pass a closed gate.
    fn answer(&mut self, out: &mut Rings<'_>, ends: &Ends) -> Result<(), Stop> {
        while let Some(memory) = self.map_requests.front().copied() {
            let asker = u64::from(ends.remote_vi.0) | u64::from(ends.remote_connection) << 16;
            match out.exposed.find(memory, &self.attributes) {
                Some(region) => out.rings.show(ends.node, [memory, asker], &region)?,
                None => {
                    let denial = Fields { memory, ..Fields::to(ends, Kind::MapDenied) };
                    out.rings.send_parts(ends.node, denial.to_words(), &[])?;
                }
            }
            self.map_requests.pop_front();
            out.frames += 1;
        }
        Ok(())
    }

    /// Writes a descriptor's bytes to the other end's memory. Returns `false` until that is mapped.
    fn write(
        &mut self,
        out: &mut Rings<'_>,
        descriptor: &Descriptor,
        ends: &Ends,
        to: RemoteMemory,
    ) -> Result<bool, Stop> {
        let [memory, _] = to.words();
        let (offset, total) = (RegionRef::from_words(to.words()).offset, descriptor.bytes());
        let place = match self.mapped.get(&memory) {
            Some(Some(place)) => place,
            Some(None) => return Ok(false),
            None => {
                let ask = Fields { memory, ..Fields::to(ends, Kind::MapRequest) };
                out.send(self.number, ends.node, ask, &[])?;
                self.mapped.retain(|_, known| known.as_ref().is_none_or(|it| !it.is_revoked()));
                self.mapped.insert(memory, None);
                return Ok(false);
            }
        };
        let end = (offset as usize).checked_add(total);
        if place.is_revoked() || end.is_none_or(|end| end > place.len()) {
            // Leaves writes to revoked memory, and writes past its end, to the NICs, which check them.
            return Err(Stop::NeedsNic);
        }
        if !self.has_written {
            let store = || {
                gather(descriptor, |at, part| {
                    place.store(offset as usize + at, part).expect("it ends within");
                });
            };
            out.gate.post(self.number, store).ok_or(Stop::Closed)?;
            out.frames += 1;
            self.has_written = true;
        }
        if let Some(immediate) = descriptor.immediate {
            let (total, immediate) = (total as u32, Some(immediate));
            let written = Fields { total, immediate, ..Fields::to(ends, Kind::Written) };
            out.send(self.number, ends.node, written, &[])?;
        }
        Ok(true)
    }

    /// Resets the path at the end of a connection: the NIC has both queues of the next one.
    pub(super) fn unlink(&mut self) {
        for side in &mut self.sides {
            (side.holder, side.wants, side.posts_from) = (Holder::Nic, false, None);
        }
        self.mapped.clear();
        self.map_requests.clear();
        self.drop_early();
        self.owes_end = false;
        (self.sent, self.received, self.has_written) = (0, 0, false);
        (self.ends, self.peer) = (None, None);
    }

    /// Returns whether the path has work that no further event will start.
    pub(super) fn is_behind(&self) -> bool {
        let owes = |side: &Side| {
            side.holder == Holder::Returning
                || side.posts_from.is_some()
                || side.holder == Holder::Host && !side.awaits_recall
        };
        self.owes_end
            || !self.map_requests.is_empty()
            || self.needs_nic && self.has(WorkQueue::Send)
            || self.sides.iter().any(owes)
    }
}

/// Sends these bytes of a descriptor as a frame.
#[inline]
fn send_part(
    out: &mut Rings<'_>,
    (number, to): (u64, NodeId),
    fields: Fields,
    descriptor: &Descriptor,
    range: Range<usize>,
) -> Result<(), Stop> {
    if let [one] = &descriptor.segments[..] {
        let part = one.memory().view(one.offset() + range.start, range.len());
        return out.send(number, to, fields, &[part.expect("a segment is within its memory")]);
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
    out.send(number, to, fields, &parts)
}
