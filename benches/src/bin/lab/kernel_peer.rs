//! The kernel's UDP and TCP, for comparison: all ranks send messages to rank 0, which counts those that arrive.
//! `benches/netns/run.sh` runs it and `incast` on the same links.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use midplane_benches::counts::Counts;
use midplane_benches::meeting::reach;
use midplane_kit::clock::now;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::{sleep, timeout};

use crate::report::Failure;
use crate::{processes, ranks, report};

/// Time before counting: TCP finds its rate, and queues fill.
const WARM_UP: Duration = Duration::from_millis(300);
/// Silence after which the receiver stops.
const SILENCE: Duration = Duration::from_millis(700);
/// Interval at which the receiver polls for the first message.
const RETRY: Duration = Duration::from_millis(20);
/// Longest wait for the first message.
const PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  # A receiver and a sender as processes on this host
  lab kernel-peer --protocol tcp --json

  # On two hosts; peers.txt holds one host:port a line. Only rank 0, the receiver, uses its port.
  lab kernel-peer --rank 0 --peers peers.txt
  lab kernel-peer --rank 1 --peers peers.txt

Exit code: 0 it ran; 1 a peer was lost; 2 bad input (one line names it).";

/// Measure kernel sockets, for comparison: senders send, rank 0 counts by sender
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Rank 0 receives, all others send
    #[command(flatten)]
    ranks: ranks::Ranks,

    /// The kernel's protocol
    #[arg(long, value_enum, default_value = "udp")]
    protocol: Protocol,

    /// Bytes of each message, from 1 to 65000
    #[arg(long, default_value_t = 10_240, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    message_bytes: u32,

    /// Seconds of the measured part
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Exit when standard input closes
    #[arg(long, hide = true)]
    child: bool,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Udp,
    Tcp,
}

/// Results of the receiver.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Received {
    /// All received messages.
    messages: u64,
    /// Goodput of each sender during the measured part, in 10^6 bit/s.
    goodput_mbps: Vec<f64>,
}

/// Results of a sender.
#[derive(Debug, Deserialize, Serialize)]
struct Sent {
    messages: u64,
}

/// Both results, if one process has started both.
#[derive(Debug, Serialize)]
struct Together {
    protocol: Protocol,
    message_bytes: u32,
    seconds: u32,
    sent: Sent,
    received: Received,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let Some(place) = arguments.ranks.place()? else { return alone(arguments).map(|()| 0) };
    if arguments.child {
        processes::end_with_parent();
    }
    let addresses = place.addresses(PATIENCE).map_err(|error| format!("--peers: {error}"))?;
    let at = addresses[0];
    processes::run(async {
        let done = match place.rank {
            0 => receive(arguments, at, addresses.len() - 1).await,
            _ => send(arguments, at).await,
        };
        done.map(|()| 0).map_err(|error| match is_input(&error) {
            true => {
                let what = "stop the other process, or choose another address";
                format!("--peers: {at}: {error}; {what}").into()
            }
            false => Failure::of_run(format!("{at}: {error}")),
        })
    })
}

/// Runs a receiver and a sender as processes on this host.
fn alone(arguments: &Arguments) -> Result<(), Failure> {
    let peers = processes::free_addresses(2).map_err(Failure::of_run)?;
    let start = |rank: u16| {
        let own = std::env::args().skip(1);
        let more = ["--child", "--peers=-", &format!("--rank={rank}")].map(str::to_owned);
        let words: Vec<String> = own.chain(more).collect();
        processes::Peer::start(&words, &peers).map_err(Failure::of_run)
    };
    let receiver = start(0)?;
    // Datagrams that arrive before it listens would count as lost.
    std::thread::park_timeout(Duration::from_millis(200));
    let sender = start(1)?;
    let report = Together {
        protocol: arguments.protocol,
        message_bytes: arguments.message_bytes,
        seconds: arguments.seconds,
        sent: read(sender)?,
        received: read(receiver)?,
    };
    report::print_tables(arguments.json, &report);
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(process: processes::Peer) -> Result<T, Failure> {
    let text = process.output().map_err(Failure::of_run)?;
    serde_json::from_str(&text).map_err(|_| Failure::of_run("a process printed no report"))
}

fn is_input(error: &Error) -> bool {
    use ErrorKind::{AddrInUse, AddrNotAvailable, ConnectionRefused};
    matches!(error.kind(), AddrInUse | AddrNotAvailable | ConnectionRefused)
}

async fn send(arguments: &Arguments, to: SocketAddr) -> Result<(), Error> {
    match arguments.protocol {
        Protocol::Tcp => {
            let mut stream = timeout(2 * PATIENCE, reach(to, PATIENCE)).await??;
            pump(arguments, async |message| stream.write_all(message).await).await
        }
        Protocol::Udp => {
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(to).await?;
            pump(arguments, async |message| socket.send(message).await.map(drop)).await
        }
    }
}

/// Sends messages by `send` until the end of the measured part, and prints their number.
async fn pump(
    arguments: &Arguments,
    mut send: impl AsyncFnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let message = vec![0; arguments.message_bytes as usize];
    let end = now() + WARM_UP * 2 + Duration::from_secs(arguments.seconds.into());
    let mut messages = 0;
    while now() < end {
        match send(&message).await {
            Ok(()) => messages += 1,
            // The receiver is done and has closed the connection.
            Err(_) if messages > 0 => break,
            Err(error) => return Err(error),
        }
    }
    report::print_json(&Sent { messages });
    Ok(())
}

async fn receive(arguments: &Arguments, bind: SocketAddr, senders: usize) -> Result<(), Error> {
    let counts = Counts::default();
    match arguments.protocol {
        Protocol::Udp => counts.receive(UdpSocket::bind(bind).await?),
        Protocol::Tcp => {
            let (listener, counts) = (TcpListener::bind(bind).await?, counts.clone());
            tokio::spawn(async move {
                while let Ok((stream, from)) = listener.accept().await {
                    counts.read(from, stream);
                }
            });
        }
    }
    let until = now() + PATIENCE;
    while counts.total() == 0 && now() < until {
        sleep(RETRY).await;
    }
    let measured = Duration::from_secs(arguments.seconds.into());
    let mut goodput_mbps = counts.rates(WARM_UP, measured).await;
    goodput_mbps.resize(senders.max(goodput_mbps.len()), 0.0);
    // Messages that arrive after the measured part count as well.
    let mut bytes = 0;
    while counts.total() > bytes {
        bytes = counts.total();
        sleep(SILENCE).await;
    }
    let messages = bytes / u64::from(arguments.message_bytes);
    report::print_json(&Received { messages, goodput_mbps });
    Ok(())
}
