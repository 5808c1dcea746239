//! Runs one seed: faults, then their end, then the checks after it.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use midplane::nicvm::admission::CONTROLLED;
use midplane::nicvm::coordination::{COORDINATION, Coordination, Holding};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::{FaultCounts, Faults};
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::Buffer;
use midplane::simhw::time::Instant;
use midplane::simhw::trace::Record;

use super::firmware::{TALK, Talk, unit};
use super::load::{self, Habits};
use super::oracle::Shared;
use super::plan::Plan;

/// Virtual time between two checks of the invariants.
const SLICE: Duration = Duration::from_micros(250);
/// Virtual time after the end of the faults within which all commands complete. It includes the time to declare a peer
/// dead, to replace a lost token, and for an excluded sender to return.
const DRAIN: Duration = Duration::from_secs(4);
/// Virtual time after that within which new messages arrive.
const PROBE: Duration = Duration::from_millis(500);
/// Virtual time within which the last messages arrive once all senders are done.
const SETTLE: Duration = Duration::from_millis(10);
/// Virtual time after which the longest timeout has expired.
const TIMEOUTS_OVER: Duration = Duration::from_millis(610);
/// Time for which frames are lost while nothing else is wrong: far shorter than the time after which a peer is dead.
const LOSSES: Duration = Duration::from_millis(2);
/// Time by which the last frames of a message may leave after the instant that the firmware has estimated.
const LATE: Duration = Duration::from_millis(1);
/// Longest delay of a duplicated frame.
const PAUSE: Duration = Duration::from_micros(200);
/// Time by which a timeout may be late: two ticks of the coarse service.
const TICKS: Duration = Duration::from_millis(2);

/// Result of one seed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) digest: u64,
    pub(crate) virtual_ns: u64,
    pub(crate) events: u64,
    pub(crate) frames: u64,
    pub(crate) incidents: u64,
    pub(crate) fired: FaultCounts,
    pub(crate) control_messages: u64,
    pub(crate) messages: u64,
    /// Descriptions of broken invariants; empty if the seed passed.
    pub(crate) complaints: Vec<String>,
}

impl AddAssign<&Self> for Outcome {
    /// Adds the counts of another seed.
    fn add_assign(&mut self, other: &Self) {
        self.digest = self.digest.wrapping_add(other.digest);
        self.virtual_ns += other.virtual_ns;
        self.events += other.events;
        self.frames += other.frames;
        self.incidents += other.incidents;
        self.fired += other.fired;
        self.control_messages += other.control_messages;
        self.messages += other.messages;
    }
}

/// Observer of a run's records.
pub(crate) type Observer = Box<dyn FnMut(&Record<'_>) + Send>;

/// Runs one seed; reports a panic as a complaint.
pub(crate) fn run(seed: u64, observer: Option<Observer>) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| Run::new(Plan::new(seed), observer).finish()));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let what = format!("panic: {}", text.unwrap_or_default());
        Outcome { seed, complaints: vec![what], ..Outcome::default() }
    })
}

struct Run {
    plan: Arc<Plan>,
    oracle: Shared,
    world: World<Unit>,
    /// The tokens at the last check, by node and link.
    tokens: BTreeMap<(NodeId, u16), Holding>,
}

impl Run {
    fn new(plan: Plan, observer: Option<Observer>) -> Self {
        let plan = Arc::new(plan);
        let oracle = Shared::default();
        let (for_firmware, for_units) = (Arc::clone(&plan), oracle.clone());
        let mut world =
            World::new(&plan.topology, plan.profile, plan.seed, move |node, incarnation| {
                unit(&for_firmware, &for_units, node, incarnation)
            });
        let frames = (plan.coordination.is_some() && !plan.stalls).then(|| oracle.clone());
        if observer.is_some() || frames.is_some() {
            world.observe(watch(observer, frames));
        }
        for incident in &plan.script {
            world.schedule(*incident);
        }
        let (for_boot, for_tasks) = (Arc::clone(&plan), oracle.clone());
        world.on_boot(move |host| boot(&for_boot, &for_tasks, &host));
        for node in plan.nodes() {
            boot(&plan, &oracle, &world.host(node));
        }
        Self { plan, oracle, world, tokens: BTreeMap::new() }
    }

