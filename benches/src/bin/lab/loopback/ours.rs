//! Our messages, between the ports of two NICs.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::link::LinkProfile;
use midplane::simhw::port::{Command, Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{Coprocessor, UdpConfig, UdpNic};

use crate::loopback::{Plan, Question, SHORT, now, run_sides};

/// The first port of a NIC.
const PORT: PortId = PortId(0);
/// Largest number of bytes in flight: the sockets' buffers hold that much of short messages, which take far more room
/// there than their length.
const WINDOW_BYTES: usize = 512 << 10;
/// Largest number of short messages in flight.
const WINDOW: usize = 1_024;
/// Silence after which the last messages count as lost, on an overloaded machine.
const LOST: Duration = Duration::from_millis(20);

/// Measures the plan's quantity on our NICs.
pub(crate) fn run(plan: Plan) -> io::Result<f64> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let peers = [sockets[0].local_addr()?, sockets[1].local_addr()?];
    drop(sockets);
    match plan.question {
        Question::OneWay => run_sides(plan.placement, ask(peers, plan), echo(peers)),
        Question::Stream(bytes) => {
            run_sides(plan.placement, receive(peers, plan, bytes), send(peers, bytes))
        }
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

/// One side: its NIC, its port, and one region with buffers and messages.
struct Side {
    _nic: UdpNic,
    port: Port,
    memory: Region,
    bytes: usize,
    peer: NodeId,
}

impl Side {
    /// Starts a side with `slots` messages of `bytes` each.
    fn start(
        node: u16,
        peers: [SocketAddr; 2],
        (slots, bytes): (usize, usize),
    ) -> io::Result<Self> {
        // A line rate above any loopback's: frames are not paced.
        let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
        let config = UdpConfig::new(NodeId(node), peers.to_vec())
            .line(line)
            .transmit_depth(256)
            .port_depth(4 * WINDOW)
            .coprocessor(Coprocessor::Task);
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).map_err(other)?;
        let nic = UdpNic::start(config, unit).map_err(other)?;
        let mut port = nic.host().open_port().map_err(other)?;
        let memory = port.register(slots * bytes).map_err(other)?;
        Ok(Self { _nic: nic, port, memory, bytes, peer: NodeId(1 - node) })
    }

    fn post(&mut self, command: impl Fn(&Self) -> Command) -> io::Result<()> {
        let command = command(self);
        self.port.post(&command).map_err(other)
    }

    fn lend(&mut self, slot: usize) -> io::Result<()> {
        self.post(|side| {
            let range = side.memory.range(slot * side.bytes, side.bytes).expect("within it");
            messages::receive(range, slot as u64)
        })
    }

    fn send(&mut self, slot: usize, bytes: usize, tag: u32) -> io::Result<()> {
        self.post(|side| {
            let range = side.memory.range(slot * side.bytes, bytes).expect("within it");
            let command = messages::send(side.peer, PORT, range, slot as u64);
            Command { args: [u64::from(tag), 0, 0], ..command }
        })
    }
}

impl Side {
    /// Sends until an answer arrives, and receives all answers: the other side may not have started yet.
    async fn find_peer(&mut self) -> io::Result<()> {
        let mut answered = false;
        while !answered {
            self.send(1, SHORT, 0)?;
            self.port.ring();
            while let Ok(done) = tokio::time::timeout(LOST, self.port.completion()).await {
                answered |= done.map_err(other)?.opcode == messages::RECEIVE;
            }
        }
        Ok(())
    }
}

async fn ask(peers: [SocketAddr; 2], plan: Plan) -> io::Result<f64> {
    let mut side = Side::start(0, peers, (2, SHORT))?;
    side.lend(0)?;
    side.find_peer().await?;
    let (begin, mut rounds) = (now(), 0_u32);
    while begin.elapsed() < plan.time {
        for _ in 0..50 {
            side.lend(0)?;
            side.send(1, SHORT, 0)?;
            side.port.ring();
            // One completion is the send's, the other the receive's.
            for _ in 0..2 {
                side.port.completion().await.map_err(other)?;
            }
            rounds += 1;
        }
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
}

async fn echo(peers: [SocketAddr; 2]) -> io::Result<f64> {
    let mut side = Side::start(1, peers, (2, SHORT))?;
    side.lend(0)?;
    side.port.ring();
    loop {
        let done = side.port.completion().await.map_err(other)?;
        if done.opcode == messages::RECEIVE {
            side.lend(0)?;
            side.send(1, SHORT, 0)?;
            side.port.ring();
        }
    }
}

/// Returns the number of messages of `bytes` that may be in flight.
fn window(bytes: usize) -> usize {
    (WINDOW_BYTES / bytes).clamp(4, WINDOW)
}

/// Returns the messages received per second; acknowledges them, so that the sender may continue.
async fn receive(peers: [SocketAddr; 2], plan: Plan, bytes: usize) -> io::Result<f64> {
    let window = window(bytes);
    let mut side = Side::start(0, peers, (2 * window + 1, bytes))?;
    for slot in 0..2 * window {
        side.lend(slot)?;
    }
    side.port.ring();
    let (mut begin, mut count, mut told) = (None, 0_u64, 0_u32);
    loop {
        let done = side.port.completion().await.map_err(other)?;
        if done.opcode == messages::SEND || done.status != Status::Done {
            continue;
        }
        let at = *begin.get_or_insert_with(now);
        side.lend(usize::try_from(done.cookie).expect("a slot"))?;
        count += 1;
        let reached = done.args[0] as u32 + 1;
        if reached.wrapping_sub(told) as usize >= window / 4 {
            told = reached;
            side.send(2 * window, 1, reached)?;
            side.port.ring();
            if at.elapsed() >= plan.time {
                return Ok(count as f64 / at.elapsed().as_secs_f64());
            }
        }
    }
}

/// Sends as far ahead as the window allows.
async fn send(peers: [SocketAddr; 2], bytes: usize) -> io::Result<f64> {
    let window = window(bytes);
    let mut side = Side::start(1, peers, (window + 8, bytes))?;
    for slot in window..window + 8 {
        side.lend(slot)?;
    }
    let (mut next, mut told) = (0_u32, 0_u32);
    let mut free: Vec<usize> = (0..window).collect();
    loop {
        while (next.wrapping_sub(told) as usize) < window {
            let Some(slot) = free.pop() else { break };
            side.send(slot, bytes, next)?;
            next = next.wrapping_add(1);
        }
        side.port.ring();
        let first = match tokio::time::timeout(LOST, side.port.completion()).await {
            Ok(done) => Some(done.map_err(other)?),
            Err(_) => {
                told = next;
                None
            }
        };
        let mut done = first;
        while let Some(completion) = done {
            let slot = usize::try_from(completion.cookie).expect("a slot");
            if completion.opcode == messages::SEND {
                free.push(slot);
            } else {
                told = completion.args[0] as u32;
                side.lend(slot)?;
            }
            done = side.port.poll();
        }
    }
}
