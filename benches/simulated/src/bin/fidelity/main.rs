//! Compares virtual time with the kernel: see `--help`, and `benches/netns/fidelity.sh`, which runs it on both.

mod case;
mod network;
mod table;
mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use case::Case;
use clap::{Parser, Subcommand};
use network::Kernel;
use table::Row;
use traffic::{Measured, PORT, PROBE_PORT, Protocol};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures senders behind a narrow port, in virtual time or with the kernel's sockets, by the same code.
///
/// `benches/netns/fidelity.sh` draws cases, runs each in network namespaces and in virtual time, and prints both.
/// `benches/netns/run.sh` measures the kernel's sockets and `incast`.
#[derive(Parser)]
#[command(
    after_help = "Exit code: 0 it ran, and the errors are within their bounds; 1 they are not, or a run failed; 2 bad input.\n\n\
    Example: fidelity simulate --protocol tcp --senders 8 --link-mbps 50 --buffer-bytes 16384"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Seconds of the measurement, after one second that is not measured
    #[arg(long, global = true, default_value_t = 3.0, value_parser = parse_seconds)]
    seconds: f64,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a case in virtual time; prints its measurement as JSON
    Simulate {
        #[command(flatten)]
        case: Case,
        #[arg(long, value_enum)]
        protocol: Protocol,
    },
    /// Receives by the kernel's sockets, at ports 7000 and 7001; prints the measurement as JSON
    Receive {
        #[arg(long, default_value_t = 1)]
        senders: u32,
        #[arg(long, value_enum)]
        protocol: Protocol,
    },
    /// Sends to a receiver, until the time is over
    Send {
        /// Address of the receiver
        to: IpAddr,
        /// Number of the sender, from 0
        #[arg(long, default_value_t = 0)]
        index: u32,
        #[arg(long, default_value_t = 1_400, value_parser = clap::value_parser!(u64).range(64..=65_507))]
        message_bytes: u64,
        #[arg(long, value_enum)]
        protocol: Protocol,
    },
    /// Sends probes of the delay to a receiver, until the time is over
    Probe {
        /// Address of the receiver
        to: IpAddr,
    },
    /// Prints the tables of a file of results: one case a line, as JSON
    Table { file: PathBuf },
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds are from 0.1 to 3600".to_owned()),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fidelity: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let measure = Duration::from_secs_f64(arguments.seconds);
    match &arguments.command {
        Command::Simulate { case, protocol } => show(&case.simulate(*protocol, measure)?)?,
        Command::Table { file } => return tables(file),
        live => live_role(live, measure)?,
    }
    Ok(true)
}

/// Runs a role with the kernel's sockets.
#[tokio::main(flavor = "current_thread")]
async fn live_role(role: &Command, measure: Duration) -> Result<(), Failure> {
    // Senders start before their receiver measures, and end after it.
    let longest = traffic::WARM_UP + measure + Duration::from_secs(1);
    let sending = async {
        match role {
            Command::Send { to, index, message_bytes, protocol } => {
                let to = SocketAddr::new(*to, PORT);
                traffic::send::<Kernel>(*protocol, to, *index, *message_bytes as usize).await
            }
            Command::Probe { to } => {
                traffic::probe::<Kernel>(SocketAddr::new(*to, PROBE_PORT)).await
            }
            Command::Receive { senders, protocol } => {
                show(&traffic::receive::<Kernel>(*protocol, *senders, measure).await?)
            }
            Command::Simulate { .. } | Command::Table { .. } => Ok(()),
        }
    };
    tokio::time::timeout(longest, sending).await.unwrap_or(Ok(()))
}

fn show(measured: &Measured) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(measured)?);
    Ok(())
}

fn tables(file: &PathBuf) -> Result<bool, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{} can't be read: {error}", file.display()))?;
    let rows: Vec<Row> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let udp = table::print(&rows, Protocol::Udp, 3.0, 10.0);
    let tcp = table::print(&rows, Protocol::Tcp, 10.0, 25.0);
    Ok(udp && tcp)
}
