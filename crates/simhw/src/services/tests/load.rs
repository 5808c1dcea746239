//! TCP under load: many senders to one receiver, and a listener that never accepts.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::{Cluster, address};
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::services::{BACKLOG, BoxError, TcpListener, TcpStream};

/// Bytes that all senders together send.
const TOTAL: usize = 4 << 20;

/// Sends equal parts from `senders` nodes to node 0 at once. Returns the virtual time until all have arrived, and the
/// number of packets that the switch has dropped.
fn fan_in(senders: u16) -> (Duration, u64) {
    let part = TOTAL / usize::from(senders);
    let mut cluster = Cluster::new(1, senders + 1, move |node| async move {
        if node.0 > 0 {
            let mut stream = TcpStream::connect(address(0)).await?;
            stream.write_all(&vec![node.0 as u8; part]).await?;
            stream.shutdown().await?;
            assert_eq!(stream.read(&mut [0]).await?, 0);
            return Ok(());
        }
        let listener = TcpListener::bind(address(0)).await?;
        let mut readers = JoinSet::new();
        for _ in 0..senders {
            let (mut stream, peer) = listener.accept().await?;
            readers.spawn(async move {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await?;
                let std::net::IpAddr::V4(ip) = peer.ip() else { panic!("{peer}") };
                assert!(bytes == vec![ip.octets()[3] - 1; part], "{} bytes of {peer}", bytes.len());
                Ok::<_, BoxError>(())
            });
        }
        readers.join_all().await.into_iter().collect()
    });
    let ends = usize::from(senders) + 1;
    assert_eq!(cluster.run(Duration::from_secs(600), ends), ends);
    (1..=senders).for_each(|node| cluster.take_end(NodeId(node)).1.unwrap());
    let (at, end) = cluster.take_end(NodeId(0));
    end.unwrap();
    (Duration::from_nanos(at.as_nanos()), cluster.world.traffic().drops.of(DropCause::BufferFull))
}

#[test]
fn sixteen_senders_to_one_overflow_the_switch_and_all_bytes_arrive_later_than_those_of_one() {
    let (alone, _) = fan_in(1);
    let (together, dropped) = fan_in(16);
    // A segment that is lost twice waits for the timeout.
    assert!(dropped > 50 && together > 10 * alone, "{alone:?} {together:?} {dropped}");
}

#[test]
fn a_listener_that_never_accepts_keeps_its_backlog_and_further_requests_time_out() {
    const MORE: usize = 50;
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            let _listener = TcpListener::bind(address(0)).await?;
            tokio::time::sleep(Duration::from_secs(200)).await;
            return Ok(());
        }
        let mut requests = JoinSet::new();
        for _ in 0..BACKLOG + MORE {
            requests.spawn(TcpStream::connect(address(0)));
        }
        let mut open = Vec::new();
        while let Some(request) = requests.join_next().await {
            match request? {
                Ok(stream) => open.push(stream),
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
            }
        }
        assert_eq!(open.len(), BACKLOG);
        // The listener is dropped, and resets the connections that are not accepted.
        for mut stream in open {
            let reset = stream.read_u8().await.unwrap_err();
            assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        }
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(300), 2), 2);
    let (at, end) = cluster.take_end(NodeId(1));
    end.unwrap();
    assert_eq!(at.as_nanos() / 1_000_000_000, 200);
    // Each further request is sent several times within the 127 s.
    let refused = cluster.hosts.drops().of(DropCause::SocketFull);
    assert!(refused >= 6 * MORE as u64, "{refused}");
}
