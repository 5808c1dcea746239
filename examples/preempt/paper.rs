//! The paper's numbers, and ours on its machine.

use midplane::gang::channel::Channel;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::controller::Controller;
use midplane::gang::daemon::Costs;
use midplane::gang::firmware::Gang;
use midplane::gang::names::{ChannelId, JobId, Place, Rank};
use midplane::gang::nas::Class;
use midplane::gang::network::Network;
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::{SimHost, World};
use serde::Serialize;

use super::arguments::{Arguments, KernelName, MachineName, ModeName};
use super::report;
use super::slowdown::{self, Case, Run};

/// What may be missed by.
const TOLERANCE: f64 = 0.10;

#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) published: f64,
    pub(crate) measured: f64,
    pub(crate) unit: &'static str,
    holds: bool,
}

#[derive(Serialize)]
struct Document {
    rows: Vec<Row>,
    runs: Vec<Run>,
    holds: bool,
}

/// A message, one way, and a stream: PM's least latency and most bandwidth.
fn transfer() -> Option<(f64, f64)> {
    const ROUNDS: u32 = 200;
    const STREAM: u32 = 2_000;
    let machine = Machine::PM_MYRINET;
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default())).expect("its number is free");
        unit
    });
    world.set_hosts(machine.host);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut network, mut channels) = pair(&hosts, Geometry::BULK).await;
        network.run(&hosts[0]).await.expect("both are parked");
        let mut far = channels.pop().expect("there are two");
        let mut near = channels.pop().expect("there are two");
        hosts[1].spawn(async move {
            for _ in 0..ROUNDS {
                let (from, bytes) = far.receive().await.expect("the channel is open");
                far.send(from, &bytes).await.expect("there is room");
            }
            let mut count = 0;
            while count < STREAM {
                far.receive().await.expect("the channel is open");
                count += 1;
            }
            far.send(Rank(0), &[]).await.expect("there is room");
            while !far.is_flushed() {
                far.room().await.expect("the channel is open");
            }
        });
        let began = hosts[0].now();
        for _ in 0..ROUNDS {
            near.send(Rank(1), &[7; 8]).await.expect("there is room");
            near.receive().await.expect("the channel is open");
        }
        let one_way = hosts[0].now().nanos_since(began) as f64 / f64::from(2 * ROUNDS) / 1e3;
        let began = hosts[0].now();
        for _ in 0..STREAM {
            near.send(Rank(1), &[7; 8192]).await.expect("there is room");
        }
        near.receive().await.expect("the channel is open");
        let nanos = hosts[0].now().nanos_since(began) as f64;
        (one_way, f64::from(STREAM) * 8192.0 / nanos * 1e3)
    })
}

async fn pair(hosts: &[SimHost], geometry: Geometry) -> (Network, Vec<Channel>) {
    let places: Vec<Place> =
        (0..2).map(|node| Place { node: NodeId(node), channel: ChannelId(0) }).collect();
    let controllers = hosts.iter().map(|host| {
        Controller::open(host, ChannelId(0), geometry, true).expect("the NIC has room")
    });
    let network = Network::open(JobId(1), &places, controllers.collect()).await.expect("it is new");
    let mut channels = Vec::new();
    for (held, host) in network.ranks().iter().zip(hosts) {
        let descriptor = held.controller.descriptor(held.context);
        channels.push(Channel::attach(host, descriptor).await.expect("nobody else has it"));
    }
    (network, channels)
}

/// Bytes that save finds in a context whose FIFOs were filled as the table says.
fn filled(send: bool, receive: bool) -> Option<usize> {
    let machine = Machine::PM_MYRINET;
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default())).expect("its number is free");
        unit
    });
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut network, mut channels) = pair(&hosts, Geometry::PM).await;
        let mut other = channels.pop().expect("there are two");
        let mut own = channels.pop().expect("there are two");
        network.run(&hosts[0]).await.expect("both are parked");
        if receive {
            for _ in 0..Geometry::PM.receive.messages {
                other.send(Rank(0), &[1; 128]).await.expect("the channel is open");
            }
            while !other.is_flushed() {
                other.room().await.expect("the channel is open");
            }
        }
        network.freeze(&hosts[0]).await.expect("the NIC is up");
        // A process that is stopped between two instructions may just have filled its FIFO.
        while send && own.try_send(Rank(1), &[2; 240]).is_ok() {}
        hosts[0].sleep_until(hosts[0].now().plus_nanos(1_000_000)).await;
        let saved = network.save(true).await.expect("it is steady");
        saved.validate().expect("the cut is consistent");
        network.restore(&saved).await.expect("it was saved here");
        saved.ranks[0].bytes()
    })
}

