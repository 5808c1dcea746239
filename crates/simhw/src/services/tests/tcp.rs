//! Tests TCP between hosts: exact bytes under loss, refused connections, closed ones, crashes.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Cluster, address};
use crate::fault::{Fault, Faults, Incident};
use crate::id::NodeId;
use crate::services::{BoxError, TcpListener, TcpStream};
use crate::time::Instant;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Node 0 echoes each stream once its peer has shut it down; the others send `length` bytes and read them back.
async fn echo(node: NodeId, length: usize) -> Result<(), BoxError> {
    if node.0 == 0 {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await?;
                stream.write_all(&bytes).await
            });
        }
    }
    let mut stream = TcpStream::connect(address(0)).await?;
    assert_eq!(stream.peer_addr()?, address(0));
    let sent = pattern(length);
    stream.write_all(&sent).await?;
    stream.shutdown().await?;
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await?;
    assert!(back == sent, "{} bytes come back as {}", sent.len(), back.len());
    Ok(())
}

#[test]
fn bytes_are_exact_under_loss_reordering_and_duplication_and_each_run_is_the_same() {
    let once = |seed| {
        let mut cluster = Cluster::new(seed, 2, |node| echo(node, 200_000));
        cluster.world.set_faults(Faults {
            loss: 0.02,
            duplicate: 0.02,
            jitter: Duration::from_micros(50),
            ..Faults::NONE
        });
        assert_eq!(cluster.run(Duration::from_secs(600), 1), 1, "seed {seed}");
        cluster.take_end(NodeId(1)).1.unwrap();
        cluster.world.digest()
    };
    let digests: Vec<_> = (0..50).map(once).collect();
    assert_eq!(once(7), digests[7]);
    assert_ne!(digests[7], digests[8]);
}

#[test]
fn a_stream_takes_the_time_of_its_packets_on_the_line() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            let listener = TcpListener::bind(address(0)).await?;
            let (mut stream, _) = listener.accept().await?;
            stream.write_all(&vec![1; 10_000_000]).await?;
            return std::future::pending().await;
        }
        let mut stream = TcpStream::connect(address(0)).await?;
        stream.read_exact(&mut vec![0; 10_000_000]).await?;
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(10), 1), 1);
    let (took, end) = cluster.take_end(NodeId(1));
    end.unwrap();
    // 1,460 bytes in 1,538 at 1 Gb/s: 84.3 ms. The first window is less than two segments, whose acknowledgement is
    // delayed by 10 ms, twice.
    let line = 10_000_000 / 1_460 * 12_304;
    assert!((line..line + 25_000_000).contains(&took.as_nanos()), "{took}");
}

#[test]
fn a_port_without_a_listener_refuses_and_an_unknown_address_is_unreachable() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            return std::future::pending().await;
        }
        let refused = TcpStream::connect(address(0)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let own = TcpStream::connect("127.0.0.1:9").await.unwrap_err();
        assert_eq!(own.kind(), ErrorKind::ConnectionRefused);
        let nowhere = TcpStream::connect("10.0.9.9:1").await.unwrap_err();
        assert_eq!(nowhere.kind(), ErrorKind::HostUnreachable);
        let _first = TcpListener::bind("0.0.0.0:80").await?;
        let second = TcpListener::bind("0.0.0.0:80").await.unwrap_err();
        assert_eq!(second.kind(), ErrorKind::AddrInUse);
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(1)).1.unwrap();
}

#[test]
fn the_own_host_is_reached_by_loopback() {
    let mut cluster = Cluster::new(1, 1, |_| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut near = TcpStream::connect(listener.local_addr()?).await?;
        let (mut far, peer) = listener.accept().await?;
        assert_eq!(peer, near.local_addr()?);
        near.write_all(b"loop").await?;
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).await?;
        assert_eq!(text, "loop");
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(0)).1.unwrap();
}

#[test]
fn a_peer_that_has_crashed_and_restarted_resets_a_stream_and_is_reached_again() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            return echo(node, 0).await;
        }
        let mut stream = TcpStream::connect(address(0)).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"to a crashed peer").await?;
        let reset = stream.read_u8().await.unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        let broken = stream.write_all(b"more").await.unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::ConnectionReset);
        echo(node, 1_000).await
    });
    cluster.run(Duration::from_millis(10), 1);
    cluster.world.crash(NodeId(0));
    cluster.run(Duration::from_millis(10), 1);
    cluster.world.restart(NodeId(0));
    cluster.start(NodeId(0));
    assert_eq!(cluster.run(Duration::from_secs(60), 1), 1);
    cluster.take_end(NodeId(1)).1.unwrap();
}

#[test]
fn a_process_exit_is_silent_as_a_power_loss() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            return echo(node, 0).await;
        }
        let mut stream = TcpStream::connect(address(0)).await?;
        let silence = tokio::time::timeout(Duration::from_secs(1), stream.read_u8()).await;
        assert!(silence.is_err(), "{silence:?}");
        stream.write_all(b"to an ended process").await?;
        let silence = tokio::time::timeout(Duration::from_secs(1), stream.read_u8()).await;
        assert!(silence.is_err(), "{silence:?}");
        Ok(())
    });
    let fault = Fault::ProcessExit { node: NodeId(0) };
    let (at, lasts) = (Instant::from_nanos(10_000_000), Duration::from_secs(10));
    cluster.world.schedule(Incident { at, lasts, fault });
    assert_eq!(cluster.run(Duration::from_secs(5), 1), 1);
    cluster.take_end(NodeId(1)).1.unwrap();
}

#[test]
fn a_stream_to_a_crashed_peer_times_out() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            return echo(node, 0).await;
        }
        let mut stream = TcpStream::connect(address(0)).await?;
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        stream.write_all(b"to a crashed peer").await?;
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let silent = TcpStream::connect(address(0)).await.unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        Ok(())
    });
    cluster.run(Duration::from_millis(10), 1);
    cluster.world.crash(NodeId(0));
    assert_eq!(cluster.run(Duration::from_secs(3_000), 1), 1);
    let (took, end) = cluster.take_end(NodeId(1));
    end.unwrap();
    assert_eq!(took.as_nanos() / 1_000_000_000, 1_000 + 900 + 127);
}

#[test]
fn a_lost_tail_is_resent_after_two_round_trips() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            let (mut stream, _) = TcpListener::bind(address(0)).await?.accept().await?;
            loop {
                let round = stream.read_u32().await?;
                stream.write_u32(round).await?;
            }
        }
        let mut stream = TcpStream::connect(address(0)).await?;
        for round in 0..1_000 {
            stream.write_u32(round).await?;
            assert_eq!(stream.read_u32().await?, round);
        }
        Ok(())
    });
    cluster.world.set_faults(Faults { loss: 0.02, ..Faults::NONE });
    assert_eq!(cluster.run(Duration::from_secs(600), 1), 1);
    let (took, end) = cluster.take_end(NodeId(1));
    end.unwrap();
    // About 20 requests and 20 answers are lost. Each costs a few milliseconds; one in fifty is lost again.
    assert!(took.as_nanos() < 3_000_000_000, "{took}");
}
