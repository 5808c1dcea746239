//! `midplane doctor`: tests what this machine offers, and names a cure for each lack.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod ofi;

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use clap::Args;
use midplane::simhw::udp::path_mtus;
use midplane_kit::ranks;
use midplane_kit::report::{self, Failure};
use quinn_udp::{UdpSockRef, UdpSocketState};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  # Shared memory, UDP, processors, limits, rights, and libfabric's providers of
  # this machine
  midplane doctor

  # The same, and the longest datagram that reaches another host whole
  midplane doctor --to 10.0.0.2:24800

Exit code: 0 shared memory or UDP works; 1 neither does; 2 bad input.";

/// Longest wait for a datagram over loopback, and for routers that report an MTU.
const WAIT: Duration = Duration::from_secs(1);
/// Bytes of send and receive buffer that a node asks of the system for its UDP socket.
const SOCKET_BYTES: usize = 4 << 20;
/// Bytes of the longest datagram over IPv6 in an Ethernet packet.
const ETHERNET: usize = 1_452;

/// Test what this machine offers Midplane, and name a cure for each lack.
///
/// Tests shared memory, UDP and its offloads, processors, limits, priorities, control groups, and the providers of libfabric.
/// Leaves nothing behind.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Find the longest datagram that reaches this host unfragmented; takes 1 s
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Yes,
    Limited,
    No,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Limited => "limited",
            Self::No => "no",
        }
    }
}

/// One property of the machine.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    state: State,
    /// The value found, or the system's error.
    detail: String,
    purpose: &'static str,
    /// `None` if nothing is lacking.
    cure: Option<&'static str>,
}

impl Row {
    fn new(
        what: &'static str,
        (state, detail): (State, String),
        purpose: &'static str,
        cure: &'static str,
    ) -> Self {
        Self { what, state, detail, purpose, cure: (state != State::Yes).then_some(cure) }
    }
}

/// Returns `Yes` and the text, or `No` and the system's error.
fn works(tried: io::Result<String>) -> (State, String) {
    match tried {
        Ok(detail) => (State::Yes, detail),
        Err(error) => (State::No, error.to_string()),
    }
}

#[derive(Debug, Serialize)]
struct Document {
    /// True if shared memory or UDP works.
    usable: bool,
    rows: Vec<Row>,
}

impl Document {
    fn new(rows: Vec<Row>) -> Self {
        let has = |what| rows.iter().any(|row| row.what == what && row.state != State::No);
        let usable = has(UDP) || has(MEMORY) && has(ABSTRACT_SOCKETS);
        Self { usable, rows }
    }
}

const UDP: &str = "UDP";
const MEMORY: &str = "shared memory";
const ABSTRACT_SOCKETS: &str = "abstract Unix sockets";

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let to = arguments.to.as_deref().map(|to| ranks::resolve("--to", to)).transpose()?;
    let mut rows = Vec::new();
    #[cfg(target_os = "linux")]
    rows.extend(linux::shared_memory());
    rows.extend(udp());
    rows.extend(to.map(path));
    rows.push(processors(std::thread::available_parallelism().map_or(1, usize::from)));
    #[cfg(target_os = "linux")]
    rows.extend(linux::rights());
    #[cfg(target_os = "linux")]
    rows.extend(ofi::rows());
    let document = Document::new(rows);
    report::print_document(arguments.json, &document, text);
    Ok(if document.usable { 0 } else { report::FAILED })
}

/// Tests UDP and the offloads that a node uses where the system has them.
fn udp() -> Vec<Row> {
    let mut rows = vec![Row::new(
        UDP,
        works(exchange()),
        "traffic between hosts, and between processes without shared memory",
        "allow UDP sockets on 127.0.0.1: see the firewall, the sandbox and the network namespace",
    )];
    let state = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|socket| Ok((UdpSocketState::new(UdpSockRef::from(&socket))?, socket)));
    let Ok((state, socket)) = state else { return rows };
    rows.push(Row::new(
        "UDP segmentation offload (GSO)",
        batch(state.max_gso_segments()),
        "sending many datagrams in one system call",
        "run Linux 4.18 or later; until then each datagram costs a system call",
    ));
    rows.push(Row::new(
        "UDP receive offload (GRO)",
        batch(state.gro_segments()),
        "receiving many datagrams in one system call",
        "run Linux 5.0 or later; until then each datagram is received alone",
    ));
    rows.push(Row::new(
        "UDP without fragmentation",
        if state.may_fragment() {
            (State::No, "IP fragments".into())
        } else {
            (State::Yes, "don't-fragment".into())
        },
        "finding the longest datagram that a path carries whole",
        "keep datagrams below the path's MTU: this system has no option that forbids fragments",
    ));
    rows.push(Row::new(
        "UDP socket buffers",
        buffers(granted(&state, &socket)),
        "bursts of datagrams that arrive while the receiver's thread does not run",
        "sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304",
    ));
    rows
}

