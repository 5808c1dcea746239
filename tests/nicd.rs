//! Tests a daemon's NIC with processes that are stopped or killed, or lose their daemon.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::{Host, OpenError};
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::nicd::{Client, ClientConfig, ConnectError, PortServer, ServerConfig};
use midplane::simhw::port::{Command, Port, PortOptions, RegisterError, Status};
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::udp::{Coprocessor, UdpConfig, UdpNic};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Mutex, MutexGuard};

/// Environment variable that names the daemon of a child process.
const DAEMON: &str = "MIDPLANE_TEST_DAEMON";
/// Messages of a round: fewer than the receive buffers that a port takes.
const ROUND: u64 = 64;
const BYTES: usize = 3_000;
/// The child's port.
const PORT: PortId = PortId(1_100);
/// Time after which a test fails as hung.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Not a test by itself: a client that receives rounds of messages until it is killed.
#[tokio::test]
async fn child_that_takes_messages() {
    let Ok(name) = std::env::var(DAEMON) else { return };
    let host = Client::connect(ClientConfig::new(name, NodeId(1))).unwrap().host();
    let mut port = host.open_port_with(PortOptions::default().number(PORT)).unwrap();
    for round in 0.. {
        let buffers: Vec<_> = (0..ROUND).map(|_| port.register(BYTES).unwrap()).collect();
        for (cookie, buffer) in (0..).zip(&buffers) {
            port.post(&messages::receive(buffer.whole(), cookie)).unwrap();
        }
        // The NIC answers this unknown command only after it has taken all commands before it.
        let last = Command { extension: MESSAGES, opcode: 99, ..Command::default() };
        port.submit(&last).unwrap();
        assert_eq!(port.completion().await.unwrap().status, Status::Invalid);
        println!("\nready {round}");
        for number in 0..ROUND {
            let taken = tokio::time::timeout(TIMEOUT, port.completion()).await.unwrap().unwrap();
            assert_eq!((taken.status, taken.cookie), (Status::Done, number));
            let mut bytes = [0; BYTES];
            buffers[usize::try_from(number).unwrap()].read(0, &mut bytes).unwrap();
            assert!(bytes == content(number)[..], "message {number} of round {round}");
        }
        println!("\nall {round}");
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(BYTES).collect()
}

/// A client in another process.
struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(name: &str) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "nicd::child_that_takes_messages", "--nocapture"])
            .env(DAEMON, name);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the process prints `what`.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim() != what {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended before {what:?}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lock of the tests, which run one at a time: one of them counts this process's mappings.
static TURN: Mutex<()> = Mutex::const_new(());

/// Two NICs, and a daemon's server of the second one's ports.
struct Daemon {
    sender: ShmNic,
    served: ShmNic,
    server: PortServer,
    name: String,
    _turn: MutexGuard<'static, ()>,
}

impl Daemon {
    async fn start(name: &str) -> Self {
        let turn = TURN.lock().await;
        let name = format!("{name} {}", std::process::id());
        let start = |node| {
            let mut unit = Unit::default();
            unit.install(MESSAGES, Messages::new()).unwrap();
            ShmNic::start(ShmConfig::new(&name, NodeId(node), 2), unit).unwrap()
        };
        let (sender, served) = (start(0), start(1));
        sender.meet().await;
        let server = served.serve_ports(ServerConfig::new(&name)).unwrap();
        Self { sender, served, server, name, _turn: turn }
    }

    /// Sends a round to the child, and waits until all of it was sent.
    async fn send_round(&self, port: &mut Port) {
        for number in 0..ROUND {
            let region = port.register(BYTES).unwrap();
            region.write(0, &content(number)).unwrap();
            port.submit(&messages::send(NodeId(1), PORT, region.whole(), number)).unwrap();
            let sent = tokio::time::timeout(TIMEOUT, port.completion()).await.unwrap().unwrap();
            assert_eq!(sent.status, Status::Done);
        }
    }

    /// Waits until the number of the child's port is free.
    async fn reclaimed(&self) {
        let options = PortOptions::default().number(PORT);
        let free = async {
            while self.served.host().open_port_with(options).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, free).await.expect("the port is free again");
    }
}

/// Returns the number of this process's mappings of memory that it shares with other processes.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:midplane")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_for_a_stopped_process_are_there_when_it_resumes() {
    let daemon = Daemon::start("nicd stopped").await;
    let mut port = daemon.sender.host().open_port().unwrap();
    let mut child = Process::start(&daemon.name);
    for round in 0..5 {
        child.says(&format!("ready {round}"));
        child.signal(Signal::STOP);
        daemon.send_round(&mut port).await;
        child.signal(Signal::CONT);
        child.says(&format!("all {round}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_leaves_its_port_and_its_memory() {
    let daemon = Daemon::start("nicd killed").await;
    let mut port = daemon.sender.host().open_port().unwrap();
    let before = mapped();
    for life in 0..4 {
        let mut child = Process::start(&daemon.name);
        child.says("ready 0");
        if life % 2 == 0 {
            daemon.send_round(&mut port).await;
        }
        tokio::time::sleep(Duration::from_micros(700 * life)).await;
        drop(child);
        daemon.reclaimed().await;
    }
    // The port's number is free before the daemon's thread has unmapped the old segment.
    let let_go = async {
        while mapped() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let let_go = tokio::time::timeout(TIMEOUT, let_go).await;
    let_go.expect("segments of processes that are gone are let go");
}

/// Posts more commands than a NIC takes at once; the doorbell is rung only when the port is dropped.
async fn drop_with_pending_commands(host: &impl Host) {
    let numbered = PortOptions::default().number(PORT).depth(256);
    let mut port = host.open_port_with(numbered).unwrap();
    for cookie in 0..200 {
        port.post(&Command { opcode: 99, cookie, ..Command::default() }).unwrap();
    }
    drop(port);
    let free = async {
        while host.open_port_with(numbered).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, free).await.expect("the port is free again");
}

#[tokio::test]
async fn a_port_with_many_pending_commands_closes() {
    drop_with_pending_commands(&Daemon::start("nicd much").await.served.host()).await;
    let address = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        let config = UdpConfig::new(NodeId(0), vec![address]).coprocessor(coprocessor);
        let nic = UdpNic::start(config, Unit::default()).unwrap();
        drop_with_pending_commands(&nic.host()).await;
        nic.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_held_outlives_its_process_and_no_longer_than_that() {
    let daemon = Daemon::start("nicd held").await;
    let holders = daemon.server.holders();
    let mut child = Process::start(&daemon.name);
    child.says("ready 0");
    let process = child.child.id();
    let of_child = |(port, of): (PortId, u32)| (of == process).then_some(port);
    let ports: Vec<PortId> = holders.list().into_iter().filter_map(of_child).collect();
    assert_eq!(ports, [PORT]);
    assert!(!holders.hold(PORT, process + 1), "it is another's");
    assert!(holders.hold(PORT, process));
    drop(child);
    let gone = async {
        while !holders.list().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, gone).await.expect("the daemon learns that it has exited");
    let options = PortOptions::default().number(PORT);
    let taken = daemon.served.host().open_port_with(options).unwrap_err();
    assert_eq!(taken, OpenError::Taken(PORT));
    assert!(!holders.hold(PORT, process), "its process is gone");
    holders.release(PORT);
    daemon.reclaimed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_notified_when_its_daemon_ends() {
    let daemon = Daemon::start("nicd ended").await;
    let config = ClientConfig::new(&daemon.name, NodeId(1));
    let host = Client::connect(config.clone()).unwrap().host();
    let mut port = host.open_port().unwrap();
    let region = port.register(100).unwrap();
    port.submit(&messages::receive(region.whole(), 1)).unwrap();
    let mut other = host.open_port().unwrap();
    let waits = tokio::task::spawn_blocking(move || other.wait());
    drop(daemon.server);
    let ended =
        tokio::time::timeout(TIMEOUT, port.completion()).await.expect("the client is notified");
    assert!(ended.is_err(), "nothing completes any more");
    assert!(waits.await.unwrap().is_err(), "nor for who blocks");
    assert!(port.is_closed());
    assert_eq!(host.open_port().unwrap_err(), OpenError::Stopped(NodeId(1)));
    let nobody = ConnectError::Nobody { name: daemon.name.clone(), node: NodeId(1) };
    assert_eq!(Client::connect(config).unwrap_err(), nobody);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_registers_no_more_memory_than_allowed() {
    let daemon = Daemon::start("nicd memory").await;
    drop(daemon.server);
    let config = ServerConfig::new(&daemon.name).loan(5 << 20);
    let _server = daemon.served.serve_ports(config).unwrap();
    let host = Client::connect(ClientConfig::new(&daemon.name, NodeId(1))).unwrap().host();
    let mut port = host.open_port().unwrap();
    for _ in 0..20 {
        // The NIC releases dropped memory a moment later.
        let again = async {
            loop {
                match port.register(3 << 20) {
                    Ok(region) => return region,
                    Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let _large = tokio::time::timeout(TIMEOUT, again).await.expect("it is free again");
        assert_eq!(port.register(2 << 20).unwrap_err(), RegisterError::NoMemory(2 << 20));
        port.register(1_000).unwrap();
    }
}