fn table_3(costs: &Costs) -> Vec<Row> {
    let rows = [
        ("receive empty, send empty", false, false, 0.62, 0.18),
        ("receive empty, send full", true, false, 1.96, 1.56),
        ("receive full, send empty", false, true, 2.16, 1.59),
        ("receive full, send full", true, true, 3.70, 3.19),
    ];
    let mut table = Vec::new();
    for (what, send, receive, save, restore) in rows {
        let bytes = filled(send, receive).unwrap_or(0);
        let measured = [costs.of_save(bytes), costs.of_restore(bytes)];
        let verbs = [("save", save), ("restore", restore)];
        for ((verb, published), measured) in verbs.into_iter().zip(measured) {
            let what = format!("Table 3, {verb}: {what} ({bytes} B)");
            table.push(row(what, published, measured.as_secs_f64() * 1e3, "ms"));
        }
    }
    table
}

fn row(what: String, published: f64, measured: f64, unit: &'static str) -> Row {
    let holds = ((measured - published) / published).abs() <= TOLERANCE;
    Row { what, published, measured, unit, holds }
}

/// Tables 2 and 3.
pub(crate) fn tables() -> Vec<Row> {
    let (latency, bandwidth) = transfer().expect("all messages arrive");
    let mut rows = vec![
        row("Table 2, least latency through a channel".to_owned(), 7.5, latency, "us"),
        row("Table 2, most bandwidth through a channel".to_owned(), 117.6, bandwidth, "MB/s"),
    ];
    rows.extend(table_3(&Costs::paper(&Machine::PM_MYRINET.host)));
    rows
}

/// What Figures 5 and 6 are drawn from: by kernel, ranks and slice.
pub(crate) fn figures(arguments: &Arguments) -> Vec<Run> {
    let arguments = Arguments { machine: MachineName::Pm, ..arguments.clone() };
    let mut cases = Vec::new();
    for kernel in [KernelName::Ep, KernelName::Ft, KernelName::Cg] {
        for ranks in [8, 16, 32] {
            for slice_ms in [50.0, 100.0, 200.0] {
                let mode = ModeName::Copy;
                cases.push(Case { kernel, class: Class::S, ranks, slice_ms, mode });
            }
        }
    }
    let bar = slowdown::progress(cases.len());
    let mut runs = Vec::new();
    for case in &cases {
        runs.push(slowdown::measure(&arguments, case));
        bar.inc(1);
    }
    bar.finish_and_clear();
    runs
}

pub(crate) fn run(arguments: &Arguments) -> bool {
    let rows = tables();
    let runs = figures(arguments);
    let below = |kernel: &str, most: f64| {
        runs.iter().filter(|r| r.kernel == kernel && r.slice_ms == 100.0).all(|r| r.slowdown < most)
    };
    let claims = [
        (
            "Figure 6: every slowdown is below 9 % at 100 ms",
            ["ep", "ft", "cg"].iter().all(|k| below(k, 0.09)),
        ),
        ("Figure 6: EP's is below 7 %", below("ep", 0.07)),
        (
            "Figure 6: twice the slice, half the slowdown (within a quarter)",
            runs.chunks_exact(3)
                .all(|r| (0.75..1.25).contains(&(r[0].slowdown / (2.0 * r[1].slowdown)))),
        ),
        (
            "Figure 5: saving and restoring is more than a third of a switch",
            runs.iter()
                .all(|r| r.save_us + r.restore_us > (r.freeze_us + r.save_us + r.restore_us) / 3.0),
        ),
    ];
    let results = runs.iter().all(|run| run.verified && run.same_bits);
    let holds =
        results && rows.iter().all(|row| row.holds) && claims.iter().all(|(_, holds)| *holds);
    if arguments.json {
        report::print_json(&Document { rows, runs, holds });
        return holds;
    }
    let mut text = String::new();
    for Row { what, published, measured, unit, holds } in &rows {
        let mark = if *holds { "" } else { "  NOT WITHIN 10 %" };
        text += &format!("{what:<58} {published:>7.2} {measured:>7.2} {unit}{mark}\n");
    }
    text += &slowdown::table(&runs);
    for (claim, holds) in claims {
        text += &format!("{claim}: {}\n", if holds { "yes" } else { "NO" });
    }
    report::say(&text);
    holds
}
