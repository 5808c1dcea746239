//! `midplane trace`: runs a scenario file in virtual time, and writes files that show the run.
//!
//! ```text
//! midplane trace --scenario crates/cli/src/trace/example.toml --out run
//! ```
//!
//! Writes `run.pcapng` for Wireshark (with `docs/wireshark/midplane.lua`), `run.perfetto-trace` for
//! <https://ui.perfetto.dev>, and `run.svg`, the path of the first message through engines and links.

mod picture;
mod scenario;
#[cfg(test)]
mod tests;

use midplane_kit::report;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Args;
use midplane::nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane::nicvm::messages::{self, MESSAGES};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::PortOptions;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::trace::{PcapngWriter, PerfettoWriter};
use serde_json::json;

use picture::Picture;
use report::{BAD_INPUT, FAILED, fail, print, print_json};
use scenario::{Messages, Scenario};

const EXAMPLES: &str = "\
Examples:
  # The scenario that comes with the sources
  midplane trace --scenario crates/cli/src/trace/example.toml --out run

  # The dropped frames, by Wireshark
  tshark -X lua_script:docs/wireshark/midplane.lua -r run.pcapng -Y 'frame.interface_name == \"drops\"'

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

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let path = arguments.scenario.display();
    let text = match std::fs::read_to_string(&arguments.scenario) {
        Ok(text) => text,
        Err(error) => {
            return fail(
                &format!("--scenario {path}: {error}; name a file that can be read"),
                BAD_INPUT,
            );
        }
    };
    let scenario = match scenario::parse(&text) {
        Ok(scenario) => scenario,
        Err(mistakes) => {
            let what = scenario::in_one_line(&mistakes);
            return fail(&format!("--scenario {path}: {what}"), BAD_INPUT);
        }
    };
    match run(&scenario, &arguments) {
        Ok(code) => code,
        Err(error) => fail(&format!("--out {}: {error}", arguments.out.display()), FAILED),
    }
}

type Sink = BufWriter<File>;

/// Writers of the three files.
struct Writers {
    frames: PcapngWriter<Sink>,
    tracks: PerfettoWriter<Sink>,
    picture: Picture,
}

fn create(out: &Path, extension: &str) -> std::io::Result<Sink> {
    let mut name = out.as_os_str().to_owned();
    name.push(extension);
    File::create(name).map(BufWriter::new)
}

fn run(scenario: &Scenario, arguments: &Arguments) -> std::io::Result<ExitCode> {
    let out = &arguments.out;
    let frames = PcapngWriter::new(create(out, ".pcapng")?, &scenario.topology)?;
    let tracks = PerfettoWriter::new(create(out, ".perfetto-trace")?, &scenario.topology);
    let picture = Picture::new(&scenario.topology);
    let writers = Arc::new(Mutex::new(Ok(Writers { frames, tracks, picture })));
    let mut world = world(scenario, arguments.seed.unwrap_or(scenario.seed));
    let sink = Arc::clone(&writers);
    world.observe(move |record| {
        let mut sink = sink.lock().expect("nothing panics while it holds this lock");
        if let Ok(writers) = sink.as_mut() {
            writers.picture.record(record);
            let wrote = writers.frames.record(record).and_then(|()| writers.tracks.record(record));
            if let Err(error) = wrote {
                *sink = Err(error);
            }
        }
    });
    world.run_until(scenario.until);
    let mut writers = writers.lock().expect("nothing panics while it holds this lock");
    let ended = std::mem::replace(&mut *writers, Err(std::io::Error::other("the run has ended")))?;
    ended.frames.into_inner().flush()?;
    ended.tracks.into_inner().flush()?;
    create(out, ".svg")?.write_all(ended.picture.svg().as_bytes())?;
    report(&world, arguments);
    Ok(ExitCode::SUCCESS)
}

