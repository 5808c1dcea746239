//! Tests the addresses of sockets, reports of unreachable ports, and the fragments of two incarnations.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Cluster, address};
use crate::id::NodeId;
use crate::services::{Arrival, BoxError, TcpListener, TcpStream, UdpSocket};

/// Runs hosts until the last of them has ended.
#[track_caller]
fn run<F>(hosts: u16, code: impl Fn(NodeId) -> F + Send + Sync + 'static)
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let mut cluster = Cluster::new(1, hosts, code);
    assert_eq!(cluster.run(Duration::from_secs(1), usize::from(hosts)), usize::from(hosts));
    (0..hosts).for_each(|node| cluster.take_end(NodeId(node)).1.unwrap());
}

#[test]
fn a_udp_socket_of_the_loopback_address_is_not_reached_from_other_hosts_and_sends_to_none() {
    run(2, |node| async move {
        if node.0 == 0 {
            let own = UdpSocket::bind("127.0.0.1:7".parse()?)?;
            let error = own.send_to(b"out", address(1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let within = Duration::from_millis(10);
            let received = tokio::time::timeout(within, own.recv_from(&mut [0; 8])).await;
            assert!(received.is_err(), "{received:?}");
            return Ok(());
        }
        let socket = UdpSocket::bind(address(1))?;
        socket.send_to(b"in", address(0)).await?;
        let arrived = std::future::poll_fn(|context| socket.poll_receive(context)).await;
        assert_eq!(arrived, Arrival::Unreachable(address(0)));
        Ok(())
    });
}

#[test]
fn udp_sockets_of_the_hosts_own_and_loopback_addresses_answer_each_other() {
    run(1, |_| async move {
        let outer = UdpSocket::bind(address(0))?;
        for place in ["127.0.0.1:8", "[::1]:9"] {
            let inner = UdpSocket::bind(place.parse()?)?;
            outer.send_to(b"ask", inner.local_addr()).await?;
            let (_, peer) = inner.recv_from(&mut [0; 8]).await?;
            assert_eq!(peer, outer.local_addr());
            inner.send_to(b"answer", peer).await?;
            let (length, peer) = outer.recv_from(&mut [0; 8]).await?;
            assert_eq!((length, peer), (6, inner.local_addr()));
        }
        Ok(())
    });
}

#[test]
fn a_udp_socket_receives_on_after_a_report_of_an_unreachable_port() {
    run(2, |node| async move {
        if node.0 == 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            UdpSocket::bind(address(1))?.send_to(b"late", address(0)).await?;
            // The datagram leaves before the host's end.
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        }
        let socket = UdpSocket::bind(address(0))?;
        socket.send_to(b"early", address(1)).await?;
        let (length, peer) = socket.recv_from(&mut [0; 8]).await?;
        assert_eq!((length, peer), (4, address(1)));
        Ok(())
    });
}

#[test]
fn a_long_datagram_to_a_port_without_a_socket_is_reported() {
    run(2, |node| async move {
        if node.0 == 1 {
            // The host reports until its end.
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        }
        let socket = UdpSocket::bind(address(0))?;
        socket.send_to(&[1; 10_000], address(1)).await?;
        let arrived = std::future::poll_fn(|context| socket.poll_receive(context)).await;
        assert_eq!(arrived, Arrival::Unreachable(address(1)));
        Ok(())
    });
}

#[test]
fn a_datagram_has_no_fragments_of_its_senders_former_incarnation() {
    let starts = Arc::new(AtomicU8::new(0));
    let mut cluster = Cluster::new(1, 2, move |node| {
        let starts = Arc::clone(&starts);
        async move {
            let socket = UdpSocket::bind(address(node.0))?;
            if node.0 == 1 {
                let start = starts.fetch_add(1, Ordering::Relaxed);
                socket.send_to(&[start; 60_000], address(0)).await?;
                return std::future::pending().await;
            }
            let mut bytes = [0; 60_000];
            socket.recv_from(&mut bytes).await?;
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "it is of two incarnations");
            Ok(())
        }
    });
    // The datagram takes 0.5 ms on the line.
    cluster.run(Duration::from_micros(250), 1);
    cluster.world.cut(NodeId(0), NodeId(1));
    cluster.run(Duration::from_millis(1), 1);
    cluster.world.crash(NodeId(1));
    cluster.world.heal(NodeId(0), NodeId(1));
    cluster.world.restart(NodeId(1));
    cluster.start(NodeId(1));
    assert_eq!(cluster.run(Duration::from_millis(10), 1), 1);
    cluster.take_end(NodeId(0)).1.unwrap();
}

/// Connects to `to`, and checks that `listener` accepts the stream.
async fn reach(
    listener: &TcpListener,
    to: impl crate::services::ToAddress,
) -> Result<(), BoxError> {
    let mut near = TcpStream::connect(to).await?;
    let accepted = tokio::time::timeout(Duration::from_millis(10), listener.accept()).await;
    let (mut far, peer) = accepted??;
    assert_eq!(peer, near.local_addr()?);
    near.write_u8(7).await?;
    assert_eq!(far.read_u8().await?, 7);
    Ok(())
}

#[test]
fn every_loopback_and_unspecified_address_and_localhost_reach_the_own_host_by_tcp() {
    run(1, |_| async move {
        let any = TcpListener::bind("0.0.0.0:0").await?;
        let port = any.local_addr()?.port();
        reach(&any, any.local_addr()?).await?;
        for host in ["127.0.0.1", "127.0.0.2", "::1", "::", "localhost", "10.0.0.1"] {
            reach(&any, (host, port)).await.map_err(|error| format!("{host}: {error}"))?;
        }
        reach(&any, format!("localhost:{port}")).await?;
        let six = TcpListener::bind("[::1]:80").await?;
        for place in ["[::1]:80", "127.0.0.1:80", "localhost:80"] {
            reach(&six, place).await.map_err(|error| format!("{place}: {error}"))?;
        }
        let refused = TcpStream::connect(("10.0.0.1", 80)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        Ok(())
    });
}
