//! A key-value store whose NIC answers the most frequent gets.
//!
//! ```text
//! cargo run --release -p midplane-benches -- cache
//! ```

mod extension;
mod nodes;
mod store;

use crate::{fleet, plot, report};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use extension::{MOST, PLACE};
use fleet::{Fabric, Fleet};
use nodes::{Figures, Plan};

const EXAMPLES: &str = "\
Examples:
  lab cache                                   four processes over UDP
  lab cache --fabric shm --cached 64,512,4096 --heap 1000000 --plot cache.svg
  lab cache --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 owns the values and changes one of them every 500 us; all other ranks get values, with keys drawn by Zipf's
law (0.99). Each answer is checked: its key, all of its bytes, and that its version is not older than the last one.

Exit code: 0 all answers were right, and the NIC answered some gets; 1 one of these failed, or a process was
lost; 2 bad input.";

/// Measure a key-value store with a cache on its NIC, and one without
///
/// The cache is an extension: a direct-mapped table in its bounded heap. A miss goes to the host, which fills the
/// cache. When the host changes a value, it updates the cache first.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
    /// Number of keys, from 1 to 1000000
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// Entries of the cache, from 0, separated by commas: each is measured
    #[arg(long, value_name = "PLACES", value_delimiter = ',', default_value = "256", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    cached: Vec<u64>,
    /// Bytes of the NIC's memory for the cache
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1_024..=1 << 30))]
    heap: u64,
    /// Bytes of a value, from 16 to 64
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(16..=MOST as u64))]
    bytes: u64,
    /// Gets in flight per client, from 1 to 32
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=32))]
    depth: u64,
    /// Draw gets a second and their latency over the entries of the cache
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Arguments {
    fn check(&self) -> Result<(), String> {
        let most = self.heap / PLACE as u64 - 1;
        if let Some(places) = self.cached.iter().find(|places| **places > most) {
            return Err(format!("--cached {places}: --heap {} has room for {most}", self.heap));
        }
        let folder = self.plot.as_ref().and_then(|path| path.parent());
        match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            Some(folder) => Err(format!("--plot: there is no folder {}", folder.display())),
            None => Ok(()),
        }
    }
}

/// Gets after which the cache must have answered some.
const ENOUGH: f64 = 1_000.0;

#[derive(Clone, Debug, Serialize)]
struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    fabric: Fabric,
    nodes: u16,
    keys: u64,
    bytes: u64,
    depth: u64,
    /// Entries of the cache; `None` for the store without one.
    cached: Option<u64>,
    seconds: f64,
    gets_per_s: f64,
    /// Share of all gets that the NIC answered.
    hit_share: f64,
    median_us: f64,
    p99_us: f64,
    /// Gets that reached the owner's host.
    at_host: u64,
    wrong: u64,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
    holds: bool,
}

pub(crate) fn main(mut arguments: Arguments) -> ExitCode {
    let checked = arguments.check();
    let place = match checked.and_then(|()| arguments.fleet.place()) {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let list: Vec<String> = arguments.cached.iter().map(u64::to_string).collect();
    let own = [
        "cache".into(),
        format!("--keys={}", arguments.keys),
        format!("--cached={}", list.join(",")),
        format!("--heap={}", arguments.heap),
        format!("--bytes={}", arguments.bytes),
        format!("--depth={}", arguments.depth),
    ];
    let plan = |bar| Plan {
        keys: arguments.keys,
        bytes: arguments.bytes as usize,
        depth: arguments.depth as usize,
        places: arguments.cached.clone(),
        heap: arguments.heap as usize,
        time: arguments.fleet.time(),
        bar,
    };
    let finish = |figures: &Vec<Figures>| finish(&arguments, figures);
    arguments.fleet.conduct(place, (&own, arguments.cached.len() as u64 + 1), plan, finish)
}

fn finish(arguments: &Arguments, figures: &[Figures]) -> ExitCode {
    let run = |figures: &Figures| {
        let Figures { gets, wrong, median_ns, p99_ns, at_host, .. } = *figures;
        Run {
            place: if figures.places.is_some() { "nic" } else { "host" },
            fabric: arguments.fleet.fabric,
            nodes: arguments.fleet.nodes,
            keys: arguments.keys,
            bytes: arguments.bytes,
            depth: arguments.depth,
            cached: figures.places,
            seconds: figures.took.as_secs_f64(),
            gets_per_s: gets as f64 / figures.took.as_secs_f64(),
            hit_share: 1.0 - at_host as f64 / gets as f64,
            median_us: median_ns as f64 / 1e3,
            p99_us: p99_ns as f64 / 1e3,
            at_host,
            wrong,
        }
    };
    let runs: Vec<Run> = figures.iter().map(run).collect();
    // Clients that get little processor time may never have requested a key twice.
    let asked = |run: &Run| run.gets_per_s * run.seconds;
    let kept = |run: &Run| {
        run.cached.is_none_or(|places| places == 0 || run.hit_share > 0.0 || asked(run) < ENOUGH)
    };
    let holds = runs.iter().all(|run| run.wrong == 0 && run.gets_per_s > 0.0 && kept(run));
    if let Some(path) = &arguments.plot
        && let Err(what) = draw(path, &runs)
    {
        return report::fail(&what, report::BAD_INPUT);
    }
    if arguments.fleet.json {
        report::print_json(&Document { runs, holds });
    } else {
        report::print(&table(&runs));
    }
    ExitCode::from(if holds { 0 } else { report::FAILED })
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<6}{:>8}{:>12}{:>9}{:>12}{:>10}{:>14}{:>8}\n",
        "", "places", "gets/s", "hits", "median us", "p99 us", "at the host", "wrong"
    );
    for run in runs {
        let places = run.cached.map_or_else(String::new, |places| places.to_string());
        text += &format!(
            "{:<6}{places:>8}{:>12.0}{:>8.1}%{:>12.1}{:>10.1}{:>14}{:>8}\n",
            run.place,
            run.gets_per_s,
            run.hit_share * 100.0,
            run.median_us,
            run.p99_us,
            run.at_host,
            run.wrong
        );
    }
    text
}

fn draw(path: &std::path::Path, runs: &[Run]) -> Result<(), String> {
    let hosts = runs.iter().find(|run| run.cached.is_none());
    let lines = |pick: fn(&Run) -> f64| {
        let of_nic = runs.iter().filter_map(|run| Some((run.cached?, pick(run))));
        let points: Vec<(f64, f64)> = of_nic.map(|(places, y)| (places.max(1) as f64, y)).collect();
        let level = hosts.map(pick).unwrap_or_default();
        let beside = points.iter().map(|(x, _)| (*x, level)).collect();
        vec![
            plot::Line { label: "NIC".into(), points },
            plot::Line { label: "host".into(), points: beside },
        ]
    };
    let panels = [
        plot::Panel { title: "thousand gets/s".into(), lines: lines(|run| run.gets_per_s / 1e3) },
        plot::Panel { title: "median, us".into(), lines: lines(|run| run.median_us) },
    ];
    let places = plot::Axis { label: "places of the cache", scale: plot::Scale::Binary };
    plot::draw(path, places, "", &panels)
}
