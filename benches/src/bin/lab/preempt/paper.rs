//! The paper's numbers, and ours on its machine.

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::daemon::Costs;
use midplane::gang::names::Rank;
use midplane::gang::nas::Class;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::SimHost;
use serde::Serialize;

use super::arguments::{Arguments, KernelName, MachineName, ModeName};
use super::slowdown::{self, Case, Run};
use super::{pm, report};

/// Largest deviation from a published number, as a fraction.
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

/// Returns the bytes that a save finds in a context whose FIFOs were filled as the table says.
fn filled(send: bool, receive: bool) -> Option<usize> {
    let mut world = pm::world(&Machine::PM_MYRINET, 1);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut network, mut channels) = pm::pair(&hosts, 0, Geometry::PM).await;
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
        // A process may have filled its FIFO just before it was stopped.
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

/// Measures Tables 2 and 3.
pub(crate) fn tables() -> Vec<Row> {
    let (latency, bandwidth) =
        pm::transfer(&Machine::PM_MYRINET, Geometry::BULK, 1).expect("all messages arrive");
    let mut rows = vec![
        row("Table 2, least latency through a channel".to_owned(), 7.5, latency, "us"),
        row("Table 2, most bandwidth through a channel".to_owned(), 117.6, bandwidth, "MB/s"),
    ];
    rows.extend(table_3(&Costs::paper(&Machine::PM_MYRINET.host)));
    rows
}

/// Runs the jobs of Figures 5 and 6: by kernel, ranks and slice.
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

/// Returns the slowdowns of the shortest slice over twice those of the next: 1 if twice the slice halves them. All
/// runs are summed, because some jobs are as short as a slice.
fn halving(runs: &[Run]) -> f64 {
    let sum = |at: usize| runs.chunks_exact(3).map(|slices| slices[at].slowdown).sum::<f64>();
    sum(0) / (2.0 * sum(1))
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
            "Figure 6: twice the slice, half the slowdown (the mean of all, within a quarter)",
            (0.75..1.25).contains(&halving(&runs)),
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
    report::print(&text);
    holds
}
