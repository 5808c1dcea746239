//! Tests two and more hosts in virtual time: two runs with the same seed are the same.

mod addresses;
mod load;
mod tcp;

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Arrival, BoxError, DATAGRAM_FRAMING, DatagramNic, HostError, Hosts, MAX_DATAGRAM, Main,
    RECEIVE_BYTES, UdpSocket, VirtualHost, run,
};
use crate::drops::{DropCause, Drops};
use crate::fault::{Fault, Faults, Incident};
use crate::id::NodeId;
use crate::link::LinkProfile;
use crate::profile::NicProfile;
use crate::sim::World;
use crate::switch::{Buffer, SwitchProfile};
use crate::time::{Instant, LineRate};
use crate::topology::Topology;

type Ends = Arc<Mutex<Vec<(NodeId, Instant, Result<(), HostError>)>>>;
type Code = Arc<dyn Fn(NodeId) -> Main + Send + Sync>;

/// A star of links of 1 Gb/s and 2 us, without other costs.
struct Cluster {
    world: World<DatagramNic>,
    ends: Ends,
    code: Code,
    hosts: Arc<Hosts>,
}

impl Cluster {
    fn new<F>(seed: u64, hosts: u16, code: impl Fn(NodeId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let mut link = LinkProfile::plain(LineRate::mbps(1_000), Duration::from_micros(2));
        link.framing = DATAGRAM_FRAMING;
        let switch = SwitchProfile::new(Buffer::Bytes(64 << 10));
        let topology = Topology::star(hosts, link, switch);
        let names = (0..hosts).map(|host| format!("host-{host}")).collect();
        let known = Hosts::new(names);
        let of_nics = Arc::clone(&known);
        let nic = move |_, _| DatagramNic::new(Arc::clone(&of_nics));
        let world = World::new(&topology, NicProfile::FREE, seed, nic);
        let code: Code = Arc::new(move |node| Box::pin(code(node)));
        let mut this = Self { world, ends: Ends::default(), code, hosts: known };
        (0..hosts).map(NodeId).for_each(|node| this.start(node));
        this
    }

    fn start(&mut self, node: NodeId) {
        let (host, hosts) = (self.world.host(node), Arc::clone(&self.hosts));
        let (code, ends) = (Arc::clone(&self.code), Arc::clone(&self.ends));
        self.world.spawn(node, async move {
            let clock = host.clone();
            let on_end = |end| {
                let now = crate::host::Host::now(&clock);
                ends.lock().unwrap().push((node, now, end));
            };
            run(host, hosts, MAX_DATAGRAM, move || code(node), on_end).await;
        });
    }

    /// Runs for at most `time` of virtual time, until `ended` hosts have ended. Returns how many have.
    fn run(&mut self, time: Duration, ended: usize) -> usize {
        let ends = Arc::clone(&self.ends);
        let until = self.world.now() + time;
        self.world.run_while(until, || ends.lock().unwrap().len() < ended);
        self.ends.lock().unwrap().len()
    }

    fn take_end(&self, node: NodeId) -> (Instant, Result<(), HostError>) {
        let mut ends = self.ends.lock().unwrap();
        let at = ends.iter().position(|(of, ..)| *of == node).expect("the host has ended");
        let (_, now, end) = ends.swap_remove(at);
        (now, end)
    }
}

fn address(node: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(Hosts::ip(NodeId(node)), 7)
}

/// Node 0 echoes datagrams; the others send `rounds` datagrams to it and wait for each echo.
async fn echo(node: NodeId, rounds: u32) -> Result<(), BoxError> {
    let socket = UdpSocket::bind(address(node.0))?;
    let mut bytes = [0; 2_000];
    if node.0 == 0 {
        loop {
            let (length, peer) = socket.recv_from(&mut bytes).await?;
            socket.send_to(&bytes[..length], peer).await?;
        }
    }
    for round in 0..rounds {
        socket.send_to(&round.to_le_bytes(), address(0)).await?;
        let (length, peer) = socket.recv_from(&mut bytes).await?;
        assert_eq!((length, peer, &bytes[..4]), (4, address(0), &round.to_le_bytes()[..]));
    }
    Ok(())
}

#[test]
fn a_round_trip_takes_the_modelled_time_and_one_seed_gives_one_digest() {
    let once = |seed, jitter| {
        let mut cluster = Cluster::new(seed, 3, |node| async move {
            if node.0 == 2 {
                // Draws of tokio's own timers, at their whole milliseconds.
                tokio::time::sleep(Duration::from_micros(2_500)).await;
                assert_eq!(VirtualHost::current().unwrap().now().as_nanos(), 3_000_000);
                return Ok(());
            }
            echo(node, 100).await
        });
        cluster.world.set_faults(Faults { jitter, ..Faults::NONE });
        assert_eq!(cluster.run(Duration::from_secs(1), 2), 2);
        (cluster.world.digest(), cluster.take_end(NodeId(1)))
    };
    let (digest, (took, end)) = once(1, Duration::ZERO);
    end.unwrap();
    // 70 bytes at 1 Gb/s take 560 ns, twice each way, and 2 us of each of four links.
    assert_eq!(took.as_nanos(), 100 * (4 * 560 + 4 * 2_000));
    assert_eq!(once(1, Duration::ZERO).0, digest);
    let jitter = Duration::from_micros(1);
    assert_eq!(once(1, jitter).0, once(1, jitter).0);
    assert_ne!(once(1, jitter).0, once(2, jitter).0);
}

#[test]
fn exact_timers_fire_at_their_nanosecond_and_tokios_at_the_next_millisecond() {
    let mut cluster = Cluster::new(1, 1, |_| async {
        let host = VirtualHost::current().unwrap();
        host.clone().alarm(Instant::from_nanos(1_234_567)).await;
        assert_eq!(host.now().as_nanos(), 1_234_567);
        let before = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_nanos(10)).await;
        assert_eq!(host.now().as_nanos(), 2_000_000);
        assert_eq!(before.elapsed().as_nanos(), 2_000_000 - 1_234_567);
        tokio::task::spawn(async move {
            host.clone().alarm(Instant::from_nanos(2_000_001)).await;
            assert_eq!(host.now().as_nanos(), 2_000_001);
        })
        .await?;
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(0)).1.unwrap();
}

#[test]
fn errors_panics_threads_and_livelocks_end_a_host_with_their_messages() {
    let mut cluster = Cluster::new(1, 5, |node| async move {
        match node.0 {
            0 => return Err("no luck".into()),
            1 => drop(tokio::spawn(async { panic!("in a task") }).await),
            2 => drop(tokio::task::spawn_blocking(|| {}).await),
            3 => loop {
                tokio::task::yield_now().await;
            },
            _ => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_millis(500), 4), 4);
    let ends: Vec<_> =
        (0..4).map(|node| cluster.take_end(NodeId(node)).1.unwrap_err().to_string()).collect();
    assert_eq!(ends[0], "no luck");
    assert!(ends[1].contains("in a task") && ends[1].contains("tests.rs"), "{}", ends[1]);
    assert!(ends[2].contains("spawn_blocking"), "{}", ends[2]);
    assert!(ends[3].contains("no time passes"), "{}", ends[3]);
}

#[test]
fn a_socket_of_tokio_and_a_wrong_place_end_a_host_with_the_cure() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        if node.0 == 0 {
            tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
        }
        crate::services::TcpStream::connect("server").await?;
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 2), 2);
    let end = |node| cluster.take_end(NodeId(node)).1.unwrap_err().to_string();
    let socket = end(0);
    assert!(socket.ends_with("use `midplane::net` in place of `tokio::net`"), "{socket}");
    assert_eq!(end(1), "\"server\" is not an address: write HOST:PORT");
}

