//! A sender: keeps its port full, and counts the messages of the measured part.

use std::time::Duration;

use midplane::nicvm::{coordination, messages};
use midplane::simhw::host::Host;
use midplane::simhw::id::PortId;
use midplane::simhw::port::{Command, Completion, Port};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware;

use super::super::mailbox::{Either, Mailbox, Note, REPEAT, Sent, Word, by, either, later};
use super::super::setting::Service;
use super::{COUNTS, POSTED, Part, RECEIVER, STAMP_BYTES};
use crate::nodes::Failure;

/// Cookie of the request for the coordination's counters.
const COUNTERS_COOKIE: u64 = u64::MAX;
/// Time limit for the receiver's `Measure`.
const WARM_UP_LIMIT: Duration = Duration::from_secs(6);

/// Sends to the receiver until it has confirmed the number; returns the counts.
pub async fn send<H: Host>(host: &H, part: &Part) -> Result<Sent, Failure> {
    let mut mailbox = Mailbox::open(host)?;
    let port = say_hello(host, part, &mut mailbox).await?;
    let mut pump = Pump::new(host, part, port)?;
    pump.begin(host).await;
    pump.until_measured(host, &mut mailbox).await?;
    pump.measure(host).await?;
    let sent = pump.drain(host).await?;
    say_done(host, part, &mut mailbox, sent).await?;
    Ok(sent)
}

/// Says hello; returns the port for messages, which the receiver announces once all nodes have started.
async fn say_hello<H: Host>(
    host: &H,
    part: &Part,
    mailbox: &mut Mailbox,
) -> Result<PortId, Failure> {
    let hello = Note { round: part.round, word: Word::Hello(part.setting.fingerprint()) };
    // The receiver waits as long for the other senders, and reports missing ones itself.
    let limit = later(host, part.wait);
    while host.now() < limit {
        mailbox.send(RECEIVER, hello)?;
        let repeat = later(host, REPEAT);
        while let Some(note) = by(host, repeat, mailbox.receive()).await {
            match note? {
                (RECEIVER, Note { round, word: Word::Start(port) }) if round == part.round => {
                    return Ok(PortId(port));
                }
                (RECEIVER, Note { round, word: Word::Mismatch }) if round == part.round => {
                    return Err(Failure::Mismatch(RECEIVER));
                }
                _ => {}
            }
        }
    }
    Err(Failure::Unreachable(vec![RECEIVER]))
}

/// Reports the counts to the receiver until it confirms.
async fn say_done<H: Host>(
    host: &H,
    part: &Part,
    mailbox: &mut Mailbox,
    sent: Sent,
) -> Result<(), Failure> {
    let done = Note { round: part.round, word: Word::Done(sent) };
    let limit = later(host, part.drain());
    while host.now() < limit {
        mailbox.send(RECEIVER, done)?;
        let repeat = later(host, REPEAT);
        while let Some(note) = by(host, repeat, mailbox.receive()).await {
            let (from, note) = note?;
            if from == RECEIVER && note == (Note { round: part.round, word: Word::End }) {
                return Ok(());
            }
        }
    }
    Err(Failure::Lost(vec![RECEIVER.0]))
}

/// A port that is kept full.
struct Pump<'a> {
    part: &'a Part,
    port: Port,
    target: PortId,
    memory: Region,
    message_bytes: usize,
    service: Service,
    /// Slots that the NIC does not read.
    free: Vec<u32>,
    next: u32,
    counts: bool,
    sent: Sent,
    /// Control messages at the begin of counting, once known.
    counters: Vec<u64>,
}

impl<'a> Pump<'a> {
    fn new<H: Host>(host: &H, part: &'a Part, target: PortId) -> Result<Self, Failure> {
        let mut port = host.open_port().map_err(Failure::stopped)?;
        let message_bytes = part.setting.message_bytes as usize;
        let memory = port.register(message_bytes * POSTED as usize).map_err(Failure::stopped)?;
        Ok(Self {
            part,
            port,
            target,
            memory,
            message_bytes,
            service: part.setting.mode.service(),
            free: (0..POSTED).collect(),
            next: 0,
            counts: false,
            sent: Sent::default(),
            counters: Vec::new(),
        })
    }

    /// Waits a random time, so that senders do not begin in step.
    async fn begin<H: Host>(&self, host: &H) {
        let message = self.part.setting.message_nanos(self.part.setting.message_bytes);
        let delay = host.rng("sender").below(message);
        host.sleep_until(host.now().plus_nanos(delay)).await;
    }

