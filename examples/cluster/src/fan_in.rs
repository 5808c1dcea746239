//! Measures goodput from many senders to one receiver behind a narrow port.

use std::time::Duration;

use midplane::simhw::frame::{HEADER_BYTES, Header};
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane_benches::counts::Counts;
use midplane_benches::meeting::Meeting;
use midplane_kit::clock::now;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;

use crate::contest::{MEET, Site};
use crate::incast::fabrics;
use crate::incast::setting::{Mode, Setting};
use crate::nodes::{Fabric, Place};

/// Bytes of a message.
const MESSAGE: usize = 10_000;
/// Rate of every link, in 10^6 bit/s.
pub(crate) const LINK_MBPS: u32 = 100;
/// Bytes of buffer at a port.
pub(crate) const PORT_BYTES: u32 = 32 << 10;
/// Time before the measurement.
const WARM_UP: Duration = Duration::from_millis(150);

/// Measures the goodput in 10^6 bit/s of senders whose NICs are coordinated by `mode`.
pub(crate) async fn ours(site: &Site<'_>, mode: Mode) -> Result<Vec<f64>, String> {
    let setting = Setting {
        fabric: Fabric::Switch,
        mode,
        senders: site.ranks() - 1,
        message_bytes: MESSAGE as u32,
        link_mbps: LINK_MBPS,
        buffer_bytes: PORT_BYTES,
        atm: None,
        seconds: site.time().as_secs_f64(),
        sealed: false,
        seed: site.cluster.seed,
    };
    let place = Place {
        rank: site.rank,
        peers: site.cluster.peers.clone(),
        switch: Some(site.cluster.switch),
    };
    let run = async {
        let mut meeting = match site.rank {
            0 => Meeting::lead(site.listener, place.peers.len(), MEET).await?,
            rank => Meeting::follow(site.cluster.listeners[0], rank, MEET).await?,
        };
        fabrics::take_part(&setting, &place, vec![], &mut meeting).await
    };
    let run = run.await.map_err(|failure| failure.to_string())?;
    Ok(run.map(|run| vec![run.goodput_mbps]).unwrap_or_default())
}

/// Measures the same over plain UDP sockets, each sender at the rate of its link.
pub(crate) async fn over_udp(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let text = |error: std::io::Error| error.to_string();
    let own = site.cluster.peers[usize::from(site.rank)];
    let socket = UdpSocket::bind(own).await.map_err(text)?;
    let until = now() + WARM_UP + site.time();
    if site.rank == 0 {
        let counts = Counts::default();
        counts.receive(socket);
        let payload = MESSAGE as f64 / (HEADER_BYTES + MESSAGE) as f64;
        return Ok(vec![sum(site, &counts).await * payload]);
    }
    // The switch reads the header only.
    let header = Header {
        extension: ExtensionId(u8::MAX),
        source: NodeId(site.rank),
        destination: NodeId(0),
        length: MESSAGE as u16,
        hop_limit: 1 + 1,
        ..Header::default()
    };
    let mut frame = header.emit().to_vec();
    frame.resize(HEADER_BYTES + MESSAGE, 7);
    let interval = Duration::from_nanos(MESSAGE as u64 * 8_000 / u64::from(LINK_MBPS));
    let mut ticks = tokio::time::interval(interval);
    while now() < until {
        ticks.tick().await;
        // The system drops what its buffers have no room for, as always with UDP.
        let _ = socket.send_to(&frame, site.cluster.switch).await;
    }
    Ok(Vec::new())
}

/// Returns the goodput of all senders together, in 10^6 bit/s.
async fn sum(site: &Site<'_>, counts: &Counts) -> f64 {
    counts.rates(WARM_UP, site.time()).await.into_iter().sum()
}

/// Measures the same over TCP, through the relay.
pub(crate) async fn over_tcp(site: &Site<'_>) -> Result<Vec<f64>, String> {
    if site.rank > 0 {
        let mut stream = site.connect(site.cluster.switch).await?;
        let message = [7; MESSAGE];
        // The receiver closes the stream when the measurement ends.
        while stream.write_all(&message).await.is_ok() {}
        return Ok(Vec::new());
    }
    let counts = Counts::default();
    for sender in 1..site.ranks() {
        counts.read(sender, site.accept().await?);
    }
    Ok(vec![sum(site, &counts).await])
}