    fn finish(mut self) -> Outcome {
        let healed = Instant::ZERO + self.plan.trouble;
        while self.world.now() < healed && self.holds() {
            self.step();
        }
        self.world.heal_all();
        if self.holds() && self.drain() && self.probe() && self.disturb() && self.burst() {
            self.end();
        }
        let complaints = std::mem::take(&mut self.oracle.lock().complaints);
        let oracle = self.oracle.lock();
        Outcome {
            seed: self.plan.seed,
            digest: self.world.digest(),
            virtual_ns: self.world.now().as_nanos(),
            events: self.world.events(),
            frames: self.world.traffic().sent,
            incidents: self.plan.script.len() as u64,
            fired: *self.world.faults_fired(),
            control_messages: oracle.control_delivered,
            messages: oracle.delivered,
            complaints,
        }
    }

    fn holds(&self) -> bool {
        self.oracle.lock().complaints.is_empty()
    }

    fn complain(&self, what: String) {
        self.oracle.lock().complain(format!("at {}: {what}", self.world.now()));
    }

    // ---- safety ----

    fn step(&mut self) {
        let until = self.world.now() + SLICE;
        self.world.run_until(until);
        self.check_frames();
        self.check_queues();
        self.check_tokens();
    }

    fn check_frames(&self) {
        let traffic = self.world.traffic();
        let ended = traffic.delivered + traffic.drops.total();
        if traffic.sent != ended + self.world.frames_under_way() as u64 {
            let under_way = self.world.frames_under_way();
            self.complain(format!("{under_way} frames under way, but {traffic:?}"));
        }
    }

    fn check_queues(&self) {
        for (link, buffer) in self.plan.topology.outputs() {
            let (Buffer::Bytes(most) | Buffer::Cells(most)) = buffer;
            let peak = self.world.output(link).map_or(0, |output| output.peak());
            if peak > most {
                self.complain(format!("a queue of {peak} before link {}, not {most}", link.0));
            }
        }
    }

    /// Checks that each link's token has at most one holder in each epoch, and at most one that may send.
    fn check_tokens(&mut self) {
        let mut tokens = BTreeMap::new();
        let mut holders = BTreeMap::new();
        let mut valid = BTreeMap::new();
        for node in self.plan.nodes().filter(|node| self.world.is_up(*node)) {
            let unit = self.world.firmware(node);
            let now = self.world.host(node).now();
            let Some(coordination) = unit.extension::<Coordination>(COORDINATION) else { continue };
            for token in coordination.tokens() {
                let (link, epoch) = (token.link, token.epoch);
                tokens.insert((node, link), token);
                if let Some(other) = holders.insert((link, epoch), node) {
                    self.complain(format!("{other} and {node} hold {epoch:?} of link {link}"));
                }
                if token.valid_until > now
                    && let Some((other, of)) = valid.insert(link, (node, epoch))
                {
                    let what = format!("{other} may send in {of:?} and {node} in {epoch:?}");
                    self.complain(format!("{what} over link {link}"));
                }
            }
        }
        self.check_leases(tokens);
    }

    /// Checks that no frame left its node with a token whose lease was over. `tokens`: those at the end of this slice.
    /// A token that a node received or passed on in the slice is not judged.
    fn check_leases(&mut self, tokens: BTreeMap<(NodeId, u16), Holding>) {
        let before = std::mem::replace(&mut self.tokens, tokens);
        let frames = std::mem::take(&mut self.oracle.lock().controlled);
        for (at, node, to) in frames {
            let key = (node, to.0);
            let (Some(token), Some(then)) = (self.tokens.get(&key), before.get(&key)) else {
                continue;
            };
            let ago = self.world.now().nanos_since(at);
            let left = self.world.host(node).now().as_nanos() - ago;
            if token.epoch == then.epoch && left > (token.valid_until + LATE).as_nanos() {
                self.complain(format!("{node} sends to {to} at {left} ns with {token:?}"));
            }
        }
    }

    // ---- liveness ----

    /// Stops the senders, and checks that all their commands complete.
    fn drain(&mut self) -> bool {
        self.oracle.lock().stop_senders = true;
        // The backoff of an excluded sender grows to 64 leases.
        let end = self.world.now() + DRAIN.max(self.plan.lease * 70);
        let receivers = usize::from(self.plan.topology.hosts());
        // Tasks that the end of the faults has started are counted only once they run.
        self.step();
        while self.world.tasks() > receivers && self.world.now() < end && self.holds() {
            self.step();
        }
        if self.world.tasks() > receivers {
            let senders = self.world.tasks() - receivers;
            self.complain(format!("{senders} senders still wait: {}", self.under_way()));
        }
        self.holds()
    }

