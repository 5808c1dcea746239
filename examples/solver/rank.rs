//! One rank: computes its unknowns, sends them, and takes part in finding the end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Command, Completion, Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::simhw::wire;
use midplane::warp::firmware;
use midplane::warp::gate::Gate;
use midplane::warp::iterate::matrix::Linear;
use midplane::warp::iterate::termination::{Coordinator, Order, Participant, Report};
use midplane::warp::iterate::{self, Part};
use serde::{Deserialize, Serialize};

use crate::arguments::Control;
use crate::outbox::{MOST_UPDATES, Outbox, UPDATE_BYTES};
use crate::run::Tally;

/// The rank that finds the end.
pub(crate) const COORDINATOR: NodeId = NodeId(0);
/// Buffers that are lent for each service, and their bytes.
const BUFFERS: usize = 64;
pub(crate) const BUFFER_BYTES: usize = MOST_UPDATES * UPDATE_BYTES;
/// Values of a report's one message.
const REPORT_VALUES: usize = 150;
/// Time after which what was not answered is said again.
const REPEAT_NS: u64 = 50_000_000;
/// Tags: updates count from here; notes have none.
const UPDATES: u32 = 1;
/// Updates between two looks at what has arrived.
const STRIDE: usize = 4;

/// What ranks and coordinator tell each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
enum Note {
    AtRest { round: u32 },
    Values { round: u32, first: u32, of: u32, values: Vec<f64> },
    Hold { round: u32 },
    GoOn { round: u32 },
    Stop,
}

/// What all ranks of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) problem: Arc<Linear>,
    pub(crate) ranges: Vec<Range<usize>>,
    pub(crate) control: Control,
    pub(crate) buffer: u16,
    pub(crate) tolerance: f64,
    pub(crate) update_ns: u64,
    pub(crate) limit: Instant,
}

/// A rank at work.
pub(crate) struct Rank<H> {
    host: H,
    job: Job,
    part: Part<Arc<Linear>>,
    side: Participant,
    coordinator: Option<Coordinator>,
    /// Values of a report that came in several messages, by its first unknown.
    partial: BTreeMap<(u32, usize), Vec<f64>>,
    port: Port,
    lent: Region,
    outbox: Outbox,
    gates: BTreeMap<NodeId, Gate>,
    repeat_at: Instant,
    tally: Arc<Mutex<Tally>>,
}

