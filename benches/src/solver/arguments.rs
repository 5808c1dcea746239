//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use super::setting::{Control, Fabric, Hosts, Load, Medium, OnLoss, Setting, Transport};
use midplane_kit::ranks::Ranks;

/// Buffer sizes of Figure 1.
pub const BUFFERS: [u16; 6] = [1, 4, 8, 16, 32, 128];
/// The buffer size that the paper looks at closely.
pub const PAPER_BUFFER: u16 = 4;
/// The share of the network that others ask for in the figures.
const BACKGROUND: f64 = 0.5;
/// A comparison gives a run up after so many seconds, unless told otherwise.
const COMPARISON_LIMIT: f64 = 15.0;
/// ... and one run after so many.
const LIMIT: f64 = 300.0;

const EXAMPLES: &str = "\
Examples:
  # The paper's figures: every control and buffer size, without and with background, each rank a
  # process of this host behind a switch in software; a table and pictures
  solver

  # The same in virtual time, on the paper's cable and workstations
  solver --fabric sim --plot figures.svg

  # One run: a Trefethen system of 1000 unknowns on 5 ranks under Warp, half of the network taken
  solver --trefethen 1000 --control warp+csend --background 0.5 --json

  # Warp beside every static buffer, at five loads and at one that changes
  solver --study

  # On three hosts, with peers.txt holding one host:port a line; rank 0 has the answer
  solver --fabric udp --rank 0 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx
  solver --fabric udp --rank 1 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx
  solver --fabric udp --rank 2 --peers peers.txt --wait 60 --control warp+csend --matrix system.mtx

Exit code: 0 every run converged; 1 one did not, or a rank was lost and the rest ended; 2 bad input,
with one line that says which.";

/// Linear systems solved by asynchronous iteration over a network that is too small for it, and what
/// knowing when not to send does about that.
#[derive(Clone, Debug, Parser)]
#[command(name = "solver", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// What joins the ranks: virtual time, real sockets, or real sockets through a switch in software
    #[arg(long, value_enum, default_value = "switch")]
    pub fabric: Fabric,

    /// In virtual time, what the ranks share: one cable of 10 Mb/s with collisions, or a switch with
    /// ports of 10 Mb/s
    #[arg(long, value_enum, default_value = "cable")]
    medium: Medium,

    /// In virtual time, what messages cost the hosts: as much as on the paper's workstations, or
    /// nothing; as the paper's on a cable unless given
    #[arg(long, value_enum)]
    hosts: Option<Hosts>,

    /// A system in Matrix Market format; its right-hand side is that of the solution of all ones
    #[arg(long, value_name = "FILE.mtx", conflicts_with_all = ["trefethen", "random"])]
    pub matrix: Option<PathBuf>,

    /// The Trefethen system of so many unknowns, up to 20000; of 1000 unless given
    #[arg(long, value_name = "N", conflicts_with = "random", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub trefethen: Option<u16>,

    /// A random system of so many unknowns, up to 20000, with a spectral radius of 0.9
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub random: Option<u16>,

    /// Ranks that the unknowns are dealt out to; 5 unless given, or as many as the peers are
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub ranks: Option<u16>,

    /// Who decides when updates are sent; every way in turn unless given
    #[arg(long, value_enum)]
    control: Option<Control>,

    /// Updates of a message: fixed for static and csend, the start for warp; 4 with a control, several
    /// sizes in turn without
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=128))]
    buffer: Option<u16>,

    /// How updates travel: to each rank by itself, or once to all
    #[arg(long, value_enum, default_value = "unicast")]
    transport: Transport,

    /// Sends a value only if it has moved by more than so much of the largest step of the rank's last
    /// sweep, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    trigger: f64,

    /// The share of the network that others' traffic asks for, from 0 to 0.9; without and with 0.5
    /// unless given
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    background: Option<f64>,

    /// Others are there for so many seconds, then away for as many, and so on
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    background_period: Option<f64>,

    /// The residual that an answer is good enough with, of any equation over the largest right-hand
    /// side
    #[arg(long, default_value_t = 1e-6, value_parser = tolerance)]
    tolerance: f64,

    /// Microseconds that a rank takes to compute one update
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    update_us: u32,

    /// Seconds after which a run is given up; 15 in a comparison, else 300, unless given
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,

    /// What the rest does when a rank is lost: ends with an error, or goes on, with rank 0 in its place
    #[arg(long, value_enum, default_value = "end")]
    on_loss: OnLoss,

    /// Compares Warp with no control and with every static buffer, at five loads and at two that
    /// change, or at the one of --background: time to a residual of 1e-10
    #[arg(long, conflicts_with_all = ["control", "buffer"])]
    pub study: bool,

    /// What everything random is drawn from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Prints one JSON document, at rank 0, and nothing else
    #[arg(long)]
    pub json: bool,

    /// Writes pictures: time over buffer sizes here, and beside it warp, Lambda and the residual
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Rank 0 finds the end; with --background the last of the peers makes it
    #[command(flatten)]
    pub places: Ranks,

    /// Where the switch is, as host:port: with --fabric switch, across hosts
    #[arg(long, value_name = "HOST:PORT")]
    pub switch: Option<String>,

    /// With --fabric udp: at how many 10^6 bit/s each host sends at most, from 1 to 1000
    #[arg(long, value_name = "MBPS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    line_mbps: u16,

    /// Seconds to wait for ranks that are not there yet
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    wait: f64,

    /// Ends with its standard input
    #[arg(long, hide = true)]
    pub child: bool,

    /// Is the switch, at the first of the peers
    #[arg(long, hide = true)]
    pub serve_switch: bool,
}

