//! Measures goodput from many senders to one receiver behind a narrow port.

use std::time::Duration;

use midplane::simhw::frame::{HEADER_BYTES, Header};
use midplane::simhw::id::{ExtensionId, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::clock::now;
use crate::contest::Site;
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
pub(crate) async fn ours(site: &Site<'_>, number: u32, mode: Mode) -> Result<Vec<f64>, String> {
    let setting = Setting {
        fabric: Fabric::Switch,
        mode,
        senders: site.ranks() - 1,
        message_bytes: MESSAGE as u32,
        link_mbps: LINK_MBPS,
        buffer_bytes: PORT_BYTES,
        buffer_cells: None,
        etr_lead: None,
        seconds: site.time().as_secs_f64(),
        sealed: false,
        seed: site.cluster.seed,
    };
    let place = Place {
        rank: site.rank,
        peers: site.cluster.peers.clone(),
        switch: Some(site.cluster.switch),
    };
    let run = fabrics::take_part(&setting, &place, vec![], number, Duration::from_secs(5)).await;
    let run = run.map_err(|failure| failure.to_string())?;
    Ok(run.map(|run| vec![run.goodput_mbps]).unwrap_or_default())
}

/// Measures the same over plain UDP sockets, each sender at the rate of its link.
pub(crate) async fn over_udp(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let text = |error: std::io::Error| error.to_string();
    let own = site.cluster.peers[usize::from(site.rank)];
    let socket = UdpSocket::bind(own).await.map_err(text)?;
    let until = now() + WARM_UP + site.time();
    if site.rank == 0 {
        return Ok(vec![receive(site, &socket).await]);
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

async fn receive(site: &Site<'_>, socket: &UdpSocket) -> f64 {
    let mut bytes = vec![0; 1 << 16];
    let mut received = 0;
    let from = now() + WARM_UP;
    let until = from + site.time();
    while let left = until.saturating_duration_since(now())
        && !left.is_zero()
    {
        let Ok(came) = tokio::time::timeout(left, socket.recv(&mut bytes)).await else { break };
        if came.is_ok_and(|length| length == HEADER_BYTES + MESSAGE) && now() >= from {
            received += MESSAGE;
        }
    }
    received as f64 * 8.0 / 1e6 / site.time().as_secs_f64()
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
    let mut readers = JoinSet::new();
    let mut streams = Vec::new();
    for _ in 1..site.ranks() {
        streams.push(site.accept().await?);
    }
    let from = now() + WARM_UP;
    let until = from + site.time();
    for mut stream in streams {
        readers.spawn(async move {
            let mut bytes = vec![0; 1 << 16];
            let mut received = 0;
            while let left = until.saturating_duration_since(now())
                && !left.is_zero()
            {
                match tokio::time::timeout(left, stream.read(&mut bytes)).await {
                    Ok(Ok(length @ 1..)) if now() >= from => received += length,
                    Ok(Ok(1..)) => {}
                    _ => break,
                }
            }
            received
        });
    }
    let received: usize = readers.join_all().await.into_iter().sum();
    Ok(vec![received as f64 * 8.0 / 1e6 / site.time().as_secs_f64()])
}
