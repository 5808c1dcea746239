//! Tests that messages of suspended processes wait, and that neither side takes the pause for
//! congestion.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_warp::firmware::{self, CONTROLLER_STATE, WARP, Warp, WarpConfig};

const SUSPENDER: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 9);
const STOP: u8 = 1;
const RECEIVER: NodeId = NodeId(0);
const SENDER: NodeId = NodeId(1);
const MESSAGE: usize = 10_240;
const RATE: LineRate = LineRate::mbps(100);

/// Suspends and resumes ports of its NIC, as a daemon's extension would.
struct Suspender;

impl Extension for Suspender {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let port = PortId(command.args[0] as u16);
        match command.opcode {
            STOP => nic.suspend_port(port),
            _ => nic.resume_port(port),
        }
        nic.complete(command.region.port, &Completion::default());
    }
}

/// Tags of the messages that arrived, in order, and the number of messages that completed at the
/// sender.
#[derive(Debug, Default)]
struct Tally {
    arrived: Vec<u32>,
    completed: usize,
}

/// Two hosts: processes on one send to a process on the other.
struct Scene {
    world: World<Unit>,
    tally: Arc<Mutex<Tally>>,
}

impl Scene {
    fn new() -> Self {
        let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
        let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(64 << 10)));
        let mut world = World::new(&topology, NicProfile::MODERN, 1, |node, _| {
            let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
            let mut unit = Unit::default();
            unit.install(WARP, Warp::new(WarpConfig::new(to, RATE, 16 << 10, 1)).0).unwrap();
            unit.install(SUSPENDER, Suspender).unwrap();
            unit
        });
        let tally: Arc<Mutex<Tally>> = Arc::default();
        let (host, counts) = (world.host(RECEIVER), Arc::clone(&tally));
        world.spawn(RECEIVER, async move { receive(&host, &counts).await });
        Self { world, tally }
    }

    /// Starts a process that sends `count` messages, tagged from `tag` on. Returns the number of
    /// its port.
    fn send(&mut self, tag: u32, count: u32) -> PortId {
        let (host, tally) = (self.world.host(SENDER), Arc::clone(&self.tally));
        let port = Arc::new(Mutex::new(None));
        let number = Arc::clone(&port);
        self.world.spawn(SENDER, async move {
            let mut port = host.open_port().unwrap();
            *number.lock().unwrap() = Some(port.id());
            let memory = port.register(MESSAGE).unwrap();
            let mut next = 0;
            loop {
                while port.outstanding() < 16 && next < count {
                    let mut send = firmware::send(RECEIVER, PortId(0), memory.whole(), 0);
                    send.args[0] = u64::from(tag + next);
                    port.submit(&send).unwrap();
                    next += 1;
                }
                assert_eq!(port.completion().await.unwrap().status, Status::Done);
                tally.lock().unwrap().completed += 1;
            }
        });
        self.run(0.1);
        let number = *port.lock().unwrap();
        number.expect("the process has opened its port")
    }

    /// Runs for `milliseconds` and returns the number of messages that arrive in that time.
    fn run(&mut self, milliseconds: f64) -> usize {
        let before = self.tally.lock().unwrap().arrived.len();
        self.world.run_until(self.world.now() + Duration::from_secs_f64(milliseconds / 1e3));
        self.tally.lock().unwrap().arrived.len() - before
    }

    fn command(&mut self, opcode: u8, port: PortId) {
        let host = self.world.host(SENDER);
        let done = self.world.block_on(SENDER, async move {
            let mut own = host.open_port().unwrap();
            let args = [port.0.into(), 0, 0];
            own.submit(&Command { extension: SUSPENDER, opcode, args, ..Command::default() })
                .unwrap();
            own.completion().await.unwrap();
        });
        done.unwrap();
    }

    /// Returns Warp's rate in bytes a second and its queueing delay in nanoseconds.
    fn state(&mut self) -> [u64; 2] {
        let host = self.world.host(SENDER);
        let known = self.world.block_on(SENDER, async move {
            let mut own = host.open_port().unwrap();
            let ask = Command {
                extension: WARP,
                opcode: CONTROLLER_STATE,
                node: RECEIVER,
                ..Command::default()
            };
            own.submit(&ask).unwrap();
            own.completion().await.unwrap().args
        });
        let known = known.unwrap();
        [known[0], known[2]]
    }

    fn completed(&self) -> usize {
        self.tally.lock().unwrap().completed
    }

    /// Asserts that each message of those tags arrived once, in order.
    #[track_caller]
    fn is_whole(&self, tags: std::ops::Range<u32>) {
        let arrived = &self.tally.lock().unwrap().arrived;
        let these: Vec<u32> = arrived.iter().copied().filter(|tag| tags.contains(tag)).collect();
        let all: Vec<u32> = tags.collect();
        let first = these.iter().zip(&all).position(|(it, tag)| it != tag);
        assert!(
            these == all,
            "{} of {} messages; index of the first wrong one: {first:?}",
            these.len(),
            all.len()
        );
    }
}

async fn receive(host: &SimHost, tally: &Mutex<Tally>) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(MESSAGE * 64).unwrap();
    let range = |slot: u64| memory.range(slot as usize * MESSAGE, MESSAGE).unwrap();
    for slot in 0..64 {
        port.submit(&firmware::receive(range(slot), slot)).unwrap();
    }
    loop {
        let done = port.completion().await.unwrap();
        tally.lock().unwrap().arrived.push(done.args[0] as u32);
        port.submit(&firmware::receive(range(done.cookie), done.cookie)).unwrap();
    }
}

