//! Tests a hostile client that attacks the daemon and its other clients through its channel and memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SocketFlags, accept_with, bind, listen};

use super::request::{Answer, Request, address, ask};
use super::{Client, ClientConfig, ConnectError, ServerConfig};
use crate::hardware::{Firmware, Hardware};
use crate::host::{Host, OpenError};
use crate::id::{NodeId, PortId};
use crate::live::clock::Clock;
use crate::passing::{Passed, Socket, seqpacket};
use crate::port::{
    ArenaSource, Command, Completion, Port, PortClosed, PortName, PortOptions, PortParts,
    RegisterError, Status, remote_port,
};
use crate::segment::Segment;
use crate::shm::{ShmConfig, ShmNic};

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of rounds without the hostile client, and as many with it.
const ROUNDS: usize = 10;
const CALM: Duration = Duration::from_millis(150);
const HELD: Duration = Duration::from_millis(500);

/// Completes each command at once.
struct Done;

impl Firmware for Done {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.complete(port, &Completion::of(&command, Status::Done));
            hw.commit();
        }
    }
}

struct Nothing(#[expect(dead_code, reason = "keeps the connection")] Arc<Socket>);

impl ArenaSource for Nothing {
    fn request(&self, _: usize) -> Result<Option<(u32, Arc<Segment>)>, PortClosed> {
        Ok(None)
    }

    fn hang_up(&self) {}
}

/// Opens a port; returns it with its channel for wake-ups.
fn hostile_port(name: &str) -> (Port, Arc<Socket>) {
    let socket = Arc::new(Socket::connect(&address(name, NodeId(0)).unwrap()).unwrap());
    let (answer, given) = ask(&socket, Request::Open(PortOptions::default())).unwrap();
    let Answer::Opened { port, epoch, depth, spin_nanos } = answer else { panic!("{answer:?}") };
    let [file, channel]: [Passed; 2] = given.try_into().unwrap();
    let channel = Arc::new(channel.channel(&socket).unwrap());
    let given = Arc::clone(&channel);
    let file = file.memory().unwrap();
    let (name, source) = (PortName { id: port, epoch }, Box::new(Nothing(socket)));
    let parts = PortParts { name, depth, file, channel, spin_nanos, source };
    let (port, _) = remote_port(parts, |_| true).unwrap();
    (port, given)
}

/// An attack of a hostile process on a channel, repeated for a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Keeps the channel full.
    Fill,
    /// Reads all wake-ups of the channel.
    Drain,
    /// Sends descriptors over the channel.
    Pass,
}

impl Attack {
    pub(crate) const fn of(round: usize) -> Self {
        [Self::Fill, Self::Drain, Self::Pass][round / 2 % 3]
    }
}

/// Attacks a channel once.
pub(crate) fn abuse(file: &Socket, attack: Attack) {
    // The attacker itself must not block.
    fcntl_setfl(file, OFlags::NONBLOCK).unwrap();
    let mut bytes = [0; 4_096];
    match attack {
        Attack::Fill => while rustix::io::write(file, &(u64::MAX - 1).to_ne_bytes()).is_ok() {},
        Attack::Drain => while rustix::io::read(file, &mut bytes).is_ok_and(|count| count > 0) {},
        Attack::Pass => _ = file.send(&[0], &[file.as_fd(), file.as_fd()]),
    }
    // A call without `MSG_DONTWAIT` blocks from now on, for every process that shares the file.
    fcntl_setfl(file, OFlags::empty()).unwrap();
}

/// Leaves the processor to the attacked processes.
#[expect(clippy::disallowed_methods, reason = "a thread of a test")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

fn run(attack: Attack, name: &str, stop: &AtomicBool) {
    let (mut port, given) = hostile_port(name);
    while !stop.load(Ordering::Relaxed) {
        abuse(&given, attack);
        // The NIC completes the command, and finds this side waiting.
        let _ = pin!(port.completion()).poll(&mut Context::from_waker(Waker::noop()));
        // An error means that the port has its most commands in flight.
        let _ = port.submit(&Command::default());
        while port.take().is_some() {}
        pause();
    }
}

