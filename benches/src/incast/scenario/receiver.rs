//! The receiver: posts buffers, announces the measured part, and counts messages.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use midplane::nicvm::{coordination, messages};
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Completion, Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware;

use super::super::mailbox::{Either, Mailbox, Note, Sent, Word, by, either, later};
use super::super::setting::{Mode, Service};
use super::{COUNTS, Part, STAMP_BYTES};
use crate::nodes::Failure;

/// Bytes of posted buffers for each kind of message: a third of a second at 100 Mb/s.
const BUFFER_BYTES: usize = 4 << 20;
/// Least number of posted buffers for each kind.
const BUFFERS: usize = 16;
/// Messages of each sender after which the warm-up ends.
const WARM_MESSAGES: u64 = 10;
/// Least time of a warm-up: some rounds of a token.
const WARM_UP: Duration = Duration::from_millis(50);
/// Longest warm-up without coordination; all of a sender's messages may be lost.
const WARM_UP_ALONE: Duration = Duration::from_millis(150);
/// Longest warm-up with coordination; a first token may take some leases.
const WARM_UP_COORDINATED: Duration = Duration::from_secs(3);
/// Time for which the receiver still answers senders whose `Done` it has received.
const LINGER: Duration = Duration::from_millis(50);

/// State of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    here: bool,
    warm: u64,
    /// Least number of its next message.
    next: u32,
    /// Counted messages, and bytes received during the measured part.
    messages: u64,
    bytes: u64,
    sent: Option<Sent>,
}

/// Measurements of a run.
#[derive(Debug)]
pub struct Measured {
    /// Messages that the senders counted.
    pub sent: u64,
    /// Counted messages that arrived.
    pub received: u64,
    /// Bytes from each sender during the measured part.
    pub bytes: Vec<u64>,
    /// Nanoseconds from post to arrival.
    pub latency: Histogram<u64>,
    /// Control messages of all senders.
    pub control_messages: u64,
    /// Senders that never reported what they sent.
    pub lost: Vec<NodeId>,
}

/// Receives from all senders; a sender that does not report at the end what it has sent is lost.
pub async fn receive<H: Host>(host: &H, part: &Part) -> Result<Measured, Failure> {
    let mut mailbox = Mailbox::open(host)?;
    let mut receiver = Receiver::new(host, part)?;
    receiver.gather(host, &mut mailbox).await?;
    receiver.warm_up(host, &mut mailbox).await?;
    receiver.measure(host, &mut mailbox).await?;
    receiver.finish(host, &mut mailbox).await?;
    Ok(receiver.result())
}

/// The receiver's phase, which decides its answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Gathering,
    Warming,
    Measuring,
}

struct Receiver<'a> {
    part: &'a Part,
    port: Port,
    buffers: Vec<Region>,
    sources: BTreeMap<NodeId, Source>,
    phase: Phase,
    /// End of the measured part.
    until: Instant,
    latency: Histogram<u64>,
}

impl<'a> Receiver<'a> {
    fn new<H: Host>(host: &H, part: &'a Part) -> Result<Self, Failure> {
        let mut port = host.open_port().map_err(Failure::stopped)?;
        let setting = &part.setting;
        let bytes = setting.message_bytes as usize;
        let mut buffers = Vec::new();
        for _ in 0..(BUFFER_BYTES / bytes).clamp(BUFFERS, port.depth()) {
            buffers.push(port.register(bytes).map_err(Failure::stopped)?);
        }
        let sources = (1..setting.nodes()).map(|n| (NodeId(n), Source::default())).collect();
        let latency = Histogram::new(3).expect("three digits are few");
        let phase = Phase::Gathering;
        let until = Instant::ZERO;
        let mut receiver = Self { part, port, buffers, sources, phase, until, latency };
        for slot in 0..receiver.buffers.len() {
            receiver.lend(slot)?;
        }
        receiver.port.ring();
        Ok(receiver)
    }

    /// Waits until every sender has said hello.
    async fn gather<H: Host>(&mut self, host: &H, mailbox: &mut Mailbox) -> Result<(), Failure> {
        let limit = later(host, self.part.wait);
        while self.sources.values().any(|source| !source.here) {
            let Some(note) = by(host, limit, mailbox.receive()).await else {
                let away = self.sources.iter().filter(|(_, source)| !source.here);
                return Err(Failure::Unreachable(away.map(|(node, _)| *node).collect()));
            };
            let (from, note) = note?;
            self.on_note(mailbox, from, note)?;
        }
        self.tell_all(mailbox, Word::Start(self.port.id().0))?;
        self.phase = Phase::Warming;
        Ok(())
    }

    /// Waits until every sender has sent enough messages, or until the time limit of the warm-up.
    async fn warm_up<H: Host>(&mut self, host: &H, mailbox: &mut Mailbox) -> Result<(), Failure> {
        let coordinated = self.part.setting.mode != Mode::None;
        let most = if coordinated { WARM_UP_COORDINATED } else { WARM_UP_ALONE };
        let (least, limit) = (later(host, WARM_UP), later(host, most));
        while host.now() < limit {
            let warm = self.sources.values().all(|source| source.warm >= WARM_MESSAGES);
            if warm && host.now() >= least {
                break;
            }
            self.turn(host, mailbox, if warm { least } else { limit }).await?;
        }
        self.tell_all(mailbox, Word::Measure)?;
        self.phase = Phase::Measuring;
        self.until = later(host, Duration::from_secs_f64(self.part.setting.seconds));
        Ok(())
    }