#[test]
fn a_port_without_a_socket_is_reported_and_a_crashed_host_is_silent() {
    let mut cluster = Cluster::new(1, 3, |node| async move {
        if node.0 != 1 {
            return std::future::pending().await;
        }
        let socket = UdpSocket::bind(address(1))?;
        socket.send_to(b"to a host without a socket", address(0)).await?;
        let arrived = std::future::poll_fn(|context| socket.poll_receive(context)).await;
        assert_eq!(arrived, Arrival::Unreachable(address(0)));
        socket.send_to(b"to a host that has crashed", address(2)).await?;
        let silence = tokio::time::timeout(
            Duration::from_millis(100),
            std::future::poll_fn(|context| socket.poll_receive(context)),
        );
        assert!(silence.await.is_err());
        Ok(())
    });
    cluster.world.crash(NodeId(2));
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(1)).1.unwrap();
}

#[test]
fn a_crash_drops_all_tasks_and_a_restarted_host_binds_its_address_again() {
    let mut cluster = Cluster::new(1, 2, |node| echo(node, 1_000_000));
    cluster.run(Duration::from_millis(5), 1);
    cluster.world.crash(NodeId(0));
    cluster.run(Duration::from_millis(5), 1);
    let before = cluster.world.traffic().delivered;
    cluster.run(Duration::from_millis(5), 1);
    assert_eq!(cluster.world.traffic().delivered, before);
    cluster.world.restart(NodeId(0));
    cluster.start(NodeId(0));
    // The peer still waits for an answer that was lost.
    cluster.world.crash(NodeId(1));
    cluster.world.restart(NodeId(1));
    cluster.start(NodeId(1));
    cluster.run(Duration::from_millis(5), 1);
    assert!(cluster.world.traffic().delivered > before + 100);
}

