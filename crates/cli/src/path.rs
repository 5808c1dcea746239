//! `midplane path`: measures the longest packet of a path, and the time that each of its stages takes.
//!
//! ```text
//! midplane path
//! ```
//!
//! A frame whose hop limit ends at a switch comes back from there with a stamp. So each stage of a path is measured apart
//! from the next, as pathchar does with routers. Without `--rank` this process starts a switch in software and the host
//! behind it, and compares the measured stages with the switch's model.

mod prober;

use midplane_kit::{claims, ranks, report};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use midplane::pipeline::estimate::hops;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig, UdpNic, path_mtus, resolve_peers};
use serde::Serialize;

use claims::{Verdict, Watch};
use prober::{Mirror, ProbedPath, Prober};

/// Time of the search for the longest packet.
const SEARCH: Duration = Duration::from_millis(200);
/// Least and most bytes of a probe: above Ethernet's shortest packet, below its longest.
const SIZES: (f64, f64) = (64.0, 1_400.0);
/// Bytes of a datagram over IPv4 in an Ethernet packet.
const ETHERNET: usize = 1_472;
/// Largest relative error of a stage's time: other work of the machine delays probes.
const TOLERANCE: f64 = 0.25;

const EXAMPLES: &str = "\
Examples:
  # A switch with links of 50 Mb/s, in this process
  midplane path --link-mbps 50

  # Between two hosts, through a third one that runs `midplane switch`; peers.txt has one host:port a line
  midplane path --rank 1 --peers peers.txt --switch 10.0.0.9:7000     # on the second: answers until Ctrl-C
  midplane path --rank 0 --peers peers.txt --switch 10.0.0.9:7000     # on the first: measures

Exit code: 0 measured, and without --rank within 25 % of the switch's model; 1 rank 1 did not answer, or the stages
differ from the model; 2 bad input; 3 they differ, and the machine was too busy to say why. With fewer than 3
--repeats, or in a build without optimization, nothing is compared with the model.";

/// Measure the longest packet of a path, and the time of each of its stages.
///
/// Rank 0 measures; rank 1 answers until Ctrl-C. Without --rank, measures a switch that this process starts, and compares
/// the result with the switch's model.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    ranks: ranks::Ranks,

    /// Address of the switch between the two hosts; none if not given
    #[arg(long, value_name = "HOST:PORT")]
    switch: Option<String>,

    /// Without --rank: rate of the switch's links, in 10^6 bit/s, from 1 to 1000
    #[arg(long, value_name = "MBPS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    link_mbps: u32,

    /// Probes of each size to each hop, of which the fastest counts, from 1 to 1000
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeats: u32,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Stage {
    overhead_us: f64,
    us_per_byte: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    repeats: u32,
    /// Without --rank: rate of the model's links.
    link_mbps: Option<u32>,
    /// Bytes of the longest datagram that reaches the next hop unfragmented.
    path_mtu_bytes: Option<usize>,
    stages: Vec<Stage>,
    /// Time of a byte in each stage of the model.
    expected_us_per_byte: Option<f64>,
    /// Without --rank: comparison of the stages with the model.
    verdict: Option<Verdict>,
}

/// Error: bad input, or a path that does not answer.
enum Failure {
    Input(String),
    Lost(String),
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let watch = Watch::start();
    match conduct(&arguments) {
        Ok(Some(document)) => finish(&arguments, &document, &watch),
        Ok(None) => ExitCode::SUCCESS,
        Err(Failure::Input(what)) => report::fail(&what, report::BAD_INPUT),
        Err(Failure::Lost(what)) => report::fail(&what, report::FAILED),
    }
}

fn conduct(arguments: &Arguments) -> Result<Option<Document>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Lost(format!("no runtime: {error}")))?;
    let _inside = runtime.enter();
    let Some(place) = arguments.ranks.place().map_err(Failure::Input)? else {
        if let Some(switch) = &arguments.switch {
            return Err(Failure::Input(format!(
                "--switch {switch}: name this host's place with --rank and --peers"
            )));
        }
        return alone(arguments).map(Some);
    };
    let input = |what: String| Err(Failure::Input(what));
    if place.size() != 2 {
        return input(format!("--peers: {} peers; list the two ends of the path", place.size()));
    }
    let peers = ranks::addresses(&place, Duration::from_secs(4)).map_err(Failure::Input)?;
    let switch = match &arguments.switch {
        None => None,
        Some(at) => match resolve_peers(std::slice::from_ref(at)) {
            Ok(found) => Some(found[0]),
            Err(_) => {
                return input(format!(
                    "--switch {at}: it must be host:port with a host that resolves"
                ));
            }
        },
    };
    let line = LinkProfile::plain(LineRate::mbps(100_000), Duration::ZERO);
    if place.rank == 1 {
        let _mirror = start(1, &peers, switch, line, Mirror)?;
        // An error means that this system has no Ctrl-C to wait for.
        let _ = runtime.block_on(tokio::signal::ctrl_c());
        return Ok(None);
    }
    ask(arguments, &peers, switch, line).map(Some)
}

