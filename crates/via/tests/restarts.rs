//! Processes that are killed and started again on the same addresses: children of this test, over each live fabric with
//! its default configuration.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::seal::{Identity, Key, SecretKey};
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::udp::{UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::lanes::LaneCarrier;
use midplane_via::message::carrier::Carrier;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};

/// The environment variable with a child's order: the fabric, its rank, and the fabric's name or addresses.
const ORDER: &str = "MIDPLANE_RESTARTS_ORDER";

/// The time within which a restarted process exchanges messages, its own start included.
const SOON: Duration = Duration::from_secs(1);
/// The additional time if other programs have the processors; a lost retry of two seconds is still detected.
const SLACK: Duration = Duration::from_secs(2);

/// A limit on the machine's clock, which only a hang reaches.
const LIMIT: Duration = Duration::from_secs(60);

/// A child process; it is killed when this is dropped.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    fn start(fabric: &str, rank: u32, place: &str) -> Self {
        let module =
            module_path!().split_once("::").map_or(String::new(), |(_, m)| format!("{m}::"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}child"), "--nocapture", "--test-threads=1"])
            .env(ORDER, format!("{fabric} {rank} {place}"))
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .expect("this very program starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once("SAID ") {
                    let _ = tell.send(said.to_owned());
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until the child prints a line that begins like that, and returns it.
    #[track_caller]
    fn wait_for_line(&self, beginning: &str) -> String {
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line.starts_with(beginning) => return line,
                Ok(line) => before.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("not {beginning:?}, only {before:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended after {before:?}"),
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it was killed");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // This fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may have exited: then no process reads the line.
    let _ = writeln!(out, "SAID {what}");
    let _ = out.flush();
}

/// Runs a child's program; as a test without an order, does nothing.
#[test]
fn child() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let parts: Vec<&str> = order.split(' ').collect();
    let [fabric, rank, place] = parts[..] else { panic!("a broken order: {order}") };
    let rank: u16 = rank.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match fabric {
            "lanes" => {
                let carrier = LaneCarrier::open(&ShmConfig::new(place, NodeId(rank), 2)).unwrap();
                talk(carrier).await;
            }
            "shm" => {
                let nic = ShmNic::start(ShmConfig::new(place, NodeId(rank), 2), unit()).unwrap();
                over(&nic.host()).await;
            }
            "udp" | "sealed" | "identified" => {
                let nic = UdpNic::start(on_sockets(fabric, NodeId(rank), place), unit()).unwrap();
                over(&nic.host()).await;
            }
            other => panic!("no fabric {other}"),
        }
    });
}

/// The node's configuration over UDP: without keys, with a key of the fabric, with keys of the nodes.
fn on_sockets(fabric: &str, node: NodeId, place: &str) -> UdpConfig {
    let (addresses, secrets) = place.split_once(';').unwrap_or((place, ""));
    let peers: Vec<SocketAddr> =
        addresses.split(',').map(|address| address.parse().unwrap()).collect();
    let config = UdpConfig::new(node, peers);
    match fabric {
        "sealed" => config.key(Key::new(1, [3; 32])),
        "identified" => {
            let secrets: Vec<SecretKey> =
                secrets.split(',').map(|secret| secret.parse().unwrap()).collect();
            let list = secrets.iter().map(SecretKey::public).collect();
            let own = secrets[node.index()].clone();
            config.identity(Identity::new(node, own, list).unwrap())
        }
        _ => config,
    }
}

fn unit() -> Unit {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
    unit
}

async fn over(host: &impl Host) {
    let own = Peer(host.node().0.into());
    let nodes = [NodeId(0), NodeId(1)];
    talk(RdmaCarrier::open(host, own, &nodes, RdmaConfig::default()).await.unwrap()).await;
}

