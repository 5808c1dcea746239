//! The nodes that carry all streams of a test program: one serves, one connects.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use midplane::{Error, Listener, Node, PeerName, Stream};
use tokio::runtime::Runtime;

/// Address that stands for the connecting node; its text is the node's name.
const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// The runtime of the nodes' own tasks, which outlives that of each test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
});

static NODES: LazyLock<(Node, Node)> = LazyLock::new(|| {
    let builder = Node::builder().cluster(format!("foreign-{}", std::process::id()));
    let builder = if crate::IS_UDP { builder.transports("udp") } else { builder };
    let service = wait(builder.clone().start()).expect("a node");
    let builder = builder.name(CLIENT.to_string());
    let client = match service.address() {
        Some(address) => builder.discover(address.to_string()),
        None => builder,
    };
    (service, wait(client.start()).expect("a node"))
});

/// Listens at an address; port 0 becomes an unused port.
pub async fn listen(mut address: SocketAddr) -> io::Result<(Listener, SocketAddr)> {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    if address.port() == 0 {
        address.set_port(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    Ok((NODES.0.listen(&address.port().to_string()).await?, address))
}

/// Connects to the listener at an address; returns the stream and its local address.
pub async fn connect(to: SocketAddr) -> io::Result<(Stream, SocketAddr)> {
    let stream = NODES.1.connect(&to.port().to_string()).await.map_err(io::Error::from)?;
    Ok((stream, from(to)))
}

/// Returns an accepted stream and its peer's address.
pub fn accepted(
    accepted: Result<(Stream, PeerName), Error>,
    at: SocketAddr,
) -> io::Result<(Stream, SocketAddr)> {
    let (stream, peer) = accepted?;
    assert_eq!(peer.name, CLIENT.to_string(), "an accepted stream knows the node that opened it");
    Ok((stream, from(at)))
}

/// Returns the client's address, in the other address's family.
fn from(other: SocketAddr) -> SocketAddr {
    if other.is_ipv4() { CLIENT } else { SocketAddr::new(other.ip(), CLIENT.port()) }
}

/// Waits for a future outside of async code, on a thread without a runtime.
pub fn wait<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| RUNTIME.block_on(future)).join().expect("it does not panic")
    })
}