fn number(text: &str, from: f64, to: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (from..=to).contains(&value) => Ok(value),
        _ => Err(format!("it is a number from {from} to {to}")),
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, 0.0, 0.9)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0)
}

fn tolerance(text: &str) -> Result<f64, String> {
    number(text, 1e-14, 0.1)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.01, 36_000.0)
}

impl Arguments {
    /// How long to wait for ranks.
    pub fn wait(&self) -> Duration {
        Duration::from_secs_f64(self.wait)
    }

    /// Whether several runs are compared.
    pub const fn is_comparison(&self) -> bool {
        self.study || self.control.is_none()
    }

    /// The ranks, where nothing else says how many there are.
    pub fn ranks(&self) -> u16 {
        self.ranks.unwrap_or(5)
    }

    /// How many ranks `peers` nodes are.
    ///
    /// # Errors
    /// One line, if they are fewer than asked for, or none.
    pub fn ranks_among(&self, peers: usize) -> Result<u16, String> {
        let others = usize::from(self.background.is_some_and(|share| share > 0.0));
        let most = peers.saturating_sub(others).min(64);
        let wanted = self.ranks.map_or(most, usize::from);
        match u16::try_from(wanted) {
            Ok(0) => Err(format!("--peers: {peers} peers are no rank, with the background's")),
            Ok(ranks) if wanted <= most => Ok(ranks),
            _ => {
                Err(format!("--ranks: {wanted} ranks need {} peers, not {peers}", wanted + others))
            }
        }
    }

    /// The runs that are asked for, on a system of `unknowns`; `ranks` are those that the peers are,
    /// where there are any.
    pub fn settings(&self, ranks: u16, unknowns: usize, system: u64) -> Vec<Setting> {
        let base = self.setting(ranks, unknowns, system);
        if self.study {
            let load = self.background.map(|share| Load { share, period: self.background_period });
            return super::study::settings(&base, load);
        }
        let all = Control::value_variants();
        let controls = self.control.map_or_else(|| all.to_vec(), |control| vec![control]);
        let one = self.control.is_some();
        let buffers = match self.buffer {
            Some(buffer) => vec![buffer],
            None if one => vec![PAPER_BUFFER],
            None => BUFFERS.to_vec(),
        };
        let backgrounds = match self.background {
            Some(share) => vec![share],
            None if one => vec![0.0],
            None => vec![0.0, BACKGROUND],
        };
        let mut settings = Vec::new();
        for &share in &backgrounds {
            for &control in &controls {
                for &buffer in &buffers {
                    // Without control each update goes by itself, whatever the buffer.
                    if control == Control::None && buffer != buffers[0] {
                        continue;
                    }
                    let load = Load { share, period: self.background_period };
                    settings.push(Setting { load, ..base.clone().with(control, buffer) });
                }
            }
        }
        settings
    }

    fn setting(&self, ranks: u16, unknowns: usize, system: u64) -> Setting {
        let is_cable = self.fabric == Fabric::Sim && self.medium == Medium::Cable;
        let limit = if self.is_comparison() { COMPARISON_LIMIT } else { LIMIT };
        Setting {
            fabric: self.fabric,
            medium: if is_cable { Medium::Cable } else { Medium::Switch },
            hosts: self.hosts.unwrap_or(if is_cable { Hosts::Paper } else { Hosts::Today }),
            control: Control::None,
            buffer: 1,
            transport: self.transport,
            trigger: self.trigger,
            ranks,
            unknowns,
            system,
            load: Load { share: 0.0, period: None },
            tolerance: self.tolerance,
            update_us: self.update_us,
            on_loss: self.on_loss,
            line_mbps: self.line_mbps,
            seed: self.seed,
            limit_seconds: self.seconds.unwrap_or(limit),
        }
    }

    /// What a process that plays one part of `setting` is told.
    pub fn for_child(&self, setting: &Setting) -> Vec<String> {
        let mut words = vec!["--child".to_owned(), "--json".into(), "--peers".into(), "-".into()];
        let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        add("--fabric", name_of(&setting.fabric));
        add("--control", name_of(&setting.control));
        add("--buffer", setting.buffer.to_string());
        add("--transport", name_of(&setting.transport));
        add("--trigger", setting.trigger.to_string());
        add("--ranks", setting.ranks.to_string());
        add("--background", setting.load.share.to_string());
        if let Some(period) = setting.load.period {
            add("--background-period", period.to_string());
        }
        add("--tolerance", setting.tolerance.to_string());
        add("--update-us", setting.update_us.to_string());
        add("--seconds", setting.limit_seconds.to_string());
        add("--on-loss", name_of(&setting.on_loss));
        add("--line-mbps", setting.line_mbps.to_string());
        add("--seed", setting.seed.to_string());
        add("--wait", self.wait.to_string());
        match (&self.matrix, self.random, self.trefethen) {
            (Some(path), ..) => add("--matrix", path.display().to_string()),
            (None, Some(n), _) => add("--random", n.to_string()),
            (None, None, Some(n)) => add("--trefethen", n.to_string()),
            (None, None, None) => {}
        }
        words
    }
}

/// The word by which the command line calls a value.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|known| known.get_name().to_owned()).unwrap_or_default()
}
