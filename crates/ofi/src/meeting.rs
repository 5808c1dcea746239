//! Exchanges the names of the nodes' endpoints, over TCP.
//!
//! Node 0 listens at its address. Each other node connects there, sends its number and its name, and receives all
//! names. The exchange is neither secret nor authenticated: a process that reaches node 0's address meanwhile can pose
//! as a node.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ffi::MAX_NAME;

/// The first bytes of a greeting, with the version of the exchange.
const MAGIC: [u8; 8] = *b"mpofi\0\0\x01";
/// Longest wait for the rest of a greeting that has begun.
const GREETING: Duration = Duration::from_secs(2);
/// Most connections whose greeting is awaited at once; further ones wait.
const MOST_GREETINGS: usize = 256;
/// Pause between two attempts to reach node 0.
const PAUSE: Duration = Duration::from_millis(50);

/// Exchanges the names of all nodes' endpoints. `addresses` are those of all nodes; only node 0's is used. Waits until
/// all nodes have connected: the caller limits the time.
///
/// # Errors
/// The system's; or [`InvalidData`](io::ErrorKind::InvalidData), if the process at node 0's address is not node 0 of a
/// fabric of as many nodes.
///
/// # Panics
/// If `node` is not below the number of addresses.
///
/// # Cancel safety
/// Dropping the future leaves the other nodes waiting.
pub async fn exchange(
    node: u16,
    addresses: &[SocketAddr],
    name: &[u8],
) -> io::Result<Vec<Vec<u8>>> {
    assert!(usize::from(node) < addresses.len(), "the node has an address");
    if node == 0 { gather(addresses, name).await } else { ask(node, addresses, name).await }
}

/// Another node that has connected.
struct Guest {
    /// The sequence number of its connection.
    number: u64,
    name: Vec<u8>,
    stream: TcpStream,
}

impl Guest {
    /// Returns whether the node has closed its connection, as far as the system has reported.
    fn has_left(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Receives the names of all other nodes, then sends all names to each.
async fn gather(addresses: &[SocketAddr], own: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let nodes = addresses.len();
    let mut guests: Vec<Option<Guest>> = (1..nodes).map(|_| None).collect();
    let listener = TcpListener::bind(addresses[0]).await?;
    let (mut greetings, mut accepted) = (JoinSet::new(), 0);
    loop {
        if guests.iter().all(Option::is_some) {
            guests.iter_mut().for_each(|guest| drop(guest.take_if(|guest| guest.has_left())));
            if guests.iter().all(Option::is_some) {
                break;
            }
        }
        tokio::select! {
            connected = listener.accept(), if greetings.len() < MOST_GREETINGS => {
                let (mut stream, _) = connected?;
                accepted += 1;
                let number = accepted;
                greetings.spawn(async move {
                    let greeting = timeout(GREETING, greeted(&mut stream, nodes)).await;
                    let (node, name) = greeting.ok()?.ok()?;
                    Some((node, Guest { number, name, stream }))
                });
            }
            // A connection without a valid greeting is not a node's. A node that connects again replaces its earlier
            // connection.
            Some(greeted) = greetings.join_next() => {
                let Ok(Some((node, guest))) = greeted else { continue };
                let place = &mut guests[usize::from(node) - 1];
                if place.as_ref().is_none_or(|before| before.number < guest.number) {
                    *place = Some(guest);
                }
            }
        }
    }
    let names = guests.iter().flatten().map(|guest| guest.name.clone());
    let names: Vec<Vec<u8>> = [own.to_vec()].into_iter().chain(names).collect();
    let all: Vec<u8> = names.iter().flat_map(|name| framed(name)).collect();
    for Guest { stream, .. } in guests.iter_mut().flatten() {
        // A node that has left by now does not prevent the others from receiving the names.
        if stream.write_all(&all).await.is_ok() {
            let _ = stream.shutdown().await;
        }
    }
    Ok(names)
}

async fn greeted(stream: &mut TcpStream, nodes: usize) -> io::Result<(u16, Vec<u8>)> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    let claimed = (stream.read_u16_le().await?, stream.read_u16_le().await?);
    let name = read_name(stream).await?;
    let is_ours = magic == MAGIC && usize::from(claimed.1) == nodes;
    let is_node = claimed.0 != 0 && usize::from(claimed.0) < nodes;
    if is_ours && is_node { Ok((claimed.0, name)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Sends this node's name to node 0, and receives all names.
async fn ask(node: u16, addresses: &[SocketAddr], name: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut stream = loop {
        match TcpStream::connect(addresses[0]).await {
            Ok(stream) => break stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    };
    let mut greeting = MAGIC.to_vec();
    greeting.extend(node.to_le_bytes());
    greeting.extend(u16::try_from(addresses.len()).unwrap_or(u16::MAX).to_le_bytes());
    greeting.extend(framed(name));
    stream.write_all(&greeting).await?;
    let mut names = Vec::new();
    for _ in addresses {
        names.push(read_name(&mut stream).await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "what listens at {} is no node 0 of {} nodes",
                    addresses[0],
                    addresses.len()
                ),
            ),
            _ => error,
        })?);
    }
    Ok(names)
}

async fn read_name(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16_le().await?);
    if length > MAX_NAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut name = vec![0; length];
    stream.read_exact(&mut name).await?;
    Ok(name)
}

/// Returns a name after its length.
fn framed(name: &[u8]) -> Vec<u8> {
    let length = u16::try_from(name.len()).expect("a name has at most 512 bytes");
    [&length.to_le_bytes(), name].concat()
}
