//! Processes that are suspended and resumed: no message between them is lost, no receive buffer is lost, and the tokens
//! of suspended processes move on without them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, RECEIVER};
use crate::harness::{Effect, Harness, at, memory};
use midplane_nicvm::context::Context;
use midplane_nicvm::coordination::{self, COORDINATION, COUNTERS, Coordination};
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Kind;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::time::Instant;
use proptest::prelude::*;

const SUSPENDER: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 9);
const STOP: u8 = 1;
const RESUME: u8 = 2;
const MESSAGE: usize = 6_000;
/// The port of every process: its node's first.
const PORT: PortId = PortId(0);

/// Suspends and resumes ports of its NIC, as a daemon's extension would.
struct Suspender;

impl Extension for Suspender {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            STOP => nic.suspend_port(PORT),
            _ => nic.resume_port(PORT),
        }
        nic.complete(command.region.port, &Completion::default());
    }
}

/// The messages that are sent to the receiver, and the buffers for them.
#[derive(Clone, Copy)]
struct Traffic {
    coordinated: bool,
    senders: u16,
    messages: u32,
    /// Messages under way at each sender.
    burst: usize,
    buffers: usize,
}

/// Messages of each sender in the order of their arrival, and a line for each message with wrong bytes.
#[derive(Default)]
struct Arrived {
    tags: BTreeMap<u16, Vec<u32>>,
    wrong: Vec<String>,
    completed: u32,
}

