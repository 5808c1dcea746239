//! Command line of the example.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};
use midplane::simhw::seal::Key;

use midplane_benches::incast::setting::{Mode, Setting};
use midplane_benches::nodes::{Fabric, Nodes, among};
use midplane_kit::command_line::{name_of, within};

/// Message sizes of a comparison, in bytes: up to 10 KB, as in the paper's figures.
const SIZES: [u32; 6] = [64, 256, 600, 1_500, 4_096, 10_240];
/// Numbers of senders of a comparison.
const SENDERS: [u16; 3] = [1, 2, 3];
/// Most senders that can take turns on one link.
const MAX_SENDERS: u64 = 127;
/// Bytes of the largest message; each sender posts a hundred messages at once.
const MAX_MESSAGE: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  # Every mode, 1 to 3 senders, messages up to 10 KB, as processes on this host; a table and a plot
  incast --plot incast.svg

  # One run in virtual time, the same to the last bit each time: 16 senders through 16 KiB
  incast --fabric sim --mode token-etr --senders 16 --message-bytes 10240 --buffer-bytes 16384 --json

  # On three hosts, with peers.txt holding one host:port a line; rank 0 receives
  incast --fabric udp --rank 0 --peers peers.txt --wait 60 --mode token --message-bytes 10240
  incast --fabric udp --rank 1 --peers peers.txt --wait 60 --mode token --message-bytes 10240
  incast --fabric udp --rank 2 --peers peers.txt --wait 60 --mode token --message-bytes 10240

  # The same, started by Slurm
  srun -N 3 incast --fabric udp --wait 60 --mode token --message-bytes 10240

Exit code: 0 it ran; 1 a peer was lost; 2 bad input.";

/// Measure incast: many senders to one receiver through small buffers.
///
/// Compares goodput, loss and fairness without coordination, with tokens, and under Warp.
#[derive(Clone, Debug, Parser)]
#[command(name = "incast", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// Choose how senders are coordinated; every mode in turn unless given
    #[arg(long, value_enum)]
    mode: Option<Mode>,

    /// Senders, from 1 to 127; 1, 2 and 3 in turn unless given, or as many as the peers are
    #[arg(long, value_name = "COUNT", value_parser = RangedU64ValueParser::<u16>::new().range(1..=MAX_SENDERS))]
    senders: Option<u16>,

    /// Bytes of each message, from 1 to 1048576; sizes up to 10 KB in turn unless given
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<u32>::new().range(1..=MAX_MESSAGE))]
    message_bytes: Option<u32>,

    /// Rate of every link, in 10^6 bit/s, from 1 to 100000
    #[arg(long, value_name = "MBPS", default_value_t = 100, value_parser = RangedU64ValueParser::<u32>::new().range(1..=100_000))]
    link_mbps: u32,

    /// Bytes of buffer at each port of the switch, from 256 to 2^30
    #[arg(long, value_name = "BYTES", default_value_t = 32_768, value_parser = RangedU64ValueParser::<u32>::new().range(256..=1 << 30))]
    buffer_bytes: u32,

    /// Seconds of the measured part of each run, from 0.01 to 3600
    #[arg(long, default_value_t = 0.5, value_parser = within(0.01, 3_600.0))]
    seconds: f64,

    /// File of keys, one NUMBER:SECRET a line with 64 hexadecimal digits: the first seals all frames, all
    /// are accepted. Without it frames are not sealed, and the network is trusted
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

impl Arguments {
    /// Reads the keys of `--key`; returns none if the network is trusted.
    ///
    /// # Errors
    /// One line, if the file cannot be read, or has something else in it.
    pub(crate) fn keys(&self) -> Result<Vec<Key>, String> {
        let Some(path) = &self.key else { return Ok(Vec::new()) };
        let wrong = |what: &dyn std::fmt::Display| format!("--key {}: {what}", path.display());
        if self.nodes.fabric == Fabric::Sim {
            return Err(wrong(&"leave it out; --fabric sim has no network to seal"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let keys: Vec<Key> =
            lines.map(str::parse).collect::<Result<_, _>>().map_err(|error| wrong(&error))?;
        if keys.is_empty() { Err(wrong(&"the file has no key")) } else { Ok(keys) }
    }

    /// Returns true if several runs are compared.
    pub(crate) fn is_comparison(&self) -> bool {
        self.mode.is_none() || self.message_bytes.is_none()
    }

    /// Returns the settings of all runs; `senders` is their number if `--peers` determines it.
    pub(crate) fn settings(&self, senders: Option<u16>) -> Vec<Setting> {
        let modes = self.mode.map_or_else(|| Mode::value_variants().to_vec(), |mode| vec![mode]);
        let counts =
            self.senders.or(senders).map_or_else(|| SENDERS.to_vec(), |senders| vec![senders]);
        let sizes = self.message_bytes.map_or_else(|| SIZES.to_vec(), |size| vec![size]);
        let mut settings = Vec::new();
        for mode in modes {
            for &senders in &counts {
                for &message_bytes in &sizes {
                    settings.push(self.setting(mode, senders, message_bytes));
                }
            }
        }
        settings
    }

    fn setting(&self, mode: Mode, senders: u16, message_bytes: u32) -> Setting {
        Setting {
            fabric: self.nodes.fabric,
            mode,
            senders,
            message_bytes,
            link_mbps: self.link_mbps,
            buffer_bytes: self.buffer_bytes,
            atm: None,
            seconds: self.seconds,
            sealed: self.key.is_some(),
            seed: self.nodes.seed,
        }
    }

    /// Returns the number of senders among `peers` nodes.
    ///
    /// # Errors
    /// One line, if there is no sender, or fewer than `--senders`.
    pub(crate) fn senders_among(&self, peers: usize) -> Result<u16, String> {
        among(peers, 1, "--senders", self.senders, MAX_SENDERS as usize)
    }

    /// Returns the options of a child process that plays one part of `setting`.
    pub(crate) fn for_child(&self, setting: &Setting) -> Vec<String> {
        let mut words = self.nodes.for_child();
        let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        add("--mode", name_of(&setting.mode));
        add("--senders", setting.senders.to_string());
        add("--message-bytes", setting.message_bytes.to_string());
        add("--link-mbps", setting.link_mbps.to_string());
        add("--buffer-bytes", setting.buffer_bytes.to_string());
        add("--seconds", setting.seconds.to_string());
        if let Some(path) = &self.key {
            add("--key", path.display().to_string());
        }
        words
    }
}
