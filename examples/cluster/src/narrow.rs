//! Runs the narrow port in a process: a switch in software for UDP, and a relay of the same rate and buffer for TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use midplane::simhw::udp::{SoftSwitch, SwitchConfig};
use midplane_kit::clock::now;
use midplane_kit::processes;
use midplane_kit::report::Failure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Mutex;

use crate::fan_in::{LINK_MBPS, PORT_BYTES};

/// Bytes of a TCP segment, and of the headers and gap around it on an Ethernet.
const SEGMENT: usize = 1_460;
const AROUND: usize = 78;
/// Most time by which the relay may exceed its rate after a late wake-up.
const CATCH_UP: Duration = Duration::from_millis(2);

/// Runs the switch at the first of `peers` for the others, and the relay to `target`, until standard input ends.
///
/// # Errors
/// One line that names the address, or what the system refused.
pub(crate) fn serve(mut peers: Vec<SocketAddr>, target: SocketAddr) -> Result<(), Failure> {
    let bind = peers.remove(0);
    let switch = SoftSwitch::start(SwitchConfig::new(bind, peers));
    let _switch = switch.map_err(Failure::of_run)?;
    processes::end_with_parent();
    let failed = |error| Failure::of_run(format!("{bind}: {error}"));
    processes::run(async { relay(bind, target).await.map_err(failed) })
}

async fn relay(bind: SocketAddr, target: SocketAddr) -> std::io::Result<()> {
    let socket = if bind.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_recv_buffer_size(PORT_BYTES)?;
    socket.bind(bind)?;
    let listener: TcpListener = socket.listen(64)?;
    let port = Arc::new(Mutex::new(now()));
    loop {
        let (stream, _) = listener.accept().await?;
        let port = Arc::clone(&port);
        // A relay that fails closes both connections, which their ends notice.
        tokio::spawn(async move { drop(forward(stream, target, port).await) });
    }
}

/// Forwards one connection through the port that all share, segment by segment. `port` is the time at which it is free.
async fn forward(
    mut from: TcpStream,
    target: SocketAddr,
    port: Arc<Mutex<Instant>>,
) -> std::io::Result<()> {
    let mut to = TcpStream::connect(target).await?;
    to.set_nodelay(true)?;
    let mut bytes = [0; SEGMENT];
    loop {
        let length = from.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        let mut free = port.lock().await;
        let wire = Duration::from_nanos(((length + AROUND) * 8_000) as u64 / u64::from(LINK_MBPS));
        *free = (*free).max(now() - CATCH_UP) + wire;
        to.write_all(&bytes[..length]).await?;
        let left = free.saturating_duration_since(now());
        // tokio's timers have a resolution of 1 ms.
        if left > Duration::from_millis(1) {
            tokio::time::sleep(left).await;
        }
    }
}
