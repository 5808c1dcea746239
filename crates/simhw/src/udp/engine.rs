//! A NIC over UDP with its firmware and its socket, and what a turn of them consists of.

use std::sync::Arc;

use super::batch::{Datagram, Inbox, RETRY_NANOS, Sent, Socket};
use super::clock::Clock;
use super::desk::{Desk, Ending};
use super::nic::Nic;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, Hardware, STOP_PATIENCE, TIMERS};
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
    socket: Socket,
    /// The system takes nothing now.
    blocked: bool,
    nic: Nic,
    firmware: F,
    inbox: Inbox,
    /// Where sealed frames are opened.
    plain: Vec<u8>,
    desk: Arc<Desk>,
    /// The firmware has given back what others wait for; until when they are waited for.
    stopping: Option<Instant>,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(socket: Socket, nic: Nic, firmware: F, desk: Arc<Desk>) -> Self {
        let plain = if nic.is_sealed() { vec![0; MAX_DATAGRAM] } else { Vec::new() };
        let inbox = Inbox::new();
        let mut engine =
            Self { socket, blocked: false, nic, firmware, inbox, plain, desk, stopping: None };
        engine.call(|firmware, nic| firmware.on_start(nic));
        engine
    }

    /// Everything that there is to do, up to a batch of it. The system is asked for what has arrived if
    /// the runtime has told of any, or if it `looks` by itself.
    pub(super) fn turn(&mut self, looks: bool) -> Ending {
        // What should have left goes before what this turn decides.
        self.transmit();
        let received = match looks {
            true => self.socket.receive_unasked(&mut self.inbox),
            false => self.socket.receive(&mut self.inbox),
        };
        // Bells first: what was posted before a frame arrived is there when it is handled.
        let ending = self.run_errands();
        if received {
            self.deliver();
        }
        self.run_work();
        self.transmit();
        ending
    }

    /// What was rung for, and nothing that has arrived.
    pub(super) fn answer_bells(&mut self) {
        self.run_errands();
        self.run_work();
        self.transmit();
    }

    /// Whether the next turn has something to do already.
    pub(super) fn has_more(&self) -> bool {
        !self.inbox.was_all() || self.nic.has_work()
    }

    pub(super) fn report(&self) {
        self.desk.report(&self.nic.counters);
    }

    /// When the NIC has something to do by itself.
    pub(super) fn next_due(&self) -> Instant {
        self.nic.next_alarm().min(self.next_send())
    }

    /// When frames are handed to the system next.
    fn next_send(&self) -> Instant {
        if self.blocked { Clock::now().plus_nanos(RETRY_NANOS) } else { self.nic.line.next_due() }
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
        self.transmit();
        (!self.nic.line.is_empty()).then(|| self.next_send())
    }

    /// One call of the firmware.
    fn call(&mut self, call: impl FnOnce(&mut F, &mut Nic)) {
        self.nic.begin_turn();
        call(&mut self.firmware, &mut self.nic);
        self.nic.end_turn();
    }

    /// Hands a batch of datagrams to the firmware.
    fn deliver(&mut self) {
        for datagram in self.inbox.datagrams() {
            deliver(&mut self.nic, &mut self.firmware, &mut self.plain, datagram);
        }
    }

    /// What hosts have left: ports, bells, the end.
    fn run_errands(&mut self) -> Ending {
        let errands = self.desk.collect();
        for (id, port) in errands.opened {
            self.nic.open_port(id, port);
        }
        for id in errands.rung {
            self.nic.sync_port(id);
            self.call(|firmware, nic| firmware.on_doorbell(nic, id));
            if self.nic.has_closed(id) {
                self.call(|firmware, nic| firmware.on_port_closed(nic, id));
                self.desk.release(id);
            }
        }
        errands.ending
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
        for _ in 0..TIMERS {
            let Some(timer) = self.nic.expired_timer() else { break };
            self.call(|firmware, nic| firmware.on_timer(nic, timer));
        }
    }

    /// Hands what is due to the system.
    fn transmit(&mut self) {
        if self.nic.line.is_empty() {
            return self.blocked = false;
        }
        let now = Clock::now();
        loop {
            let due = self.nic.line.due(now);
            match self.socket.send(due) {
                Sent::Taken(0) => break self.blocked = false,
                Sent::Taken(count) => {
                    self.nic.counters.frames_sent += count as u64;
                    self.nic.counters.bytes_sent += self.nic.line.left(now, count);
                }
                Sent::Refused => {
                    self.nic.line.left(now, 1);
                    self.nic.counters.drops.add(DropCause::System);
                }
                Sent::Blocked => break self.blocked = true,
            }
        }
    }
}

impl<F> Drop for Engine<F> {
    /// However it ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let counters = &mut self.nic.counters;
        counters.drops.add_many(DropCause::System, self.socket.dropped());
        self.desk.close(counters);
    }
}

/// Checks a datagram and hands it to the firmware. What is wrong is counted, never answered.
fn deliver(nic: &mut Nic, firmware: &mut impl Firmware, plain: &mut [u8], datagram: Datagram<'_>) {
    let checked =
        if nic.is_sealed() { open(nic, plain, datagram) } else { check(nic, datagram).map(Some) };
    match checked {
        Ok(Some(frame)) => {
            nic.counters.frames_received += 1;
            nic.counters.bytes_received += datagram.bytes.len() as u64;
            nic.begin_turn();
            firmware.on_frame(nic, frame);
            nic.end_turn();
        }
        Ok(None) => {}
        Err(cause) => nic.counters.drops.add(cause),
    }
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

/// The frame of a sealed datagram, if it is not about keys alone.
fn open<'a>(
    nic: &mut Nic,
    plain: &'a mut [u8],
    datagram: Datagram<'_>,
) -> Result<Option<Frame<'a>>, DropCause> {
    let (envelope, body) = Envelope::parse(datagram.bytes).map_err(|error| match error {
        EnvelopeError::Magic if Header::parse(datagram.bytes).is_ok() => DropCause::Unsealed,
        _ => DropCause::Malformed,
    })?;
    if !nic.is_from(datagram.from, envelope.source) {
        return Err(DropCause::Stranger);
    }
    let Opened::Frame(length) = nic.open(&envelope, body, plain)? else { return Ok(None) };
    let (header, payload) = Header::parse(&plain[..length]).map_err(|_| DropCause::Malformed)?;
    if (header.source, header.destination) != (envelope.source, nic.node()) {
        return Err(DropCause::Misrouted);
    }
    // What switches have made of it stands outside.
    let header = Header { hop_limit: envelope.hop_limit, ..header };
    Ok(Some(Frame { header, payload: Payload::from(payload) }))
}
