//! Table 1 of the LAM/VIA paper (Bertozzi, Panella and Reggiani): its cluster in virtual time, with our messages
//! instead of LAM's.
//!
//! The machines are [`Machine::MVIA_FAST_ETHERNET`] and [`Machine::TCP_FAST_ETHERNET`], whose only fits are the two
//! latencies below LAM, 61 and 100 us. This module adds one copy by each process, at the machine's price, and LAM's
//! work over TCP, fitted to the first row.

use midplane::nicvm::unit::Unit;
use midplane::simhw::hardware::Firmware;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::kernel::{self, KernelTcp, TcpCosts};
use midplane::simhw::port::{Command, Port};
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};
use midplane::via::VIA;
use midplane::via::attributes::Reliability;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::process::Process;
use midplane::via::message::request::Mode;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

/// A column of the table: one way between two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Column {
    /// The kernel's TCP, between two hosts.
    Tcp,
    /// Our messages, copied into registered memory and out of it, between two hosts.
    Copied,
    /// Our messages between two processes of one host.
    Local,
}

impl Column {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Copied, Self::Local];
}

/// Most bytes of a message.
const LONGEST: usize = 1 << 20;

/// The paper's columns, messages of 2^n bytes, in microseconds.
const TCP: [f64; 16] = [
    114., 114., 114., 116., 116., 120., 126., 138., 163., 213., 310., 426., 609., 996., 1743.,
    3219.,
];
const VIA_COPIED: [f64; 16] =
    [63., 64., 64., 66., 67., 69., 77., 88., 120., 169., 271., 401., 590., 975., 1756., 3277.];

const VIA_LOCAL: [f64; 16] =
    [10., 10., 10., 10., 10., 10., 11., 12., 18., 21., 27., 32., 49., 106., 210., 407.];

/// Timed round trips; in virtual time all take the same, but for credits.
const ROUNDS: u64 = 50;
const REMOTE: [NodeId; 2] = [NodeId(0), NodeId(1)];
const LOCAL: [NodeId; 2] = [NodeId(0), NodeId(0)];
/// Processor time of LAM's layer over TCP at each end, in ns.
const LAM_OVER_TCP: u64 = 7_000;
/// Bytes that LAM's layer puts before a message.
const ENVELOPE: usize = 24;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the paper's number for this column and size, in microseconds.
pub(crate) fn published(column: Column, bytes: usize) -> Option<f64> {
    let row = bytes.is_power_of_two().then(|| bytes.ilog2() as usize)?;
    let column = match column {
        Column::Tcp => &TCP,
        Column::Copied => &VIA_COPIED,
        Column::Local => &VIA_LOCAL,
    };
    column.get(row).copied()
}

/// Returns the one-way time of a message of `bytes` between two processes, in microseconds.
///
/// # Errors
/// One line: what failed.
pub(crate) fn one_way_us(column: Column, bytes: usize) -> Result<f64, String> {
    match column {
        Column::Tcp => tcp_us(bytes),
        Column::Copied => messages_us(&Machine::MVIA_FAST_ETHERNET, REMOTE, bytes),
        Column::Local => messages_us(&on_two_processors(), LOCAL, bytes),
    }
}

fn world<F: Firmware + Send + 'static>(
    machine: &Machine,
    firmware: impl Fn() -> F + Send + 'static,
) -> World<F> {
    let mut world = World::new(&machine.topology(2), machine.nic, 1, move |_, _| firmware());
    world.set_hosts(machine.host);
    world
}

fn per_way(nanos: Option<Result<u64, String>>) -> Result<f64, String> {
    let nanos = nanos.ok_or("a simulated process waits for ever")??;
    Ok(nanos as f64 / (2 * ROUNDS) as f64 / 1e3)
}

/// Returns the paper's PC with its two processors: two processes on one PC do not share a processor.
const fn on_two_processors() -> Machine {
    let mut machine = Machine::MVIA_FAST_ETHERNET;
    machine.host.context_switch_ns = 0;
    machine
}

/// Returns the one-way time of our messages over interfaces as unreliable as M-VIA's; the simulated network loses
/// nothing.
fn messages_us(machine: &Machine, nodes: [NodeId; 2], bytes: usize) -> Result<f64, String> {
    let mut world = world(machine, || {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default())).expect("it is the first");
        unit
    });
    let host = world.host(nodes[1]);
    world.spawn(nodes[1], async move {
        let Ok(side) = Side::open(&host, 1, nodes).await else { return };
        while let Ok(message) = side.receive().await {
            let _ = side.send(message).await;
        }
    });
    let host = world.host(nodes[0]);
    per_way(world.block_on(nodes[0], async move {
        let side = Side::open(&host, 0, nodes).await?;
        let mut message = vec![7; bytes];
        let mut began = host.now();
        for round in 0..=ROUNDS {
            if round == 1 {
                began = host.now();
            }
            side.send(message).await?;
            message = side.receive().await?;
        }
        Ok(host.now().nanos_since(began))
    }))
}

