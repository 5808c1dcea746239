//! The sockets of a node: UDP and TCP on one port, and the TCP connections that it accepts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_via::wire::socket::Socket;
use tokio::net::{TcpListener, TcpStream};

use super::state::Shared;
use super::transports::Transports;
use crate::error::Error;

/// Most ports that the system chooses until one is free for both UDP and TCP.
const TRIES: u32 = 16;
/// Most concurrent TCP handshakes: in all, for one address, and for one network of IPv6 (64 bits). Further connections are
/// closed.
const MAX_HANDSHAKES: (u32, u32, u32) = (256, 64, 128);
/// The pause after the system could not accept a connection because it lacks descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// The sockets of a node.
pub(super) struct Sockets {
    pub(super) udp: Option<Socket>,
    pub(super) tcp: Option<TcpListener>,
    pub(super) address: SocketAddr,
}

impl Sockets {
    /// Binds the allowed sockets. For port 0, the system chooses one port for both.
    pub(super) async fn bind(address: SocketAddr, allowed: Transports) -> Result<Self, Error> {
        let mut tries = if address.port() == 0 { TRIES } else { 1 };
        loop {
            tries -= 1;
            match Self::try_bind(address, allowed).await {
                Err((is_tcp, error)) if tries == 0 || !is_tcp => return Err(error),
                Err(_) => {}
                Ok(sockets) => return Ok(sockets),
            }
        }
    }

    /// Tries to bind once; an error states whether it is TCP's.
    async fn try_bind(address: SocketAddr, allowed: Transports) -> Result<Self, (bool, Error)> {
        let failed = |name: &str, more: &str, error: std::io::Error| {
            let cure = cure(error.kind());
            Error::system(&format!("the node can't bind {name} {address}{cure}{more}"), error)
        };
        let udp = allowed.udp().then(|| Socket::bind(address)).transpose();
        let udp = udp.map_err(|error| (false, failed("UDP", "", error)))?;
        let bound = udp.as_ref().and_then(|socket| socket.local_addr().ok());
        let mut this = Self { udp, tcp: None, address: bound.unwrap_or(address) };
        if allowed.tcp() {
            let more = match allowed.udp() {
                true => " (without `tcp` among its transports it needs none)",
                false => "",
            };
            let listener = TcpListener::bind(this.address).await;
            let listener = listener.map_err(|error| (true, failed("TCP", more, error)))?;
            this.address = listener.local_addr().unwrap_or(this.address);
            this.tcp = Some(listener);
        }
        Ok(this)
    }
}

/// Returns what to do about an address that can't be bound.
const fn cure(error: std::io::ErrorKind) -> &'static str {
    match error {
        std::io::ErrorKind::AddrInUse => {
            " (another process has it: choose another port, or stop that process)"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            " (no interface of this host has that address: `ip address` lists those that have one)"
        }
        std::io::ErrorKind::PermissionDenied => {
            " (choose a port from 1024 on, or give the process the right to bind lower ones)"
        }
        _ => "",
    }
}

/// Returns the address itself, or its network of 64 bits: a host with IPv6 may have all addresses of one.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        ip => ip,
    }
}

/// Handshakes in progress, by address.
type Greetings = Arc<Mutex<BTreeMap<IpAddr, u32>>>;

/// A handshake in progress.
struct Greeting(Greetings, IpAddr);

impl Greeting {
    /// Begins a handshake; `None` if too many are in progress.
    fn begin(greetings: &Greetings, ip: IpAddr) -> Option<Self> {
        let mut all = lock(greetings);
        let (in_all, of_one) = (all.values().sum::<u32>(), all.get(&ip).copied().unwrap_or(0));
        let most = if ip.is_ipv6() { MAX_HANDSHAKES.2 } else { MAX_HANDSHAKES.1 };
        if in_all >= MAX_HANDSHAKES.0 || of_one >= most {
            return None;
        }
        all.insert(ip, of_one + 1);
        Some(Self(Arc::clone(greetings), ip))
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        let mut all = lock(&self.0);
        if let Some(count) = all.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// Accepts other nodes over TCP until the node ends.
pub(super) async fn accept(listener: TcpListener, shared: Weak<Shared>) {
    let greetings = Greetings::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection over TCP can't be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(greeting) = Greeting::begin(&greetings, network(peer.ip())) else {
            tracing::debug!(%peer, "too many handshakes over TCP are under way");
            continue;
        };
        let Some(node) = shared.upgrade() else { return };
        tokio::spawn(greet(stream, peer, node, greeting));
    }
}

async fn greet(stream: TcpStream, peer: SocketAddr, node: Arc<Shared>, greeting: Greeting) {
    let accepted = node.sessions().accept_tcp(stream, peer).await;
    drop(greeting);
    match accepted {
        Ok(Some(session)) => node.on_session(&session),
        Ok(None) => {}
        Err(error) => tracing::debug!(%peer, %error, "a connection over TCP is no node's"),
    }
}
