//! A sender: keeps its port full, and counts the messages of the measured part.

use std::pin::pin;
use std::time::Duration;

use midplane::nicvm::{coordination, messages};
use midplane::simhw::host::Host;
use midplane::simhw::id::PortId;
use midplane::simhw::port::{Command, Completion, Port};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware;

use super::super::setting::Service;
use super::{COUNTS, PATIENCE, POSTED, Part, RECEIVER, STAMP_BYTES, Sent, by};
use crate::meeting::{Meeting, fingerprint, lost};
use midplane_kit::report::Failure;

/// Cookie of the request for the coordination's counters.
const COUNTERS_COOKIE: u64 = u64::MAX;

/// Sends to the receiver during its warm-up and its measured part; reports the counts.
pub async fn send<H: Host>(host: &H, part: &Part, meeting: &mut Meeting) -> Result<(), Failure> {
    meeting.begin(fingerprint(&part.setting), PATIENCE).await?;
    // The receiver's port for messages; the senders' own numbers mean nothing.
    let ports = meeting.gather(&0_u16, PATIENCE).await?;
    let port = ports[0].ok_or_else(|| lost(&[RECEIVER.0]))?;
    let mut pump = Pump::new(host, part, PortId(port))?;
    pump.begin(host).await;
    pump.until_measured(host, meeting).await?;
    pump.measure(host).await?;
    let sent = pump.drain(host).await?;
    meeting.gather(&sent, part.drain()).await.map(drop)
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
        let mut port = host.open_port().map_err(Failure::of_run)?;
        let message_bytes = part.setting.message_bytes as usize;
        let memory = port.register(message_bytes * POSTED as usize).map_err(Failure::of_run)?;
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

    /// Sends until the receiver begins its measured part.
    async fn until_measured<H: Host>(
        &mut self,
        host: &H,
        meeting: &mut Meeting,
    ) -> Result<(), Failure> {
        let mut begun = pin!(meeting.gather(&0_u16, PATIENCE));
        loop {
            let turn = self.turn(host, host.now() + PATIENCE);
            tokio::select! {
                biased;
                met = begun.as_mut() => return met.map(drop),
                result = turn => result?,
            }
        }
    }

    async fn measure<H: Host>(&mut self, host: &H) -> Result<(), Failure> {
        let end = host.now() + Duration::from_secs_f64(self.part.setting.seconds);
        self.ask_counters()?;
        self.counts = true;
        while host.now() < end {
            self.turn(host, end).await?;
        }
        self.ask_counters()
    }

    /// Waits until all posted messages have left.
    async fn drain<H: Host>(&mut self, host: &H) -> Result<Sent, Failure> {
        let limit = host.now() + self.part.drain();
        while self.port.outstanding() > 0 {
            match by(host, limit, self.port.completion()).await {
                Some(completion) => self.reap(completion.map_err(Failure::of_run)?),
                None => return Err(Failure::of_run("messages are stuck in the NIC")),
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
            self.reap(completion.map_err(Failure::of_run)?);
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
            self.memory.write(at, &stamp.to_le_bytes()).map_err(Failure::of_run)?;
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
        self.port.post(&command).map_err(Failure::of_run)?;
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
        self.port.submit(&command).map_err(Failure::of_run)
    }

    fn reap(&mut self, completion: Completion) {
        if completion.cookie == COUNTERS_COOKIE {
            self.counters.push(completion.args[0]);
        } else {
            self.free.push(u32::try_from(completion.cookie).expect("it was a slot"));
        }
    }
}
