//! A client that turns what it was given against the daemon and its other clients.

use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};

use super::request::{Answer, Request, address, ask};
use super::{Client, ClientConfig, ServerConfig};
use crate::frame::Frame;
use crate::hardware::{Firmware, Hardware};
use crate::host::{Host, OpenError};
use crate::id::{DmaId, NodeId, PortId, TimerId};
use crate::live::clock::Clock;
use crate::passing::{Passed, Socket};
use crate::port::{
    Command, Completion, Lender, Loan, Port, PortName, PortOptions, RegisterError, Status,
    borrowed_port,
};
use crate::segment::Segment;
use crate::shm::{ShmConfig, ShmNic};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rounds without the hostile client, and with it: ten seconds of that.
const ROUNDS: usize = 10;
const CALM: Duration = Duration::from_millis(300);
const HELD: Duration = Duration::from_secs(1);

/// Completes each command.
struct Done;

impl Firmware for Done {
    fn on_start(&mut self, _: &mut impl Hardware) {}

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.complete(port, &Completion::of(&command, Status::Done));
            hw.commit();
        }
    }

    fn on_frame(&mut self, _: &mut impl Hardware, _: Frame<'_>) {}
    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}
    fn on_timer(&mut self, _: &mut impl Hardware, _: TimerId) {}
}

struct Nothing(#[expect(dead_code, reason = "keeps the connection")] Arc<Socket>);

impl Lender for Nothing {
    fn lend(&self, _: usize) -> Option<(u32, Arc<Segment>)> {
        None
    }

    fn hang_up(&self) {}
}

/// A port, and the channel that came with it.
fn hostile_port(name: &str) -> (Port, Arc<Socket>) {
    let socket = Arc::new(Socket::connect(&address(name, NodeId(0)).unwrap()).unwrap());
    let (answer, given) = ask(&socket, Request::Open(PortOptions::default())).unwrap();
    let Answer::Opened { port, epoch, depth, spin_nanos } = answer else { panic!("{answer:?}") };
    let [file, channel]: [Passed; 2] = given.try_into().unwrap();
    let channel = Arc::new(channel.channel(&socket).unwrap());
    let given = Arc::clone(&channel);
    let file = file.memory().unwrap();
    let (name, lender) = (PortName { id: port, epoch }, Box::new(Nothing(socket)));
    let loan = Loan { name, depth, file, channel, spin_nanos, lender };
    let (port, _) = borrowed_port(loan, |_| true).unwrap();
    (port, given)
}

/// What a hostile process does to a channel for a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Keeps it full.
    Fill,
    /// Takes all that comes.
    Drain,
    /// Sends descriptors.
    Pass,
}

impl Attack {
    pub(crate) const fn of(round: usize) -> Self {
        [Self::Fill, Self::Drain, Self::Pass][round / 2 % 3]
    }
}

/// Attacks a channel once.
pub(crate) fn abuse(file: &Socket, attack: Attack) {
    // Not to be held up itself.
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

/// Leaves the processor to the processes that are attacked.
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
        // An error means that so many are under way.
        let _ = port.submit(&Command::default());
        while port.take().is_some() {}
        pause();
    }
}

/// Requests one after the other for a round; how long each took.
async fn ask_for_a_round(port: &mut Port, round: Duration) -> Vec<Duration> {
    let (mut took, begin) = (Vec::new(), Clock::now());
    while Clock::now().since(begin) < round {
        let sent = Clock::now();
        port.submit(&Command { cookie: 7, ..Command::default() }).unwrap();
        let done = tokio::time::timeout(PATIENCE, port.completion()).await;
        let done = done.expect("the daemon is held up").unwrap();
        assert_eq!((done.status, done.cookie), (Status::Done, 7));
        took.push(Clock::now().since(sent));
    }
    took.sort_unstable();
    took
}

/// Asserts that rounds beside a hostile process took at most twice as long, unless the machine is too busy to tell.
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
        // Each request finds the daemon parked, and parks: all wake-ups are needed.
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
fn a_client_is_lent_no_more_in_all_its_ports_than_in_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("greedy client {}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name.clone(), NodeId(0), 1), Done).unwrap();
        let server = nic.serve_ports(ServerConfig::new(&name).loan(8 << 20)).unwrap();
        let host = Client::connect(ClientConfig::new(&name, NodeId(0))).unwrap().host();
        let mut ports: Vec<_> = (0..3).map(|_| host.open_port().unwrap()).collect();
        let bytes = 3 << 20;
        let lent: Vec<_> = ports.iter_mut().map(|port| port.register(bytes)).collect();
        assert!(matches!(lent[..], [Ok(_), Ok(_), Err(RegisterError::NoMemory(_))]), "{lent:?}");
        // Rings count as well.
        let deep = PortOptions::default().depth(1 << 14);
        assert!(matches!(host.open_port_with(deep), Err(OpenError::System(_))));
        drop((lent, ports));
        // Once the daemon has let go of all that.
        let again = async {
            while host.open_port_with(deep).is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, again).await.expect("it is free again");
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
        // The daemon may not have closed the connection before: at most three are open at any time.
        let mut ports = Vec::new();
        let full = async {
            while ports.len() < 3 {
                ports.extend(host.open_port().ok());
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, full).await.expect("three are admitted");
        for _ in 0..10 {
            assert!(matches!(host.open_port(), Err(OpenError::System(_))));
        }
        // Those that it has go on.
        for port in &mut ports {
            port.submit(&Command { cookie: 7, ..Command::default() }).unwrap();
            let done = tokio::time::timeout(PATIENCE, port.completion()).await;
            assert_eq!(done.unwrap().unwrap().cookie, 7);
        }
        ports.pop();
        let again = async {
            while host.open_port().is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, again).await.expect("there is a place again");
        drop(server);
        nic.shutdown().await;
    });
}
