//! The comparisons, and how each reads the report of its program.

use serde::Serialize;
use serde_json::Value;

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
    /// How many times ours is faster.
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    let verbs = "ib_send_lat";
    let state = match std::env::split_paths(&path).any(|folder| folder.join(verbs).is_file()) {
        true => "is on this machine, but no comparison drives it yet",
        false => "is not on this machine",
    };
    vec![
        format!("verbs (`{verbs}`) {state}"),
        "kernel UDP and TCP behind a real narrow link: `benches/netns/run.sh`, which needs root"
            .into(),
        "Slurm's own gang scheduling: `benches/launchers/turns.sh`, which needs root".into(),
        "bach's simulator: `cargo bench -p midplane-benches --bench sim`".into(),
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
        Row {
            comparison: comparison.name,
            what: what.into(),
            unit: text(row, "unit"),
            ours: row["ours"].as_f64(),
            peer: peer.into(),
            theirs: row["theirs"].as_f64(),
            ratio: row["ratio"].as_f64(),
        }
    };
    list(document, "rows").map(row).collect()
}

fn pingpong(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let runs: Vec<&Value> = list(document, "runs").collect();
    let (peers, ours): (Vec<&Value>, Vec<&Value>) =
        runs.into_iter().partition(|run| run["layer"] == "kernel" || run["layer"] == "library");
    let mut rows = Vec::new();
    for run in ours {
        for peer in peers.iter().filter(|peer| peer["bytes"] == run["bytes"]) {
            let (ours, theirs) = (run["median_us"].as_f64(), peer["median_us"].as_f64());
            let (layer, wait) = (text(run, "layer"), text(run, "wait"));
            rows.push(Row {
                comparison: comparison.name,
                what: format!("{layer}, {wait}, {} B one way", text(run, "bytes")),
                unit: "us".into(),
                ours,
                peer: match peer["layer"] == "library" {
                    true => text(peer, "fabric"),
                    false => format!("tokio, {}", text(peer, "fabric")),
                },
                theirs,
                ratio: ours.zip(theirs).map(|(ours, theirs)| theirs / ours),
            });
        }
    }
    rows
}

fn collectives(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let runs: Vec<&Value> = list(document, "runs").collect();
    let pair = |pair: &[&Value]| {
        let [host, nic] = pair else { return None };
        Some(Row {
            comparison: comparison.name,
            what: format!("{} of {} over shm", text(nic, "operation"), text(nic, "nodes")),
            unit: "us".into(),
            ours: nic["median_us"].as_f64(),
            peer: "the same by hosts".into(),
            theirs: host["median_us"].as_f64(),
            ratio: nic["ratio"].as_f64(),
        })
    };
    runs.chunks(2).filter_map(pair).collect()
}

fn transfer(comparison: &Comparison, document: &Value) -> Vec<Row> {
    let row = |row: &Value| {
        let (ours, theirs) = (row["median_planned_us"].as_f64(), row["median_64_kib_us"].as_f64());
        Row {
            comparison: comparison.name,
            what: format!("{} B from disk to disk", text(row, "bytes")),
            unit: "us".into(),
            ours,
            peer: "pieces of 64 KiB".into(),
            theirs,
            ratio: ours.zip(theirs).map(|(ours, theirs)| theirs / ours),
        }
    };
    list(document, "messages").map(row).collect()
}
