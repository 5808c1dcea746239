//! Tests a hostile peer that attacks a NIC and its other peers through their shared memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};

use super::*;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, Hardware, Source};
use crate::host::Host;
use crate::id::PortId;
use crate::nicd::tests::{Attack, abuse, assert_no_slower, pause};
use crate::port::{Command, Completion, Port, Status};
use crate::region::Payload;
use crate::shm::ShmNic;

const VICTIM: NodeId = NodeId(0);
const HONEST: NodeId = NodeId(1);
const HOSTILE: NodeId = NodeId(2);
/// Longer than any answer takes.
const LONG: Duration = Duration::from_secs(10);
/// Number of rounds without the hostile peer, and as many with it.
const ROUNDS: usize = 10;
const CALM: Duration = Duration::from_millis(150);
const HELD: Duration = Duration::from_millis(500);

/// Each command sends a frame to the victim, which returns one and sends another to the hostile peer. The
/// returned frame completes the command.
#[derive(Default)]
struct Echo(Option<(PortId, Command)>);

fn transmit(hw: &mut impl Hardware, to: NodeId) {
    let header = Header { source: hw.node(), destination: to, ..Header::default() };
    let _ = hw.transmit(&header, Source::Bytes(Payload::from(&[][..])));
}

impl Firmware for Echo {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            self.0 = Some((port, command));
            transmit(hw, VICTIM);
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        if hw.node() == VICTIM {
            transmit(hw, HOSTILE);
            transmit(hw, frame.header.source);
        } else if let Some((port, command)) = self.0.take() {
            hw.complete(port, &Completion::of(&command, Status::Done));
        }
        hw.commit();
    }
}

fn config(name: &str, node: NodeId) -> ShmConfig {
    ShmConfig::new(name, node, 3).spin(Duration::ZERO)
}

/// Connects to the victim and sends it a greeting with a segment and `channel`.
fn greet(name: &str, channel: &OwnedFd) -> (Socket, Arc<Segment>, Shape) {
    let socket = Socket::connect(&address(name, VICTIM).unwrap()).unwrap();
    let shape = config(name, HOSTILE).shape();
    let (segment, file) = Segment::shared(Kind::Link, 2 * shape.lane_bytes()).unwrap();
    let incarnation = Clock::incarnation();
    let hello = Greeting { kind: Message::Hello, node: HOSTILE, incarnation, shape };
    send(&socket, &hello, &[file.as_fd(), channel.as_fd()]).map_err(|_| "sent").unwrap();
    (socket, Arc::new(segment), shape)
}

/// Waits for the answer; `None` if the connection ends first.
fn answer(socket: &Socket) -> Option<Greeting> {
    let timeout = Timespec::try_from(LONG).unwrap();
    assert_eq!(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
    receive::<0>(socket).ok().map(|(greeting, [])| greeting)
}

fn run(attack: Attack, name: &str, stop: &AtomicBool) {
    let (ours, theirs) = Socket::pair().unwrap();
    let (socket, segment, shape) = greet(name, &theirs);
    assert!(answer(&socket).is_some(), "the victim accepts the peer");
    let theirs = Socket::new(theirs);
    let mut receiver = Receiver::new(segment, shape.lane_bytes(), shape);
    while !stop.load(Ordering::Relaxed) {
        // The hostile peer has made both ends of the channel itself.
        abuse(&ours, attack);
        abuse(&theirs, attack);
        receiver.arm_wakeup();
        while receiver.has_frame() {
            receiver.release(0);
        }
        pause();
    }
}

/// Sends one request after another for a round; returns the median time of a request.
async fn ask_for_a_round(port: &mut Port, round: Duration) -> Duration {
    let (mut took, begin) = (Vec::new(), Clock::now());
    while Clock::now().since(begin) < round {
        let sent = Clock::now();
        port.submit(&Command::default()).unwrap();
        let done = tokio::time::timeout(LONG, port.completion()).await;
        assert_eq!(done.expect("the NIC is held up").unwrap().status, Status::Done);
        took.push(Clock::now().since(sent));
    }
    took.sort_unstable();
    took[took.len() / 2]
}

#[test]
fn a_hostile_peer_harms_itself_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("hostile peer {}", std::process::id());
        let start = |node| ShmNic::start(config(&name, node), Echo::default()).unwrap();
        let (victim, honest) = (start(VICTIM), start(HONEST));
        let mut peers = honest.peers();
        peers.wait_for(|peers| peers.contains(&VICTIM)).await.unwrap();
        let mut port = honest.host().open_port().unwrap();
        let (mut calm, mut held) = (Vec::new(), Vec::new());
        for round in 0..2 * ROUNDS {
            if round % 2 == 0 {
                calm.push(ask_for_a_round(&mut port, CALM).await);
                continue;
            }
            let stop = Arc::new(AtomicBool::new(false));
            let (of, name) = (Arc::clone(&stop), name.clone());
            let hostile = std::thread::spawn(move || run(Attack::of(round), &name, &of));
            held.push(ask_for_a_round(&mut port, HELD).await);
            stop.store(true, Ordering::Relaxed);
            hostile.join().unwrap();
        }
        assert_no_slower(&mut calm, &mut held);
        victim.shutdown().await;
        honest.shutdown().await;
    });
}

#[test]
fn a_peer_that_passes_a_channel_that_may_block_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("hostile greeting {}", std::process::id());
        let start = |node| ShmNic::start(config(&name, node), Echo::default()).unwrap();
        let (victim, honest) = (start(VICTIM), start(HONEST));
        honest.peers().wait_for(|peers| peers.contains(&VICTIM)).await.unwrap();
        let (reader, pipe) = std::io::pipe().unwrap();
        let pipe = OwnedFd::from(pipe);
        fcntl_setfl(&pipe, OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&pipe, &[0; 4_096]).is_ok() {}
        fcntl_setfl(&pipe, OFlags::empty()).unwrap();
        let inet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = crate::passing::seqpacket().unwrap();
        for channel in [inet.into(), other, pipe] {
            let (socket, segment, shape) = greet(&name, &channel);
            Receiver::new(segment, shape.lane_bytes(), shape).arm_wakeup();
            assert_eq!(answer(&socket), None, "the descriptor is no channel");
        }
        // The victim still takes turns.
        let mut port = honest.host().open_port().unwrap();
        for _ in 0..100 {
            port.submit(&Command::default()).unwrap();
            let done = tokio::time::timeout(LONG, port.completion()).await;
            assert_eq!(done.expect("the NIC is held up").unwrap().status, Status::Done);
        }
        drop(reader);
        victim.shutdown().await;
        honest.shutdown().await;
    });
}