    async fn until_measured<H: Host>(
        &mut self,
        host: &H,
        mailbox: &mut Mailbox,
    ) -> Result<(), Failure> {
        let limit = later(host, self.part.wait + WARM_UP_LIMIT);
        let wanted = Note { round: self.part.round, word: Word::Measure };
        while host.now() < limit {
            // The `Measure` note may be lost: ask again.
            let repeat = later(host, REPEAT * 10);
            while host.now() < repeat {
                let turn = self.turn(host, repeat);
                match either(mailbox.receive(), turn).await {
                    Either::First(note) if note.clone()? == (RECEIVER, wanted) => return Ok(()),
                    Either::First(_) => {}
                    Either::Second(result) => result?,
                }
            }
            let hello = Word::Hello(self.part.setting.fingerprint());
            mailbox.send(RECEIVER, Note { round: self.part.round, word: hello })?;
        }
        Err(Failure::Lost(vec![RECEIVER.0]))
    }

    async fn measure<H: Host>(&mut self, host: &H) -> Result<(), Failure> {
        let end = later(host, Duration::from_secs_f64(self.part.setting.seconds));
        self.ask_counters()?;
        self.counts = true;
        while host.now() < end {
            self.turn(host, end).await?;
        }
        self.ask_counters()
    }

    /// Waits until all posted messages have left.
    async fn drain<H: Host>(&mut self, host: &H) -> Result<Sent, Failure> {
        let limit = later(host, self.part.drain());
        while self.port.outstanding() > 0 {
            match by(host, limit, self.port.completion()).await {
                Some(completion) => self.reap(completion.map_err(Failure::stopped)?),
                None => return Err(Failure::Stopped("messages are stuck in the NIC".into())),
            }
        }
        if let [first, last] = self.counters[..] {
            self.sent.control_messages = last - first;
        }
        Ok(self.sent)
    }

    /// Fills the port, then waits until a message has left, or until `until`.
    async fn turn<H: Host>(&mut self, host: &H, until: Instant) -> Result<(), Failure> {
        self.fill(host)?;
        if let Some(completion) = by(host, until, self.port.completion()).await {
            self.reap(completion.map_err(Failure::stopped)?);
            while let Some(completion) = self.port.poll() {
                self.reap(completion);
            }
        }
        Ok(())
    }

    fn fill<H: Host>(&mut self, host: &H) -> Result<(), Failure> {
        let mut posted = false;
        while let Some(slot) = self.free.pop() {
            self.post(host, slot)?;
            posted = true;
        }
        if posted {
            self.port.ring();
        }
        Ok(())
    }

    fn post<H: Host>(&mut self, host: &H, slot: u32) -> Result<(), Failure> {
        let at = slot as usize * self.message_bytes;
        if self.message_bytes >= STAMP_BYTES {
            let stamp = self.part.stamp(host).unwrap_or(0);
            self.memory.write(at, &stamp.to_le_bytes()).map_err(Failure::stopped)?;
        }
        let range = self.memory.range(at, self.message_bytes).expect("within the region");
        let command = match self.service {
            Service::Messages => messages::send,
            Service::Coordination => coordination::send,
            Service::Warp => firmware::send,
        };
        let tag = self.next | if self.counts { COUNTS } else { 0 };
        let command = Command {
            args: [u64::from(tag), 0, 0],
            ..command(RECEIVER, self.target, range, u64::from(slot))
        };
        self.port.post(&command).map_err(Failure::stopped)?;
        self.next = (self.next + 1) % COUNTS;
        self.sent.messages += u64::from(self.counts);
        Ok(())
    }

    fn ask_counters(&mut self) -> Result<(), Failure> {
        if self.service != Service::Coordination {
            return Ok(());
        }
        let command = Command {
            extension: coordination::COORDINATION,
            opcode: coordination::COUNTERS,
            cookie: COUNTERS_COOKIE,
            ..Command::default()
        };
        self.port.submit(&command).map_err(Failure::stopped)
    }

    fn reap(&mut self, completion: Completion) {
        if completion.cookie == COUNTERS_COOKIE {
            self.counters.push(completion.args[0]);
        } else {
            self.free.push(u32::try_from(completion.cookie).expect("it was a slot"));
        }
    }
}
