//! One stream of a node over UDP compared with one TCP Cubic stream of the kernel, through the same bottleneck.
//! `benches/netns/fairness.sh` makes the bottleneck.

use std::net::{AddrParseError, SocketAddr};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use midplane::{Congestion, Node};
use midplane_benches::counts::Counts;
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::report::{self, Failure};

/// Time from the start of the first stream to that of the second.
const HEAD_START: Duration = Duration::from_secs(1);
/// Time after both have started that is not measured.
const WARM_UP: Duration = Duration::from_secs(3);
/// Longest wait for the peer.
const PATIENCE: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  # On the receiving host, and on the sending one
  lab fairness --receive 10.0.0.1:4700 --json
  lab fairness --send 10.0.0.1:4700 --first tcp

Exit code: 0 it ran; 1 the peer was lost; 2 bad input (one line names it).";

/// Measure how one stream over UDP and one of the kernel's TCP Cubic share a bottleneck
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
#[group(required = true, multiple = true)]
pub(crate) struct Arguments {
    /// Receive at this address, and at its next port for TCP; count and report
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = with_next_port, conflicts_with = "send")]
    receive: Option<SocketAddr>,

    /// Send to the receiver at this address until it ends
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = with_next_port)]
    send: Option<SocketAddr>,

    /// The stream that starts a second before the other
    #[arg(long, value_enum, default_value = "ours")]
    first: Which,

    /// The congestion control of ours
    #[arg(long, value_enum, default_value = "cubic")]
    law: Law,

    /// Seconds of the measured part
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Parses an address whose port has a next one.
fn with_next_port(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error: AddrParseError| error.to_string())?;
    match address.port() {
        1..=65_534 => Ok(address),
        _ => Err("give a port from 1 to 65534; TCP takes the next one".into()),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Law {
    Cubic,
    #[cfg(feature = "bbr")]
    Bbr,
    Warp,
}

impl Law {
    const fn congestion(self) -> Congestion {
        match self {
            Self::Cubic => Congestion::Cubic,
            #[cfg(feature = "bbr")]
            Self::Bbr => Congestion::Bbr,
            Self::Warp => Congestion::Warp,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Which {
    Ours,
    Tcp,
}

/// Results of the receiver.
#[derive(Debug, Serialize)]
struct Received {
    /// Goodput during the measured part, in 10^6 bit/s.
    ours_mbps: f64,
    tcp_mbps: f64,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::of_run)?;
    let done = runtime.block_on(async {
        match (arguments.receive, arguments.send) {
            (Some(at), _) => receive(arguments, at).await,
            (None, Some(to)) => send(arguments, to).await,
            (None, None) => unreachable!("one of both is required"),
        }
    });
    done.map(|()| 0).map_err(Failure::of_run)
}

/// Returns the address of TCP.
fn tcp(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

async fn receive(arguments: &Arguments, at: SocketAddr) -> Result<(), Fault> {
    let node = Node::builder().cluster("fairness").transports("udp").trusted_network().bind(at);
    let node = node.start().await?;
    let mut ours = node.listen("bytes").await?;
    let theirs = TcpListener::bind(tcp(at)).await?;
    let both = async {
        tokio::try_join!(async { Ok::<_, Fault>(ours.accept().await?.0) }, async {
            Ok(theirs.accept().await?.0)
        })
    };
    let (ours, theirs) = tokio::time::timeout(2 * PATIENCE, both).await??;
    let counts = Counts::default();
    counts.read("ours", ours);
    counts.read("tcp", theirs);
    let measured = Duration::from_secs(arguments.seconds.into());
    let rates = counts.rates(WARM_UP, measured).await;
    if counts.has_lost() {
        return Err("the peer was lost".into());
    }
    let (ours_mbps, tcp_mbps) = (rates[0], rates[1]);
    report::print_tables(arguments.json, &Received { ours_mbps, tcp_mbps });
    Ok(())
}

async fn send(arguments: &Arguments, to: SocketAddr) -> Result<(), Fault> {
    let builder = Node::builder().cluster("fairness").transports("udp").trusted_network();
    let builder = builder.congestion(arguments.law.congestion());
    let node = builder.discover(to.to_string()).connect_timeout(PATIENCE).start().await?;
    let ours = async {
        tokio::time::sleep(delay(arguments, Which::Ours)).await;
        fill(node.connect("bytes").await?).await
    };
    let theirs = async {
        tokio::time::sleep(delay(arguments, Which::Tcp)).await;
        let stream = TcpStream::connect(tcp(to)).await?;
        #[cfg(target_os = "linux")]
        socket2::SockRef::from(&stream).set_tcp_congestion(b"cubic")?;
        fill(stream).await
    };
    tokio::try_join!(ours, theirs)?;
    Ok(())
}

/// Returns the time that a stream waits before it starts.
fn delay(arguments: &Arguments, which: Which) -> Duration {
    if arguments.first == which { Duration::ZERO } else { HEAD_START }
}

/// Writes until the receiver ends.
async fn fill(mut stream: impl AsyncWrite + Unpin) -> Result<(), Fault> {
    let bytes = vec![7; 256 << 10];
    while stream.write_all(&bytes).await.is_ok() {}
    Ok(())
}