/// Submits one command after another for a round; returns the sorted times of the commands.
async fn ask_for_a_round(port: &mut Port, round: Duration) -> Vec<Duration> {
    let (mut took, begin) = (Vec::new(), Clock::now());
    while Clock::now().since(begin) < round {
        let sent = Clock::now();
        port.submit(&Command { cookie: 7, ..Command::default() }).unwrap();
        let done = tokio::time::timeout(TIMEOUT, port.completion()).await;
        let done = done.expect("the daemon is held up").unwrap();
        assert_eq!((done.status, done.cookie), (Status::Done, 7));
        took.push(Clock::now().since(sent));
    }
    took.sort_unstable();
    took
}

/// Asserts that a hostile process at most doubles the time, unless the machine is too busy to compare.
pub(crate) fn assert_no_slower(calm: &mut [Duration], held: &mut [Duration]) {
    calm.sort_unstable();
    held.sort_unstable();
    let (before, after) = (calm[calm.len() / 2], held[held.len() / 2]);
    println!("median of medians {before:?} alone, {after:?} beside a hostile process");
    if calm[calm.len() - 1] > calm[0] * 3 / 2 {
        println!(
            "the machine is too busy to compare: alone {:?} to {:?}",
            calm[0],
            calm[calm.len() - 1]
        );
        return;
    }
    assert!(after <= before * 2, "{after:?} beside a hostile process, {before:?} alone");
}

#[test]
fn a_hostile_client_harms_itself_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("hostile client {}", std::process::id());
        let config = ShmConfig::new(name.clone(), NodeId(0), 1).spin(Duration::ZERO);
        let nic = ShmNic::start(config, Done).unwrap();
        // Daemon and client park between requests, so that every wake-up is needed.
        let server = nic.serve_ports(ServerConfig::new(&name).spin(Duration::ZERO)).unwrap();
        let client = Client::connect(ClientConfig::new(&name, NodeId(0))).unwrap();
        let mut port = client.host().open_port().unwrap();
        let (mut calm, mut held) = (Vec::new(), Vec::new());
        for round in 0..2 * ROUNDS {
            if round % 2 == 0 {
                let took = ask_for_a_round(&mut port, CALM).await;
                calm.push(took[took.len() / 2]);
                continue;
            }
            let stop = Arc::new(AtomicBool::new(false));
            let (of, name) = (Arc::clone(&stop), name.clone());
            let hostile = std::thread::spawn(move || run(Attack::of(round), &name, &of));
            let took = ask_for_a_round(&mut port, HELD).await;
            stop.store(true, Ordering::Relaxed);
            hostile.join().unwrap();
            held.push(took[took.len() / 2]);
        }
        assert_no_slower(&mut calm, &mut held);
        drop(server);
        nic.shutdown().await;
    });
}

#[test]
fn the_memory_limit_of_a_client_spans_all_its_ports() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("greedy client {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let server = nic.serve_ports(ServerConfig::new(&name).loan(8 << 20)).unwrap();
        let host = Client::connect(ClientConfig::new(&name, NodeId(0))).unwrap().host();
        let mut ports: Vec<_> = (0..3).map(|_| host.open_port().unwrap()).collect();
        let bytes = 3 << 20;
        let regions: Vec<_> = ports.iter_mut().map(|port| port.register(bytes)).collect();
        assert!(
            matches!(regions[..], [Ok(_), Ok(_), Err(RegisterError::NoMemory(_))]),
            "{regions:?}"
        );
        // Rings count as well.
        let deep = PortOptions::default().depth(1 << 14);
        assert!(matches!(host.open_port_with(deep), Err(OpenError::System(_))));
        drop((regions, ports));
        // The daemon releases the memory soon.
        let again = async {
            while host.open_port_with(deep).is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, again).await.expect("it is free again");
        drop(server);
        nic.shutdown().await;
    });
}

#[test]
fn a_client_has_no_more_connections_than_its_bound() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("connecting client {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let server = nic.serve_ports(ServerConfig::new(&name).connections(3)).unwrap();
        let host = Client::connect(ClientConfig::new(&name, NodeId(0))).unwrap().host();
        // The daemon may not have closed the connection of `connect` yet: at most three are open at any time.
        let mut ports = Vec::new();
        let full = async {
            while ports.len() < 3 {
                ports.extend(host.open_port().ok());
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, full).await.expect("three are admitted");
        for _ in 0..10 {
            assert!(matches!(host.open_port(), Err(OpenError::System(_))));
        }
        // The open ports still work.
        for port in &mut ports {
            port.submit(&Command { cookie: 7, ..Command::default() }).unwrap();
            let done = tokio::time::timeout(TIMEOUT, port.completion()).await;
            assert_eq!(done.unwrap().unwrap().cookie, 7);
        }
        ports.pop();
        let again = async {
            while host.open_port().is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, again).await.expect("there is a place again");
        drop(server);
        nic.shutdown().await;
    });
}

