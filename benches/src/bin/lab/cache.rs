//! A key-value store whose NIC answers the most frequent gets.

mod store;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use serde::Serialize;

use crate::calls::{CALLS, Calls, Client, Server, call_until};
use crate::fleet::{self, Fleet, Meeting, Part, Question};
use crate::{plot, report};
use store::{Judge, Keys, Store};
use table::{Cache, PLACE, VALUE};

const EXAMPLES: &str = "\
Examples:
  lab cache                                   four processes over UDP
  lab cache --fabric shm --cached 64,256,512 --plot cache.svg
  lab cache --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 owns the values and changes one of them every 500 us; all other ranks get values, with keys drawn by Zipf's
law (0.99). Each answer is checked: its key, all of its bytes, and that its version is not older than the last one.

Exit code: 0 all answers were right, and the NIC answered some gets; 1 one of these failed, or a process was
lost; 2 bad input.";

/// Measure a key-value store with a cache on its NIC, and one without
///
/// The cache is an extension: a direct-mapped table in its bounded heap. A miss goes to the host, which fills the
/// cache. When the host changes a value, it updates the cache first.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
    /// Entries of the cache, from 0, separated by commas: each is measured
    #[arg(long, value_name = "PLACES", value_delimiter = ',', default_value = "256", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    cached: Vec<u64>,
    /// Draw gets a second and their latency over the entries of the cache
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Arguments {
    fn check(&self) -> Result<(), String> {
        let most = (HEAP / PLACE) as u64 - 1;
        if let Some(places) = self.cached.iter().find(|places| **places > most) {
            return Err(format!("--cached {places}: the NIC has room for {most}"));
        }
        let folder = self.plot.as_ref().and_then(|path| path.parent());
        match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            Some(folder) => Err(format!("--plot: there is no folder {}", folder.display())),
            None => Ok(()),
        }
    }
}

/// Number of keys.
const KEYS: u64 = 10_000;
/// Bytes of the NIC's memory for the cache.
const HEAP: usize = 65_536;
/// Gets in flight per client.
const DEPTH: usize = 4;
const OWNER: NodeId = NodeId(0);
/// Interval between two changes of a value by the owner.
const CHANGE_EVERY: Duration = Duration::from_micros(500);
/// Gets after which the cache must have answered some.
const ENOUGH: f64 = 1_000.0;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    #[serde(rename = "where")]
    place: &'static str,
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

/// A client's keys and its check of the answers.
struct Getter {
    keys: Keys,
    judge: Judge,
    /// Key of each get in flight.
    asked: Vec<u64>,
}

impl Client for Getter {
    fn next(&mut self, slot: usize) -> u64 {
        self.asked[slot] = self.keys.next();
        self.asked[slot]
    }

    fn take(&mut self, slot: usize, _: u64, bytes: &[u8]) -> bool {
        self.judge.judge(self.asked[slot], bytes);
        true
    }
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    if let Err(what) = arguments.check() {
        return report::fail(&what, report::BAD_INPUT);
    }
    let plot = arguments.plot.clone();
    fleet::conduct(arguments, |runs| plot.map_or(Ok(()), |path| draw(&path, runs)))
}

impl Question for Arguments {
    type Run = Run;

    fn fleet(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    fn holds(runs: &[Run]) -> bool {
        // Clients that get little processor time may never have requested a key twice.
        let asked = |run: &Run| run.gets_per_s * run.seconds;
        let kept = |run: &Run| {
            run.cached
                .is_none_or(|places| places == 0 || run.hit_share > 0.0 || asked(run) < ENOUGH)
        };
        runs.iter().all(|run| run.wrong == 0 && run.gets_per_s > 0.0 && kept(run))
    }
}

impl Part for Arguments {
    type Outcome = Vec<Run>;

    fn equip(&self, unit: &mut Unit) {
        unit.set_heap(CALLS, HEAP);
        unit.install(CALLS, Calls::<Cache>::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H) -> Result<Vec<Run>, String> {
        let mut meeting = Meeting::new(&host, self.fleet.nodes).await?;
        let is_owner = host.node() == OWNER;
        let mut owner = match is_owner {
            true => Some((Server::open(&host, VALUE)?, Store::default())),
            false => None,
        };
        let mut runs = Vec::new();
        // A part by the host alone follows.
        for places in self.cached.iter().copied().map(Some).chain([None]) {
            if let Some((server, _)) = &mut owner
                && !server.set([places.unwrap_or(0), 0, 0]).await?
            {
                return Err(format!("--cached {places:?}: more than the NIC holds"));
            }
            meeting.barrier().await?;
            let begun = host.now();
            let end = begun + self.fleet.time();
            let mut words = [0; 5];
            if let Some((server, store)) = &mut owner {
                let changes = (end, places.is_some());
                words[4] = serve(&host, server, store, &mut meeting, changes).await?;
            } else {
                words[..4].copy_from_slice(&get(&host, end).await?);
                meeting.barrier().await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            runs.push(run(places, words, took));
        }
        Ok(runs)
    }
}

/// Answers misses and changes values until all clients are done; returns the number of misses.
async fn serve(
    host: &impl Host,
    server: &mut Server,
    store: &mut Store,
    meeting: &mut Meeting,
    (end, is_cached): (Instant, bool),
) -> Result<u64, String> {
    let mut keys = Keys::new(KEYS, host.rng("changes"));
    let (mut misses, mut change_at, mut changing) = (0, host.now() + CHANGE_EVERY, false);
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended.map(|()| misses),
            call = server.next() => match call? {
                Some(call) => {
                    misses += 1;
                    server.answer(&call, 0, &store.get(call.word))?;
                }
                None => changing = false,
            },
            () = host.sleep_until(change_at), if !changing && host.now() < end => {
                let key = keys.next();
                let value = store.change(key);
                // The cache must not answer with an older version.
                if is_cached {
                    server.change([key, 0, 0], &value)?;
                }
                (changing, change_at) = (is_cached, change_at + CHANGE_EVERY);
            }
        }
    }
}

/// Runs a client; returns the numbers to sum over the clients. Latencies are the first client's.
async fn get(host: &impl Host, end: Instant) -> Result<[u64; 4], String> {
    let keys = Keys::new(KEYS, host.rng("keys"));
    let mut getter = Getter { keys, judge: Judge::default(), asked: vec![0; DEPTH] };
    let latency = call_until(host, (OWNER, DEPTH, VALUE), None, end, &mut getter).await?;
    let is_first = host.node() == NodeId(1);
    let at = |share| if is_first { latency.value_at_quantile(share) } else { 0 };
    Ok([latency.len(), getter.judge.wrong, at(0.5), at(0.99)])
}

fn run(cached: Option<u64>, words: [u64; 5], took: Duration) -> Run {
    let [gets, wrong, median_ns, p99_ns, at_host] = words;
    Run {
        place: if cached.is_some() { "nic" } else { "host" },
        cached,
        seconds: took.as_secs_f64(),
        gets_per_s: gets as f64 / took.as_secs_f64(),
        hit_share: 1.0 - at_host as f64 / gets as f64,
        median_us: median_ns as f64 / 1e3,
        p99_us: p99_ns as f64 / 1e3,
        at_host,
        wrong,
    }
}

fn draw(path: &Path, runs: &[Run]) -> Result<(), String> {
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