    /// Checks that new messages arrive: peers find each other in two exchanges; in a third one nothing may be lost.
    fn probe(&mut self) -> bool {
        self.exchange(1, false);
        let before = self.drops();
        self.exchange(1, false);
        if self.drops() == before {
            self.check_buffers();
        }
        // Receivers reopen their ports: a handle that was damaged when a buffer was posted stays damaged.
        self.oracle.lock().renewals += 1;
        let end = self.world.now() + PROBE * 3;
        self.world.run_until(end);
        for _ in 0..2 {
            self.exchange(1, false);
        }
        let before = self.drops();
        self.check_arrivals(false);
        if self.holds() && self.drops() != before {
            self.complain(format!("frames are dropped after healing: {:?}", self.world.traffic()));
        }
        self.world.set_faults(Faults { duplicate: 0.3, delay: PAUSE, ..Faults::NONE });
        for node in self.plan.nodes() {
            let host = self.world.host(node);
            self.world
                .spawn(node, load::barriers(host, self.oracle.clone(), Arc::clone(&self.plan)));
        }
        self.finish_senders();
        self.check_arrivals(true);
        self.world.set_faults(Faults::NONE);
        self.holds()
    }

    /// Checks that all messages of an exchange arrive, unless a frame is dropped.
    fn check_arrivals(&mut self, long: bool) {
        let before = (self.counts(), self.drops());
        let first = self.oracle.lock().sent();
        self.exchange(2, long);
        let (sent, arrived) = self.counts();
        let (sent, arrived) = (sent - before.0.0, arrived - before.0.1);
        if self.holds() && self.drops() == before.1 && sent != arrived {
            let lost = self.oracle.lock().lost_after(first);
            let counters = self.plan.nodes().map(|node| {
                let messages = self.world.firmware(node).extension::<Messages>(MESSAGES);
                messages.map(Messages::counters)
            });
            let counters: Vec<_> = counters.collect();
            let what = format!("{arrived} of {sent} messages arrive after healing");
            self.complain(format!("{what}; not {lost:?}; {counters:?}"));
        }
    }

    /// Loses some frames for a short time, and checks that no connection ends and no control message is lost.
    fn disturb(&mut self) -> bool {
        let (sent, arrived, losses) = {
            let oracle = self.oracle.lock();
            (oracle.control_sent, oracle.control_delivered, oracle.losses)
        };
        self.world.set_faults(Faults { loss: 0.3, duplicate: 0.1, delay: PAUSE, ..Faults::NONE });
        self.spawn_senders(2, true);
        let end = self.world.now() + LOSSES;
        while self.world.now() < end && self.holds() {
            self.step();
        }
        self.world.set_faults(Faults::NONE);
        self.finish_senders();
        let end = self.world.now() + TIMEOUTS_OVER;
        self.world.run_until(end);
        let oracle = self.oracle.lock();
        let (sent, arrived) = (oracle.control_sent - sent, oracle.control_delivered - arrived);
        let losses = oracle.losses - losses;
        drop(oracle);
        if self.holds() && (arrived < sent || losses > 0) {
            let what =
                format!("{arrived} of {sent} control messages arrive, {losses} connections end");
            self.complain(format!("after lost frames {what}"));
        }
        self.holds()
    }

    /// Checks that commands complete if nothing but their one doorbell wakes the unit.
    fn burst(&mut self) -> bool {
        for node in self.plan.nodes() {
            let host = self.world.host(node);
            self.world.spawn(node, load::burst(host, self.oracle.clone()));
        }
        self.finish_senders();
        self.holds()
    }

    /// Checks that each receiver's buffers are all there: no message of which a part is missing keeps one, because a whole
    /// message of each node has arrived since.
    fn check_buffers(&mut self) {
        if self.plan.rings_again {
            return;
        }
        // A slow NIC may have yet to handle the last of what has arrived.
        let end = self.world.now() + PROBE;
        while self.lacking().is_some() && self.world.now() < end && self.holds() {
            self.step();
        }
        if self.holds()
            && let Some((node, free)) = self.lacking()
        {
            let all = load::BUFFERS;
            self.complain(format!("node {node} has {free} free buffers, not {all}"));
        }
    }

    /// Returns a node that lacks receive buffers, and how many it has.
    fn lacking(&self) -> Option<(NodeId, u64)> {
        let mut free = self.plan.nodes().map(|node| {
            let messages = self.world.firmware(node).extension::<Messages>(MESSAGES);
            (node, messages.map_or(0, |messages| u64::from(messages.free_buffers())))
        });
        free.find(|(_, free)| *free != load::BUFFERS)
    }