fn report(world: &World<Unit>, arguments: &Arguments) {
    let traffic = world.traffic();
    let drops: serde_json::Map<String, serde_json::Value> =
        traffic.drops.iter().map(|(cause, n)| (cause.name().to_owned(), n.into())).collect();
    let effects: serde_json::Map<String, serde_json::Value> =
        world.faults_fired().iter().map(|(kind, n)| (kind.name().to_owned(), n.into())).collect();
    let document = json!({
        "scenario": arguments.scenario,
        "seed": arguments.seed,
        "out": arguments.out,
        "virtual_us": world.now().as_nanos() / 1_000,
        "events": world.events(),
        "frames": traffic.sent,
        "delivered": traffic.delivered,
        "drops": drops,
        "effects": effects,
        "digest": format!("{:016x}", world.digest()),
    });
    if arguments.json {
        return print_json(&document);
    }
    print(&format!(
        "{} frames, {} delivered, drops {}, effects of faults {}, digest {:016x}\n",
        traffic.sent,
        traffic.delivered,
        document["drops"],
        document["effects"],
        world.digest()
    ));
    let out = arguments.out.display();
    print(&format!("wrote {out}.pcapng, {out}.perfetto-trace and {out}.svg\n"));
}

fn world(scenario: &Scenario, seed: u64) -> World<Unit> {
    let coordinated = scenario.messages.iter().filter(|messages| messages.coordinated);
    let receivers: BTreeSet<NodeId> = coordinated.map(|messages| messages.to).collect();
    let receivers: Vec<NodeId> = receivers.into_iter().collect();
    let hosts: Vec<NodeId> = (0..scenario.topology.hosts()).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&receivers, &hosts);
    config.genesis(true);
    let mut world = World::new(&scenario.topology, scenario.profile, seed, move |_, _| {
        let mut unit = Unit::default();
        let installed = "no two have one number";
        unit.install(MESSAGES, messages::Messages::new()).expect(installed);
        let coordination = Coordination::new(config.clone()).expect("a star fits together");
        unit.install(COORDINATION, coordination).expect(installed);
        unit
    });
    for incident in &scenario.faults {
        world.schedule(*incident);
    }
    let longest = scenario.messages.iter().map(|messages| messages.bytes).max().unwrap_or(1);
    for node in hosts {
        world.spawn(node, receive(world.host(node), longest as usize, receivers.contains(&node)));
    }
    for messages in &scenario.messages {
        world.spawn(messages.from, send(world.host(messages.from), *messages));
    }
    world
}

/// Port on which each node receives.
const INBOX: PortId = PortId(0);
/// Bit in the cookie of a buffer for coordinated messages.
const COORDINATED: u64 = 1;

async fn send(host: SimHost, messages: Messages) {
    let Ok(mut port) = host.open_port() else { return };
    let Ok(memory) = port.register(messages.bytes as usize) else { return };
    let send = if messages.coordinated { coordination::send } else { messages::send };
    let mut at = messages.at;
    for number in 0..messages.count {
        host.sleep_until(at).await;
        let command = send(messages.to, INBOX, memory.whole(), u64::from(number));
        // A fault may have closed the port: this sender ends, and the run continues.
        if port.submit(&command).is_err() || port.completion().await.is_err() {
            return;
        }
        at += messages.every;
    }
}

async fn receive(host: SimHost, longest: usize, coordinated: bool) {
    let Ok(mut port) = host.open_port_with(PortOptions::default().number(INBOX)) else { return };
    let mut buffers = Vec::new();
    for cookie in (0..64).map(|n| if coordinated { n % 2 } else { 0 }) {
        let Ok(buffer) = port.register(longest) else { return };
        let receive = if cookie == COORDINATED { coordination::receive } else { messages::receive };
        let place = (buffers.len() as u64) << 1;
        if port.submit(&receive(buffer.whole(), place | cookie)).is_err() {
            return;
        }
        buffers.push(buffer);
    }
    while let Ok(completion) = port.completion().await {
        let buffer = buffers[(completion.cookie >> 1) as usize].whole();
        let again = if completion.cookie & COORDINATED == COORDINATED {
            coordination::receive(buffer, completion.cookie)
        } else {
            messages::receive(buffer, completion.cookie)
        };
        if port.submit(&again).is_err() {
            return;
        }
    }
}