#[test]
fn a_suspension_counts_neither_as_congestion_nor_as_silence() {
    let mut scene = Scene::new();
    let port = scene.send(0, 3_000);
    scene.run(100.0);
    let mut dice = Rng::new(1, "stops");
    for stop in 0..20 {
        let before = scene.run(50.0);
        let [rate, queue] = scene.state();
        scene.run(dice.below(2_000) as f64 / 1e3);
        scene.command(STOP, port);
        // Messages in flight arrive.
        scene.run(4.0);
        let completed = scene.completed();
        let suspended = 10 + dice.below(200);
        assert_eq!(scene.run(suspended as f64), 0, "a suspended process sent messages");
        assert_eq!(scene.completed(), completed, "a suspended process received completions");
        scene.command(STOP + 1, port);
        let [rate_after, queue_after] = scene.state();
        let after = scene.run(50.0);
        let what = format!(
            "stop {stop} of {suspended} ms: {before} messages before, {after} after; {rate} and {rate_after} bytes/s, \
             {queue} and {queue_after} ns in queues"
        );
        assert!(rate_after as f64 > 0.9 * rate as f64, "{what}");
        assert!(after as f64 >= 0.9 * before as f64, "{what}");
        scene.run(5.0);
        let [_, queue_after] = scene.state();
        assert!(queue_after < queue + 2_000_000, "the pause was taken for a queue: {what}");
    }
    scene.run(3_000.0);
    scene.is_whole(0..3_000);
}

#[test]
fn messages_of_others_overtake_those_of_a_suspended_process_and_none_is_lost() {
    let mut scene = Scene::new();
    let first = scene.send(0, 300);
    scene.run(30.0);
    let second = scene.send(10_000, 300);
    let mut dice = Rng::new(2, "stops");
    for _ in 0..40 {
        let port = if dice.below(2) == 0 { first } else { second };
        scene.run(dice.below(3_000) as f64 / 1e3);
        scene.command(STOP, port);
        scene.run(dice.below(8_000) as f64 / 1e3);
        scene.command(STOP + 1, port);
    }
    scene.run(3_000.0);
    assert_eq!(scene.completed(), 600);
    scene.is_whole(0..300);
    scene.is_whole(10_000..10_300);
}

#[test]
fn a_resumed_process_has_the_path_to_itself_while_others_are_suspended() {
    let mut scene = Scene::new();
    let first = scene.send(0, 100_000);
    let _second = scene.send(200_000, 100_000);
    scene.run(100.0);
    let both = scene.run(100.0);
    scene.command(STOP, first);
    scene.run(5.0);
    let alone = scene.run(100.0);
    assert!(alone as f64 > 0.95 * both as f64, "{both} messages of both, {alone} of one");
}

#[test]
fn a_process_that_ends_while_suspended_leaves_no_messages() {
    let mut scene = Scene::new();
    let host = scene.world.host(SENDER);
    let stopped = Arc::new(Mutex::new(None));
    let number = Arc::clone(&stopped);
    scene.world.spawn(SENDER, async move {
        let mut port = host.open_port().unwrap();
        *number.lock().unwrap() = Some(port.id());
        let memory = port.register(MESSAGE).unwrap();
        for _ in 0..16 {
            let send = firmware::send(RECEIVER, PortId(0), memory.whole(), 0);
            port.submit(&send).unwrap();
        }
        host.sleep_until(Instant::from_nanos(30_000_000)).await;
    });
    scene.run(3.0);
    let port = stopped.lock().unwrap().unwrap();
    scene.command(STOP, port);
    scene.run(50.0);
    let other = scene.send(500, 100);
    assert_ne!(other.0, u16::MAX);
    scene.run(500.0);
    scene.is_whole(500..600);
}

/// All users of a path are suspended, then another process sends. Without the end of the pause, the
/// receiver's death would go unnoticed.
#[test]
fn a_new_process_on_a_paused_path_is_subject_to_congestion_timeouts() {
    let mut scene = Scene::new();
    let first = scene.send(0, 100_000);
    scene.run(100.0);
    scene.command(STOP, first);
    scene.run(20.0);
    scene.send(200_000, 100_000);
    scene.run(100.0);
    let [before, _] = scene.state();
    scene.world.cut(SENDER, RECEIVER);
    scene.run(500.0);
    let [after, _] = scene.state();
    assert!(after < before / 4, "{before} bytes/s before the loss of all feedback, {after} after");
}

/// The last process that runs ends, and the others are suspended: their pause is no congestion.
#[test]
fn a_path_whose_last_running_process_ends_is_paused() {
    let mut scene = Scene::new();
    let first = scene.send(0, 100_000);
    let host = scene.world.host(SENDER);
    scene.world.spawn(SENDER, async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(MESSAGE).unwrap();
        while host.now() < Instant::from_nanos(120_000_000) {
            while port.outstanding() < 16 {
                port.submit(&firmware::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
            }
            port.completion().await.unwrap();
        }
    });
    scene.run(100.0);
    let [before, _] = scene.state();
    scene.command(STOP, first);
    scene.run(500.0);
    scene.command(STOP + 1, first);
    let [after, _] = scene.state();
    assert!(after as f64 > 0.9 * before as f64, "{before} bytes/s before, {after} after");
}
