//! Requests over UDP, each of which is answered: 8 are always in flight, those of 8 callers.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use midplane::simhw::id::NodeId;
use midplane::simhw::udp::{Coprocessor, UdpNic};
use midplane_benches::live_nic::unpaced;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::{BYTES, Part, now, start, unit};
use crate::pingpong::fabric::run;
use crate::pingpong::layers::{LOST, lost};
use crate::pingpong::raw::End;
use crate::processes;
use crate::report::text;

const CALLERS: usize = 8;
/// Posted buffers: more than there are requests in flight.
const BUFFERS: usize = 2 * CALLERS;
/// Bytes of one receive buffer of a socket: as many as the system joins.
const BUFFER_BYTES: usize = 1 << 16;

/// Starts the NIC of a node at one of the addresses in `place`.
fn start_nic(place: &str, node: u16) -> Result<UdpNic, String> {
    let addresses: Result<Vec<SocketAddr>, _> = place.split(',').map(str::parse).collect();
    let config = unpaced(NodeId(node), addresses.map_err(text)?).coprocessor(Coprocessor::Task);
    UdpNic::start(config, unit()).map_err(text)
}

/// Waits for messages, and sends as many; returns their number.
async fn exchange(end: &mut End) -> Result<u64, String> {
    let mut next = Some(end.port.completion().await.map_err(text)?);
    let mut count = 0;
    while let Some(done) = next {
        if let Some(slot) = End::received(&done)? {
            end.post_buffer(slot)?;
            end.post_message(BYTES);
            count += 1;
        }
        next = end.port.take();
    }
    if count > 0 {
        end.port.ring();
    }
    Ok(count)
}

/// Returns the thousands of requests a second through two NICs.
pub(crate) fn ours(time: Duration) -> Result<f64, String> {
    let addresses = processes::free_addresses(2)?;
    let place = format!("{},{}", addresses[0], addresses[1]);
    run(async {
        let nic = start_nic(&place, 0)?;
        let mut end = super::open(&nic.host(), BUFFERS)?;
        let mut other = start(Part::Echo, &place, 10)?;
        let asked = async {
            // The other side has posted its buffers before it sends.
            end.port.completion().await.map_err(text)?;
            for _ in 0..CALLERS {
                end.post_message(BYTES);
            }
            end.port.ring();
            let (begin, mut answers) = (now(), 0);
            while begin.elapsed() < time {
                answers += timeout(LOST, exchange(&mut end)).await.map_err(|_| lost())??;
            }
            Ok(answers as f64 / begin.elapsed().as_secs_f64() / 1e3)
        };
        other.while_running(asked).await
    })
}

/// Answers the requests of a NIC.
pub(crate) fn echo(place: &str) -> Result<(), String> {
    run(async {
        let nic = start_nic(place, 1)?;
        let mut end = super::open(&nic.host(), BUFFERS)?;
        end.post_message(BYTES);
        end.port.ring();
        loop {
            exchange(&mut end).await?;
        }
    })
}

/// A socket with batched system calls, and the memory of a batch.
struct Batched {
    socket: UdpSocket,
    state: UdpSocketState,
    memory: Vec<u8>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Batched {
    fn bind(own: SocketAddr) -> Result<Self, String> {
        let socket = std::net::UdpSocket::bind(own).map_err(text)?;
        socket.set_nonblocking(true).map_err(text)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).map_err(text)?;
        let socket = UdpSocket::from_std(socket).map_err(text)?;
        let memory = vec![0; BATCH_SIZE * BUFFER_BYTES];
        Ok(Self { socket, state, memory, metas: [RecvMeta::default(); BATCH_SIZE] })
    }

    /// Sends `count` datagrams of [`BYTES`] in one call.
    async fn send(&self, to: SocketAddr, count: usize) -> Result<(), String> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &[7; BUFFERS * BYTES][..count.min(BUFFERS) * BYTES],
            segment_size: Some(BYTES),
            src_ip: None,
        };
        let send = || self.state.try_send(UdpSockRef::from(&self.socket), &transmit);
        self.socket.async_io(Interest::WRITABLE, send).await.map_err(text)
    }

    /// Waits for datagrams, and sends as many to `peer`; returns their number.
    async fn exchange(&mut self, peer: SocketAddr) -> Result<u64, String> {
        let Self { socket, state, memory, metas } = self;
        let receive = || {
            let mut chunks = memory.chunks_exact_mut(BUFFER_BYTES);
            let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] = std::array::from_fn(|_| {
                IoSliceMut::new(chunks.next().expect("memory for every buffer"))
            });
            state.recv(UdpSockRef::from(&*socket), &mut buffers, metas)
        };
        let filled = socket.async_io(Interest::READABLE, receive).await.map_err(text)?;
        let count: usize = metas[..filled].iter().map(|meta| meta.len / BYTES).sum();
        self.send(peer, count).await?;
        Ok(count as u64)
    }
}

/// Returns the thousands of requests a second between two of tokio's sockets.
pub(crate) fn sockets(time: Duration) -> Result<f64, String> {
    let addresses = processes::free_addresses(2)?;
    let place = format!("{},{}", addresses[1], addresses[0]);
    run(async {
        let mut socket = Batched::bind(addresses[0])?;
        let mut other = start(Part::SocketEcho, &place, 10)?;
        let asked = async {
            socket.socket.readable().await.map_err(text)?;
            let mut first = [0; BYTES];
            socket.socket.recv(&mut first).await.map_err(text)?;
            socket.send(addresses[1], CALLERS).await?;
            let (begin, mut answers) = (now(), 0);
            while begin.elapsed() < time {
                let done = timeout(LOST, socket.exchange(addresses[1])).await;
                answers += done.map_err(|_| lost())??;
            }
            Ok(answers as f64 / begin.elapsed().as_secs_f64() / 1e3)
        };
        other.while_running(asked).await
    })
}

/// Answers the requests of a socket.
pub(crate) fn echo_socket(place: &str) -> Result<(), String> {
    let (own, peer) = place.split_once(',').ok_or("--place takes two addresses")?;
    let (own, peer) = (own.parse().map_err(text)?, peer.parse().map_err(text)?);
    run(async {
        let mut socket = Batched::bind(own)?;
        socket.send(peer, 1).await?;
        loop {
            socket.exchange(peer).await?;
        }
    })
}