    async fn measure<H: Host>(&mut self, host: &H, mailbox: &mut Mailbox) -> Result<(), Failure> {
        while host.now() < self.until {
            self.turn(host, mailbox, self.until).await?;
        }
        Ok(())
    }

    /// Waits until every sender has reported what it sent.
    async fn finish<H: Host>(&mut self, host: &H, mailbox: &mut Mailbox) -> Result<(), Failure> {
        let limit = later(host, self.part.drain());
        while host.now() < limit && self.sources.values().any(|source| source.sent.is_none()) {
            self.turn(host, mailbox, limit).await?;
        }
        let last = later(host, LINGER);
        while host.now() < last {
            self.turn(host, mailbox, last).await?;
        }
        Ok(())
    }

    /// Handles arrived messages, or waits for one until `until`.
    async fn turn<H: Host>(
        &mut self,
        host: &H,
        mailbox: &mut Mailbox,
        until: Instant,
    ) -> Result<(), Failure> {
        match by(host, until, either(mailbox.receive(), self.port.completion())).await {
            Some(Either::First(note)) => {
                let (from, note) = note?;
                self.on_note(mailbox, from, note)?;
            }
            Some(Either::Second(completion)) => {
                self.on_message(host, &completion.map_err(Failure::stopped)?)?;
                while let Some(completion) = self.port.poll() {
                    self.on_message(host, &completion)?;
                }
                self.port.ring();
            }
            None => {}
        }
        Ok(())
    }

    fn on_note(&mut self, mailbox: &mut Mailbox, from: NodeId, note: Note) -> Result<(), Failure> {
        let round = note.round;
        let Some(source) = self.sources.get_mut(&from) else { return Ok(()) };
        let answer = match note.word {
            // A sender still at the previous run has missed its `End`.
            Word::Done(_) if round < self.part.round => Word::End,
            _ if round != self.part.round => return Ok(()),
            Word::Hello(fingerprint) if fingerprint != self.part.setting.fingerprint() => {
                mailbox.send(from, Note { round, word: Word::Mismatch })?;
                return Err(Failure::Mismatch(from));
            }
            Word::Hello(_) => {
                source.here = true;
                match self.phase {
                    Phase::Gathering => return Ok(()),
                    Phase::Warming => Word::Start(self.port.id().0),
                    Phase::Measuring if source.sent.is_none() => Word::Measure,
                    Phase::Measuring => return Ok(()),
                }
            }
            Word::Done(sent) => {
                source.sent = Some(sent);
                Word::End
            }
            Word::Mismatch | Word::Start(_) | Word::Measure | Word::End => return Ok(()),
        };
        mailbox.send(from, Note { round, word: answer })
    }

    fn on_message<H: Host>(&mut self, host: &H, completion: &Completion) -> Result<(), Failure> {
        let slot = usize::try_from(completion.cookie).expect("it was a slot");
        let node = completion.node;
        let tag = u32::try_from(completion.args[0]).unwrap_or(0);
        let number = tag & !COUNTS;
        if let Some(source) = self.sources.get_mut(&node)
            && completion.status == Status::Done
            && number >= source.next
        {
            source.next = number + 1;
            source.warm += 1;
            if self.phase == Phase::Measuring && host.now() < self.until {
                source.bytes += completion.length;
            }
            if tag & COUNTS != 0 {
                source.messages += 1;
                self.record_latency(host, slot, completion.length);
            }
        }
        self.lend(slot)
    }

    fn record_latency<H: Host>(&mut self, host: &H, slot: usize, length: u64) {
        let mut stamp = [0; STAMP_BYTES];
        if length >= STAMP_BYTES as u64
            && let Some(now) = self.part.stamp(host)
            && self.buffers[slot].read(0, &mut stamp).is_ok()
        {
            let nanos = now.saturating_sub(u64::from_le_bytes(stamp)).max(1);
            self.latency.record(nanos).expect("it grows as it has to");
        }
    }

    fn lend(&mut self, slot: usize) -> Result<(), Failure> {
        let receive = match self.part.setting.mode.service() {
            Service::Messages => messages::receive,
            Service::Coordination => coordination::receive,
            Service::Warp => firmware::receive,
        };
        let command = receive(self.buffers[slot].whole(), slot as u64);
        self.port.post(&command).map_err(Failure::stopped)
    }

    fn tell_all(&self, mailbox: &mut Mailbox, word: Word) -> Result<(), Failure> {
        let note = Note { round: self.part.round, word };
        self.sources.keys().try_for_each(|node| mailbox.send(*node, note))
    }

    fn result(self) -> Measured {
        let senders = &self.sources;
        let sent = senders.values().filter_map(|source| source.sent);
        Measured {
            sent: sent.clone().map(|sent| sent.messages).sum(),
            // The number of messages that a lost sender sent is unknown.
            received: senders
                .values()
                .filter(|source| source.sent.is_some())
                .map(|source| source.messages)
                .sum(),
            bytes: senders.values().map(|source| source.bytes).collect(),
            control_messages: sent.map(|sent| sent.control_messages).sum(),
            latency: self.latency,
            lost: senders
                .iter()
                .filter(|(_, source)| source.sent.is_none())
                .map(|(node, _)| *node)
                .collect(),
        }
    }
}
