//! The kernel's UDP and TCP, for comparison: all ranks send messages to rank 0, which counts those that arrive.
//! `benches/netns/run.sh` runs it and `incast` on the same links.

use crate::{processes, ranks, report};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

/// Time before counting: TCP finds its rate, and queues fill.
const WARM_UP: Duration = Duration::from_millis(300);
/// Silence after which the receiver stops.
const SILENCE: Duration = Duration::from_millis(700);
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

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let place = match arguments.ranks.place() {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let Some(place) = place else {
        return match alone(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => report::fail(&what, report::FAILED),
        };
    };
    if arguments.child {
        processes::end_with_parent();
    }
    let address = match place.addresses(PATIENCE) {
        Ok(addresses) => addresses[0],
        Err(error) => return report::fail(&format!("--peers: {error}"), report::BAD_INPUT),
    };
    let done = match place.rank {
        0 => receive(&arguments, address, place.size() - 1),
        _ => send(&arguments, address),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_input(&error) => {
            let what = "stop the other process, or choose another address";
            report::fail(&format!("--peers: {address}: {error}; {what}"), report::BAD_INPUT)
        }
        Err(error) => report::fail(&format!("{address}: {error}"), report::FAILED),
    }
}

/// Runs a receiver and a sender as processes on this host.
fn alone(arguments: &Arguments) -> Result<(), String> {
    let peers = processes::free_addresses(2)?;
    let start = |rank: u16| {
        let own = std::env::args().skip(1);
        let more = ["--child", "--peers=-", &format!("--rank={rank}")].map(str::to_owned);
        processes::Peer::start(&own.chain(more).collect::<Vec<_>>(), &peers)
    };
    let receiver = start(0)?;
    // Datagrams that arrive before it listens would count as lost.
    std::thread::park_timeout(Duration::from_millis(200));
    let sender = start(1)?;
    let report = Together {
        protocol: arguments.protocol,
        message_bytes: arguments.message_bytes,
        seconds: arguments.seconds,
        sent: read(&sender.output()?)?,
        received: read(&receiver.output()?)?,
    };
    report::print_tables(arguments.json, &report);
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|_| "a process of this run printed no report".into())
}

fn is_input(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable | ErrorKind::ConnectionRefused
    )
}

#[expect(clippy::disallowed_methods, reason = "measures the machine's own network")]
fn now() -> Instant {
    Instant::now()
}

fn send(arguments: &Arguments, to: SocketAddr) -> std::io::Result<()> {
    let message = vec![0; arguments.message_bytes as usize];
    let local: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let mut transmit: Box<dyn FnMut() -> std::io::Result<()>> = match arguments.protocol {
        Protocol::Udp => {
            let socket = UdpSocket::bind((local, 0))?;
            socket.connect(to)?;
            Box::new(move || socket.send(&message).map(drop))
        }
        Protocol::Tcp => {
            let mut stream = connect(to)?;
            Box::new(move || stream.write_all(&message))
        }
    };
    let measured = Duration::from_secs(arguments.seconds.into());
    let end = now() + WARM_UP * 2 + measured;
    let mut messages = 0;
    while now() < end {
        match transmit() {
            Ok(()) => messages += 1,
            // The receiver is done and has closed the connection.
            Err(_) if messages > 0 => break,
            Err(error) => return Err(error),
        }
    }
    report::print_json(&Sent { messages });
    Ok(())
}

/// Connects to a receiver that may not have started yet.
fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let end = now() + PATIENCE;
    loop {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Err(error) if is_input(&error) && now() < end => {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Address of a sender, and bytes received from it.
type Arrival = (SocketAddr, usize);

fn receive(arguments: &Arguments, bind: SocketAddr, senders: usize) -> std::io::Result<()> {
    let (arrived, arrivals) = mpsc::channel();
    match arguments.protocol {
        Protocol::Udp => {
            let socket = UdpSocket::bind(bind)?;
            let mut buffer = vec![0; 65_536];
            std::thread::spawn(move || {
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    if arrived.send((from, length)).is_err() {
                        break;
                    }
                }
            });
        }
        Protocol::Tcp => {
            let listener = TcpListener::bind(bind)?;
            std::thread::spawn(move || {
                for (stream, from) in (0..senders).map_while(|_| listener.accept().ok()) {
                    let arrived = arrived.clone();
                    std::thread::spawn(move || take(stream, from, &arrived));
                }
            });
        }
    }
    report::print_json(&count(arguments, &arrivals, senders));
    Ok(())
}

fn take(mut stream: TcpStream, from: SocketAddr, arrived: &mpsc::Sender<Arrival>) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if arrived.send((from, length)).is_err() {
            break;
        }
    }
}

fn count(arguments: &Arguments, arrivals: &mpsc::Receiver<Arrival>, senders: usize) -> Received {
    let mut bytes: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    let mut total = 0;
    let mut begin = None;
    let mut patience = PATIENCE;
    let measured = Duration::from_secs(arguments.seconds.into());
    while let Ok((from, length)) = arrivals.recv_timeout(patience) {
        patience = SILENCE;
        let now = now();
        let begin = *begin.get_or_insert(now + WARM_UP);
        total += length as u64;
        if now >= begin && now < begin + measured {
            *bytes.entry(from).or_default() += length as u64;
        }
    }
    let mut goodput_mbps: Vec<f64> =
        bytes.values().map(|b| *b as f64 * 8.0 / 1e6 / measured.as_secs_f64()).collect();
    goodput_mbps.resize(senders.max(goodput_mbps.len()), 0.0);
    Received { messages: total / u64::from(arguments.message_bytes), goodput_mbps }
}
