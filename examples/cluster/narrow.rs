//! The narrow port, as a process: a switch in software, and for TCP a relay that is as narrow.

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use midplane::simhw::udp::{SoftSwitch, SwitchConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Mutex;

use crate::clock::now;
use crate::fan_in::{LINK_MBPS, PORT_BYTES};

/// Bytes of a segment, and what is around it on an Ethernet.
const SEGMENT: usize = 1_460;
const AROUND: usize = 78;
/// What a late wake-up is made up for with, at most.
const CATCH_UP: Duration = Duration::from_millis(2);

/// Is the switch at the first of `peers` for the others, and the relay to `target`, until standard
/// input ends.
///
/// # Errors
/// One line.
pub(crate) fn serve(mut peers: Vec<SocketAddr>, target: SocketAddr) -> Result<(), String> {
    let bind = peers.remove(0);
    let switch = SoftSwitch::start(SwitchConfig::new(bind, peers));
    let switch = switch.map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        // However it ends, nobody needs the switch any more.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let relayed = runtime.block_on(relay(bind, target));
    drop(switch);
    relayed.map_err(|error| format!("{bind}: {error}"))
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
        // A connection that fails is over, as its ends find out.
        tokio::spawn(async move { drop(forward(stream, target, port).await) });
    }
}

/// One connection's way through the port that all share: segment after segment, in the order in which
/// they ask for it.
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
        // The runtime's clock ticks in milliseconds.
        if left > Duration::from_millis(1) {
            tokio::time::sleep(left).await;
        }
    }
}
