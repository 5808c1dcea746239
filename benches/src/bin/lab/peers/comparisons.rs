//! The comparisons, and how each reads the report of its program.

use serde::Serialize;
use serde_json::Value;

use crate::pingpong::arguments::is_program;

/// One comparison: a program and its arguments.
pub(crate) struct Comparison {
    pub(crate) name: &'static str,
    pub(crate) program: &'static str,
    pub(crate) words: &'static str,
    /// Arguments for --brief.
    pub(crate) brief: &'static str,
    pub(crate) read: fn(&Self, &Value) -> Vec<Row>,
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) comparison: &'static str,
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) ours: Option<f64>,
    pub(crate) peer: String,
    pub(crate) theirs: Option<f64>,
    /// Factor by which ours is faster.
    pub(crate) ratio: Option<f64>,
}

pub(crate) const COMPARISONS: [Comparison; 6] = [
    Comparison {
        name: "cluster",
        program: "cluster",
        words: "",
        brief: "--rounds 1 --milliseconds 60",
        read: cluster,
    },
    Comparison {
        name: "pingpong",
        program: "pingpong",
        words: "--peer tcp,unix --sizes 64,4096,65536 --rounds 3 --milliseconds 100",
        brief: "--peer tcp,unix --sizes 64 --rounds 1 --milliseconds 10",
        read: pingpong,
    },
    Comparison {
        name: "libraries",
        program: "pingpong",
        words: "--wait poll --layer vi,write,lanes,firmware,message --peer ucx,openmpi,libfabric,iceoryx2 --sizes 64,4096,65536 \
                --rounds 3 --milliseconds 100",
        brief: "--wait poll --layer lanes --peer ucx,openmpi,libfabric,iceoryx2 --sizes 64 --rounds 1 --milliseconds 10",
        read: pingpong,
    },
    Comparison {
        name: "loopback",
        program: "pingpong",
        words: "--fabric udp --layer vi,message --peer tcp --sizes 64,65536 --rounds 3 --milliseconds 100",
        brief: "--fabric udp --layer vi --peer tcp --sizes 64 --rounds 1 --milliseconds 10",
        read: pingpong,
    },
    Comparison {
        name: "collectives",
        program: "collectives",
        words: "--fabric shm --nodes 4,8 --rounds 500",
        brief: "--fabric shm --operation barrier --nodes 2 --rounds 20",
        read: collectives,
    },
    Comparison {
        name: "transfer",
        program: "transfer",
        words: "--seconds 20",
        brief: "--seconds 1",
        read: transfer,
    },
];

/// Systems that are missing in the table, each with the reason.
pub(crate) fn absent() -> Vec<String> {
    let verbs = "ib_send_lat";
    let state = match is_program(verbs) {
        true => "is on this machine, but no comparison drives it yet",
        false => "is not on this machine",
    };
    vec![
        format!("verbs (`{verbs}`) {state}"),
        "kernel UDP and TCP behind a real narrow link: `benches/netns/run.sh`, which needs root"
            .into(),
        "Slurm's own gang scheduling: `benches/launchers/turns.sh`, which needs root".into(),
        "turmoil and bach, simulators: `benches/simulated`".into(),
        "tokio's TCP under services: `benches/services`".into(),
        "quinn: `cargo bench -p midplane-warp --bench c_send`".into(),
    ]
}

/// Reads the systems that a program could not measure.
pub(crate) fn skipped(document: &Value) -> impl Iterator<Item = String> {
    let names = list(document, "skipped").filter_map(Value::as_str);
    names.map(|name| {
        format!("{name} is not installed here: `lab pingpong --peer {name}` names the package")
    })
}

fn text(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn list<'a>(document: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    document[key].as_array().into_iter().flatten()
}

fn cluster(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let row = |row: &Value| {
        let what = text(row, "what");
        let (what, peer) = what.rsplit_once(", compared with ").unwrap_or((&what, ""));
        let [ours, theirs, ratio] = ["ours", "theirs", "ratio"].map(|key| row[key].as_f64());
        let (what, unit, peer) = (what.into(), text(row, "unit"), peer.into());
        Row { comparison: comparison.name, what, unit, ours, peer, theirs, ratio }
    };
    list(document, "rows").map(row).collect()
}

/// Returns the row of two times in microseconds.
fn times(comparison: &Comparison, what: String, ours: &Value, peer: String, theirs: &Value) -> Row {
    let (ours, theirs) = (ours.as_f64(), theirs.as_f64());
    let ratio = ours.zip(theirs).map(|(ours, theirs)| theirs / ours);
    Row { comparison: comparison.name, what, unit: "us".into(), ours, peer, theirs, ratio }
}

fn pingpong(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let is_peer = |run: &&Value| run["layer"] == "kernel" || run["layer"] == "library";
    let (peers, ours): (Vec<_>, Vec<_>) = list(document, "runs").partition(is_peer);
    let mut rows = Vec::new();
    for run in ours {
        let [layer, wait, bytes] = ["layer", "wait", "bytes"].map(|key| text(run, key));
        for peer in peers.iter().filter(|peer| peer["bytes"] == run["bytes"]) {
            let name = match peer["layer"] == "library" {
                true => text(peer, "fabric"),
                false => format!("tokio, {}", text(peer, "fabric")),
            };
            let what = format!("{layer}, {wait}, {bytes} B one way");
            rows.push(times(comparison, what, &run["median_us"], name, &peer["median_us"]));
        }
    }
    rows
}

fn collectives(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let runs: Vec<&Value> = list(document, "runs").collect();
    let pair = |pair: &[&Value]| {
        let [host, nic] = pair else { return None };
        let what = format!("{} of {} over shm", text(nic, "operation"), text(nic, "nodes"));
        let (ours, theirs) = (&nic["median_us"], &host["median_us"]);
        Some(times(comparison, what, ours, "the same by hosts".into(), theirs))
    };
    runs.chunks(2).filter_map(pair).collect()
}

fn transfer(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let row = |row: &Value| {
        let what = format!("{} B from disk to disk", text(row, "bytes"));
        let (ours, theirs) = (&row["median_planned_us"], &row["median_64_kib_us"]);
        times(comparison, what, ours, "pieces of 64 KiB".into(), theirs)
    };
    list(document, "messages").map(row).collect()
}
