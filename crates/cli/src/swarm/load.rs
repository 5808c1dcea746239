//! Applications of the simulated hosts: they send, receive, lose their ports, and open them again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use midplane::nicvm::collective;
use midplane::nicvm::coordination;
use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Command, Completion, Port, PortClosed, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::rng::Rng;

use super::firmware::{BOMB, LEAVE, NOTHING, TALK};
use super::oracle::{Shared, pattern};
use super::plan::{CENTRE, Plan};

/// Port on which each node receives.
const INBOX: PortId = PortId(0);
/// Ports of senders and of barriers: a free number could be that of a receiver which opens its port again.
const OUTBOX: PortId = PortId(1);
const BARRIER: PortId = PortId(2);
/// Most commands of a sender that have not completed.
const UNDER_WAY: usize = 4;
/// Receive buffers of each service.
pub(crate) const BUFFERS: u64 = 24;
/// Most commands that share one doorbell: more than a unit takes at once.
const BURST: u64 = 220;
/// Barriers of each node after all faults have ended.
const BARRIERS: u32 = 3;
/// First cookie of buffers for coordinated messages.
const COORDINATED: u64 = 1 << 32;
/// Time without a completion after which a host that may lose doorbells rings again.
const TIMEOUT: Duration = Duration::from_millis(2);
/// Time within which a unit that has nothing else to do completes its next command.
const QUIET: Duration = Duration::from_millis(50);
/// Pause before a failed step is tried again.
const PAUSE: Duration = Duration::from_micros(200);

/// Settings of a sender.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) plan: Arc<Plan>,
    /// Number of rounds, in each of which every other node is sent a short message and a control message, after all faults
    /// have ended. `None`: random commands, also those that make an extension fail, until the senders are stopped.
    pub(crate) rounds: Option<u32>,
    /// True if the messages of the rounds are as long as the random ones.
    pub(crate) long: bool,
}

impl Habits {
    const fn is_random(&self) -> bool {
        self.rounds.is_none()
    }

    /// Returns the number of other nodes.
    fn others(&self) -> u32 {
        u32::from(self.plan.topology.hosts() - 1)
    }

    fn longest(&self) -> u64 {
        if self.is_random() || self.long { self.plan.longest } else { self.plan.longest.min(500) }
    }

    fn pause(&self) -> Duration {
        if self.is_random() { self.plan.pause } else { Duration::from_micros(300) }
    }
}

/// Waits for the next completion; returns `None` after `limit`.
async fn next(
    host: &impl Host,
    port: &mut Port,
    limit: Duration,
) -> Option<Result<Completion, PortClosed>> {
    tokio::select! {
        biased;
        ended = port.completion() => Some(ended),
        () = host.sleep_until(host.now() + limit) => None,
    }
}

/// Sender with an open port.
struct Sender<'a, H> {
    host: &'a H,
    oracle: &'a Shared,
    habits: &'a Habits,
    port: Port,
    memory: Vec<Region>,
    /// By cookie: the index of the memory in use, and true if the command is meant to fail.
    under_way: BTreeMap<u64, (usize, bool)>,
    cookie: u64,
    /// True until a burst has completed: nothing else is sent, which could wake the unit.
    waits: bool,
}