fn pattern(sender: u16, number: u32) -> Vec<u8> {
    let length = 1 + (number as usize * 977 + usize::from(sender)) % MESSAGE;
    let seed = u64::from(sender) << 32 | u64::from(number);
    let byte = |at: u64| ((seed << 16 ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..length as u64).map(byte).collect()
}

async fn receive(host: SimHost, traffic: Traffic, arrived: Arc<Mutex<Arrived>>) {
    let mut port = host.open_port().unwrap();
    let regions: Vec<_> = (0..traffic.buffers).map(|_| port.register(MESSAGE).unwrap()).collect();
    let receive = |at: usize| match traffic.coordinated {
        true => coordination::receive(regions[at].whole(), at as u64),
        false => messages::receive(regions[at].whole(), at as u64),
    };
    for at in 0..regions.len() {
        port.submit(&receive(at)).unwrap();
    }
    while let Ok(completion) = port.completion().await {
        let mut bytes = vec![0; completion.length as usize];
        let at = completion.cookie as usize;
        regions[at].read(0, &mut bytes).unwrap();
        let (sender, number) = (completion.node.0, completion.args[0] as u32);
        {
            let mut arrived = arrived.lock().unwrap();
            if completion.status != Status::Done || bytes != pattern(sender, number) {
                arrived.wrong.push(format!("{completion:?}"));
            }
            arrived.tags.entry(sender).or_default().push(number);
        }
        port.submit(&receive(at)).unwrap();
    }
}

async fn send(host: SimHost, traffic: Traffic, arrived: Arc<Mutex<Arrived>>) {
    let mut port = host.open_port().unwrap();
    let regions: Vec<_> = (0..traffic.burst).map(|_| port.register(MESSAGE).unwrap()).collect();
    host.sleep_until(Instant::from_nanos(100_000)).await;
    let mut free: Vec<usize> = (0..traffic.burst).collect();
    let (mut next, mut completed) = (0, 0);
    while completed < traffic.messages {
        while next < traffic.messages
            && let Some(at) = free.pop()
        {
            let bytes = pattern(host.node().0, next);
            regions[at].write(0, &bytes).unwrap();
            let range = regions[at].range(0, bytes.len()).unwrap();
            let mut command = match traffic.coordinated {
                true => coordination::send(RECEIVER, PORT, range, at as u64),
                false => messages::send(RECEIVER, PORT, range, at as u64),
            };
            command.args[0] = next.into();
            port.submit(&command).unwrap();
            next += 1;
        }
        let done = port.completion().await.unwrap();
        assert_eq!(done.status, Status::Done);
        free.push(done.cookie as usize);
        completed += 1;
        arrived.lock().unwrap().completed += 1;
    }
    host.sleep_until(Instant::from_nanos(u64::MAX / 2)).await;
}

struct Scene {
    world: World<Unit>,
    traffic: Traffic,
    arrived: Arc<Mutex<Arrived>>,
    dice: Rng,
    stopped: Duration,
}

impl Scene {
    fn new(cluster: &Cluster, traffic: Traffic, seed: u64) -> Self {
        let config = cluster.config.clone();
        let mut world = World::new(&cluster.topology, cluster.profile, seed, move |_, _| {
            let mut unit = Unit::default();
            unit.install(MESSAGES, Messages::new()).unwrap();
            unit.install(COORDINATION, Coordination::new(config.clone()).unwrap()).unwrap();
            unit.install(SUSPENDER, Suspender).unwrap();
            unit
        });
        let arrived = Arc::<Mutex<Arrived>>::default();
        world.spawn(RECEIVER, receive(world.host(RECEIVER), traffic, Arc::clone(&arrived)));
        for sender in (1..=traffic.senders).map(NodeId) {
            world.spawn(sender, send(world.host(sender), traffic, Arc::clone(&arrived)));
        }
        let dice = Rng::new(seed, "stops");
        let mut scene = Self { world, traffic, arrived, dice, stopped: Duration::ZERO };
        scene.run(1_000_000);
        scene
    }

    fn run(&mut self, nanos: u64) {
        self.world.run_until(self.world.now().plus_nanos(nanos));
    }

    fn command(&mut self, node: NodeId, opcode: u8) {
        let host = self.world.host(node);
        let done = self.world.block_on(node, async move {
            let mut own = host.open_port().unwrap();
            own.submit(&Command { extension: SUSPENDER, opcode, ..Command::default() }).unwrap();
            own.completion().await.unwrap();
        });
        done.unwrap();
    }

    /// Suspends the process on `node` for up to `longest` ns, and lets it run for up to `slice` ns after that.
    fn stop(&mut self, node: NodeId, longest: u64, slice: u64) {
        self.command(node, STOP);
        let suspended = self.dice.between(1, longest);
        self.run(suspended);
        self.command(node, RESUME);
        let runs = self.dice.between(1, slice);
        self.run(runs);
        self.stopped += Duration::from_nanos(suspended);
    }

    fn is_done(&self) -> bool {
        let traffic = self.traffic;
        self.arrived.lock().unwrap().completed == u32::from(traffic.senders) * traffic.messages
    }

    /// Runs until all messages have arrived. Checks that each did once, in the order of each sender, and unharmed.
    #[track_caller]
    fn finish(&mut self) {
        let mut attempts = 1_000;
        while !self.is_done() && attempts > 0 {
            self.run(10_000_000);
            attempts -= 1;
        }
        self.run(100_000_000);
        let arrived = self.arrived.lock().unwrap();
        assert_eq!(arrived.wrong, Vec::<String>::new());
        for sender in 1..=self.traffic.senders {
            let tags = arrived.tags.get(&sender).map_or(&[][..], Vec::as_slice);
            let expected: Vec<u32> = (0..self.traffic.messages).collect();
            let first = tags.iter().zip(&expected).position(|(tag, expected)| tag != expected);
            assert!(
                tags == expected,
                "{} of {} messages of sender {sender}; the first that is wrong: {first:?}",
                tags.len(),
                expected.len(),
            );
        }
    }

    /// Counts the receive buffers that no message has taken.
    fn free_buffers(&self) -> u32 {
        let unit = self.world.firmware(RECEIVER);
        if self.traffic.coordinated {
            unit.extension::<Coordination>(COORDINATION).unwrap().free_buffers()
        } else {
            unit.extension::<Messages>(MESSAGES).unwrap().free_buffers()
        }
    }

    /// Counts the peers that any unit declared down, and the tokens that any gave up as lost.
    fn given_up(&mut self) -> (u64, u64) {
        let mut sum = (0, 0);
        for node in (0..=self.traffic.senders).map(NodeId) {
            sum.0 += self.world.firmware(node).control_counters().unwrap().peers_down;
            let host = self.world.host(node);
            let counted = self.world.block_on(node, async move {
                let mut own = host.open_port().unwrap();
                let ask =
                    Command { extension: COORDINATION, opcode: COUNTERS, ..Command::default() };
                own.submit(&ask).unwrap();
                own.completion().await.unwrap().args[3]
            });
            sum.1 += counted.unwrap();
        }
        sum
    }
}

fn check_receiver(seed: u64) {
    let traffic = Traffic { coordinated: true, senders: 3, messages: 300, burst: 6, buffers: 5 };
    let mut cluster = Cluster::ethernet(traffic.senders);
    cluster.config = cluster.config.buffers(true);
    let mut scene = Scene::new(&cluster, traffic, seed);
    let mut stops = 0;
    while !scene.is_done() && stops < 2_000 {
        scene.stop(RECEIVER, 40_000_000, 3_000_000);
        stops += 1;
    }
    scene.finish();
    assert!(stops > 20, "seed {seed}: {stops} stops");
    assert_eq!(scene.free_buffers(), traffic.buffers as u32, "seed {seed}: all came back");
    assert_eq!(scene.given_up(), (0, 0), "seed {seed}: dead peers, lost tokens");
}

#[test]
fn a_suspended_receiver_gets_every_message_when_it_is_resumed() {
    (0..4).for_each(check_receiver);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn a_suspended_receiver_gets_every_message_from_new_seeds(seed: u64) {
        check_receiver(seed);
    }
}

fn check_uncontrolled(seed: u64) {
    let traffic = Traffic { coordinated: false, senders: 1, messages: 150, burst: 1, buffers: 200 };
    let mut scene = Scene::new(&Cluster::ethernet(traffic.senders), traffic, seed);
    let mut stops = 0;
    while !scene.is_done() && stops < 2_000 {
        scene.stop(RECEIVER, 2_000_000, 500_000);
        stops += 1;
    }
    scene.finish();
    assert!(stops > 5, "seed {seed}: {stops} stops");
    assert_eq!(scene.free_buffers(), traffic.buffers as u32, "seed {seed}: all came back");
}

#[test]
fn messages_without_flow_control_that_find_a_buffer_wait_in_it_as_well() {
    (0..2).for_each(check_uncontrolled);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn messages_without_flow_control_wait_as_well_from_new_seeds(seed: u64) {
        check_uncontrolled(seed);
    }
}

/// Suspends senders for up to several leases, and up to the time after which a silent peer is declared dead.
fn check_senders(seed: u64) {
    let traffic = Traffic { coordinated: true, senders: 4, messages: 3_000, burst: 8, buffers: 64 };
    let mut scene = Scene::new(&Cluster::ethernet(traffic.senders), traffic, seed);
    let mut stops = 0;
    while !scene.is_done() && stops < 2_000 {
        let node = NodeId(1 + scene.dice.below(traffic.senders.into()) as u16);
        let longest = if stops % 5 == 0 { 3_000_000_000 } else { 5_000_000 };
        scene.stop(node, longest, 6_000_000);
        stops += 1;
    }
    scene.finish();
    // All messages take 2.9 s of the receiver's link, one sender's 0.7 s. The first suspension of up to 3 s may outlast
    // the other senders, but the short ones after it do not outlast the suspended one.
    assert!(stops > 5 && scene.stopped > Duration::from_secs(2), "seed {seed}: {stops} stops");
    assert_eq!(scene.given_up(), (0, 0), "seed {seed}: dead peers, lost tokens");
}

#[test]
fn suspended_senders_return_their_tokens_and_are_not_declared_dead() {
    (0..3).for_each(check_senders);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn suspended_senders_return_their_tokens_from_new_seeds(seed: u64) {
        check_senders(seed);
    }
}

/// Returns the numbers of the messages whose frames have left since the last call, and the ports of the completions.
fn take_left(harness: &mut Harness) -> (Vec<u32>, Vec<PortId>) {
    let (mut numbers, mut completed) = (Vec::new(), Vec::new());
    for effect in harness.take() {
        match effect {
            Effect::Sent(header) if header.kind == Kind::Data => {
                numbers.push(header.words[0] as u32);
            }
            Effect::Completed(port, _) => completed.push(port),
            _ => {}
        }
    }
    (numbers, completed)
}

#[test]
fn a_suspended_port_holds_no_messages_of_another_port() {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).unwrap();
    unit.install(SUSPENDER, Suspender).unwrap();
    let mut harness = Harness::new(unit);
    let (other, operator) = (PortId(1), PortId(2));
    let suspender = |opcode| Command { extension: SUSPENDER, opcode, ..Command::default() };
    // Two frames each, to the same port.
    let send = |port| messages::send(NodeId(2), PortId(5), memory(port, 100_000), 1);
    harness.hw.busy_until = at(10_000);
    harness.post(PORT, send(PORT));
    harness.post(other, send(other));
    harness.post(operator, suspender(STOP));
    assert_eq!(take_left(&mut harness), (vec![], vec![operator]));
    harness.pass(20_000);
    assert_eq!(take_left(&mut harness), (vec![0, 0], vec![other]));
    harness.post(other, send(other));
    assert_eq!(take_left(&mut harness), (vec![1, 1], vec![other]));
    // The receiver ignores older numbers than the newest.
    harness.post(operator, suspender(RESUME));
    assert_eq!(take_left(&mut harness), (vec![2, 2], vec![operator, PORT]));
}
