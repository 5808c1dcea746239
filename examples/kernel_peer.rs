//! The kernel's own UDP and TCP, to compare with: sends messages, or counts those that arrive.
//!
//! ```text
//! cargo run --release --example kernel_peer -- receive --bind 127.0.0.1:7000 --senders 1
//! cargo run --release --example kernel_peer -- send --to 127.0.0.1:7000
//! ```
//!
//! `benches/netns/run.sh` runs it beside `incast`, on the same links.

#[path = "common/command_line.rs"]
mod command_line;
#[path = "common/report.rs"]
mod report;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

/// Before anything is counted: TCP has found its rate, queues have filled.
const WARM_UP: Duration = Duration::from_millis(300);
/// Silence after which nothing more is expected.
const SILENCE: Duration = Duration::from_millis(700);
/// Longest wait for the first message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kernel sockets, to compare with.
#[derive(Debug, Parser)]
#[command(name = "kernel_peer", version)]
struct Arguments {
    #[command(subcommand)]
    part: Part,

    /// Which of the kernel's protocols
    #[arg(long, value_enum, default_value = "udp", global = true)]
    protocol: Protocol,

    /// Bytes of each message, from 1 to 65000
    #[arg(long, default_value_t = 10_240, global = true, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    message_bytes: u32,

    /// Seconds of the measured part
    #[arg(long, default_value_t = 2, global = true, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Counts what arrives, by sender
    Receive {
        /// Address to listen at
        #[arg(long)]
        bind: SocketAddr,
        /// Senders to expect
        #[arg(long)]
        senders: usize,
    },
    /// Sends back to back, a little longer than is measured; prints how many messages
    Send {
        /// The receiver
        #[arg(long)]
        to: SocketAddr,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Udp,
    Tcp,
}

/// What a receiver has seen.
#[derive(Debug, Default, Serialize)]
struct Received {
    /// Messages in all.
    messages: u64,
    /// Goodput of each sender while it was measured, in 10^6 bit/s.
    goodput_mbps: Vec<f64>,
}

/// What a sender has sent.
#[derive(Debug, Serialize)]
struct Sent {
    messages: u64,
}

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let (address, done) = match arguments.part {
        Part::Receive { bind, senders } => (bind, receive(&arguments, bind, senders)),
        Part::Send { to } => (to, send(&arguments, to)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_input(&error) => {
            report::fail(&format!("{address}: {error}"), report::BAD_INPUT)
        }
        Err(error) => report::fail(&format!("{address}: {error}"), report::DID_NOT_HOLD),
    }
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
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            Box::new(move || stream.write_all(&message))
        }
    };
    let measured = Duration::from_secs(arguments.seconds.into());
    let end = now() + WARM_UP * 2 + measured;
    let mut messages = 0;
    while now() < end {
        match transmit() {
            Ok(()) => messages += 1,
            // The receiver has seen enough.
            Err(_) if messages > 0 => break,
            Err(error) => return Err(error),
        }
    }
    report::print_json(&Sent { messages });
    Ok(())
}

/// Bytes from one sender.
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