/// Measures the path through a switch in this process.
fn alone(arguments: &Arguments) -> Result<Document, Failure> {
    let free: std::io::Result<Vec<SocketAddr>> = (0..3)
        .map(|_| UdpSocket::bind("127.0.0.1:0"))
        .collect::<Result<Vec<_>, _>>()
        .and_then(|sockets| sockets.iter().map(UdpSocket::local_addr).collect());
    let mut peers = free.map_err(|error| Failure::Lost(format!("no free ports: {error}")))?;
    let at = peers.remove(2);
    let rate = LineRate::mbps(u64::from(arguments.link_mbps));
    let link = LinkProfile::plain(rate, Duration::from_micros(1));
    let profile = SwitchProfile::new(Buffer::Bytes(64 << 10));
    let config = SwitchConfig::new(at, peers.clone()).link(link).profile(profile);
    let _switch = SoftSwitch::start(config.jitter(Duration::ZERO))
        .map_err(|e| Failure::Lost(e.to_string()))?;
    let _mirror = start(1, &peers, Some(at), link, Mirror)?;
    let mut document = ask(arguments, &peers, Some(at), link)?;
    let expected = rate.nanos_for(1_000_000) as f64 / 1e9;
    let is_close = |stage: &Stage| (stage.us_per_byte / expected - 1.0).abs() <= TOLERANCE;
    let holds = document.stages.len() == 2 && document.stages.iter().all(is_close);
    // The ratio 1 stands for equal rounds: only the fastest probe counts.
    document.verdict = Some(Verdict::of(holds, arguments.repeats as usize, 1.0));
    document.link_mbps = Some(arguments.link_mbps);
    document.expected_us_per_byte = Some(expected);
    Ok(document)
}

fn start(
    node: u16,
    peers: &[SocketAddr],
    switch: Option<SocketAddr>,
    line: LinkProfile,
    firmware: impl midplane::simhw::hardware::Firmware + Send + 'static,
) -> Result<UdpNic, Failure> {
    // One datagram carries a whole probe; IP may fragment it.
    let config = UdpConfig::new(NodeId(node), peers.to_vec()).datagram_bytes(ETHERNET);
    let mut config = config.line(line);
    if let Some(switch) = switch {
        config = config.via(switch);
    }
    UdpNic::start(config, firmware).map_err(|error| Failure::Input(format!("--peers: {error}")))
}

/// Measures the path from this end of it.
fn ask(
    arguments: &Arguments,
    peers: &[SocketAddr],
    switch: Option<SocketAddr>,
    line: LinkProfile,
) -> Result<Document, Failure> {
    let path_mtu_bytes = path_mtus(&[switch.unwrap_or(peers[1])], SEARCH)[0];
    let (prober, answers) = Prober::new();
    let nic = start(0, peers, switch, line, prober)?;
    let mut path =
        ProbedPath::new(&nic.host(), answers).map_err(|what| Failure::Lost(what.to_string()))?;
    let count = if switch.is_some() { 2 } else { 1 };
    let found = hops(&mut path, count, SIZES, arguments.repeats as usize)
        .map_err(|error| Failure::Lost(format!("rank 1 did not answer: {error}")))?;
    let stages = found.stages().iter().map(|stage| Stage {
        overhead_us: stage.overhead().get(),
        us_per_byte: stage.per_byte().get(),
    });
    Ok(Document {
        repeats: arguments.repeats,
        link_mbps: None,
        path_mtu_bytes,
        stages: stages.collect(),
        expected_us_per_byte: None,
        verdict: None,
    })
}

fn finish(arguments: &Arguments, document: &Document, watch: &Watch) -> ExitCode {
    if arguments.json {
        report::print_json(document);
    } else {
        let mtu =
            document.path_mtu_bytes.map_or_else(|| "unknown".into(), |mtu| format!("{mtu} bytes"));
        let mut text = format!("longest datagram to the next hop: {mtu}\n");
        for (number, stage) in (1..).zip(&document.stages) {
            text += &format!(
                "stage {number}: {:.1} us and {:.4} us a byte\n",
                stage.overhead_us, stage.us_per_byte
            );
        }
        if let Some(expected) = document.expected_us_per_byte {
            let verdict = document.verdict.map_or("", Verdict::text);
            text += &format!("the model has {expected:.4} us a byte in each: {verdict}\n");
        }
        report::print(&text);
    }
    claims::exit(document.verdict.as_slice(), watch)
}
