//! `midplane path`: measures the longest packet of a path, and the time that each of its stages takes.
//!
//! A frame whose hop limit ends at a switch comes back from there with a stamp. So each stage of a path is measured apart
//! from the next, as pathchar does with routers. Without `--rank` this process starts a switch in software and the host
//! behind it, and names the model's time of a byte.

mod prober;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use midplane::pipeline::estimate::hops;
use midplane::simhw::hardware::Firmware;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig, UdpNic, path_mtus};
use midplane_kit::report::{self, Failure};
use midplane_kit::{processes, ranks};
use serde::Serialize;

use prober::{Mirror, ProbedPath, Prober};

/// Time of the search for the longest packet.
const SEARCH: Duration = Duration::from_millis(200);
/// Probes of each size to each hop, of which the fastest counts.
const REPEATS: usize = 12;
/// Least and most bytes of a probe: above Ethernet's shortest packet, below its longest.
const SIZES: (f64, f64) = (64.0, 1_400.0);
/// Bytes of a datagram over IPv4 in an Ethernet packet.
const ETHERNET: usize = 1_472;
const EXAMPLES: &str = "\
Examples:
  # A switch with links of 50 Mb/s, in this process
  midplane path --link-mbps 50

  # Between two hosts, through a third one that runs `midplane switch`; peers.txt has one host:port a line
  midplane path --rank 1 --peers peers.txt --switch 10.0.0.9:7000     # on the second: answers until Ctrl-C
  midplane path --rank 0 --peers peers.txt --switch 10.0.0.9:7000     # on the first: measures

Exit code: 0 measured; 1 rank 1 did not answer; 2 bad input.";

/// Measure the longest packet of a path, and the time of each of its stages.
///
/// Rank 0 measures; rank 1 answers until Ctrl-C. Without --rank, measures a switch that this process starts, and names the
/// time of a byte in the switch's model.
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
    repeats: usize,
    /// Without --rank: rate of the model's links.
    link_mbps: Option<u32>,
    /// Bytes of the longest datagram that reaches the next hop unfragmented.
    path_mtu_bytes: Option<usize>,
    stages: Vec<Stage>,
    /// Time of a byte in each stage of the model.
    expected_us_per_byte: Option<f64>,
}

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    processes::run(async {
        let Some(place) = arguments.ranks.place()? else {
            if let Some(switch) = &arguments.switch {
                let what =
                    format!("--switch {switch}: name this host's place with --rank and --peers");
                return Err(what.into());
            }
            return finish(arguments, &alone(arguments)?);
        };
        if place.size() != 2 {
            let what = format!("--peers: {} peers; list the two ends of the path", place.size());
            return Err(what.into());
        }
        let peers = ranks::addresses(&place, Duration::from_secs(4))?;
        let switch = arguments.switch.as_deref().map(|at| ranks::resolve("--switch", at));
        let ends = Ends {
            peers,
            switch: switch.transpose()?,
            line: LinkProfile::plain(LineRate::mbps(100_000), Duration::ZERO),
        };
        if place.rank == 1 {
            let _mirror = ends.start(1, Mirror)?;
            processes::until_asked(None).await;
            return Ok(0);
        }
        finish(arguments, &ends.measure()?)
    })
}

/// Measures the path through a switch in this process, and compares it with the switch's model.
fn alone(arguments: &Arguments) -> Result<Document, Failure> {
    let mut peers = processes::free_addresses(3).map_err(Failure::of_run)?;
    let at = peers.remove(2);
    let rate = LineRate::mbps(u64::from(arguments.link_mbps));
    let line = LinkProfile::plain(rate, Duration::from_micros(1));
    let profile = SwitchProfile::new(Buffer::Bytes(64 << 10));
    let config = SwitchConfig::new(at, peers.clone()).link(line).profile(profile);
    let _switch = SoftSwitch::start(config.jitter(Duration::ZERO)).map_err(Failure::of_run)?;
    let ends = Ends { peers, switch: Some(at), line };
    let _mirror = ends.start(1, Mirror)?;
    let mut document = ends.measure()?;
    let expected = rate.nanos_for(1_000_000) as f64 / 1e9;
    document.link_mbps = Some(arguments.link_mbps);
    document.expected_us_per_byte = Some(expected);
    Ok(document)
}

/// Two ends of a path, and what is between them.
struct Ends {
    peers: Vec<SocketAddr>,
    switch: Option<SocketAddr>,
    line: LinkProfile,
}

impl Ends {
    fn start(
        &self,
        node: u16,
        firmware: impl Firmware + Send + 'static,
    ) -> Result<UdpNic, Failure> {
        // One datagram carries a whole probe; IP may fragment it.
        let config = UdpConfig::new(NodeId(node), self.peers.clone()).datagram_bytes(ETHERNET);
        let config = config.line(self.line);
        let config = match self.switch {
            Some(switch) => config.via(switch),
            None => config,
        };
        Ok(UdpNic::start(config, firmware).map_err(|error| format!("--peers: {error}"))?)
    }

    /// Measures the path from node 0.
    fn measure(&self) -> Result<Document, Failure> {
        let path_mtu_bytes = path_mtus(&[self.switch.unwrap_or(self.peers[1])], SEARCH)[0];
        let (prober, answers) = Prober::new();
        let nic = self.start(0, prober)?;
        let mut path = ProbedPath::new(&nic.host(), answers).map_err(Failure::of_run)?;
        let count = if self.switch.is_some() { 2 } else { 1 };
        let found = hops(&mut path, count, SIZES, REPEATS)
            .map_err(|error| Failure::of_run(format!("rank 1 did not answer: {error}")))?;
        let stages = found.stages().iter().map(|stage| Stage {
            overhead_us: stage.overhead().get(),
            us_per_byte: stage.per_byte().get(),
        });
        Ok(Document {
            repeats: REPEATS,
            link_mbps: None,
            path_mtu_bytes,
            stages: stages.collect(),
            expected_us_per_byte: None,
        })
    }
}

fn finish(arguments: &Arguments, document: &Document) -> Result<u8, Failure> {
    report::print_document(arguments.json, document, text);
    Ok(0)
}

fn text(document: &Document) -> String {
    let mtu =
        document.path_mtu_bytes.map_or_else(|| "unknown".into(), |mtu| format!("{mtu} bytes"));
    let mut text = format!("longest datagram to the next hop: {mtu}\n");
    for (number, Stage { overhead_us, us_per_byte }) in (1..).zip(&document.stages) {
        text += &format!("stage {number}: {overhead_us:.1} us and {us_per_byte:.4} us a byte\n");
    }
    if let Some(expected) = document.expected_us_per_byte {
        text += &format!("the model has {expected:.4} us a byte in each\n");
    }
    text
}
