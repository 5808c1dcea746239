//! One rank: computes its unknowns, sends them, and takes part in detecting the end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use midplane::nicvm::messages;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Completion, Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::{Instant, nanos};
use midplane::simhw::wire;
use midplane::warp::firmware;
use midplane::warp::gate::Gate;
use midplane::warp::iterate::matrix::Linear;
use midplane::warp::iterate::termination::{Order, Participant, Report};
use midplane::warp::iterate::{self, Part, partition};
use midplane::warp::stamp::{Decoder, Stamp};

use super::lead::Lead;
use super::message::{self, NOTE_BYTES, Note, PORT, REPORT_VALUES, Tally, UPDATES};
use super::outbox::Outbox;
use super::pace::Pace;
use super::rounds::Rounds;
use super::setting::{Iteration, Memory, Setting, UPDATE_US};
use super::shared::Shared;
use super::traces::Traces;
use crate::meeting::{Meeting, fingerprint, lost};
use midplane_kit::report::Failure;

/// The rank that detects the end.
pub const COORDINATOR: NodeId = NodeId(0);
/// Posted buffers for each service: some 20 ms of a port's rate.
const BUFFERS: usize = 256;
const DEPTH: usize = 1_024;
/// Time after which an unanswered note is repeated.
const REPEAT: Duration = Duration::from_millis(50);
/// Silence after which a rank counts as lost.
const LOST: Duration = Duration::from_secs(3);
/// Time limit for all ranks to begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of the end, in which all ranks report their counts.
const ENDING: Duration = Duration::from_secs(2);
/// Updates between two polls for messages.
pub const STRIDE: usize = 4;

/// The unknowns of one rank, and the last values of the others.
pub type Parts = Part<Arc<Linear>>;

/// Parameters that all ranks of a run share.
#[derive(Clone, Debug)]
pub struct Job {
    pub setting: Arc<Setting>,
    pub problem: Arc<Linear>,
    /// Progress bar of the digits found.
    pub progress: ProgressBar,
}

impl Job {
    /// Creates the job of one run.
    pub fn new(setting: Setting, problem: &Arc<Linear>, progress: &ProgressBar) -> Self {
        let (problem, progress) = (Arc::clone(problem), progress.clone());
        Self { setting: Arc::new(setting), problem, progress }
    }
}

/// Rank 0's result.
#[derive(Debug)]
pub struct Outcome {
    /// The answer, if one was found and checked.
    pub answer: Option<Vec<f64>>,
    /// Seconds until the answer was found, or the time limit.
    pub seconds: f64,
    /// Sum of the counts of all ranks that reported them.
    pub tally: Tally,
    pub lost: Vec<u16>,
    pub traces: Traces,
}

/// A rank at work.
pub struct Rank<H> {
    pub host: H,
    pub job: Job,
    pub ranges: Vec<Range<usize>>,
    pub part: Parts,
    side: Participant,
    /// The values of rounds, if the iteration is synchronous.
    pub rounds: Option<Rounds>,
    /// The memory by which ranks exchange values, if they send no messages of updates.
    shared: Option<Shared>,
    pub lead: Option<Lead>,
    pub port: Port,
    buffers: Region,
    pub outbox: Outbox,
    repeat_at: Instant,
    /// Time of the last message from each other rank.
    pub last_received: BTreeMap<NodeId, Instant>,
    begin: Instant,
    /// Time limit of the run.
    limit: Instant,
    /// Time until which the processor has work.
    pub due: Instant,
    tally: Tally,
    decoder: Decoder<NodeId>,
    traces: Traces,
}

