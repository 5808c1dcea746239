//! Measures half round trips between two processes over a provider of libfabric.
//!
//! ```text
//! cargo run --release -p midplane-ofi --example pingpong -- tcp@127.0.0.1 --layer nic
//! ```
//!
//! On two hosts, the same command on both, with `--rank 0` and `--rank 1`, and `--meet` with host 0's address.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_ofi::endpoint::{Config, Endpoint, Event, PeerId};
use midplane_ofi::link::{OfiLink, frame_bytes};
use midplane_ofi::meeting::exchange;
use midplane_ofi::provider::Choice;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::nic::custom::{CustomConfig, CustomNic};

type Error = Box<dyn std::error::Error>;

const EXAMPLES: &str = "\
Examples:
  pingpong tcp@127.0.0.1                       two processes of this host
  pingpong efa --rank 0 --meet 10.0.0.1:4700   on the first host; --rank 1 on the second

Prints one JSON document: mean and median of the half round trips, in microseconds. Exit code: 0 it ran; 1 it did not; 2 bad input.";

/// Measure half round trips over a provider of libfabric
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// Provider: PROVIDER[/DOMAIN][@ADDRESS]
    provider: Choice,
    /// Layer that carries the messages
    #[arg(long, value_enum, default_value = "endpoint")]
    layer: Layer,
    /// Bytes of a message, from 1 to 1048576
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    bytes: u32,
    /// Timed round trips, from 1 to 10000000; a tenth as many warm-up rounds come before them
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rounds: u32,
    /// Rank of this process, 0 or 1; default: it starts the other one
    #[arg(long, requires = "meet", value_parser = clap::value_parser!(u16).range(0..=1))]
    rank: Option<u16>,
    /// Address at which rank 0 sends rank 1 the name of its endpoint
    #[arg(long, value_name = "ADDRESS:PORT")]
    meet: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Layer {
    /// The bare endpoint
    Endpoint,
    /// Messages through ports and units of two NICs
    Nic,
}

/// A child process that is killed when its owner drops it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut other = None;
    let (rank, meet) = match (arguments.rank, arguments.meet) {
        (Some(rank), Some(meet)) => (rank, meet),
        _ => {
            // The port is free again; no other process is likely to take it meanwhile.
            let meet = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1));
            command.args(["--rank", "1", "--meet", &meet.to_string()]);
            other = Some(Process(command.spawn()?));
            (0, meet)
        }
    };
    let Times { mean_us, median_us } = runtime.block_on(async {
        match arguments.layer {
            Layer::Endpoint => endpoints(arguments, rank, meet).await,
            Layer::Nic => nics(arguments, rank, meet).await,
        }
    })?;
    if let Some(Process(child)) = &mut other {
        child.wait()?;
    }
    if rank == 0 {
        println!(
            "{{\"provider\":\"{}\",\"layer\":\"{:?}\",\"bytes\":{},\"mean_us\":{mean_us:.3},\"median_us\":{median_us:.3}}}",
            arguments.provider, arguments.layer, arguments.bytes
        );
    }
    Ok(())
}

/// Half round trip times of a run.
struct Times {
    mean_us: f64,
    median_us: f64,
}

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let half_us = |time: Duration| time.as_secs_f64() * 1e6 / 2.0;
        let mean_us = half_us(times.iter().sum()) / times.len() as f64;
        Self { mean_us, median_us: half_us(times[times.len() / 2]) }
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
fn now() -> Instant {
    Instant::now()
}

async fn endpoints(arguments: &Arguments, rank: u16, meet: SocketAddr) -> Result<Times, Error> {
    let config = Config::new(arguments.bytes as usize);
    let mut endpoint = Endpoint::open(&arguments.provider, &config)?;
    let names = exchange(rank, &[meet, meet], endpoint.name()).await?;
    let peer = endpoint.insert(&names[usize::from(1 - rank)])?;
    let message = vec![rank as u8; arguments.bytes as usize];
    let warm = arguments.rounds / 10;
    let mut times = Vec::new();
    for round in 0..warm + arguments.rounds {
        let start = now();
        if rank == 0 {
            endpoint.send(peer, &[&message])?;
        }
        receive(&mut endpoint).await?;
        if rank == 1 {
            endpoint.send(peer, &[&message])?;
        }
        if round >= warm {
            times.push(start.elapsed());
        }
    }
    flush(&mut endpoint, peer).await;
    Ok(Times::new(times))
}

async fn receive(endpoint: &mut Endpoint) -> Result<(), Error> {
    poll_fn(|context| {
        endpoint.poll_event(context, false, |event| match event {
            Event::Frame { .. } => Ok(()),
            Event::Lost { error, .. } => Err(error),
            _ => Ok(()),
        })
    })
    .await??;
    Ok(())
}

/// Polls until the endpoint has sent its last frame.
async fn flush(endpoint: &mut Endpoint, peer: PeerId) {
    for _ in 0..100 {
        if endpoint.outstanding(peer) == 0 {
            break;
        }
        endpoint.progress();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
}

async fn nics(arguments: &Arguments, rank: u16, meet: SocketAddr) -> Result<Times, Error> {
    const MTU: usize = 16 << 10;
    let endpoint = Endpoint::open(&arguments.provider, &Config::new(frame_bytes(MTU)))?;
    let names = exchange(rank, &[meet, meet], endpoint.name()).await?;
    let link = OfiLink::new(endpoint, NodeId(rank), &names)?;
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new())?;
    let nic = CustomNic::start(CustomConfig::new(NodeId(rank)).mtu(MTU), unit, link)?;
    let mut port = nic.host().open_port()?;
    let bytes = arguments.bytes as usize;
    let (inbox, outbox) = (port.register(bytes)?, port.register(bytes)?);
    let send = messages::send(NodeId(1 - rank), PortId(0), outbox.whole(), 1);
    let receive = messages::receive(inbox.whole(), 2);
    port.submit(&receive)?;
    // Waits until the other NIC has taken its receive command: without one, that NIC drops the message.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let warm = arguments.rounds / 10;
    let mut times = Vec::new();
    for round in 0..warm + arguments.rounds {
        let start = now();
        if rank == 0 {
            port.submit(&send)?;
        }
        while port.completion().await?.cookie != 2 {}
        port.submit(&receive)?;
        if rank == 1 {
            port.submit(&send)?;
        }
        if round >= warm {
            times.push(start.elapsed());
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    nic.shutdown().await;
    Ok(Times::new(times))
}
