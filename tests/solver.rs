//! Tests the solver's ranks as separate processes, which meet at given addresses.

use std::io::Read as _;

use serde_json::Value;

use crate::node::free_address;
use crate::programs::{Process, program};

const RANKS: usize = 3;

/// Solves a system in three processes over UDP, with `words` on the solver's command line. Returns rank 0's report.
fn solve(words: &str) -> Value {
    let peers: Vec<String> = (0..RANKS).map(|_| free_address().to_string()).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers");
    std::fs::write(&file, peers.join("\n")).unwrap();
    let start = |rank: usize| {
        let mut command = program("solver");
        command.args(["--fabric=udp", "--json", "--wait=60", "--seconds=60", "--peers"]).arg(&file);
        Process::start(command.arg(format!("--rank={rank}")).args(words.split(' ')))
    };
    // Rank 0, for which the others wait, starts last.
    let mut ranks: Vec<Process> = (0..RANKS).rev().map(start).collect();
    let mut texts = Vec::new();
    for rank in &mut ranks {
        let mut text = String::new();
        rank.output().read_to_string(&mut text).unwrap();
        assert!(rank.0.wait().unwrap().success(), "{words}: {text}");
        texts.push(text);
    }
    let report = texts.pop().unwrap();
    assert!(texts.iter().all(String::is_empty), "rank 0 alone reports");
    serde_json::from_str(&report).unwrap()
}

/// Tests the Warp paper's stack live: slow writes to Mermera's memory, sent at once and as conditional sends on Warp.
#[test]
fn processes_that_share_mermeras_memory_find_the_direct_solution() {
    for words in ["none", "warp+csend", "warp+csend --transport broadcast"] {
        let system = "--trefethen 200 --tolerance 1e-12 --memory mermera";
        let report = solve(&format!("{system} --control {words}"));
        let run = &report["runs"][0];
        println!("{words}: {run}");
        assert_eq!(run["memory"], "mermera");
        assert_eq!(run["converged"], true, "{words}");
        assert!(run["error"].as_f64().unwrap() < 1e-10, "{words}: {run}");
        assert!(run["messages"].as_u64().unwrap() > 0, "{words}: {run}");
        assert!(run["updates_per_s"].as_f64().unwrap() > 0.0, "{words}: {run}");
        assert_eq!(run["lost_ranks"].as_array().unwrap().len(), 0, "{words}: {run}");
    }
}