impl<H: Pace> Rank<H> {
    pub fn new(host: H, job: Job, gates: BTreeMap<NodeId, Gate>) -> Result<Self, Failure> {
        let node = host.node();
        let setting = &job.setting;
        let options = PortOptions::default().number(PORT).depth(DEPTH);
        let mut port = host.open_port_with(options).map_err(Failure::of_run)?;
        let buffers = port.register(2 * BUFFERS * NOTE_BYTES).map_err(Failure::of_run)?;
        let outbox = Outbox::new(&mut port, node, setting, gates).map_err(Failure::of_run)?;
        let ranges = partition(setting.unknowns, usize::from(setting.ranks));
        let own = ranges[node.index()].clone();
        let rounds = (setting.iteration == Iteration::Jacobi)
            .then(|| Rounds::new(&job.problem, own.clone(), setting));
        let shared = (setting.memory == Memory::Mermera)
            .then(|| Shared::open(&host, setting, &ranges))
            .transpose()?;
        let part = Part::new(Arc::clone(&job.problem), own, iterate::Order::GaussSeidel);
        let lead = (node == COORDINATOR).then(|| Lead::new(setting));
        let side = Participant::new(setting.tolerance * 0.5);
        let mut rank = Self {
            host,
            ranges,
            part,
            side,
            rounds,
            shared,
            lead,
            port,
            buffers,
            outbox,
            repeat_at: Instant::ZERO,
            last_received: BTreeMap::new(),
            begin: Instant::ZERO,
            limit: Instant::ZERO,
            due: Instant::ZERO,
            tally: Tally::default(),
            decoder: Decoder::default(),
            traces: Traces::default(),
            job,
        };
        for slot in 0..2 * BUFFERS {
            rank.post_buffer(slot)?;
        }
        rank.port.ring();
        Ok(rank)
    }

    /// Works until the answer is found or the time limit; rank 0's outcome is the run's.
    pub async fn work(mut self, meeting: &mut Meeting) -> Result<Outcome, Failure> {
        meeting
            .begin(fingerprint(&(&*self.job.setting, self.job.setting.system)), PATIENCE)
            .await?;
        self.begin = self.host.now();
        // The silence of all ranks starts now.
        let others = self.job.setting.others(self.host.node());
        self.last_received = others.into_iter().map(|node| (node, self.begin)).collect();
        let limit = Duration::from_secs_f64(self.job.setting.limit_seconds);
        // Rank 0 ends the run at the time limit; the others receive its order a little later.
        let limit = if self.lead.is_some() { limit } else { limit + ENDING };
        self.limit = self.begin + limit;
        while !self.is_over() && !self.has_ended() {
            if self.rounds.is_some() {
                self.round().await?;
            } else if self.side.may_sweep() {
                self.sweep().await?;
            } else {
                self.rest().await;
            }
            self.handle_events()?;
        }
        let seconds = self.seconds();
        let answer = self.lead.as_ref().and_then(Lead::answer).map(<[f64]>::to_vec);
        let tallies = self.report_counts(meeting).await?;
        let gone = (0..).zip(&tallies).filter(|(_, tally)| tally.is_none()).map(|(rank, _)| rank);
        let mut gone: Vec<u16> = gone.collect();
        let Some(lead) = self.lead else {
            let outcome =
                Outcome { answer, seconds, tally: self.tally, lost: gone, traces: self.traces };
            return if outcome.lost.is_empty() { Ok(outcome) } else { Err(lost(&outcome.lost)) };
        };
        gone.extend(lead.lost.iter().map(|node| node.0));
        gone.sort_unstable();
        gone.dedup();
        let mut tally = Tally::default();
        tallies.iter().flatten().for_each(|other| tally.add(other));
        Ok(Outcome { answer, seconds, tally, lost: gone, traces: self.traces })
    }

    /// Returns whether the time limit has passed.
    pub fn is_over(&self) -> bool {
        self.host.now() >= self.limit
    }

    pub fn has_ended(&self) -> bool {
        match &self.lead {
            Some(lead) => lead.answer().is_some() || !lead.lost.is_empty(),
            None => self.side.is_stopped(),
        }
    }

    fn seconds(&self) -> f64 {
        self.host.now().since(self.begin).as_secs_f64()
    }

    /// Computes each unknown once, and sends updates meanwhile.
    async fn sweep(&mut self) -> Result<(), Failure> {
        let mut largest = 0.0_f64;
        let own: Vec<usize> = self.part.own().collect();
        if let Some(shared) = &mut self.shared {
            self.tally.updates += shared.read(&mut self.part).await?;
        }
        for some in own.chunks(STRIDE) {
            for &i in some {
                let (residual, value) = self.part.update(i);
                largest = largest.max(residual);
                if self.shared.is_none() {
                    self.outbox.push(i, value);
                }
            }
            let time = UPDATE_US * 1_000 * some.len() as u64;
            self.host.compute(&mut self.due, time).await;
            self.handle_events()?;
            if !self.side.may_sweep() {
                return Ok(());
            }
            match &mut self.shared {
                Some(shared) => shared.write(some, self.part.x()).await?,
                None => self.send_updates()?,
            }
        }
        self.count_sweep();
        if let Some(report) = self.side.on_sweep(largest) {
            self.report(report)?;
        }
        if self.lead.is_some() {
            self.on_residual(iterate::residual(&self.job.problem, self.part.x()));
        }
        Ok(())
    }

