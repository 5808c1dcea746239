//! The paper of LAM over VIA: one-way times of messages (Table 1).

use std::path::Path;
use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::process::Process;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

use crate::anchors::measure;
use crate::plot::{self, Line, Panel};
use crate::rows::Row;

const PAPER: &str = "lam-via";
/// Bytes, and microseconds one way between two hosts: TCP/IP and VIA.
const TABLE: [(usize, f64, f64); 9] = [
    (1, 114.0, 63.0),
    (64, 126.0, 77.0),
    (256, 163.0, 120.0),
    (1_024, 310.0, 271.0),
    (2_048, 426.0, 401.0),
    (4_096, 609.0, 590.0),
    (8_192, 996.0, 975.0),
    (16_384, 1_743.0, 1_756.0),
    (32_768, 3_219.0, 3_277.0),
];
const ROUNDS: u32 = 20;

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = measure::all()
        .into_iter()
        .filter(|anchor| anchor.source.starts_with("LAM"))
        .map(|anchor| {
            let what = format!("section 2.1: {}", anchor.what);
            Row::new(PAPER, what, anchor.unit, anchor.published, anchor.measured)
        })
        .collect();
    let mut lines: Vec<Line> = ["LAM on TCP, paper", "LAM on VIA, paper", "TCP, ours", "VIA, ours"]
        .map(|label| Line { label: label.into(), points: Vec::new() })
        .into();
    for (bytes, tcp, via) in TABLE {
        let ours = [measure::tcp_us(&Machine::TCP_FAST_ETHERNET, bytes), messages_us(bytes)?];
        let what = format!("Table 1: {bytes} B, remote");
        let row = Row::new(PAPER, format!("{what}, TCP/IP"), "us", tcp, ours[0]);
        rows.push(row.note("ours without LAM above the kernel's TCP"));
        rows.push(Row::new(PAPER, format!("{what}, VIA"), "us", via, ours[1]));
        for (line, us) in lines.iter_mut().zip([tcp, via, ours[0], ours[1]]) {
            line.points.push((bytes as f64 / 1024.0, us));
        }
    }
    let why = "two processes on one NIC are not simulated";
    rows.push(Row::missing(PAPER, "Table 1: local", why));
    rows.push(Row::missing(PAPER, "Figures 1 to 3", "drawings, no data"));
    let panel = Panel { title: "LAM/MPI, Table 1, remote".into(), lines };
    plot::draw(&directory.join("lam-via-table-1.svg"), "message, KiB", "one way, us", &[panel])?;
    Ok(rows)
}

/// One way of a message between two of the paper's PCs, over M-VIA.
fn messages_us(bytes: usize) -> Result<f64, String> {
    let machine = Machine::MVIA_FAST_ETHERNET;
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default())).expect("its number is free");
        unit
    });
    world.set_hosts(machine.host);
    let far = world.host(NodeId(1));
    // What is wrong on this side the other one says.
    world.spawn(NodeId(1), async move { drop(rounds(&far, 1, bytes).await) });
    let near = world.host(NodeId(0));
    let took = world.block_on(NodeId(0), async move { rounds(&near, 0, bytes).await });
    took.ok_or_else(|| format!("a message of {bytes} bytes does not come back"))?
}

async fn rounds(host: &SimHost, own: u16, bytes: usize) -> Result<f64, String> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let nodes = [NodeId(0), NodeId(1)];
    let carrier = RdmaCarrier::open(host, Peer(own.into()), &nodes, RdmaConfig::default()).await;
    let engine = Engine::new(carrier.map_err(text)?, Config::default());
    let (process, scope) = Process::new(engine, 2).map_err(text)?;
    let world = Communicator::world(process, scope);
    let (other, tag) = (Rank(u32::from(1 - own)), Tag(1));
    let mut began = host.now();
    for round in 0..=ROUNDS {
        // The first one finds the connection.
        if round == 1 {
            began = host.now();
        }
        if own == 0 {
            world.send(other, tag, vec![7; bytes]).await.map_err(text)?;
            world.receive(other, tag).await.map_err(text)?;
        } else {
            let came = world.receive(other, tag).await.map_err(text)?;
            world.send(other, tag, came.bytes).await.map_err(text)?;
        }
    }
    let nanos = host.now().nanos_since(began) as f64;
    if own == 1 {
        // What is gone answers nobody who has yet to hear that its last message has come.
        host.sleep_until(host.now() + Duration::from_secs(1)).await;
    }
    Ok(nanos / f64::from(2 * ROUNDS) / 1e3)
}
