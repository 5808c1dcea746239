//! The receiver: posts buffers, begins the measured part, and counts messages.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use hdrhistogram::Histogram;
use midplane::nicvm::{coordination, messages};
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Completion, Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware;

use super::super::setting::{Mode, Service};
use super::{COUNTS, PATIENCE, Part, STAMP_BYTES, Sent, by};
use crate::meeting::{Meeting, fingerprint};
use midplane_kit::report::Failure;

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
/// Time for which messages may still arrive once all senders have reported.
const LINGER: Duration = Duration::from_millis(50);

/// State of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    warm: u64,
    /// Least number of its next message.
    next: u32,
    /// Counted messages, and bytes received during the measured part.
    messages: u64,
    bytes: u64,
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
pub async fn receive<H: Host>(
    host: &H,
    part: &Part,
    meeting: &mut Meeting,
) -> Result<Measured, Failure> {
    let mut receiver = Receiver::new(host, part)?;
    meeting.begin(fingerprint(&part.setting), PATIENCE).await?;
    meeting.gather(&receiver.port.id().0, PATIENCE).await?;
    receiver.warm_up(host).await?;
    // Senders continue to send while they wait for this step, and count messages from then on.
    receiver.during(host, meeting.gather(&0_u16, PATIENCE)).await??;
    receiver.until = Some(host.now() + Duration::from_secs_f64(part.setting.seconds));
    let (own, limit) = (Sent::default(), receiver.drain());
    let sent = meeting.gather(&own, limit);
    let sent = receiver.during(host, sent).await??;
    receiver.during(host, host.sleep_until(host.now() + LINGER)).await?;
    Ok(receiver.result(&sent[1..]))
}

struct Receiver<'a> {
    part: &'a Part,
    port: Port,
    buffers: Vec<Region>,
    sources: BTreeMap<NodeId, Source>,
    /// End of the measured part, once it has begun.
    until: Option<Instant>,
    latency: Histogram<u64>,
}

impl<'a> Receiver<'a> {
    fn new<H: Host>(host: &H, part: &'a Part) -> Result<Self, Failure> {
        let mut port = host.open_port().map_err(Failure::of_run)?;
        let setting = &part.setting;
        let bytes = setting.message_bytes as usize;
        let mut buffers = Vec::new();
        for _ in 0..(BUFFER_BYTES / bytes).clamp(BUFFERS, port.depth()) {
            buffers.push(port.register(bytes).map_err(Failure::of_run)?);
        }
        let sources = (1..setting.nodes()).map(|n| (NodeId(n), Source::default())).collect();
        let latency = Histogram::new(3).expect("three digits are few");
        let mut receiver = Self { part, port, buffers, sources, until: None, latency };
        for slot in 0..receiver.buffers.len() {
            receiver.post_buffer(slot)?;
        }
        receiver.port.ring();
        Ok(receiver)
    }

    /// Returns the longest time until all senders have reported, from the begin of the measured part.
    fn drain(&self) -> Duration {
        Duration::from_secs_f64(self.part.setting.seconds) + self.part.drain()
    }

    /// Waits until every sender has sent enough messages, or until the time limit of the warm-up.
    async fn warm_up<H: Host>(&mut self, host: &H) -> Result<(), Failure> {
        let coordinated = self.part.setting.mode != Mode::None;
        let most = if coordinated { WARM_UP_COORDINATED } else { WARM_UP_ALONE };
        let (least, limit) = (host.now() + WARM_UP, host.now() + most);
        while host.now() < limit {
            let warm = self.sources.values().all(|source| source.warm >= WARM_MESSAGES);
            if warm && host.now() >= least {
                break;
            }
            let until = if warm { least } else { limit };
            if let Some(done) = by(host, until, self.port.completion()).await {
                self.on_messages(host, &done.map_err(Failure::of_run)?)?;
            }
        }
        Ok(())
    }

    /// Handles messages until `work` completes.
    async fn during<H: Host, T>(
        &mut self,
        host: &H,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                value = work.as_mut() => return Ok(value),
                done = self.port.completion() => {
                    self.on_messages(host, &done.map_err(Failure::of_run)?)?;
                }
            }
        }
    }

    /// Handles an arrived message, and all others that have arrived.
    fn on_messages<H: Host>(&mut self, host: &H, first: &Completion) -> Result<(), Failure> {
        self.on_message(host, first)?;
        while let Some(completion) = self.port.poll() {
            self.on_message(host, &completion)?;
        }
        self.port.ring();
        Ok(())
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
            if self.until.is_some_and(|until| host.now() < until) {
                source.bytes += completion.length;
            }
            if tag & COUNTS != 0 {
                source.messages += 1;
                self.record_latency(host, slot, completion.length);
            }
        }
        self.post_buffer(slot)
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

    fn post_buffer(&mut self, slot: usize) -> Result<(), Failure> {
        let receive = match self.part.setting.mode.service() {
            Service::Messages => messages::receive,
            Service::Coordination => coordination::receive,
            Service::Warp => firmware::receive,
        };
        let command = receive(self.buffers[slot].whole(), slot as u64);
        self.port.post(&command).map_err(Failure::of_run)
    }

    /// Returns the measurements; `sent` are the senders' own counts.
    fn result(self, sent: &[Option<Sent>]) -> Measured {
        let of_known = self.sources.iter().zip(sent).filter(|(_, sent)| sent.is_some());
        let lost = self.sources.keys().zip(sent).filter(|(_, sent)| sent.is_none());
        let counts = || sent.iter().flatten();
        Measured {
            sent: counts().map(|sent| sent.messages).sum(),
            // The number of messages that a lost sender sent is unknown.
            received: of_known.map(|((_, source), _)| source.messages).sum(),
            bytes: self.sources.values().map(|source| source.bytes).collect(),
            control_messages: counts().map(|sent| sent.control_messages).sum(),
            lost: lost.map(|(node, _)| *node).collect(),
            latency: self.latency,
        }
    }
}