impl<H: Host> Sender<'_, H> {
    /// Posts one command: a random one, or the next of the rounds of which `left` commands are left.
    fn post(&mut self, rng: &mut Rng, left: Option<u32>) {
        let busy: Vec<usize> = self.under_way.values().map(|(slot, _)| *slot).collect();
        let Some(slot) = (0..UNDER_WAY).find(|slot| !busy.contains(slot)) else { return };
        let me = self.host.node();
        let others = u64::from(self.habits.others());
        let which = left.map_or_else(|| rng.below(others), |left| u64::from(left / 2) % others);
        let to = NodeId(((u64::from(me.0) + 1 + which) % (others + 1)) as u16);
        let terse = self.habits.plan.terse && left.is_none() && me != CENTRE;
        let coordinated =
            self.habits.plan.coordination.is_some() && me != CENTRE && (terse || rng.chance(0.5));
        let bursts = if left.is_some() {
            1 + u64::from(self.habits.long) * 3
        } else {
            [1, 1, 1, 8][rng.below(4) as usize]
        };
        let draw = left.map_or_else(|| rng.below(100), |left| u64::from(left % 2) * 39 + 1);
        let (command, fails) = if self.habits.is_random() && draw < 1 {
            (Command { extension: BOMB, ..Command::default() }, true)
        } else if self.may_leave() && rng.chance(0.01) {
            (Command { extension: TALK, opcode: LEAVE, ..Command::default() }, false)
        } else if draw < 40 && !terse {
            let args = [bursts, 0, 0];
            (Command { extension: TALK, node: to, args, ..Command::default() }, false)
        } else {
            let receivers = &self.habits.plan.receivers;
            let receiver = receivers[rng.below(receivers.len() as u64) as usize];
            let coordinated = coordinated && left.is_none() && receiver != me;
            let to = if coordinated { receiver } else { to };
            (self.message(rng, slot, to, coordinated), false)
        };
        self.submit(slot, command, fails);
        self.port.ring();
    }

    fn may_leave(&self) -> bool {
        let Habits { plan, .. } = self.habits;
        plan.leaves && self.habits.is_random() && !plan.receivers.contains(&self.host.node())
    }

    /// Posts many commands with one doorbell, and lets nothing else wake the unit until they have completed.
    fn burst(&mut self, rng: &mut Rng) {
        let to = u64::from(self.host.node().0) + 1 + rng.below(u64::from(self.habits.others()));
        let node = NodeId((to % u64::from(self.habits.plan.topology.hosts())) as u16);
        for _ in 0..rng.between(2, BURST) {
            let command = Command { extension: TALK, node, ..Command::default() };
            self.submit(UNDER_WAY, command, false);
        }
        self.port.ring();
        self.waits = true;
    }

    fn submit(&mut self, slot: usize, command: Command, fails: bool) {
        let me = self.host.node();
        self.cookie += 1;
        let command = Command { cookie: self.cookie, ..command };
        if self.port.post(&command).is_ok() {
            self.under_way.insert(self.cookie, (slot, fails));
            let what = format!(
                "command {}.{} to node {} of {} bytes at {}",
                command.extension,
                command.opcode,
                command.node,
                command.region.length,
                self.host.now()
            );
            self.oracle.lock().under_way.insert((me, self.cookie), what);
        }
    }

    fn message(&self, rng: &mut Rng, slot: usize, to: NodeId, coordinated: bool) -> Command {
        let length = rng.between(1, self.habits.longest()) as usize;
        let tag = self.oracle.lock().on_send(self.host.node(), to, length);
        let memory = &self.memory[slot];
        memory.write(0, &pattern(tag, length)).expect("no message is longer");
        let range = memory.range(0, length).expect("no message is longer");
        let send = if coordinated { coordination::send } else { messages::send };
        let mut command = send(to, INBOX, range, 0);
        command.args[0] = u64::from(tag);
        command
    }

    /// Checks that the command completes once, with a status that it may have.
    fn on_completion(&mut self, completion: &Completion) {
        let node = self.host.node();
        self.oracle.lock().under_way.remove(&(node, completion.cookie));
        let Some((_, fails)) = self.under_way.remove(&completion.cookie) else {
            let what = format!("node {node}: a completion of no command: {completion:?}");
            return self.oracle.lock().complain(what);
        };
        let fine = match completion.status {
            Status::Done | Status::Refused | Status::PeerLost => !fails,
            Status::ExtensionDown => fails || self.may_leave(),
            Status::Region | Status::Invalid => self.habits.is_random() && self.habits.plan.damages,
            _ => false,
        };
        if !fine {
            self.oracle.lock().complain(format!("node {node}: ends with {completion:?}"));
        }
    }
}

/// Sends until the oracle stops the senders, then waits until all commands have completed.
pub(crate) async fn send<H: Host>(host: H, oracle: Shared, habits: Habits) {
    let mut rng = host.rng(&format!("sender {}", host.now()));
    let mut left = habits.rounds.map(|rounds| rounds * habits.others() * 2);
    loop {
        let outbox = PortOptions::default().number(OUTBOX);
        let memory = host.open_port_with(outbox).ok().and_then(|mut port| {
            let regions = (0..UNDER_WAY).map(|_| port.register(habits.longest() as usize));
            Some((regions.collect::<Result<Vec<_>, _>>().ok()?, port))
        });
        {
            let mut oracle = oracle.lock();
            oracle.under_way.retain(|(node, _), _| *node != host.node());
            let what = format!("to have a port, since {}", host.now());
            oracle.under_way.insert((host.node(), 0), what);
        }
        if let Some((memory, port)) = memory {
            let (under_way, cookie) = (BTreeMap::new(), 0);
            let (host, oracle, habits) = (&host, &oracle, &habits);
            let waits = false;
            let sender = Sender { host, oracle, habits, port, memory, under_way, cookie, waits };
            if send_all(sender, &mut rng, &mut left).await {
                oracle.lock().under_way.retain(|(node, _), _| *node != host.node());
                return;
            }
        }
        host.sleep_until(host.now() + PAUSE).await;
    }
}

/// Sends through one port. Returns true when all is sent, and false when the port is closed.
async fn send_all<H: Host>(
    mut sender: Sender<'_, H>,
    rng: &mut Rng,
    left: &mut Option<u32>,
) -> bool {
    loop {
        let done = *left == Some(0) || sender.oracle.lock().stop_senders;
        if done && sender.under_way.is_empty() {
            return true;
        }
        sender.waits &= !sender.under_way.is_empty();
        let random = sender.habits.is_random() && !done;
        if random && rng.chance(0.004) {
            // The process exits, even with commands in flight.
            return false;
        }
        if random && !sender.waits && !sender.habits.plan.rings_again && rng.chance(0.01) {
            sender.burst(rng);
        } else if !done && !sender.waits && sender.under_way.len() < UNDER_WAY {
            *left = left.map(|left| left - 1);
            sender.post(rng, *left);
        }
        let pause =
            Duration::from_nanos(rng.between(1_000, sender.habits.pause().as_nanos() as u64));
        let limit = if done || sender.waits { TIMEOUT } else { pause };
        match next(sender.host, &mut sender.port, limit).await {
            Some(Ok(completion)) => sender.on_completion(&completion),
            Some(Err(PortClosed)) => return false,
            None if sender.habits.plan.rings_again => sender.port.ring(),
            None => {}
        }
        if random && !sender.waits {
            sender.host.sleep_until(sender.host.now() + pause).await;
        }
    }
}

