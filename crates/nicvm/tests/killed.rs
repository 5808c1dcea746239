//! The receiver of coordinated senders is killed and started again on the same addresses: processes of this
//! test, over each live fabric.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use midplane_nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::udp::{UdpConfig, UdpNic};

/// Environment variable with a child's order: the fabric, the child's node, and the fabric's name or addresses.
const ORDER: &str = "MIDPLANE_KILLED_ORDER";

/// A receiver, and three senders.
const NODES: u16 = 4;

/// Limit of a wait, on the machine's clock: only a hung process takes so long.
const LIMIT: Duration = Duration::from_secs(60);

/// A child process; it is killed when this is dropped.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    fn start(fabric: &str, node: u16, place: &str) -> Self {
        let module =
            module_path!().split_once("::").map_or(String::new(), |(_, m)| format!("{m}::"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}child"), "--nocapture", "--test-threads=1"])
            .env(ORDER, format!("{fabric} {node} {place}"))
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

    /// Waits until the child prints this line.
    #[track_caller]
    fn wait_for(&self, what: &str) {
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line == what => return,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("never {what:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended before {what:?}"),
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
        // It can fail only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report(what: &str) {
    let mut out = std::io::stdout().lock();
    // If the parent has exited, the line is lost.
    let _ = writeln!(out, "SAID {what}");
    let _ = out.flush();
}

/// Runs as a child; without an order in the environment, does nothing.
#[test]
fn child() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let parts: Vec<&str> = order.split(' ').collect();
    let [fabric, node, place] = parts[..] else { panic!("a broken order: {order}") };
    let node = NodeId(node.parse().unwrap());
    let senders: Vec<NodeId> = (1..NODES).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&[NodeId(0)], &senders);
    config = config.buffers(true);
    let mut unit = Unit::default();
    unit.install(COORDINATION, Coordination::new(config).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match fabric {
            "shm" => {
                let nic = ShmNic::start(ShmConfig::new(place, node, NODES), unit).unwrap();
                talk(&nic.host()).await;
            }
            "udp" => {
                let peers: Vec<SocketAddr> =
                    place.split(',').map(|address| address.parse().unwrap()).collect();
                let nic = UdpNic::start(UdpConfig::new(node, peers), unit).unwrap();
                talk(&nic.host()).await;
            }
            other => panic!("no fabric {other}"),
        }
    });
}

/// Receives at node 0, and prints each message's sender; sends at the other nodes. Never returns.
async fn talk(host: &impl Host) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(1_024).unwrap();
    report("started");
    loop {
        let command = if host.node() == NodeId(0) {
            coordination::receive(memory.whole(), 0)
        } else {
            coordination::send(NodeId(0), PortId(0), memory.whole(), 0)
        };
        port.submit(&command).unwrap();
        let done = port.completion().await.unwrap();
        if host.node() == NodeId(0) {
            report(&format!("from {}", done.node));
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the name or the addresses of a fabric, which no other test uses.
fn place(fabric: &str) -> String {
    if fabric != "udp" {
        return format!(
            "midplane-killed-{fabric}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
    }
    let sockets: Vec<_> =
        (0..NODES).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let addresses: Vec<_> =
        sockets.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
    addresses.join(",")
}

/// Waits until the next process may start.
#[expect(clippy::disallowed_methods, reason = "the time between two processes is what is tried")]
fn stay_away(pause: Duration) {
    std::thread::sleep(pause);
}

/// Kills the receiver and starts it again, twice each after 200 ms and after 2 s: longer than a peer takes to be
/// declared dead. Each time, messages of all running senders must arrive.
fn the_receiver_returns(fabric: &str, senders: u16) {
    let place = place(fabric);
    let mut receiver = Program::start(fabric, 0, &place);
    let running: Vec<_> = (1..=senders).map(|node| Program::start(fabric, node, &place)).collect();
    let hears_all = |receiver: &Program| {
        (1..=senders).for_each(|node| receiver.wait_for(&format!("from {node}")));
    };
    hears_all(&receiver);
    for pause_ms in [200, 2_000, 200, 2_000] {
        receiver.kill();
        stay_away(Duration::from_millis(pause_ms));
        receiver = Program::start(fabric, 0, &place);
        hears_all(&receiver);
    }
    running.into_iter().for_each(Program::kill);
}

/// Runs the test with one sender and with three in parallel, because most of its time is waiting.
fn both(fabric: &'static str) {
    std::thread::scope(|all| {
        for senders in [1, 3] {
            all.spawn(move || the_receiver_returns(fabric, senders));
        }
    });
}

#[test]
fn a_restarted_receiver_gets_messages_over_udp() {
    both("udp");
}

#[test]
fn a_restarted_receiver_gets_messages_over_shared_memory() {
    both("shm");
}