    fn settle(&mut self) {
        let end = self.world.now() + SETTLE;
        while self.world.now() < end && self.holds() {
            self.step();
        }
    }

    /// Has each node send messages to every other.
    fn exchange(&mut self, rounds: u32, long: bool) {
        self.spawn_senders(rounds, long);
        self.finish_senders();
        self.settle();
    }

    fn spawn_senders(&mut self, rounds: u32, long: bool) {
        self.oracle.lock().stop_senders = false;
        let habits = Habits { plan: Arc::clone(&self.plan), rounds: Some(rounds), long };
        for node in self.plan.nodes() {
            let host = self.world.host(node);
            self.world.spawn(node, load::send(host, self.oracle.clone(), habits.clone()));
        }
    }

    /// Waits until all senders are done.
    fn finish_senders(&mut self) {
        let receivers = usize::from(self.plan.topology.hosts());
        let end = self.world.now() + PROBE;
        self.step();
        while self.world.tasks() > receivers && self.world.now() < end && self.holds() {
            self.step();
        }
        if self.holds() && self.world.tasks() > receivers {
            let senders = self.world.tasks() - receivers;
            self.complain(format!("{senders} senders wait after healing: {}", self.under_way()));
        }
    }

    /// Describes up to four commands that have not completed.
    fn under_way(&self) -> String {
        let oracle = self.oracle.lock();
        let waiting = oracle.under_way.iter().take(4);
        let lines = waiting.map(|((node, cookie), what)| format!("node {node} {cookie}: {what}"));
        lines.collect::<Vec<_>>().join("; ")
    }

    fn counts(&self) -> (u64, u64) {
        let oracle = self.oracle.lock();
        (oracle.control_sent + oracle.sent(), oracle.control_delivered + oracle.delivered)
    }

    fn drops(&self) -> u64 {
        self.world.traffic().drops.total()
    }

    // ---- leaks ----

    fn end(&mut self) {
        self.oracle.lock().stop_receivers = true;
        let end = self.world.now() + Duration::from_millis(100);
        self.world.run_until(end);
        let mut left = BTreeMap::new();
        left.insert("tasks".to_owned(), self.world.tasks());
        left.insert("frames under way".to_owned(), self.world.frames_under_way());
        for (link, _) in self.plan.topology.outputs() {
            let used = self.world.output(link).map_or(0, |output| output.used());
            left.insert(format!("in the buffer before link {}", link.0), used as usize);
        }
        for node in self.plan.nodes() {
            let unit = self.world.firmware(node);
            let now = self.world.host(node).now();
            if let Some(due) =
                unit.extension::<Talk>(TALK).and_then(|talk| talk.overdue(now - TICKS))
            {
                self.complain(format!(
                    "node {node}: a timeout that was due at {due} has not expired at {now}"
                ));
            }
            left.insert(format!("ports of node {node}"), self.world.open_ports(node));
            let pending = self.plan.nodes().map(|peer| unit.pending(peer)).sum();
            left.insert(format!("messages that wait at node {node}"), pending);
            let messages = unit.extension::<Messages>(MESSAGES);
            let coordination = unit.extension::<Coordination>(COORDINATION);
            let buffers = messages.map_or(0, Messages::free_buffers)
                + coordination.map_or(0, Coordination::free_buffers);
            left.insert(format!("buffers of node {node}"), buffers as usize);
        }
        for (what, count) in left.into_iter().filter(|(_, count)| *count > 0) {
            self.complain(format!("left over: {count} {what}"));
        }
    }
}

/// Passes each record to `observer`, and notes in `frames` those that needed a token.
fn watch(mut observer: Option<Observer>, frames: Option<Shared>) -> Observer {
    Box::new(move |record| {
        if let (Record::Sent { at, node, frame }, Some(frames)) = (record, &frames)
            && frame.header.flags & CONTROLLED != 0
        {
            frames.lock().controlled.push((*at, *node, frame.header.destination));
        }
        if let Some(observer) = &mut observer {
            observer(record);
        }
    })
}

/// Starts the tasks of a host.
fn boot(plan: &Arc<Plan>, oracle: &Shared, host: &SimHost) {
    host.spawn(load::receive(host.clone(), oracle.clone(), Arc::clone(plan)));
    let habits = Habits { plan: Arc::clone(plan), rounds: None, long: false };
    host.spawn(load::send(host.clone(), oracle.clone(), habits));
}
