//! Table 1 of the LAM/VIA paper (Bertozzi, Panella and Reggiani): its cluster in virtual time, with our messages
//! instead of LAM's.
//!
//! The machines are [`Machine::MVIA_FAST_ETHERNET`] and [`Machine::TCP_FAST_ETHERNET`], whose only fits are the two
//! latencies below LAM, 61 and 100 us. This module adds one copy by each process, at the machine's price, and LAM's
//! work over TCP, fitted to the first row. The local column of TCP has the same costs, without NIC, interrupt and line.

use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};
use midplane::via::VIA;
use midplane::via::attributes::Reliability;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::request::Mode;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};
use midplane_benches::anchors::bounce::{self, End};
use midplane_benches::anchors::measure::{local_tcp_us, tcp_us};

use crate::report::text;

/// A column of the table: one way between two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Column {
    /// The kernel's TCP, between two hosts.
    Tcp,
    /// The kernel's TCP, between two processes of one host.
    LocalTcp,
    /// Our messages, copied into registered memory and out of it, between two hosts.
    Copied,
    /// Our messages between two processes of one host.
    Local,
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

const TCP_LOCAL: [f64; 16] =
    [63., 63., 63., 63., 63., 63., 63., 64., 65., 67., 72., 81., 117., 175., 305., 529.];

const VIA_LOCAL: [f64; 16] =
    [10., 10., 10., 10., 10., 10., 11., 12., 18., 21., 27., 32., 49., 106., 210., 407.];

const REMOTE: [NodeId; 2] = [NodeId(0), NodeId(1)];
const LOCAL: [NodeId; 2] = [NodeId(0), NodeId(0)];
/// Processor time of LAM's layer over TCP at each end, in ns.
const LAM_OVER_TCP: u64 = 7_000;
/// Bytes that LAM's layer puts before a message.
const ENVELOPE: usize = 24;

/// Returns the paper's number for this column and size, in microseconds.
pub(crate) fn published(column: Column, bytes: usize) -> Option<f64> {
    let row = bytes.is_power_of_two().then(|| bytes.ilog2() as usize)?;
    let column = match column {
        Column::Tcp => &TCP,
        Column::Copied => &VIA_COPIED,
        Column::LocalTcp => &TCP_LOCAL,
        Column::Local => &VIA_LOCAL,
    };
    column.get(row).copied()
}

/// Returns the one-way time of a message of `bytes` between two processes, in microseconds.
pub(crate) fn one_way_us(column: Column, bytes: usize) -> Result<f64, String> {
    match column {
        Column::Tcp => tcp_us(bytes + ENVELOPE, LAM_OVER_TCP),
        Column::LocalTcp => local_tcp_us(bytes + ENVELOPE, LAM_OVER_TCP),
        Column::Copied => messages_us(&Machine::MVIA_FAST_ETHERNET, REMOTE, bytes),
        Column::Local => messages_us(&on_two_processors(), LOCAL, bytes),
    }
}

/// Returns the paper's PC with its two processors: two processes on one PC do not share a processor.
const fn on_two_processors() -> Machine {
    let mut machine = Machine::MVIA_FAST_ETHERNET;
    machine.host.context_switch_ns = 0;
    machine
}

/// Returns two such PCs, whose NICs have Virtual Interfaces.
fn world_of(machine: &Machine) -> World<Unit> {
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default())).expect("it is the first");
        unit
    });
    world.set_hosts(machine.host);
    world
}

/// Returns the one-way time of our messages over interfaces as unreliable as M-VIA's; the simulated network loses
/// nothing.
fn messages_us(machine: &Machine, nodes: [NodeId; 2], bytes: usize) -> Result<f64, String> {
    let world = world_of(machine);
    let ends = [0, 1].map(|own| Side::open(world.host(nodes[own]), own as u32, nodes, bytes));
    bounce::one_way_us(world, nodes, ends)
}

/// Joins the two processes. All messages leave whole.
async fn join(host: &SimHost, own: u32, nodes: [NodeId; 2]) -> Result<Communicator, String> {
    // As in the paper, the area holds a whole message, so that each leaves in one piece.
    let config =
        RdmaConfig::default().area(4 * LONGEST + 4096).reliability(Reliability::Unreliable);
    let carrier = RdmaCarrier::open(host, Peer(own), &nodes, config).await.map_err(text)?;
    let config = Config::default().eager(LONGEST).window(4 * LONGEST);
    Communicator::world(Engine::new(carrier, config), 2).map_err(text)
}

/// A process with our messages.
struct Side {
    host: SimHost,
    all: Communicator,
    peer: Rank,
    is_local: bool,
    message: Vec<u8>,
}

const TAG: Tag = Tag(1);

impl Side {
    async fn open(
        host: SimHost,
        own: u32,
        nodes: [NodeId; 2],
        bytes: usize,
    ) -> Result<Self, String> {
        let all = join(&host, own, nodes).await?;
        let is_local = nodes[0] == nodes[1];
        Ok(Self { host, all, peer: Rank(1 - own), is_local, message: vec![7; bytes] })
    }

    /// Charges the processor for a copy: the library's own copies take no virtual time.
    async fn copy(&self) {
        let (profile, bytes) = (self.host.profile(), self.message.len());
        let near = profile.loopback.filter(|_| self.is_local);
        let nanos = near.map_or_else(|| profile.copy.nanos(bytes), |near| near.copy_ns(bytes));
        self.host.compute(nanos).await;
    }
}

impl End for Side {
    async fn send(&mut self) -> Result<(), String> {
        self.copy().await;
        let message = std::mem::take(&mut self.message);
        // The request completes once the message has left; the caller does not wait for that.
        self.all.isend(Mode::Standard, self.peer, TAG, message).map_err(text)?.free();
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), String> {
        self.message = self.all.receive(self.peer, TAG).await.map_err(text)?.bytes;
        self.copy().await;
        Ok(())
    }
}
