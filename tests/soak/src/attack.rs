//! Local processes that are no nodes: they send random bytes, hold connections open, and disconnect halfway.
#![expect(
    clippy::disallowed_methods,
    reason = "attackers live on the real clock, on a thread that may block"
)]

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use super::Fail;

/// Connections of each kind that are held open at once: more than a service has descriptors.
const HELD: usize = 96;
/// Bytes of the longest datagram, and most bytes sent on a connection.
const LONGEST: usize = 2_000;

/// A generator of pseudorandom numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.next() as usize % LONGEST;
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Attacks the nodes of the cluster on this host, and those at the given addresses, for `seconds`.
pub fn attack(seconds: &str, places: &str) -> Result<(), Fail> {
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let cluster = format!("/{}/", std::env::var("MIDPLANE_CLUSTER")?);
    let places = places.split(',').filter(|place| *place != "-");
    let places = places.map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut sent, mut connected) = (0, 0);
    while Instant::now() < end {
        let mut held: Vec<OwnedFd> = Vec::new();
        for place in &places {
            for _ in 0..200 {
                sent += usize::from(socket.send_to(&numbers.bytes(), place).is_ok());
            }
            let streams = (0..HELD).map_while(|_| TcpStream::connect(place).ok());
            held.extend(streams.map(OwnedFd::from));
        }
        for name in names(&cluster)? {
            held.extend((0..HELD).map_while(|_| packets(&name).ok()));
        }
        connected += held.len();
        for stream in &held {
            let _ = send(stream, &numbers.bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        sleep(Duration::from_millis(numbers.next() % 200));
    }
    eprintln!("{sent} datagrams, {connected} connections");
    match connected {
        0 => Err("no node was connected to".into()),
        _ => Ok(()),
    }
}

/// Connects to a name in the abstract namespace; fails if the node there is stopped and its queue is full.
fn packets(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Returns the names in the abstract namespace at which nodes of the cluster listen.
fn names(cluster: &str) -> Result<Vec<String>, Fail> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let names = sockets.lines().filter_map(|line| line.rsplit_once('@').map(|(_, name)| name));
    Ok(names.filter(|name| name.contains(cluster)).map(str::to_owned).collect())
}
