//! `midplane trace`: runs a scenario file in virtual time, and writes files that show the run.
//!
//! Writes `run.pcapng` for Wireshark (with `docs/wireshark/midplane.lua`), `run.perfetto-trace` for
//! <https://ui.perfetto.dev>, and `run.svg`, the path of the first message through engines and links.

mod fault;
mod picture;
mod scenario;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use midplane::nicvm::messages::{self, MESSAGES};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::PortOptions;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::time::Instant;
use midplane::simhw::trace::Recorder;
use midplane_kit::report::{self, Failure, print_document};
use serde::Serialize;

use picture::Picture;
use scenario::{Messages, Scenario};

const EXAMPLES: &str = "\
Examples:
  # The scenario that comes with the sources
  midplane trace --scenario crates/cli/src/trace/example.toml --out run

  # The dropped frames, by Wireshark
  tshark -X lua_script:docs/wireshark/midplane.lua -r run.pcapng \\
    -Y 'frame.interface_name == \"drops\"'

Exit code: 0 the files are written; 1 they could not be; 2 bad input.";

/// Run a scenario in virtual time, and write traces for Wireshark and Perfetto.
///
/// Writes FILE.pcapng with all frames for Wireshark, FILE.perfetto-trace with engines, links and queues for
/// ui.perfetto.dev, and FILE.svg, a picture of the first message.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Scenario as TOML: hosts, links, a switch, messages, faults
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,

    /// Write FILE.pcapng, FILE.perfetto-trace and FILE.svg
    #[arg(long, value_name = "FILE", default_value = "run")]
    out: PathBuf,

    /// Seed of everything random, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Results of a run, as printed at its end.
#[derive(Debug, Serialize)]
struct Document<'a> {
    #[serde(serialize_with = "report::lossy")]
    scenario: &'a Path,
    seed: u64,
    #[serde(serialize_with = "report::lossy")]
    out: &'a Path,
    virtual_us: u64,
    events: u64,
    frames: u64,
    delivered: u64,
    drops: BTreeMap<&'static str, u64>,
    effects: BTreeMap<&'static str, u64>,
    digest: String,
}

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let path = arguments.scenario.display();
    let text = std::fs::read_to_string(&arguments.scenario)
        .map_err(|error| format!("--scenario {path}: {error}; name a file that can be read"))?;
    let scenario =
        scenario::parse(&text).map_err(|mistakes| format!("--scenario {path}: {mistakes}"))?;
    let failed = |error| Failure::of_run(format!("--out {}: {error}", arguments.out.display()));
    let [pcapng, perfetto, svg] =
        [".pcapng", ".perfetto-trace", ".svg"].map(|extension| file(&arguments.out, extension));
    let recorder = Recorder::create(Some(&pcapng), Some(&perfetto), &scenario.topology);
    let recorder = recorder.map_err(|error| Failure::of_run(format!("--out {error}")))?;
    let picture = Arc::new(Mutex::new(Picture::new(&scenario.topology)));
    let seed = arguments.seed.unwrap_or(scenario.seed);
    let mut world = world(&scenario, seed);
    let (sink, drawn) = (recorder.clone(), Arc::clone(&picture));
    world.observe(move |record| {
        drawn.lock().expect("nothing panics while it holds this lock").record(record);
        sink.record(record);
    });
    world.run_until(scenario.until);
    recorder.finish().map_err(failed)?;
    let picture = picture.lock().expect("nothing panics while it holds this lock").svg();
    std::fs::write(svg, picture).map_err(failed)?;
    print_document(arguments.json, &document(&world, arguments, seed), text_of);
    Ok(0)
}

fn file(out: &Path, extension: &str) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(extension);
    name.into()
}

