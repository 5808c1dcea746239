//! The switch in software, as a program: a congested network for hosts that have a fast one.
//!
//! ```text
//! midplane switch --bind 127.0.0.1:7000 --peers peers.txt --seconds 10
//! ```
//!
//! It forwards the frames of the peers to each other at a modelled rate and through modelled
//! buffers, and prints at the end what became of them. Hosts use it with
//! `incast --fabric switch --switch HOST:PORT --rank R --peers FILE`.

use midplane_kit::{ranks, report};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use midplane::simhw::drops::Drops;
use midplane::simhw::link::{Framing, LinkProfile};
use midplane::simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, SwitchCounters, resolve_peers};
use serde::Serialize;

use report::{BAD_INPUT, DID_NOT_HOLD};

const EXAMPLES: &str = "\
Examples:
  # A switch for the hosts in peers.txt, one host:port a line, with ports of 100 Mb/s and 32 KiB
  switchd --bind 10.0.0.1:7000 --peers peers.txt

  # An ATM switch of 256 cells a port that refuses packets early, for ten seconds
  switchd --bind 10.0.0.1:7000 --peers peers.txt --buffer-cells 256 --discard epd --seconds 10 --json";

/// A switch in software: forwards datagrams between its peers at modelled rates, through modelled
/// buffers, until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "switchd", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The address to listen at, as host:port
    #[arg(long, value_name = "HOST:PORT")]
    bind: String,

    /// Node i, of rank i, is on port i
    #[command(flatten)]
    peers: ranks::Peers,

    /// Rate of every link, in 10^6 bit/s, from 1 to 100000
    #[arg(long, value_name = "MBPS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    link_mbps: u32,

    /// Bytes that each port holds, from 256 to 2^30
    #[arg(long, value_name = "BYTES", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(256..=1 << 30))]
    buffer_bytes: u32,

    /// ATM cells that it holds instead; links then carry cells
    #[arg(long, value_name = "CELLS", conflicts_with = "buffer_bytes", value_parser = clap::value_parser!(u32).range(8..=1 << 24))]
    buffer_cells: Option<u32>,

    /// Cuts frames anew on their way out, once they are there whole
    #[arg(long, value_enum)]
    recut: Option<Recut>,

    /// What a full buffer drops
    #[arg(long, value_enum, default_value = "tail")]
    discard: Discard,

    /// Ends after so many seconds
    #[arg(long)]
    seconds: Option<u32>,

    /// What everything random is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Prints the counters as one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Recut {
    /// Packets of Ethernet
    Ethernet,
    /// ATM cells
    Cells,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Discard {
    /// What does not fit
    Tail,
    /// ... and the rest of its message
    Ppd,
    /// Whole messages, from four fifths on
    Epd,
}

/// What went through, as it is reported.
#[derive(Debug, Serialize)]
struct Counters {
    link_mbps: u32,
    buffer_bytes: Option<u32>,
    buffer_cells: Option<u32>,
    frames_in: u64,
    frames_out: u64,
    frame_drops: BTreeMap<&'static str, u64>,
    pieces_in: u64,
    pieces_out: u64,
    piece_drops: BTreeMap<&'static str, u64>,
    peaks: Vec<u32>,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let switch = match start(&arguments) {
        Ok(switch) => switch,
        Err(what) => return report::fail(&what, BAD_INPUT),
    };
    if !arguments.json {
        report::say(&format!("switching at {}; Ctrl-C ends it\n", switch.address()));
    }
    match run(&arguments, switch) {
        Ok(counters) => {
            print(&arguments, &counters);
            ExitCode::SUCCESS
        }
        Err(error) => report::fail(&format!("the system refused a runtime: {error}"), DID_NOT_HOLD),
    }
}

fn start(arguments: &Arguments) -> Result<SoftSwitch, String> {
    let peers =
        resolve_peers(&arguments.peers.read()?).map_err(|error| format!("--peers: {error}"))?;
    let bind = resolve_peers(std::slice::from_ref(&arguments.bind))
        .map_err(|_| format!("--bind {}: no host:port of this host", arguments.bind))?[0];
    let (rate, propagation) =
        (LineRate::mbps(u64::from(arguments.link_mbps)), Duration::from_micros(1));
    let (link, buffer) = match arguments.buffer_cells {
        Some(cells) => (LinkProfile::atm(rate, propagation), Buffer::Cells(cells)),
        None => (LinkProfile::ethernet(rate, propagation), Buffer::Bytes(arguments.buffer_bytes)),
    };
    let discard = match arguments.discard {
        Discard::Tail => DiscardPolicy::Tail,
        Discard::Ppd => DiscardPolicy::Partial,
        Discard::Epd => DiscardPolicy::EARLY,
    };
    let profile = SwitchProfile { discard, ..SwitchProfile::new(buffer) };
    let mut config =
        SwitchConfig::new(bind, peers).link(link).profile(profile).seed(arguments.seed);
    if let Some(recut) = arguments.recut {
        config = config.recut(match recut {
            Recut::Ethernet => Framing::ETHERNET,
            Recut::Cells => Framing::Cells,
        });
    }
    SoftSwitch::start(config).map_err(|error| format!("--bind {}: {error}", arguments.bind))
}

/// Waits for the end.
fn run(arguments: &Arguments, switch: SoftSwitch) -> std::io::Result<SwitchCounters> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let interrupted = tokio::signal::ctrl_c();
        // A system without signals has no Ctrl-C to wait for.
        match arguments.seconds {
            Some(seconds) => {
                let limit = Duration::from_secs(u64::from(seconds));
                let _ = tokio::time::timeout(limit, interrupted).await;
            }
            None => drop(interrupted.await),
        }
        switch.shutdown().await
    }))
}

fn print(arguments: &Arguments, counters: &SwitchCounters) {
    let by_cause =
        |drops: &Drops| drops.iter().map(|(cause, count)| (cause.name(), count)).collect();
    let report = Counters {
        link_mbps: arguments.link_mbps,
        buffer_bytes: arguments.buffer_cells.is_none().then_some(arguments.buffer_bytes),
        buffer_cells: arguments.buffer_cells,
        frames_in: counters.frames_in,
        frames_out: counters.frames_out,
        frame_drops: by_cause(&counters.frame_drops),
        pieces_in: counters.pieces_in,
        pieces_out: counters.pieces_out,
        piece_drops: by_cause(&counters.piece_drops),
        peaks: counters.peaks.clone(),
    };
    if arguments.json {
        report::print_json(&report);
        return;
    }
    let mut text = format!(
        "frames  in {}, out {}\npieces  in {}, out {}\n",
        report.frames_in, report.frames_out, report.pieces_in, report.pieces_out
    );
    for (what, drops) in [("frames", &report.frame_drops), ("pieces", &report.piece_drops)] {
        for (cause, count) in drops {
            text += &format!("{what}  lost {count}: {cause}\n");
        }
    }
    text += &format!("most that a port held: {:?}\n", report.peaks);
    report::say(&text);
}
