//! The loop around a NIC: datagrams, bells and alarms go to the firmware, frames to the socket.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::alarm::Alarm;
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

/// Frames to itself, ends of transfers and alarms that one turn of the loop handles: what arrives
/// from elsewhere waits no longer than they take.
const WORK_PER_TURN: usize = 32;
/// Bytes of the largest datagram.
const MAX_DATAGRAM: usize = 65_536;
/// How long an ending NIC waits for the system to take its last frames.
const FLUSH_NANOS: u64 = 1_000_000_000;

/// What a running NIC consists of.
pub(super) struct Driver<F> {
    wire: Wire,
    nic: Nic,
    firmware: F,
    inbox: Inbox,
    /// Where sealed frames are opened.
    plain: Vec<u8>,
    desk: Arc<Desk>,
    /// The firmware has given back what others wait for; until when they are waited for.
    stopping: Option<Instant>,
}

/// What the driver waits on.
struct Wire {
    socket: Socket,
    alarm: Alarm,
    /// The system takes nothing now.
    blocked: bool,
}

impl<F: Firmware> Driver<F> {
    /// A driver on the current runtime.
    pub(super) fn new(
        socket: std::net::UdpSocket,
        nic: Nic,
        firmware: F,
        desk: Arc<Desk>,
    ) -> std::io::Result<Self> {
        let wire = Wire { socket: Socket::new(socket)?, alarm: Alarm::new()?, blocked: false };
        let plain = if nic.is_sealed() { vec![0; MAX_DATAGRAM] } else { Vec::new() };
        Ok(Self { wire, nic, firmware, inbox: Inbox::new(), plain, desk, stopping: None })
    }

    /// Runs until the desk says to end.
    pub(super) async fn run(mut self) {
        self.turn(|firmware, nic| firmware.on_start(nic));
        loop {
            // What should have left goes before what this turn decides.
            self.transmit();
            let received = self.wire.socket.receive(&mut self.inbox);
            // Bells first: what was posted before a frame arrived is there when it is handled.
            let ending = self.run_errands();
            if received {
                self.deliver();
            }
            self.run_work();
            self.transmit();
            match ending {
                Ending::Running => {}
                Ending::Flush if self.nic.awaits_keys() || self.owes_peers() => {
                    self.wait_for_peers().await;
                    continue;
                }
                Ending::Flush => break,
                Ending::Now => return,
            }
            if !self.inbox.was_all() || self.nic.has_work() {
                self.desk.report(&self.nic.counters);
                tokio::task::yield_now().await;
            } else {
                self.wait().await;
            }
        }
        self.flush().await;
    }

    /// While the NIC ends: whether peers still wait for what the firmware gives back.
    fn owes_peers(&mut self) -> bool {
        let until = match self.stopping {
            Some(until) => until,
            None => {
                self.turn(|firmware, nic| firmware.on_stop(nic));
                *self.stopping.insert(Clock::now() + STOP_PATIENCE)
            }
        };
        !self.firmware.may_stop() && Clock::now() < until
    }

    /// One call of the firmware.
    fn turn(&mut self, call: impl FnOnce(&mut F, &mut Nic)) {
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
            self.turn(|firmware, nic| firmware.on_doorbell(nic, id));
            if self.nic.has_closed(id) {
                self.turn(|firmware, nic| firmware.on_port_closed(nic, id));
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
                    self.turn(|firmware, nic| firmware.on_frame(nic, frame));
                }
                Err(_) => self.nic.counters.drops.add(DropCause::Malformed),
            }
        }
        for _ in 0..WORK_PER_TURN {
            let Some(dma) = self.nic.ended_dma() else { break };
            self.turn(|firmware, nic| firmware.on_dma_done(nic, dma));
        }
        self.nic.begin_turn();
        self.nic.run_keys();
        for _ in 0..TIMERS {
            let Some(timer) = self.nic.expired_timer() else { break };
            self.turn(|firmware, nic| firmware.on_timer(nic, timer));
        }
    }

    /// Hands what is due to the system.
    fn transmit(&mut self) {
        if self.nic.line.is_empty() {
            return self.wire.blocked = false;
        }
        let now = Clock::now();
        loop {
            let due = self.nic.line.due(now);
            match self.wire.socket.send(due) {
                Sent::Taken(0) => break self.wire.blocked = false,
                Sent::Taken(count) => {
                    self.nic.counters.frames_sent += count as u64;
                    self.nic.counters.bytes_sent += self.nic.line.left(now, count);
                }
                Sent::Refused => {
                    self.nic.line.left(now, 1);
                    self.nic.counters.drops.add(DropCause::System);
                }
                Sent::Blocked => break self.wire.blocked = true,
            }
        }
    }

    async fn wait(&mut self) {
        let until = self.nic.next_alarm().min(self.next_send());
        let Self { wire, desk, nic, .. } = self;
        desk.report(&nic.counters);
        // Whoever was told of something answers first, if it is a task of this runtime: an alarm for
        // what the answer makes needless is not set.
        tokio::task::yield_now().await;
        poll_fn(|context| {
            if desk.is_waiting(context.waker()) || wire.socket.poll_readable(context).is_ready() {
                return Poll::Ready(());
            }
            wire.alarm.poll(context, until)
        })
        .await;
    }

    /// When frames are handed to the system next.
    fn next_send(&self) -> Instant {
        if self.wire.blocked {
            Clock::now().plus_nanos(RETRY_NANOS)
        } else {
            self.nic.line.next_due()
        }
    }

    /// While the NIC ends, and frames wait for keys or for answers: no longer than it asks for them.
    async fn wait_for_peers(&mut self) {
        let until = self.nic.next_alarm().min(self.next_send());
        let until = self.stopping.map_or(until, |last| last.min(until));
        let wire = &mut self.wire;
        poll_fn(|context| match wire.socket.poll_readable(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => wire.alarm.poll(context, until),
        })
        .await;
    }

    /// Sends what is staged, for a second past the line's own time at most.
    async fn flush(&mut self) {
        let mut last = Clock::now().plus_nanos(FLUSH_NANOS);
        loop {
            self.transmit();
            if self.nic.line.is_empty() {
                return;
            }
            let now = Clock::now();
            let due = self.nic.line.next_due();
            if due > now {
                last = due.plus_nanos(FLUSH_NANOS);
            } else if now > last {
                return;
            }
            let until = self.next_send();
            poll_fn(|context| self.wire.alarm.poll(context, until)).await;
        }
    }
}

impl<F> Drop for Driver<F> {
    /// However it ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let counters = &mut self.nic.counters;
        counters.drops.add_many(DropCause::System, self.wire.socket.dropped());
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