/// Listens in the place of a daemon, without accepting.
fn idle_daemon(name: &str) -> OwnedFd {
    let listener = seqpacket().unwrap();
    bind(&listener, &address(name, NodeId(0)).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    listener
}

#[test]
fn only_a_daemon_that_has_ended_is_reported_as_stopped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("busy daemon {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let server = nic.serve_ports(ServerConfig::new(&name)).unwrap();
        let host = Client::connect(ClientConfig::new(&name, NodeId(0))).unwrap().host();
        drop(server);
        assert_eq!(host.open_port().unwrap_err(), OpenError::Stopped(NodeId(0)));
        let busy = idle_daemon(&name);
        let at = address(&name, NodeId(0)).unwrap();
        let connect = || Socket::connect(&at);
        let waiting: Vec<_> = std::iter::repeat_with(connect).map_while(Result::ok).collect();
        let full = OpenError::System(io::ErrorKind::WouldBlock);
        assert_eq!(host.open_port().unwrap_err(), full);
        drop((waiting, busy));
        assert_eq!(host.open_port().unwrap_err(), OpenError::Stopped(NodeId(0)));
        nic.shutdown().await;
    });
}

#[test]
fn a_client_meets_a_daemon_that_is_being_restarted() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("restarted daemon {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let former = idle_daemon(&name);
        // Ends once the client has connected; the client waits for its answer meanwhile.
        let ends = std::thread::spawn(move || {
            let limit = Timespec::try_from(TIMEOUT).unwrap();
            poll(&mut [PollFd::new(&former, PollFlags::IN)], Some(&limit)).unwrap()
        });
        let config = ClientConfig::new(&name, NodeId(0));
        let meeting = tokio::spawn(Client::meet(config, TIMEOUT));
        tokio::task::yield_now().await;
        assert_eq!(ends.join().unwrap(), 1, "the client has connected");
        let server = nic.serve_ports(ServerConfig::new(&name)).unwrap();
        meeting.await.unwrap().unwrap();
        drop(server);
        nic.shutdown().await;
    });
}

#[test]
fn a_client_meets_a_daemon_that_follows_a_silent_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("silent daemon {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let silent = idle_daemon(&name);
        let meeting = tokio::spawn(Client::meet(ClientConfig::new(&name, NodeId(0)), TIMEOUT));
        // The silent daemon accepts the client, and frees the name.
        let accepts = tokio::task::spawn_blocking(move || {
            let limit = Timespec::try_from(TIMEOUT).unwrap();
            poll(&mut [PollFd::new(&silent, PollFlags::IN)], Some(&limit)).unwrap();
            accept_with(&silent, SocketFlags::CLOEXEC).unwrap()
        });
        let accepted = accepts.await.unwrap();
        // A client that blocks its runtime would have given up by now, and closed the connection.
        let at_once = Timespec::try_from(Duration::ZERO).unwrap();
        let closed = poll(&mut [PollFd::new(&accepted, PollFlags::empty())], Some(&at_once));
        assert_eq!(closed, Ok(0), "the client's runtime runs while the client waits");
        let server = nic.serve_ports(ServerConfig::new(&name)).unwrap();
        meeting.await.unwrap().unwrap();
        drop((accepted, server));
        nic.shutdown().await;
    });
}

/// Regression: the attempt waited for a thread without a limit.
#[test]
fn a_client_gives_up_in_time_although_all_blocking_threads_are_in_use() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let blocked = tokio::task::spawn_blocking(move || released.recv());
        let config = ClientConfig::new("no free thread", NodeId(0));
        let met = tokio::time::timeout(TIMEOUT, Client::meet(config, Duration::ZERO)).await;
        drop(release);
        let error = met.expect("it gives up").unwrap_err();
        assert_eq!(error, ConnectError::System(io::ErrorKind::TimedOut));
        blocked.await.unwrap().unwrap_err();
    });
}
