//! `midplane switch`: a switch in software, which models a congested network between hosts that have a fast one.
//!
//! Forwards the peers' frames at a modelled rate, through modelled buffers, and prints its counters when it ends. The
//! example `incast` sends through it with `--fabric switch --switch HOST:PORT --rank R --peers FILE`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::discard::Discard;
use clap::{Args, ValueEnum};
use midplane::simhw::drops::Drops;
use midplane::simhw::link::{Framing, LinkProfile};
use midplane::simhw::nic::StartError;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, SwitchCounters};
use midplane_kit::report::{self, Failure};
use midplane_kit::{processes, ranks};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  # A switch for the hosts in peers.txt, one host:port a line, with ports of
  # 100 Mb/s and 32 KiB
  midplane switch --bind 10.0.0.1:7000 --peers peers.txt

  # An ATM switch of 256 cells a port that drops whole messages early, for ten
  # seconds
  midplane switch --bind 10.0.0.1:7000 --peers peers.txt \\
    --buffer-cells 256 --discard early --seconds 10 --json

Exit code: 0 it ended; 1 it could not serve; 2 bad input.";

/// Forward frames between hosts at modelled rates, through modelled buffers.
///
/// Models a congested network between hosts that have a fast one. Line i of --peers is the host on port i. Runs until
/// Ctrl-C, then prints its counters.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Listen at this address
    #[arg(long, value_name = "HOST:PORT")]
    bind: String,

    #[command(flatten)]
    peers: ranks::Peers,

    /// Rate of every link, in 10^6 bit/s, from 1 to 100000
    #[arg(long, value_name = "MBPS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    link_mbps: u32,

    /// Bytes of buffer at each port, from 256 to 2^30
    #[arg(long, value_name = "BYTES", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(256..=1 << 30))]
    buffer_bytes: u32,

    /// ATM cells of buffer at each port instead, from 8 to 2^24; links then carry cells
    #[arg(long, value_name = "CELLS", conflicts_with = "buffer_bytes", value_parser = clap::value_parser!(u32).range(8..=1 << 24))]
    buffer_cells: Option<u32>,

    /// Cut frames into other packets on their way out, once they have arrived whole
    #[arg(long, value_enum)]
    recut: Option<Recut>,

    /// Choose what a full buffer drops
    #[arg(long, value_enum, default_value = "tail")]
    discard: Discard,

    /// End after this many seconds; at Ctrl-C unless given
    #[arg(long)]
    seconds: Option<u32>,

    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print the counters as one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Recut {
    /// Ethernet packets
    Ethernet,
    /// ATM cells
    Cells,
}

/// Counters of the switch, as printed at its end.
#[derive(Debug, Serialize)]
struct Document {
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

/// Switches until Ctrl-C, SIGTERM or the end of `--seconds`.
pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let switch = start(arguments)?;
    if !arguments.json {
        report::print(&format!("switching at {}; Ctrl-C ends it\n", switch.address()));
    }
    let limit = arguments.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let counters = processes::run(async {
        processes::until_asked(limit).await;
        Ok(switch.shutdown().await)
    })?;
    report::print_document(arguments.json, &document(arguments, counters), text);
    Ok(0)
}

fn start(arguments: &Arguments) -> Result<SoftSwitch, Failure> {
    let peers = ranks::resolve_all(&arguments.peers.read()?)?;
    let bind = ranks::resolve("--bind", &arguments.bind)?;
    let rate = LineRate::mbps(u64::from(arguments.link_mbps));
    let propagation = Duration::from_micros(1);
    let (link, buffer) = match arguments.buffer_cells {
        Some(cells) => (LinkProfile::atm(rate, propagation), Buffer::Cells(cells)),
        None => (LinkProfile::ethernet(rate, propagation), Buffer::Bytes(arguments.buffer_bytes)),
    };
    let profile = SwitchProfile { discard: arguments.discard.into(), ..SwitchProfile::new(buffer) };
    let config = SwitchConfig::new(bind, peers).link(link).profile(profile).seed(arguments.seed);
    let config = match arguments.recut {
        None => config,
        Some(Recut::Ethernet) => config.recut(Framing::ETHERNET),
        Some(Recut::Cells) => config.recut(Framing::Cells),
    };
    SoftSwitch::start(config).map_err(|error| {
        let what = format!("--bind {}: {error}", arguments.bind);
        match error {
            StartError::NotLocal(_) | StartError::System(_) => Failure::of_run(what),
            _ => what.into(),
        }
    })
}

fn document(arguments: &Arguments, counters: SwitchCounters) -> Document {
    let by_cause =
        |drops: &Drops| drops.iter().map(|(cause, count)| (cause.name(), count)).collect();
    Document {
        link_mbps: arguments.link_mbps,
        buffer_bytes: arguments.buffer_cells.is_none().then_some(arguments.buffer_bytes),
        buffer_cells: arguments.buffer_cells,
        frames_in: counters.frames_in,
        frames_out: counters.frames_out,
        frame_drops: by_cause(&counters.frame_drops),
        pieces_in: counters.pieces_in,
        pieces_out: counters.pieces_out,
        piece_drops: by_cause(&counters.piece_drops),
        peaks: counters.peaks,
    }
}

fn text(report: &Document) -> String {
    let mut text = format!(
        "frames  in {}, out {}\npieces  in {}, out {}\n",
        report.frames_in, report.frames_out, report.pieces_in, report.pieces_out
    );
    for (what, drops) in [("frames", &report.frame_drops), ("pieces", &report.piece_drops)] {
        for (cause, count) in drops {
            text += &format!("{what}  lost {count}: {cause}\n");
        }
    }
    let unit = if report.buffer_cells.is_some() { "cells" } else { "bytes" };
    text + &format!("peak of each port's buffer, in {unit}: {:?}\n", report.peaks)
}
