//! A NIC over UDP: its firmware, its socket, and one turn of both.

use std::sync::Arc;

use super::batch::{Datagram, Inbox};
use super::link::{self, Nic, UdpLink};
use super::observe;
use crate::drops::DropCause;
use crate::frame::{Frame, Header, Kind};
use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::nic::{self, NicCounters};
use crate::port::Bells;
use crate::region::Payload;
use crate::seal::{Envelope, EnvelopeError, Opened};
use crate::time::Instant;

/// Bytes of the largest datagram.
const MAX_DATAGRAM: usize = 65_536;

/// A running NIC with its receive buffers.
pub(super) struct Engine<F> {
    unit: nic::Engine<F, UdpLink>,
    inbox: Inbox,
    /// The memory in which sealed frames are opened.
    plain: Arc<Vec<u8>>,
    /// The counters that were last reported.
    reported: NicCounters,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(nic: Nic, firmware: F, port_depth: usize) -> Self {
        let is_sealed = nic.link.is_sealed();
        let plain = Arc::new(if is_sealed { vec![0; MAX_DATAGRAM] } else { Vec::new() });
        let unit = nic::Engine::new(firmware, nic, port_depth);
        Self { unit, inbox: Inbox::new(), plain, reported: NicCounters::default() }
    }

    pub(super) const fn unit(&mut self) -> &mut nic::Engine<F, UdpLink> {
        &mut self.unit
    }

    pub(super) const fn nic(&self) -> &Nic {
        &self.unit.nic
    }

    /// Runs one turn: receives a batch of datagrams, handles doorbells and frames, and sends. Makes a system call for
    /// datagrams if the runtime has reported any, or if `polls` is true.
    pub(super) fn turn(&mut self, polls: bool, bells: &Bells) {
        // Frames that are due leave before frames that this turn adds.
        self.unit.nic.hand_over();
        let socket = &self.unit.nic.link.socket;
        let received = match polls {
            true => socket.receive_always(&mut self.inbox),
            false => socket.receive(&mut self.inbox),
        };
        // Doorbells first: a buffer posted before a frame arrived is then known when the frame is handled.
        bells.take(|port| self.unit.ring(port));
        if received {
            self.unit.nic.time.renew();
            self.deliver();
        }
        if self.unit.nic.has_faults() {
            self.deliver_delayed();
        }
        self.finish();
    }

    /// Handles rung doorbells, but no received datagrams.
    pub(super) fn answer_bells(&mut self, bells: &Bells) {
        bells.take(|port| self.unit.ring(port));
        self.finish();
    }

    fn finish(&mut self) {
        self.unit.work();
        self.unit.nic.wake();
        self.unit.nic.hand_over();
    }

    /// Returns whether the next turn has something to do already.
    pub(super) fn has_more(&self) -> bool {
        !self.inbox.was_all() || self.unit.nic.has_work()
    }