    pub const fn count_sweep(&mut self) {
        self.tally.iterations += 1;
    }

    /// Records rank 0's residual, and shows the digits found, of those wanted.
    pub fn on_residual(&mut self, residual: f64) {
        self.traces.on_residual(self.seconds(), residual);
        let wanted = -self.job.setting.tolerance.log10();
        let found = (-residual.max(1e-300).log10()).clamp(0.0, wanted);
        let length = self.job.progress.length().unwrap_or(0) as f64;
        self.job.progress.set_position((found / wanted * length) as u64);
    }

    /// Waits a short time for messages.
    pub async fn rest(&self) {
        self.host.sleep_until(self.host.now().plus_nanos(nanos(REPEAT) / 10)).await;
    }

    fn send_updates(&mut self) -> Result<(), Failure> {
        let (now, x) = (self.host.now(), self.part.x());
        self.outbox.send(&mut self.port, now, x).map_err(Failure::of_run)?;
        self.tally.sent = self.outbox.sent(self.job.setting.ranks);
        if self.lead.is_some() {
            self.traces.on_lambda(self.tally.sent, self.outbox.lambda());
        }
        Ok(())
    }

    /// Handles arrived messages, repeats notes, and detects lost ranks.
    pub fn handle_events(&mut self) -> Result<(), Failure> {
        self.handle_messages()?;
        self.send_values()?;
        if self.is_time_to_repeat() {
            self.repeat()?;
            self.detect_lost_ranks()?;
        }
        Ok(())
    }

    /// Handles all arrived messages.
    fn handle_messages(&mut self) -> Result<(), Failure> {
        let mut has_posted = false;
        while let Some(done) = self.port.poll() {
            self.handle_completion(&done)?;
            has_posted |= done.opcode != messages::SEND;
        }
        if has_posted {
            self.port.ring();
        }
        Ok(())
    }

    /// Handles a sent or an arrived message; the caller then rings for the buffer that is posted again.
    pub fn handle_completion(&mut self, done: &Completion) -> Result<(), Failure> {
        if done.opcode == messages::SEND {
            self.outbox.on_sent(done);
            self.tally.sent = self.outbox.sent(self.job.setting.ranks);
            return Ok(());
        }
        let slot = done.cookie as usize;
        let mut bytes = [0; NOTE_BYTES];
        let length = (done.length as usize).min(NOTE_BYTES);
        let read = self.buffers.read(slot * NOTE_BYTES, &mut bytes[..length]);
        self.post_buffer(slot)?;
        match (done.status, read) {
            (Status::Done, Ok(())) => self.on_message(done, &bytes[..length]),
            _ => Ok(()),
        }
    }

    fn on_message(&mut self, done: &Completion, bytes: &[u8]) -> Result<(), Failure> {
        let (from, now) = (done.node, self.host.now());
        if let Some(last) = self.last_received.get_mut(&from) {
            *last = now;
        }
        let Some(round) = done.args[0].checked_sub(UPDATES.into()) else {
            return match wire::decode(bytes) {
                Ok(note) => self.on_note(from, note),
                Err(_) => Ok(()),
            };
        };
        let Some((sent, updates)) = message::parse_updates(bytes) else { return Ok(()) };
        self.tally.messages += 1;
        self.tally.updates += updates.len() as u64;
        let stamp = Stamp { sequence: self.tally.messages, sent };
        if let Some(warp) = self.decoder.on_message(from, stamp, now) {
            self.outbox.on_warp(now, warp);
            if self.lead.is_some() {
                self.traces.on_warp(from, warp);
            }
        }
        if let Some(rounds) = &mut self.rounds {
            rounds.on_values(now, u32::try_from(round).unwrap_or(u32::MAX), updates);
        } else if self.side.may_sweep() {
            updates.for_each(|(i, value)| self.part.handle_value(i, value));
        }
        Ok(())
    }