impl<H: Host> Rank<H> {
    pub(crate) fn new(
        host: H,
        job: Job,
        gates: BTreeMap<NodeId, Gate>,
        tally: Arc<Mutex<Tally>>,
    ) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let me = usize::from(host.node().0);
        let mut port = host.open_port().map_err(|error| failed(&error))?;
        let lent = port.register(2 * BUFFERS * BUFFER_BYTES).map_err(|error| failed(&error))?;
        let peers = (0..job.ranges.len() as u16).map(NodeId).filter(|node| *node != host.node());
        let outbox = Outbox::new(&mut port, peers.collect(), job.control, job.buffer)?;
        let own = job.ranges[me].clone();
        let part = Part::new(Arc::clone(&job.problem), own, iterate::Order::GaussSeidel);
        let coordinator =
            (host.node() == COORDINATOR).then(|| Coordinator::new(job.ranges.len(), job.tolerance));
        let side = Participant::new(job.tolerance * 0.5);
        let mut rank = Self {
            host,
            job,
            part,
            side,
            coordinator,
            partial: BTreeMap::new(),
            port,
            lent,
            outbox,
            gates,
            repeat_at: Instant::ZERO,
            tally,
        };
        (0..2 * BUFFERS).try_for_each(|slot| rank.lend(slot))?;
        Ok(rank)
    }

    /// Works until the answer is found or time is up; rank 0 returns the answer.
    pub(crate) async fn work(mut self) -> Result<Option<Vec<f64>>, String> {
        while self.host.now() < self.job.limit {
            if self.side.may_sweep() {
                self.sweep().await?;
            } else {
                self.rest().await?;
            }
            self.take_in()?;
            let answer = self.coordinator.as_ref().and_then(Coordinator::answer);
            if let Some(answer) = answer {
                let answer = answer.to_vec();
                self.say_stop().await?;
                return Ok(Some(answer));
            }
            if self.coordinator.is_none() && self.side.is_stopped() {
                return Ok(None);
            }
            self.repeat()?;
        }
        Ok(None)
    }

    /// Computes each of its unknowns once, and sends them as it goes.
    async fn sweep(&mut self) -> Result<(), String> {
        let mut largest = 0.0_f64;
        let own: Vec<usize> = self.part.own().collect();
        for some in own.chunks(STRIDE) {
            for &i in some {
                let (residual, value) = self.part.update(i);
                largest = largest.max(residual);
                self.outbox.push(i, value);
            }
            let time = self.job.update_ns * some.len() as u64;
            self.host.sleep_until(self.host.now().plus_nanos(time)).await;
            self.take_in()?;
            if !self.side.may_sweep() {
                return Ok(());
            }
            self.send_updates()?;
        }
        if let Some(report) = self.side.on_sweep(largest) {
            self.report(report)?;
        }
        let mut tally = self.tally.lock().map_err(|_| "a rank has failed".to_owned())?;
        tally.iterations += 1;
        if self.host.node() == COORDINATOR {
            let residual = self.job.problem.relative_residual(self.part.x());
            tally.trace.push((self.host.now().as_nanos() as f64 / 1e9, residual));
        }
        Ok(())
    }

    /// Waits a little for what the coordinator has to say.
    async fn rest(&self) -> Result<(), String> {
        self.host.sleep_until(self.host.now().plus_nanos(REPEAT_NS / 10)).await;
        Ok(())
    }

    fn send_updates(&mut self) -> Result<(), String> {
        let x = self.part.x();
        let sent = self.outbox.send(&mut self.port, self.host.now(), x, &self.gates)?;
        let mut tally = self.tally.lock().map_err(|_| "a rank has failed".to_owned())?;
        tally.sent += sent;
        if self.host.node() == COORDINATOR {
            let lambda = self.outbox.lambda();
            tally.lambda.push((self.host.now().as_nanos() as f64 / 1e9, lambda));
        }
        Ok(())
    }

    /// Takes in all that has arrived.
    fn take_in(&mut self) -> Result<(), String> {
        while let Some(done) = self.port.poll() {
            if done.opcode == messages::SEND {
                self.outbox.on_sent(&done);
                continue;
            }
            let slot = done.cookie as usize;
            let mut bytes = [0; BUFFER_BYTES];
            let length = (done.length as usize).min(BUFFER_BYTES);
            let read = self.lent.read(slot * BUFFER_BYTES, &mut bytes[..length]);
            self.lend(slot)?;
            if done.status == Status::Done && read.is_ok() {
                self.on_message(&done, &bytes[..length])?;
            }
        }
        Ok(())
    }

    fn on_message(&mut self, done: &Completion, bytes: &[u8]) -> Result<(), String> {
        if done.args[0] == u64::from(UPDATES) {
            let mut tally = self.tally.lock().map_err(|_| "a rank has failed".to_owned())?;
            tally.messages += 1;
            tally.updates += (bytes.len() / UPDATE_BYTES) as u64;
            drop(tally);
            if self.side.may_sweep() {
                for (i, value) in Outbox::updates(bytes) {
                    self.part.handle_value(i, value);
                }
            }
            return Ok(());
        }
        match wire::decode(bytes) {
            Ok(note) => self.on_note(done.node, note),
            Err(_) => Ok(()),
        }
    }

    fn on_note(&mut self, from: NodeId, note: Note) -> Result<(), String> {
        let order = match note {
            Note::Hold { round } => Order::Hold { round },
            Note::GoOn { round } => Order::GoOn { round },
            Note::Stop => Order::Stop,
            Note::AtRest { round } => return self.on_report(from, Report::AtRest { round }),
            Note::Values { round, first, of, values } => {
                let range = self.job.ranges.get(usize::from(from.0)).cloned().unwrap_or(0..0);
                let held = self.partial.entry((round, range.start)).or_default();
                held.resize(of as usize, f64::NAN);
                let at = first as usize;
                if let Some(place) = held.get_mut(at..at + values.len()) {
                    place.copy_from_slice(&values);
                }
                let is_whole = held.len() == range.len() && !held.iter().any(|v| v.is_nan());
                if !is_whole {
                    return Ok(());
                }
                let report = Report::Values { round, first: range.start, values: held.clone() };
                return self.on_report(from, report);
            }
        };
        self.obey(order)
    }

    fn obey(&mut self, order: Order) -> Result<(), String> {
        let own = [self.job.ranges[usize::from(self.host.node().0)].clone()];
        for report in self.side.handle_order(order, &own, self.part.x()) {
            self.report(report)?;
        }
        Ok(())
    }

    fn on_report(&mut self, from: NodeId, report: Report) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        let order = coordinator.handle_report(&self.job.problem, usize::from(from.0), report);
        if let Some(order) = order {
            self.partial.clear();
            self.tell_all(order)?;
            self.obey(order)?;
        }
        Ok(())
    }

    /// To the coordinator, which may be this rank.
    fn report(&mut self, report: Report) -> Result<(), String> {
        if self.coordinator.is_some() {
            return self.on_report(self.host.node(), report);
        }
        match report {
            Report::AtRest { round } => self.say(COORDINATOR, &Note::AtRest { round }),
            Report::Values { round, values, .. } => {
                let of = values.len() as u32;
                let parts = values.chunks(REPORT_VALUES).enumerate();
                parts.into_iter().try_for_each(|(at, some)| {
                    let first = (at * REPORT_VALUES) as u32;
                    self.say(COORDINATOR, &Note::Values { round, first, of, values: some.to_vec() })
                })
            }
        }
    }

    fn tell_all(&mut self, order: Order) -> Result<(), String> {
        let note = match order {
            Order::Hold { round } => Note::Hold { round },
            Order::GoOn { round } => Note::GoOn { round },
            Order::Stop => Note::Stop,
        };
        let others = 1..self.job.ranges.len() as u16;
        others.map(NodeId).try_for_each(|node| self.say(node, &note))
    }

    /// Notes may be lost: what is still so is said again.
    fn repeat(&mut self) -> Result<(), String> {
        let now = self.host.now();
        if now < self.repeat_at {
            return Ok(());
        }
        self.repeat_at = now.plus_nanos(REPEAT_NS);
        if let Some(report) = self.side.repeat() {
            self.report(report)?;
        }
        match self.coordinator.as_ref().map(Coordinator::repeat) {
            Some(order) => self.tell_all(order),
            None => Ok(()),
        }
    }

    async fn say_stop(&mut self) -> Result<(), String> {
        for _ in 0..5 {
            self.tell_all(Order::Stop)?;
            self.rest().await?;
            self.take_in()?;
        }
        Ok(())
    }

    fn say(&mut self, to: NodeId, note: &Note) -> Result<(), String> {
        let bytes = wire::encode(note).map_err(|error| error.to_string())?;
        self.outbox.say(&mut self.port, to, &bytes)
    }

    /// Lends a buffer: the first half to plain messages, the others to Warp's.
    fn lend(&mut self, slot: usize) -> Result<(), String> {
        let range = self.lent.range(slot * BUFFER_BYTES, BUFFER_BYTES).expect("within the region");
        let receive = if slot < BUFFERS { messages::receive } else { firmware::receive };
        self.port.submit(&receive(range, slot as u64)).map_err(|error| error.to_string())
    }
}

/// A command that sends updates.
pub(crate) fn updates(command: Command) -> Command {
    Command { args: [u64::from(UPDATES), 0, 0], ..command }
}

/// The port that everything goes to.
pub(crate) const PORT: PortId = PortId(0);