/// One simulated process.
struct Side<'a> {
    host: &'a SimHost,
    all: Communicator<Engine<RdmaCarrier>>,
    peer: Rank,
    is_local: bool,
}

const TAG: Tag = Tag(1);

impl<'a> Side<'a> {
    async fn open(host: &'a SimHost, own: u32, nodes: [NodeId; 2]) -> Result<Self, String> {
        // As in the paper, the area holds a whole message, so that each leaves in one piece.
        let config = RdmaConfig::default().area(4 * LONGEST + 4096).reliability(LEVEL);
        let carrier = RdmaCarrier::open(host, Peer(own), &nodes, config).await.map_err(text)?;
        let config = Config::default().eager(LONGEST).window(4 * LONGEST);
        let (process, scope) = Process::new(Engine::new(carrier, config), 2).map_err(text)?;
        let (all, peer) = (Communicator::world(process, scope), Rank(1 - own));
        Ok(Self { host, all, peer, is_local: nodes[0] == nodes[1] })
    }

    /// Charges the processor for a copy: the library's own copies take no virtual time.
    async fn copy(&self, bytes: usize) {
        let profile = self.host.profile();
        let near = profile.loopback.filter(|_| self.is_local);
        let nanos = near.map_or_else(|| profile.copy.nanos(bytes), |near| near.copy_ns(bytes));
        self.host.compute(nanos).await;
    }

    async fn send(&self, message: Vec<u8>) -> Result<(), String> {
        self.copy(message.len()).await;
        // The request completes once the message has left; the caller does not wait for that.
        self.all.isend(Mode::Standard, self.peer, TAG, message).map_err(text)?.free();
        Ok(())
    }

    async fn receive(&self) -> Result<Vec<u8>, String> {
        let message = self.all.receive(self.peer, TAG).await.map_err(text)?.bytes;
        self.copy(message.len()).await;
        Ok(message)
    }
}

const LEVEL: Reliability = Reliability::Unreliable;

fn tcp_us(bytes: usize) -> Result<f64, String> {
    let mut world = world(&Machine::TCP_FAST_ETHERNET, || KernelTcp::new(TcpCosts::LINUX_2_2));
    let host = world.host(REMOTE[1]);
    world.spawn(REMOTE[1], async move {
        let Ok(mut stream) = Stream::open(&host, bytes) else { return };
        while stream.receive().await.is_ok() && stream.send().await.is_ok() {}
    });
    let host = world.host(REMOTE[0]);
    per_way(world.block_on(REMOTE[0], async move {
        let mut stream = Stream::open(&host, bytes)?;
        let mut began = host.now();
        for round in 0..=ROUNDS {
            if round == 1 {
                began = host.now();
            }
            stream.send().await?;
            stream.receive().await?;
        }
        Ok(host.now().nanos_since(began))
    }))
}

/// One simulated process with the kernel's TCP.
struct Stream<'a> {
    host: &'a SimHost,
    port: Port,
    buffer: midplane::simhw::region::Region,
}

const RECEIVED: u64 = 1;

impl<'a> Stream<'a> {
    fn open(host: &'a SimHost, bytes: usize) -> Result<Self, String> {
        let mut port = host.open_port().map_err(text)?;
        let buffer = port.register(bytes + ENVELOPE).map_err(text)?;
        Ok(Self { host, port, buffer })
    }

    fn submit(&mut self, opcode: u8, cookie: u64) -> Result<(), String> {
        let node = NodeId(1 - self.host.node().0);
        let region = self.buffer.whole();
        let command = Command { opcode, node, region, cookie, ..Command::default() };
        self.port.submit(&command).map_err(text)
    }

    async fn send(&mut self) -> Result<(), String> {
        self.host.compute(LAM_OVER_TCP).await;
        self.submit(kernel::SEND, 0)
    }

    async fn receive(&mut self) -> Result<(), String> {
        self.submit(kernel::RECEIVE, RECEIVED)?;
        while self.port.completion().await.map_err(text)?.cookie != RECEIVED {}
        self.host.compute(LAM_OVER_TCP).await;
        Ok(())
    }
}