    /// Returns whether the last turn has found datagrams.
    pub(super) const fn has_received(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Reports the counts since the last report; returns all counters.
    pub(super) fn report(&mut self) -> NicCounters {
        let before = std::mem::replace(&mut self.reported, self.unit.nic.counters);
        observe::on_report(self.unit.nic.node, &before, &self.reported);
        self.reported
    }

    /// Reports for the last time. Returns the counters, including datagrams that the system dropped for lack of space
    /// in the socket.
    pub(super) fn last_counters(mut self) -> NicCounters {
        let lost = self.unit.nic.link.socket.dropped();
        self.unit.nic.counters.drops.add_many(DropCause::System, lost);
        self.report()
    }

    /// Returns when the NIC has timed work: an alarm, a timeout or a frame to send.
    pub(super) fn next_due(&self) -> Instant {
        let Nic { link, .. } = &self.unit.nic;
        self.unit.nic.next_alarm().min(link.poll_timeout()).min(link.next_send())
    }

    /// Returns until when an ending NIC waits for keys or peers; `None` if it does not wait.
    pub(super) fn lingers(&mut self) -> Option<Instant> {
        // Keys are awaited as long as handshakes are repeated, also after the firmware has stopped waiting.
        let last = match self.unit.stop() {
            Some(until) => until,
            None if self.unit.nic.link.awaits_keys() => Instant::FAR_FUTURE,
            None => return None,
        };
        Some(self.next_due().min(last))
    }

    /// Sends what is staged. If frames are left, returns what [`UdpLink::unsent`] does.
    pub(super) fn flush(&mut self) -> Option<(Instant, Instant)> {
        self.unit.nic.hand_over();
        self.unit.nic.link.unsent()
    }

    /// Hands a batch of datagrams to the firmware.
    fn deliver(&mut self) {
        let Self { unit: nic::Engine { nic, firmware, .. }, plain, inbox, .. } = self;
        for datagram in inbox.datagrams() {
            if !nic.has_faults() || passes_faults(nic, datagram) {
                deliver_datagram(nic, firmware, (plain, inbox.memory()), datagram);
            }
        }
    }

    /// Hands datagrams that faults have delayed until now to the firmware.
    #[cold]
    fn deliver_delayed(&mut self) {
        let Self { unit: nic::Engine { nic, firmware, .. }, plain, .. } = self;
        nic.time.renew();
        while let Some((from, bytes)) = nic.delayed_frame() {
            let (from, memory) = (nic.link.address_of(from), Arc::new(bytes));
            let datagram = Datagram { from, at: nic.time.get(), bytes: &memory };
            deliver_datagram(nic, firmware, (plain, &memory), datagram);
        }
    }
}

/// Returns whether a datagram is handled now: faults may drop or delay it.
#[cold]
fn passes_faults(nic: &mut Nic, datagram: Datagram<'_>) -> bool {
    let source = match Envelope::parse(datagram.bytes) {
        Ok((envelope, _)) => Some(envelope.source),
        Err(_) => Header::parse(datagram.bytes).ok().map(|(header, _)| header.source),
    };
    match source.filter(|source| nic.link.is_from(datagram.from, *source)) {
        Some(source) => nic.passes_faults(source, || datagram.bytes.to_vec()),
        // Without faults it is dropped as well, under the same cause.
        None => true,
    }
}

/// Opens a datagram of `memory` into `plain` if it is sealed, and hands its frame to the firmware.
fn deliver_datagram(
    nic: &mut Nic,
    firmware: &mut impl Firmware,
    (plain, memory): (&mut Arc<Vec<u8>>, &Arc<Vec<u8>>),
    datagram: Datagram<'_>,
) {
    if nic.link.is_sealed() {
        deliver_sealed(nic, firmware, plain, datagram);
    } else {
        deliver(nic, firmware, memory, check(nic, datagram), datagram);
    }
}

/// Passes the frame found in a datagram of `memory` to the firmware. An invalid datagram is counted, never answered.
fn deliver(
    nic: &mut Nic,
    firmware: &mut impl Firmware,
    memory: &Arc<Vec<u8>>,
    checked: Result<Frame<'_>, DropCause>,
    datagram: Datagram<'_>,
) {
    let frame = match checked {
        Ok(frame) => frame,
        Err(cause) => return nic.counters.drops.add(cause),
    };
    match frame.header.kind {
        Kind::Piece => deliver_joined(nic, firmware, &frame),
        Kind::Probe | Kind::Probed => nic.on_probe(&frame.header),
        _ => hand(nic, firmware, memory, frame, datagram.bytes.len()),
    }
}

/// Passes a frame, which lies in `memory` and took `bytes`, to the firmware.
fn hand(
    nic: &mut Nic,
    firmware: &mut impl Firmware,
    memory: &Arc<Vec<u8>>,
    frame: Frame<'_>,
    bytes: usize,
) {
    nic.counters.frames_received += 1;
    nic.counters.bytes_received += bytes as u64;
    nic.link.begin_frame(memory);
    nic.hand(firmware, frame);
}

/// Joins a piece with earlier ones, and passes the frame to the firmware if it is complete.
fn deliver_joined(nic: &mut Nic, firmware: &mut impl Firmware, piece: &Frame<'_>) {
    let joined = match nic.join(piece) {
        Ok(None) => return,
        Ok(Some(bytes)) => Arc::new(bytes),
        Err(cause) => return nic.counters.drops.add(cause),
    };
    match joined_frame(nic, &piece.header, &joined) {
        Ok(frame) => hand(nic, firmware, &joined, frame, joined.len()),
        Err(cause) => nic.counters.drops.add(cause),
    }
    if let Some(bytes) = Arc::into_inner(joined) {
        nic.recycle_joined(bytes);
    }
}

/// Returns the frame that pieces like `piece` make. Checks that it has their source, and is for this node or all nodes.
fn joined_frame<'a>(nic: &Nic, piece: &Header, bytes: &'a [u8]) -> Result<Frame<'a>, DropCause> {
    let (header, payload) = Header::parse(bytes).map_err(|_| DropCause::Malformed)?;
    if !matches!(header.destination, NodeId::BROADCAST) && header.destination != nic.node {
        return Err(DropCause::Misrouted);
    }
    if (header.source, header.incarnation) != (piece.source, piece.incarnation) {
        return Err(DropCause::Stranger);
    }
    if matches!(header.kind, Kind::Piece | Kind::Probe | Kind::Probed) {
        return Err(DropCause::Malformed);
    }
    // Switches change the hop limit of the pieces only.
    let header = Header { destination: nic.node, hop_limit: piece.hop_limit, ..header };
    Ok(Frame { header, payload: Payload::from(payload) })
}