/// Has rank 0 send requests and rank 1 answer them, without end. Each prints when that begins and why it ends.
async fn talk<C: Carrier + 'static>(carrier: C) {
    say("started");
    let world = Communicator::world(Engine::new(carrier, Config::default()), 2).unwrap();
    let other = Rank(1 - world.rank().0);
    let mut talks = false;
    loop {
        let turn = async {
            if world.rank() == Rank(0) {
                world.send(other, Tag(1), vec![7; 100]).await?;
                world.receive(other, Tag(2)).await.map(drop)
            } else {
                let received = world.receive(other, Tag(1)).await?;
                world.send(other, Tag(2), received.bytes).await
            }
        };
        match turn.await {
            Ok(()) if !talks => {
                talks = true;
                say("talks");
            }
            Ok(()) => {}
            Err(error) => {
                if talks {
                    say(&format!("lost: {error}"));
                }
                talks = false;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Returns the name or the addresses by which the two processes of a fabric find each other; no other test has it.
fn place(fabric: &str) -> String {
    if !["udp", "sealed", "identified"].contains(&fabric) {
        return format!(
            "midplane-restarts-{fabric}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
    }
    // The addresses are of a host of its own. The ports are below those that the system assigns to sockets of all
    // addresses.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let host = Ipv4Addr::new(127, 1 + (std::process::id() % 254) as u8, high, low);
    let port = 10_000 + std::process::id() % 20_000;
    let addresses = format!("{host}:{port},{host}:{}", port + 1);
    if fabric != "identified" {
        return addresses;
    }
    let [first, second] = [(); 2].map(|()| SecretKey::generate().unwrap().to_text());
    format!("{addresses};{first},{second}")
}

/// Waits for the time in which there is no process.
#[expect(clippy::disallowed_methods, reason = "the test varies the time between two processes")]
fn wait_for(pause: Duration) {
    std::thread::sleep(pause);
}

/// Kills a pair, and starts another one at the same place, the second process `apart` after the first.
fn a_pair_after_a_killed_one(fabric: &str, apart: Duration) {
    let place = place(fabric);
    for _ in 0..2 {
        let first = Program::start(fabric, 0, &place);
        first.wait_for_line("started");
        wait_for(apart);
        let second = Program::start(fabric, 1, &place);
        second.wait_for_line("talks");
        first.wait_for_line("talks");
        first.kill();
        second.kill();
    }
}

/// Runs `work` over all fabrics at once, because most of it is waiting.
fn over_each(work: impl Fn(&str) + Sync) {
    let work = &work;
    std::thread::scope(|all| {
        for fabric in ["udp", "shm", "lanes"] {
            all.spawn(move || work(fabric));
        }
    });
}

#[test]
fn a_pair_starts_after_a_killed_one() {
    over_each(|fabric| a_pair_after_a_killed_one(fabric, Duration::ZERO));
}

#[test]
fn a_pair_of_which_one_starts_late_starts_after_a_killed_one() {
    over_each(|fabric| a_pair_after_a_killed_one(fabric, Duration::from_millis(1_500)));
}

/// Kills one of two processes, and starts it again after `pause`, three times. The other one's connection ends, and it
/// then exchanges messages with the new process.
#[expect(
    clippy::disallowed_methods,
    reason = "the test measures the time until messages are exchanged"
)]
fn one_of_two_returns(fabric: &str, returns: u32, pause: Duration) {
    let place = place(fabric);
    let remaining = Program::start(fabric, 1 - returns, &place);
    let mut restarted = Program::start(fabric, returns, &place);
    remaining.wait_for_line("talks");
    restarted.wait_for_line("talks");
    for _ in 0..3 {
        restarted.kill();
        wait_for(pause);
        let begin = Instant::now();
        restarted = Program::start(fabric, returns, &place);
        restarted.wait_for_line("talks");
        let took = begin.elapsed();
        println!("{fabric}: after {pause:?}, rank {returns} exchanged messages within {took:?}");
        assert!(took < SOON + SLACK, "it took {took:?}");
        let lost = remaining.wait_for_line("lost");
        assert!(lost.contains("was lost"), "{lost}");
        remaining.wait_for_line("talks");
    }
}

#[test]
fn a_restarted_process_exchanges_messages_over_udp() {
    for returns in [0, 1] {
        one_of_two_returns("udp", returns, Duration::from_millis(200));
    }
}

#[test]
fn a_restarted_process_exchanges_messages_over_shared_memory() {
    for returns in [0, 1] {
        one_of_two_returns("shm", returns, Duration::from_millis(200));
    }
}

#[test]
fn a_restarted_process_exchanges_messages_over_lanes() {
    for returns in [0, 1] {
        one_of_two_returns("lanes", returns, Duration::from_millis(200));
    }
}

#[test]
fn a_process_restarted_after_2_s_exchanges_messages() {
    over_each(|fabric| one_of_two_returns(fabric, 1, Duration::from_secs(2)));
}

#[test]
fn a_process_restarted_with_its_keys_exchanges_messages_over_udp() {
    for fabric in ["sealed", "identified"] {
        for returns in [0, 1] {
            one_of_two_returns(fabric, returns, Duration::from_millis(200));
        }
    }
}

#[test]
#[ignore = "it waits for minutes"]
fn a_process_restarted_after_20_s_exchanges_messages_over_each_live_fabric() {
    std::thread::scope(|all| {
        for fabric in ["udp", "sealed", "identified", "shm", "lanes"] {
            all.spawn(move || one_of_two_returns(fabric, 1, Duration::from_secs(20)));
        }
    });
}