/// Receives until the oracle stops the receivers.
pub(crate) async fn receive<H: Host>(host: H, oracle: Shared, plan: Arc<Plan>) {
    while !oracle.lock().stop_receivers {
        if let Ok(port) = host.open_port_with(PortOptions::default().number(INBOX)) {
            receive_all(&host, port, &oracle, &plan).await;
        }
        host.sleep_until(host.now() + PAUSE).await;
    }
}

async fn receive_all<H: Host>(host: &H, mut port: Port, oracle: &Shared, plan: &Plan) {
    let longest = plan.longest as usize;
    let coordinated = plan.coordination.is_some() && plan.receivers.contains(&host.node());
    let mut buffers = BTreeMap::new();
    let services = if coordinated { 2 } else { 1 };
    for cookie in
        (0..services).flat_map(|service| (0..BUFFERS).map(move |n| service * COORDINATED + n))
    {
        let Ok(buffer) = port.register(longest) else { return };
        if post_receive(&mut port, &buffer, cookie).is_none() {
            return;
        }
        buffers.insert(cookie, buffer);
    }
    let renewals = oracle.lock().renewals;
    loop {
        let (stop, current) = {
            let oracle = oracle.lock();
            (oracle.stop_receivers, oracle.renewals)
        };
        if stop || current != renewals {
            return;
        }
        let completion = match next(host, &mut port, TIMEOUT).await {
            Some(Ok(completion)) => completion,
            Some(Err(PortClosed)) => return,
            None => {
                if plan.rings_again {
                    port.ring();
                }
                continue;
            }
        };
        let buffer = &buffers[&completion.cookie];
        if completion.status == Status::Done {
            let mut bytes = vec![0; completion.length as usize];
            buffer.read(0, &mut bytes).expect("no message is longer");
            let tag = completion.args[0] as u32;
            oracle.lock().on_delivery(completion.node, host.node(), tag, &bytes);
        } else {
            if completion.status == Status::Truncated {
                let what = format!("node {}: no message is that long: {completion:?}", host.node());
                oracle.lock().complain(what);
            }
            host.sleep_until(host.now() + PAUSE).await;
        }
        if post_receive(&mut port, buffer, completion.cookie).is_none() {
            return;
        }
    }
}

/// Enters some barriers with all other nodes, each at a time of its own, and checks that none ends before all are in it.
pub(crate) async fn barriers<H: Host>(host: H, oracle: Shared, plan: Arc<Plan>) {
    let (me, nodes) = (host.node(), usize::from(plan.topology.hosts()));
    let mut rng = host.rng("barriers");
    let Ok(mut port) = host.open_port_with(PortOptions::default().number(BARRIER)) else {
        return oracle.lock().complain(format!("node {me} has no port for barriers"));
    };
    for _ in 0..BARRIERS {
        let pause = Duration::from_nanos(rng.below(400_000));
        host.sleep_until(host.now() + pause).await;
        let number = oracle.lock().on_barrier(me);
        let ended = match port.submit(&collective::barrier(number.into())) {
            Ok(()) => port.completion().await.ok(),
            Err(_) => None,
        };
        let mut oracle = oracle.lock();
        if ended.is_none_or(|completion| completion.status != Status::Done) {
            return oracle.complain(format!("node {me}: barrier {number} ends with {ended:?}"));
        }
        oracle.on_barrier_end(me, number, nodes);
    }
}

/// Posts many commands with one doorbell while nothing else wakes the unit, and checks that all complete.
pub(crate) async fn burst<H: Host>(host: H, oracle: Shared) {
    let Ok(mut port) = host.open_port_with(PortOptions::default().number(BARRIER)) else {
        return oracle.lock().complain(format!("node {} has no port for a burst", host.node()));
    };
    for cookie in 0..BURST {
        let command = Command { extension: TALK, opcode: NOTHING, cookie, ..Command::default() };
        port.post(&command).expect("the port is deep enough");
    }
    port.ring();
    for done in 0..BURST {
        if !matches!(next(&host, &mut port, QUIET).await, Some(Ok(_))) {
            let what = format!("node {}: {done} of {BURST} commands complete", host.node());
            return oracle.lock().complain(what);
        }
    }
}

/// Posts a receive buffer to the service that its cookie names; returns `None` if the port is closed.
fn post_receive(port: &mut Port, buffer: &Region, cookie: u64) -> Option<()> {
    let receive = if cookie < COORDINATED { messages::receive } else { coordination::receive };
    port.submit(&receive(buffer.whole(), cookie)).ok()
}