    fn on_note(&mut self, from: NodeId, note: Note) -> Result<(), Failure> {
        let order = match note {
            Note::Hold { round } => Order::Hold { round },
            Note::Resume { round } => Order::Resume { round },
            Note::Stop => Order::Stop,
            Note::Missing { round } => {
                if let Some(rounds) = &mut self.rounds {
                    rounds.on_missing(from, round);
                }
                return self.send_values();
            }
            of_a_rank => return self.on_note_of_rank(from, of_a_rank),
        };
        if from == COORDINATOR { self.obey(order) } else { Ok(()) }
    }

    pub fn obey(&mut self, order: Order) -> Result<(), Failure> {
        let own = [self.ranges[self.host.node().index()].clone()];
        for report in self.side.handle_order(order, &own, self.part.x()) {
            self.report(report)?;
        }
        Ok(())
    }

    /// Reports to the coordinator, which may be this rank.
    fn report(&mut self, report: Report) -> Result<(), Failure> {
        if self.lead.is_some() {
            return self.on_report(self.host.node(), report);
        }
        match report {
            Report::AtRest { round } => self.send_note(COORDINATOR, &Note::AtRest { round }),
            Report::Values { round, values, .. } => {
                let of = values.len() as u32;
                let parts = values.chunks(REPORT_VALUES).enumerate();
                parts.into_iter().try_for_each(|(at, some)| {
                    let first = (at * REPORT_VALUES) as u32;
                    self.send_note(
                        COORDINATOR,
                        &Note::Values { round, first, of, values: some.to_vec() },
                    )
                })
            }
        }
    }

    fn is_time_to_repeat(&mut self) -> bool {
        let now = self.host.now();
        let is_time = now >= self.repeat_at;
        if is_time {
            self.repeat_at = now + REPEAT;
        }
        is_time
    }

    /// Repeats notes about the current state, because notes may be lost.
    fn repeat(&mut self) -> Result<(), Failure> {
        if let Some(order) = self.lead.as_ref().map(Lead::repeat) {
            return self.send_note_to_all(&order);
        }
        match self.side.repeat() {
            Some(report) => self.report(report),
            None => self.send_note(COORDINATOR, &Note::Alive),
        }
    }

    /// Declares ranks lost that were silent for too long.
    fn detect_lost_ranks(&mut self) -> Result<(), Failure> {
        let now = self.host.now();
        let is_gone = |(_, last): &(&NodeId, &Instant)| now.since(**last) > LOST;
        let gone: Vec<NodeId> =
            self.last_received.iter().filter(is_gone).map(|(node, _)| *node).collect();
        if self.lead.is_some() {
            gone.into_iter().for_each(|node| self.on_lost(node));
            return Ok(());
        }
        // The coordinator watches the other ranks.
        if gone.contains(&COORDINATOR) { Err(lost(&[COORDINATOR.0])) } else { Ok(()) }
    }

    /// Reports this rank's counts, and returns those of all ranks. Meanwhile rank 0 orders the others to stop.
    async fn report_counts(
        &mut self,
        meeting: &mut Meeting,
    ) -> Result<Vec<Option<Tally>>, Failure> {
        if let Some(shared) = &mut self.shared {
            self.tally.messages = shared.frames().await?;
        }
        let tally = self.tally;
        let mut counted = pin!(meeting.gather(&tally, ENDING));
        loop {
            self.send_note_to_all(&Note::Stop)?;
            tokio::select! {
                biased;
                tallies = counted.as_mut() => return tallies,
                () = self.rest() => {
                    self.handle_messages()?;
                    self.send_values()?;
                }
            }
        }
    }

    pub fn send_note_to_all(&mut self, note: &Note) -> Result<(), Failure> {
        if self.lead.is_none() {
            return Ok(());
        }
        let others = self.job.setting.others(self.host.node());
        others.into_iter().try_for_each(|node| self.send_note(node, note))
    }

    pub fn send_note(&mut self, to: NodeId, note: &Note) -> Result<(), Failure> {
        let bytes = wire::encode(note).map_err(Failure::of_run)?;
        self.outbox.send_note(&mut self.port, to, &bytes).map_err(Failure::of_run)
    }

    /// Posts a buffer: the first half of the slots for plain messages, the others for Warp's.
    fn post_buffer(&mut self, slot: usize) -> Result<(), Failure> {
        let range = self.buffers.range(slot * NOTE_BYTES, NOTE_BYTES).expect("within the region");
        let receive = if slot < BUFFERS { messages::receive } else { firmware::receive };
        self.port.post(&receive(range, slot as u64)).map_err(Failure::of_run)
    }
}
