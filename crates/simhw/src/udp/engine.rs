//! A NIC over UDP with its firmware and its socket, and what a turn of them consists of.

use std::sync::Arc;

use super::batch::{Datagram, Inbox};
use super::clock::Clock;
use super::nic::Nic;
use super::shared::{Ending, Shared};
use crate::drops::DropCause;
use crate::frame::{Frame, Header, Kind};
use crate::hardware::{Firmware, Hardware, STOP_PATIENCE, TIMERS};
use crate::id::{NodeId, PortId};
use crate::region::Payload;
use crate::seal::{Envelope, EnvelopeError, Opened};
use crate::time::Instant;

/// Frames to itself, ends of transfers and alarms that one turn handles: what arrives
/// from elsewhere waits no longer than they take.
const WORK_PER_TURN: usize = 32;
/// Bytes of the largest datagram.
const MAX_DATAGRAM: usize = 65_536;

/// What a running NIC consists of.
pub(super) struct Engine<F> {
    nic: Nic,
    firmware: F,
    inbox: Inbox,
    /// Where sealed frames are opened.
    plain: Arc<Vec<u8>>,
    shared: Arc<Shared>,
    /// Ports that close once the firmware has taken what was posted.
    leaving: Vec<PortId>,
    /// The firmware has given back what others wait for; until when they are waited for.
    stopping: Option<Instant>,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(nic: Nic, firmware: F, shared: Arc<Shared>) -> Self {
        let plain = Arc::new(if nic.is_sealed() { vec![0; MAX_DATAGRAM] } else { Vec::new() });
        let inbox = Inbox::new();
        let mut engine =
            Self { nic, firmware, inbox, plain, shared, leaving: Vec::new(), stopping: None };
        engine.call(|firmware, nic| firmware.on_start(nic));
        engine
    }

    /// Everything that there is to do, up to a batch of it. The system is asked for what has arrived if
    /// the runtime has told of any, or if it `looks` by itself.
    pub(super) fn turn(&mut self, looks: bool) -> Ending {
        // What should have left goes before what this turn decides.
        self.nic.hand_over();
        let received = match looks {
            true => self.nic.socket.receive_unasked(&mut self.inbox),
            false => self.nic.socket.receive(&mut self.inbox),
        };
        // Bells first: what was posted before a frame arrived is there when it is handled.
        let ending = self.run_errands();
        if received {
            self.deliver();
        }
        self.run_work();
        self.nic.hand_over();
        ending
    }

    /// What was rung for, and nothing that has arrived.
    pub(super) fn answer_bells(&mut self) {
        self.run_errands();
        self.run_work();
        self.nic.hand_over();
    }

    /// Whether the next turn has something to do already.
    pub(super) fn has_more(&self) -> bool {
        !self.inbox.was_all() || self.nic.has_work()
    }

    /// Whether the last turn has found datagrams.
    pub(super) const fn has_received(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(super) fn report(&self) {
        self.shared.report(&self.nic.counters);
    }

    /// When the NIC has something to do by itself.
    pub(super) fn next_due(&self) -> Instant {
        self.nic.next_alarm().min(self.nic.next_send())
    }

    /// While the NIC ends: until when it waits for keys or for peers, if it does.
    pub(super) fn lingers(&mut self) -> Option<Instant> {
        let waits = self.nic.awaits_keys() || self.owes_peers();
        let last = self.stopping.unwrap_or(Instant::FAR_FUTURE);
        waits.then(|| self.next_due().min(last))
    }

    /// While the NIC ends: whether peers still wait for what the firmware gives back.
    fn owes_peers(&mut self) -> bool {
        let until = match self.stopping {
            Some(until) => until,
            None => {
                self.call(|firmware, nic| firmware.on_stop(nic));
                *self.stopping.insert(Clock::now() + STOP_PATIENCE)
            }
        };
        !self.firmware.may_stop() && Clock::now() < until
    }

    /// Sends what is staged; when the next of it is due, if anything is left.
    pub(super) fn flush(&mut self) -> Option<Instant> {
        self.nic.hand_over();
        (!self.nic.line.is_empty()).then(|| self.nic.next_send())
    }

    /// One call of the firmware.
    fn call(&mut self, call: impl FnOnce(&mut F, &mut Nic)) {
        self.nic.begin_turn();
        call(&mut self.firmware, &mut self.nic);
        self.nic.end_turn();
    }

    /// Hands a batch of datagrams to the firmware.
    fn deliver(&mut self) {
        let Self { nic, firmware, plain, inbox, .. } = self;
        for datagram in inbox.datagrams() {
            if nic.is_sealed() {
                deliver_sealed(nic, firmware, plain, datagram);
            } else {
                deliver(nic, firmware, inbox.memory(), check(nic, datagram), datagram);
            }
        }
    }

    /// What hosts have left: ports, bells, the end.
    fn run_errands(&mut self) -> Ending {
        let work = self.shared.collect();
        for (id, port) in work.opened {
            self.nic.open_port(id, port);
        }
        for id in work.rung {
            self.nic.sync_port(id);
            self.call(|firmware, nic| firmware.on_doorbell(nic, id));
            if !self.close(id) && self.nic.is_leaving(id) && !self.leaving.contains(&id) {
                self.leaving.push(id);
            }
        }
        work.ending
    }

    /// A port whose application is gone closes once all that it has posted is taken; whether that is so.
    fn close(&mut self, id: PortId) -> bool {
        let has_closed = self.nic.has_closed(id);
        if has_closed {
            self.call(|firmware, nic| firmware.on_port_closed(nic, id));
            self.shared.release(id);
        }
        has_closed
    }

    /// What the NIC has for itself.
    fn run_work(&mut self) {
        for _ in 0..WORK_PER_TURN {
            let Some(frame) = self.nic.looped_frame() else { break };
            match Header::parse(&frame) {
                Ok((header, payload)) => {
                    let frame = Frame { header, payload: Payload::from(payload) };
                    self.call(|firmware, nic| firmware.on_frame(nic, frame));
                }
                Err(_) => self.nic.counters.drops.add(DropCause::Malformed),
            }
        }
        for _ in 0..WORK_PER_TURN {
            let Some(dma) = self.nic.ended_dma() else { break };
            self.call(|firmware, nic| firmware.on_dma_done(nic, dma));
        }
        self.nic.begin_turn();
        self.nic.run_keys();
        self.nic.run_paths();
        for _ in 0..TIMERS {
            let Some(timer) = self.nic.expired_timer() else { break };
            self.call(|firmware, nic| firmware.on_timer(nic, timer));
        }
        // The firmware may have taken the last that was posted just now.
        for id in std::mem::take(&mut self.leaving) {
            if !self.close(id) && self.nic.is_leaving(id) {
                self.leaving.push(id);
            }
        }
    }
}

impl<F> Drop for Engine<F> {
    /// However it ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let dropped = self.nic.socket.dropped();
        let counters = &mut self.nic.counters;
        counters.drops.add_many(DropCause::System, dropped);
        self.shared.close(counters);
    }
}