/// Opens a sealed datagram into `plain`, and hands its frame to the firmware.
fn deliver_sealed(
    nic: &mut Nic,
    firmware: &mut impl Firmware,
    plain: &mut Arc<Vec<u8>>,
    datagram: Datagram<'_>,
) {
    let into = Arc::get_mut(plain).expect("a turn gives it back");
    let checked = match open(nic, into, datagram) {
        Ok(None) => return,
        Ok(Some((envelope, length))) => frame_of(nic, &envelope, &plain[..length]),
        Err(cause) => Err(cause),
    };
    deliver(nic, firmware, plain, checked, datagram);
}

fn check<'a>(nic: &Nic, datagram: Datagram<'a>) -> Result<Frame<'a>, DropCause> {
    let (header, payload) = Header::parse(datagram.bytes).map_err(|_| DropCause::Malformed)?;
    if !nic.link.is_from(datagram.from, header.source) {
        return Err(DropCause::Stranger);
    }
    if header.destination != nic.node {
        return Err(DropCause::Misrouted);
    }
    Ok(Frame { header, payload: Payload::from(payload) })
}

/// Opens a sealed datagram; returns the length of the frame in `plain`, or `None` for a handshake message.
fn open(
    nic: &mut Nic,
    plain: &mut [u8],
    datagram: Datagram<'_>,
) -> Result<Option<(Envelope, usize)>, DropCause> {
    let (envelope, body) = Envelope::parse(datagram.bytes).map_err(|error| match error {
        EnvelopeError::Magic if Header::parse(datagram.bytes).is_ok() => DropCause::Unsealed,
        _ => DropCause::Malformed,
    })?;
    if !nic.link.is_from(datagram.from, envelope.source) {
        return Err(DropCause::Stranger);
    }
    Ok(match link::open(nic, &envelope, body, plain)? {
        Opened::Frame(length) => Some((envelope, length)),
        Opened::Handshake => None,
    })
}

/// Returns the frame that was sealed in an envelope.
fn frame_of<'a>(nic: &Nic, envelope: &Envelope, plain: &'a [u8]) -> Result<Frame<'a>, DropCause> {
    let (header, payload) = Header::parse(plain).map_err(|_| DropCause::Malformed)?;
    if (header.source, header.destination) != (envelope.source, nic.node) {
        return Err(DropCause::Misrouted);
    }
    // Switches change the hop limit of the envelope only.
    let header = Header { hop_limit: envelope.hop_limit, ..header };
    Ok(Frame { header, payload: Payload::from(payload) })
}
