//! Published results, and the results of the simulated machines.

use std::panic::Location;

use midplane::pipeline::Stage;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::Command;
use midplane::simhw::profile::{HostProfile, Loopback, Machine, Notice};
use midplane::simhw::region::RegionRef;
use midplane::simhw::sim::World;
use serde::Serialize;

use super::bounce::{PortEnd, one_way_us};
use super::{gam, pm};
use crate::kernel_tcp::{self, KernelTcp, TcpCosts};
use crate::raw::{self, PING, RECEIVE, SEND};

pub(super) const A: NodeId = NodeId(0);
pub(super) const B: NodeId = NodeId(1);

/// The relation of a model's number to the published one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "origin", content = "fitted")]
pub enum Origin {
    /// The published number is a constant of the model. Ours shows only that the constant is charged.
    Input,
    /// Constants of the model, named here, were chosen so that ours is close. A difference is what the fit leaves.
    Fitted(&'static str),
    /// The model was not adjusted to the published number.
    Predicted,
}

/// One published result and the measured one.
#[derive(Clone, Debug)]
pub struct Anchor {
    pub what: String,
    pub unit: &'static str,
    pub published: f64,
    pub measured: f64,
    pub origin: Origin,
    /// File of the code that measured it.
    pub code: &'static str,
}

impl Anchor {
    /// Creates a result, measured by the caller.
    #[track_caller]
    pub fn new(
        origin: Origin,
        what: impl Into<String>,
        unit: &'static str,
        published: f64,
        measured: f64,
    ) -> Self {
        let code = Location::caller().file();
        Self { what: what.into(), unit, published, measured, origin, code }
    }
}

/// Measures the DVCM paper's section 3: coprocessors against applications, and the cost of interrupts.
pub fn dvcm() -> Vec<Anchor> {
    let machine = Machine::DVCM_ATM;
    let interrupts = |what, published, notice| {
        Anchor::new(Origin::Input, what, "us", published, interrupt_us(&machine, notice))
    };
    let fitted = |constants, what, published, us| {
        Anchor::new(Origin::Fitted(constants), what, "us", published, us)
    };
    let (nics, hosts) = (coprocessors_us(&machine), applications_us(&machine, 40));
    vec![
        fitted("latency of the switch", "coprocessor to coprocessor, one way", 18.0, nics),
        fitted("doorbell, completion", "application to application, one way", 60.0, hosts),
        interrupts("interrupt, kernel handler", 9.0, Notice::Interrupt),
        interrupts("interrupt, signal handler", 50.0, Notice::Signal),
    ]
}

/// Measures the SCore-D paper's Table 2; messages go through PM's channels.
pub fn score_d() -> Vec<Anchor> {
    let (latency, bandwidth) = pm::transfer().expect("all messages arrive");
    vec![
        Anchor::new(
            Origin::Fitted("instructions of an event, DMA setup, completion"),
            "Table 2, least latency through a channel",
            "us",
            7.5,
            latency,
        ),
        Anchor::new(
            Origin::Fitted("time per byte of the DMA"),
            "Table 2, most bandwidth through a channel",
            "MB/s",
            117.6,
            bandwidth,
        ),
    ]
}

/// Measures the pipelines paper's Table 1: the four stages under Generic Active Messages, by regression over packets
/// of up to 4 KiB (section 5.3.1).
pub fn pipelines() -> Vec<Anchor> {
    let published = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
    let stages = gam::clear_box(gam::COPY);
    let mut anchors = Vec::new();
    for (number, (stage, (overhead, per_kb))) in stages.stages().iter().zip(published).enumerate() {
        let what = |cost| format!("stage {number}, {cost}");
        // Copies and DMAs per byte, and the overheads of copies, are the paper's; the NIC's overheads are fitted.
        let origin = match number {
            1 | 2 => Origin::Fitted(GAM_FIT),
            _ => Origin::Input,
        };
        let (measured, slope) = (stage.overhead().get(), stage.per_byte().get() * KIB);
        anchors.push(Anchor::new(origin, what("overhead"), "us", overhead, measured));
        anchors.push(Anchor::new(Origin::Input, what("per KiB"), "us", per_kb, slope));
    }
    anchors
}

/// Measures the pipelines paper's Table 2: the slowest stage's overhead, and the cost of a byte in the others, from
/// instrumented stages and from times of whole messages and streams alone (section 5.3.2).
pub fn pipelines_table_2() -> [Anchor; 4] {
    let (stages, seen) = (gam::clear_box(gam::COPY), gam::black_box());
    let slowest = stages.stages()[2];
    let others = |stage: &Stage| stage.per_byte().get();
    let others = stages.stages().iter().map(others).sum::<f64>() - slowest.per_byte().get();
    let line = seen.bottlenecks[seen.bottlenecks.len() - 1];
    let (overhead, rest) = ("overhead of the slowest stage", "per KiB in the others");
    let anchor = |origin, how, what, published, measured| {
        Anchor::new(origin, format!("{how}, {what}"), "us", published, measured)
    };
    let unseen = (seen.sum.us_per_byte - line.us_per_byte) * KIB;
    [
        anchor(Origin::Fitted(GAM_FIT), "direct", overhead, 7.5, slowest.overhead().get()),
        anchor(Origin::Input, "direct", rest, 40.0, others * KIB),
        anchor(Origin::Predicted, "indirect", overhead, 7.6, line.overhead_us),
        anchor(Origin::Predicted, "indirect", rest, 37.8, unseen),
    ]
}

/// Constants of the machine that were fitted to Table 1.
const GAM_FIT: &str = "instructions of an event, DMA setups";
const KIB: f64 = 1024.0;

/// Measures the LAM-VIA paper's section 2.1: the same PCs with M-VIA and with the kernel's TCP.
pub fn lam_via() -> Vec<Anchor> {
    let via = applications_us(&Machine::MVIA_FAST_ETHERNET, 4);
    let tcp = tcp_us(4, 0).expect("all rounds end");
    vec![
        Anchor::new(
            Origin::Fitted("interrupt, instructions of an event, DMA setup, latency of the switch"),
            "M-VIA, one way",
            "us",
            61.0,
            via,
        ),
        Anchor::new(Origin::Fitted("instructions of TCP"), "TCP, one way", "us", 100.0, tcp),
    ]
}

const ROUNDS: u64 = 100;

/// Builds a command about `region` whose peer is the other one of the two hosts.
pub(super) fn command(opcode: u8, from: NodeId, region: RegionRef) -> Command {
    Command { opcode, node: NodeId(1 - from.0), region, ..Command::default() }
}

/// Returns the one-way time of an empty frame that the two NICs' firmwares bounce, in microseconds.
fn coprocessors_us(machine: &Machine) -> f64 {
    let mut world = raw::world(machine);
    let host = world.host(A);
    let nanos = world.block_on(A, async move {
        let mut port = host.open_port().expect("the NIC is up");
        let ping = Command { opcode: PING, node: B, args: [ROUNDS, 0, 0], ..Command::default() };
        port.submit(&ping).expect("the ring is empty");
        port.completion().await.expect("the NIC is up").args[0]
    });
    nanos.expect("it comes back") as f64 / (2 * ROUNDS) as f64 / 1e3
}

/// Returns the one-way time of `bytes` that two applications bounce, in microseconds.
pub fn applications_us(machine: &Machine, bytes: usize) -> f64 {
    let world = raw::world(machine);
    let commands = ([SEND, RECEIVE], [0; 2]);
    let ends = [(A, B), (B, A)]
        .map(|(own, peer)| PortEnd::open(world.host(own), peer, bytes, commands, 0));
    one_way_us(world, [A, B], ends).expect("all rounds end")
}

/// Returns the same one-way time over the kernel's TCP, with `work_ns` of processor time for each message at each end.
///
/// # Errors
/// One line: what failed.
pub fn tcp_us(bytes: usize, work_ns: u64) -> Result<f64, String> {
    tcp_between(&Machine::TCP_FAST_ETHERNET, TcpCosts::LINUX_2_2, [A, B], bytes, work_ns)
}

/// Returns the same between two processes of one host. No cost is new: those of TCP, copies and context switches are the
/// remote ones, without NIC, interrupt and line.
///
/// # Errors
/// One line: what failed.
pub fn local_tcp_us(bytes: usize, work_ns: u64) -> Result<f64, String> {
    let mut machine = Machine::TCP_FAST_ETHERNET;
    // The segment is passed on as it is: its copies are charged at its ends.
    machine.host.loopback = Some(Loopback {
        frame_ns: 0,
        short_bytes: 0,
        long_ns: 0,
        near_bytes: 0,
        near_byte_ps: 0,
        far_byte_ps: 0,
    });
    tcp_between(&machine, TcpCosts::LINUX_2_2_LOOPBACK, [A, A], bytes, work_ns)
}

fn tcp_between(
    machine: &Machine,
    costs: TcpCosts,
    nodes: [NodeId; 2],
    bytes: usize,
    work_ns: u64,
) -> Result<f64, String> {
    let mut world =
        World::new(&machine.topology(2), machine.nic, 1, move |_, _| KernelTcp::new(costs));
    world.set_hosts(machine.host);
    let ends = [0, 1].map(|own| {
        let commands = ([kernel_tcp::SEND, kernel_tcp::RECEIVE], STREAMS[own]);
        PortEnd::open(world.host(nodes[own]), nodes[1 - own], bytes, commands, work_ns)
    });
    one_way_us(world, nodes, ends)
}

/// Numbers of the streams that each end writes and reads, if both ends are on one host.
const STREAMS: [[u64; 2]; 2] = [[1, 2], [2, 1]];

/// Returns the processor time that one completion takes from a computing application, in microseconds, if completions
/// are notified by `notice`.
fn interrupt_us(machine: &Machine, notice: Notice) -> f64 {
    const WORK: u64 = 20_000_000;
    let host = HostProfile { notice, ..machine.host };
    let mut world = raw::world(&Machine { host, ..*machine });
    let sender = world.host(B);
    world.spawn(B, async move {
        let mut port = sender.open_port().expect("the NIC is up");
        let region = port.register(40).expect("a small region");
        for _ in 0..ROUNDS {
            sender.sleep_until(sender.now().plus_nanos(100_000)).await;
            port.submit(&command(SEND, B, region.whole())).expect("there is room");
            port.completion().await.expect("the NIC is up");
        }
    });
    let host = world.host(A);
    let nanos = world.block_on(A, async move {
        let mut port = host.open_port().expect("the NIC is up");
        let region = port.register(40).expect("a small region");
        for _ in 0..ROUNDS {
            port.post(&command(RECEIVE, A, region.whole())).expect("there is room");
        }
        port.ring();
        let began = host.now();
        host.compute(WORK).await;
        host.now().nanos_since(began)
    });
    (nanos.expect("it ends") - WORK) as f64 / ROUNDS as f64 / 1e3
}