#[test]
fn every_fault_of_the_nic_leaves_a_host_that_can_send_once_it_is_over() {
    let node = NodeId(0);
    let probability = 1.0;
    let faults = [
        Fault::DoorbellLost { node, probability },
        Fault::DoorbellDoubled { node, probability },
        Fault::InterruptLost { node, probability },
        Fault::NicReset { node },
        Fault::Trap { node },
        Fault::Pause { node },
        Fault::NicMemory { node, bytes: 0 },
    ];
    for fault in faults {
        let mut cluster = Cluster::new(1, 2, |node| async move {
            let socket = UdpSocket::bind(address(node.0))?;
            loop {
                let receive = std::future::poll_fn(|context| socket.poll_receive(context));
                let arrived = tokio::time::timeout(Duration::from_millis(2), receive).await;
                if node.0 == 0 || arrived.is_err() {
                    socket.send_to(b"on", address(1 - node.0)).await?;
                }
            }
        });
        let at = Instant::from_nanos(3_000_000);
        cluster.world.schedule(Incident { at, lasts: Duration::from_millis(10), fault });
        cluster.run(Duration::from_millis(40), 1);
        let before = cluster.world.traffic().delivered;
        cluster.run(Duration::from_millis(20), 1);
        assert!(cluster.world.traffic().delivered >= before + 10, "{fault:?}");
    }
}

#[test]
fn a_sender_that_is_faster_than_its_line_waits_and_loses_nothing() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        let socket = UdpSocket::bind(address(node.0))?;
        let mut bytes = [0; MAX_DATAGRAM];
        for number in 0..5_000_u32 {
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            if node.0 == 0 {
                socket.send_to(&bytes, address(1)).await?;
            } else {
                socket.recv_from(&mut bytes).await?;
                assert_eq!(bytes[..4], number.to_le_bytes());
            }
        }
        if node.0 == 0 {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    let (took, end) = cluster.take_end(NodeId(1));
    end.unwrap();
    // 1,538 bytes at 1 Gb/s.
    let line = 5_000 * 12_304;
    assert!((line..line + 50_000).contains(&took.as_nanos()), "{took:?}");
    assert_eq!(cluster.world.traffic().drops.total(), 0);
}