fn document<'a>(world: &World<Unit>, arguments: &'a Arguments, seed: u64) -> Document<'a> {
    let traffic = world.traffic();
    Document {
        scenario: &arguments.scenario,
        seed,
        out: &arguments.out,
        virtual_us: world.now().as_nanos() / 1_000,
        events: world.events(),
        frames: traffic.sent,
        delivered: traffic.delivered,
        drops: traffic.drops.iter().map(|(cause, count)| (cause.name(), count)).collect(),
        effects: world.faults_fired().iter().map(|(kind, count)| (kind.name(), count)).collect(),
        digest: format!("{:016x}", world.digest()),
    }
}

fn text_of(document: &Document<'_>) -> String {
    let Document { frames, delivered, drops, effects, digest, out, .. } = document;
    let out = out.display();
    format!(
        "{frames} frames, {delivered} delivered, drops {drops:?}, effects of faults {effects:?}, digest {digest}\n\
         wrote {out}.pcapng, {out}.perfetto-trace and {out}.svg\n"
    )
}

fn world(scenario: &Scenario, seed: u64) -> World<Unit> {
    let mut world = World::new(&scenario.topology, scenario.profile, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(MESSAGES, messages::Messages::new()).expect("it is the only one");
        unit
    });
    for incident in &scenario.faults {
        world.schedule(*incident);
    }
    let longest = scenario.messages.iter().map(|messages| messages.bytes).max().unwrap_or(1);
    for node in (0..scenario.topology.hosts()).map(NodeId) {
        boot(&world.host(node), &scenario.messages, longest as usize);
    }
    let messages = scenario.messages.clone();
    world.on_boot(move |host| boot(&host, &messages, longest as usize));
    world
}

/// Starts the tasks of a host.
fn boot(host: &SimHost, messages: &[Messages], longest: usize) {
    host.spawn(receive(host.clone(), longest));
    for series in messages.iter().filter(|series| series.from == host.node()) {
        host.spawn(send(host.clone(), *series, host.now()));
    }
}

/// Port on which each node receives.
const INBOX: PortId = PortId(0);
/// Receive buffers of each node.
const BUFFERS: u64 = 64;
/// Pause before a port that a fault has closed is opened again.
const PAUSE: Duration = Duration::from_micros(200);

/// Sends the messages of a series whose times are not before `booted`.
async fn send(host: SimHost, messages: Messages, booted: Instant) {
    let times = (0..messages.count).map(|number| (number, messages.at + messages.every * number));
    let mut left = times.filter(|(_, at)| *at >= booted);
    while send_all(&host, &messages, &mut left).await.is_none() {
        host.sleep_until(host.now() + PAUSE).await;
    }
}

/// Sends messages through one port; returns `None` once a fault has closed it.
async fn send_all(
    host: &SimHost,
    messages: &Messages,
    left: &mut impl Iterator<Item = (u32, Instant)>,
) -> Option<()> {
    let mut port = host.open_port().ok()?;
    let memory = port.register(messages.bytes as usize).ok()?;
    for (number, at) in left {
        host.sleep_until(at).await;
        let command = messages::send(messages.to, INBOX, memory.whole(), u64::from(number));
        port.submit(&command).ok()?;
        port.completion().await.ok()?;
    }
    Some(())
}

async fn receive(host: SimHost, longest: usize) {
    loop {
        receive_all(&host, longest).await;
        host.sleep_until(host.now() + PAUSE).await;
    }
}

/// Receives through one port, until a fault closes it.
async fn receive_all(host: &SimHost, longest: usize) -> Option<()> {
    let mut port = host.open_port_with(PortOptions::default().number(INBOX)).ok()?;
    let mut buffers = Vec::new();
    for cookie in 0..BUFFERS {
        let buffer = port.register(longest).ok()?;
        port.submit(&messages::receive(buffer.whole(), cookie)).ok()?;
        buffers.push(buffer);
    }
    while let Ok(completion) = port.completion().await {
        let buffer = &buffers[completion.cookie as usize];
        port.submit(&messages::receive(buffer.whole(), completion.cookie)).ok()?;
    }
    None
}