/// Sends a datagram to a socket of this process.
fn exchange() -> io::Result<String> {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_read_timeout(Some(WAIT))?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sender.send_to(b"midplane", receiver.local_addr()?)?;
    receiver.recv(&mut [0; 16])?;
    Ok("a datagram over 127.0.0.1 arrived".into())
}

fn batch(segments: usize) -> (State, String) {
    let state = if segments > 1 { State::Yes } else { State::No };
    (state, format!("{segments} datagrams in a system call"))
}

/// Asks for [`SOCKET_BYTES`], and returns the smaller of the two buffers that the system gives.
fn granted(state: &UdpSocketState, socket: &UdpSocket) -> io::Result<usize> {
    state.set_recv_buffer_size(socket.into(), SOCKET_BYTES)?;
    state.set_send_buffer_size(socket.into(), SOCKET_BYTES)?;
    let both = state.recv_buffer_size(socket.into())?.min(state.send_buffer_size(socket.into())?);
    // Linux reports twice the bytes: the other half is for its own records.
    Ok(if cfg!(target_os = "linux") { both / 2 } else { both })
}

fn buffers(granted: io::Result<usize>) -> (State, String) {
    match granted {
        Ok(bytes) if bytes >= SOCKET_BYTES => (State::Yes, format!("{} KiB", bytes >> 10)),
        Ok(bytes) => {
            (State::Limited, format!("{} KiB of {} KiB asked for", bytes >> 10, SOCKET_BYTES >> 10))
        }
        Err(error) => (State::Limited, error.to_string()),
    }
}

/// Finds the longest datagram to another host.
fn path(to: SocketAddr) -> Row {
    let found = path_mtus(&[to], WAIT)[0];
    Row::new(
        "path",
        longest(found),
        "datagrams to --to that no router cuts or drops",
        "see the route (ip route get HOST), and the MTU of interfaces and tunnels on the way; nodes adapt to shorter ones",
    )
}

fn longest(bytes: Option<usize>) -> (State, String) {
    match bytes {
        Some(bytes) if bytes >= ETHERNET => {
            (State::Yes, format!("datagrams of up to {bytes} bytes"))
        }
        Some(bytes) => {
            (State::Limited, format!("datagrams of up to {bytes} bytes, less than Ethernet's"))
        }
        None => (State::No, "no route, or the system reports no MTU".into()),
    }
}

fn processors(count: usize) -> Row {
    let state = if count > 1 { State::Yes } else { State::Limited };
    Row::new(
        "processors",
        (state, count.to_string()),
        "a NIC that runs while its host's processes compute; `gang daemon` runs as many ranks at once",
        "allow this process more than one: see taskset, cpusets and the container's limits",
    )
}

fn text(document: &Document) -> String {
    let mut text = String::new();
    for Row { what, state, detail, purpose, cure } in &document.rows {
        let _ = writeln!(text, "{:<8} {what}: {detail}\n         for {purpose}", state.name());
        if let Some(cure) = cure {
            let _ = writeln!(text, "         cure: {cure}");
        }
    }
    text += match document.usable {
        true => "\nMidplane runs on this machine.\n",
        false => "\nMidplane does not run on this machine: neither shared memory nor UDP works.\n",
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &'static str, state: State) -> Row {
        Row::new(what, (state, String::new()), "a test", "do something")
    }

    #[test]
    fn a_cure_is_named_only_for_a_lack() {
        assert_eq!(row(UDP, State::Yes).cure, None);
        assert_eq!(row(UDP, State::Limited).cure, Some("do something"));
    }

    #[test]
    fn either_udp_or_all_of_shared_memory_is_enough() {
        let usable = |udp, memory, sockets| {
            let rows = vec![row(UDP, udp), row(MEMORY, memory), row(ABSTRACT_SOCKETS, sockets)];
            Document::new(rows).usable
        };
        assert!(usable(State::Yes, State::No, State::No));
        assert!(usable(State::No, State::Yes, State::Yes));
        assert!(!usable(State::No, State::Yes, State::No));
        assert!(!Document::new(Vec::new()).usable);
    }

    #[test]
    fn values_are_judged_by_their_bounds() {
        assert_eq!(batch(1).0, State::No);
        assert_eq!(batch(64).0, State::Yes);
        assert_eq!(buffers(Ok(SOCKET_BYTES)).0, State::Yes);
        assert_eq!(buffers(Ok(212_992)), (State::Limited, "208 KiB of 4096 KiB asked for".into()));
        assert_eq!(longest(Some(1_472)).0, State::Yes);
        assert_eq!(longest(Some(1_252)).0, State::Limited);
        assert_eq!(longest(None).0, State::No);
        assert_eq!(processors(1).state, State::Limited);
    }
}