/// Node 1 sends `datagrams` of 1,000 bytes to node 0, which has a socket and does not receive for 100 ms. Returns the
/// number that node 0 then receives, and the drops of the hosts.
fn unread(datagrams: u64, incident: Option<Incident>) -> (u64, Drops) {
    let received = Arc::new(Mutex::new(0));
    let out = Arc::clone(&received);
    let mut cluster = Cluster::new(1, 2, move |node| {
        let out = Arc::clone(&out);
        async move {
            let socket = UdpSocket::bind(address(node.0))?;
            if node.0 == 1 {
                for _ in 0..datagrams {
                    socket.send_to(&[0; 1_000], address(0)).await?;
                }
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut bytes = [0; 1_000];
            let within = Duration::from_millis(1);
            while tokio::time::timeout(within, socket.recv_from(&mut bytes)).await.is_ok() {
                *out.lock().unwrap() += 1;
            }
            Ok(())
        }
    });
    incident.into_iter().for_each(|incident| cluster.world.schedule(incident));
    assert_eq!(cluster.run(Duration::from_secs(1), 2), 2);
    assert_eq!(cluster.world.traffic().delivered, datagrams);
    let received = *received.lock().unwrap();
    (received, cluster.hosts.drops())
}

#[test]
fn a_datagram_that_finds_its_socket_full_or_no_buffer_is_counted_by_its_cause() {
    let (received, drops) = unread(5_000, None);
    assert_eq!(received, RECEIVE_BYTES / 1_064);
    assert_eq!(drops.iter().collect::<Vec<_>>(), [(DropCause::SocketFull, 5_000 - received)]);
    let fault = Fault::Pause { node: NodeId(0) };
    let at = Instant::from_nanos(1_000_000);
    let lasts = Duration::from_millis(50);
    let (received, drops) = unread(2_000, Some(Incident { at, lasts, fault }));
    // 1,066 bytes at 1 Gb/s: about 117 in the first millisecond, then the buffers that are posted.
    assert!((300..400).contains(&received), "{received}");
    assert_eq!(drops.iter().collect::<Vec<_>>(), [(DropCause::NoBuffer, 2_000 - received)]);
}

#[test]
fn a_train_is_sent_whole_or_not_at_all_and_its_datagrams_carry_its_ecn_bits() {
    let mut cluster = Cluster::new(1, 2, |node| async move {
        let socket = UdpSocket::bind(address(node.0))?;
        if node.0 == 1 {
            let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
            let send =
                |length, segment| socket.try_send(address(0), &[7; 70_000][..length], segment, 2);
            assert_eq!(kind(send(3_000, MAX_DATAGRAM + 1)), ErrorKind::InvalidInput);
            assert_eq!(kind(send(65_536, 1_000)), ErrorKind::InvalidInput);
            send(0, 0)?;
            let mut trains = 0;
            while send(3_000, 1_400).is_ok() {
                trains += 1;
            }
            assert_eq!(trains, (256 << 10) / 3_000);
            assert_eq!(kind(send(3_000, 1_400)), ErrorKind::WouldBlock);
            std::future::poll_fn(|context| socket.poll_send_ready(context, 3_000)).await;
            send(3_000, 1_400)?;
            return std::future::pending().await;
        }
        let mut lengths = Vec::new();
        while lengths.len() < 1 + 3 * ((256 << 10) / 3_000 + 1) {
            let arrived = std::future::poll_fn(|context| socket.poll_receive(context)).await;
            let Arrival::Datagram(datagram) = arrived else { panic!("{arrived:?}") };
            assert_eq!(datagram.ecn, 2);
            lengths.push(datagram.bytes.len());
        }
        assert_eq!(lengths.remove(0), 0);
        assert!(lengths.chunks(3).all(|train| train == [1_400, 1_400, 200]), "{lengths:?}");
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(0)).1.unwrap();
}

#[test]
fn a_long_datagram_travels_in_fragments_and_is_lost_with_any_of_them() {
    let received = |loss| {
        let mut cluster = Cluster::new(1, 2, |node| async move {
            let socket = UdpSocket::bind(address(node.0))?;
            if node.0 == 1 {
                let too_long = socket.send_to(&[0; 65_508], address(0)).await;
                assert_eq!(too_long.unwrap_err().kind(), ErrorKind::InvalidInput);
                for round in 0..200_u16 {
                    let length = [1_473, 10_240, 65_507][usize::from(round % 3)];
                    socket.send_to(&vec![round as u8; length], address(0)).await?;
                }
                socket.send_to(b"end", address(0)).await?;
                return std::future::pending().await;
            }
            let (mut bytes, mut whole) = (vec![0; 70_000], 0);
            loop {
                let (length, _) = socket.recv_from(&mut bytes).await?;
                if length == 3 {
                    return Err(whole.to_string().into());
                }
                assert_eq!(length, [1_473, 10_240, 65_507][usize::from(bytes[0] % 3)]);
                assert!(bytes[..length].iter().all(|byte| *byte == bytes[0]));
                whole += 1;
            }
        });
        cluster.world.set_faults(Faults { loss, ..Faults::NONE });
        assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
        let end = cluster.take_end(NodeId(0)).1.unwrap_err();
        end.to_string().parse::<u32>().unwrap()
    };
    assert_eq!(received(0.0), 200);
    // Of 2, 7 and 45 fragments, 1 % each are lost: 98, 93 and 64 % of the datagrams arrive.
    let lossy = received(0.01);
    assert!((155..185).contains(&lossy), "{lossy}");
}

#[test]
fn a_datagram_to_the_own_host_has_the_loopback_address_as_its_source() {
    let mut cluster = Cluster::new(1, 1, |_| async move {
        let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
        socket.send_to(b"loop", "127.0.0.1:7".parse()?).await?;
        let (length, peer) = socket.recv_from(&mut [0; 8]).await?;
        assert_eq!((length, peer.to_string()), (4, "127.0.0.1:7".to_owned()));
        socket.send_to(b"loop", "127.0.0.1:8".parse()?).await?;
        let refused = std::future::poll_fn(|context| socket.poll_receive(context)).await;
        assert_eq!(refused, Arrival::Unreachable("127.0.0.1:8".parse()?));
        Ok(())
    });
    assert_eq!(cluster.run(Duration::from_secs(1), 1), 1);
    cluster.take_end(NodeId(0)).1.unwrap();
}