/// Hands what has been found in a datagram to the firmware; it lies in `memory`. What is wrong is counted,
/// never answered.
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

/// Hands a frame, which lies in `memory` and took `bytes`, to the firmware.
fn hand(
    nic: &mut Nic,
    firmware: &mut impl Firmware,
    memory: &Arc<Vec<u8>>,
    frame: Frame<'_>,
    bytes: usize,
) {
    nic.counters.frames_received += 1;
    nic.counters.bytes_received += bytes as u64;
    nic.begin_frame(memory);
    firmware.on_frame(nic, frame);
    nic.end_turn();
}

/// Joins a piece with those before it, and hands the frame to the firmware if it is whole.
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

/// The frame that pieces like `piece` make: from whom they are, and for this node or all.
fn joined_frame<'a>(nic: &Nic, piece: &Header, bytes: &'a [u8]) -> Result<Frame<'a>, DropCause> {
    let (header, payload) = Header::parse(bytes).map_err(|_| DropCause::Malformed)?;
    if !matches!(header.destination, NodeId::EVERYBODY) && header.destination != nic.node() {
        return Err(DropCause::Misrouted);
    }
    if (header.source, header.incarnation) != (piece.source, piece.incarnation) {
        return Err(DropCause::Stranger);
    }
    if matches!(header.kind, Kind::Piece | Kind::Probe | Kind::Probed) {
        return Err(DropCause::Malformed);
    }
    // What switches have made of it stands on its pieces.
    let header = Header { destination: nic.node(), hop_limit: piece.hop_limit, ..header };
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
    if !nic.is_from(datagram.from, header.source) {
        return Err(DropCause::Stranger);
    }
    if header.destination != nic.node() {
        return Err(DropCause::Misrouted);
    }
    Ok(Frame { header, payload: Payload::from(payload) })
}

/// Opens a sealed datagram: how long the frame in `plain` is now, if it is not about keys alone.
fn open(
    nic: &mut Nic,
    plain: &mut [u8],
    datagram: Datagram<'_>,
) -> Result<Option<(Envelope, usize)>, DropCause> {
    let (envelope, body) = Envelope::parse(datagram.bytes).map_err(|error| match error {
        EnvelopeError::Magic if Header::parse(datagram.bytes).is_ok() => DropCause::Unsealed,
        _ => DropCause::Malformed,
    })?;
    if !nic.is_from(datagram.from, envelope.source) {
        return Err(DropCause::Stranger);
    }
    Ok(match nic.open(&envelope, body, plain)? {
        Opened::Frame(length) => Some((envelope, length)),
        Opened::Handshake => None,
    })
}

/// The frame that was sealed in an envelope.
fn frame_of<'a>(nic: &Nic, envelope: &Envelope, plain: &'a [u8]) -> Result<Frame<'a>, DropCause> {
    let (header, payload) = Header::parse(plain).map_err(|_| DropCause::Malformed)?;
    if (header.source, header.destination) != (envelope.source, nic.node()) {
        return Err(DropCause::Misrouted);
    }
    // What switches have made of it stands outside.
    let header = Header { hop_limit: envelope.hop_limit, ..header };
    Ok(Frame { header, payload: Payload::from(payload) })
}
