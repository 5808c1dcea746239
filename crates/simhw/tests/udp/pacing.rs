//! Tests that frames leave no faster than the line, and that alarms and sleeps are never early.

use std::net::UdpSocket;
use std::time::Duration;

use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::host::Host as _;
use midplane_simhw::link::{Framing, LinkProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::Coprocessor;

use crate::udp::firmware::{Cluster, SEND, command, completion, run};

#[test]
fn a_burst_leaves_at_the_lines_rate_and_in_order() {
    const FRAMES: usize = 200;
    const BYTES: usize = 1_000;
    let rate = LineRate::mbps(100);
    let link = LinkProfile::ethernet(rate, Duration::ZERO);
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        for catch_up in [Duration::ZERO, Duration::from_micros(500)] {
            run(async {
                let cluster = Cluster::start("127.0.0.1", 2, |config| {
                    config.line(link).coprocessor(coprocessor).catch_up(catch_up)
                });
                let host = cluster.nics[0].host();
                let mut port = host.open_port().unwrap();
                let region = port.register(BYTES).unwrap();
                let begun = host.now();
                for _ in 0..FRAMES {
                    port.post(&command(SEND, 1, &region)).unwrap();
                }
                port.ring();
                for _ in 0..FRAMES {
                    completion(&mut port).await;
                }
                let arrived = cluster.seen[1].wait_for(FRAMES).await;
                assert!((0_u32..).zip(&arrived).all(|(n, a)| a.header.sequence == n));
                let wire = Framing::ETHERNET.wire_bytes((HEADER_BYTES + BYTES) as u32);
                // Each frame that has arrived had begun to leave, so all frames before it had left completely.
                for (before, arrival) in (0_u64..).zip(&arrived) {
                    let carried =
                        rate.bytes_in((arrival.at.since(begun) + catch_up).as_nanos() as u64);
                    assert!(before * u64::from(wire) <= carried + 1, "frame {before}");
                }
                // The NIC reported the departures beforehand, and that the line was busy in between.
                let departures = cluster.seen[0].with(|record| record.departures.clone());
                let share = rate.nanos_for(u64::from(wire));
                for two in departures.windows(2).skip_while(|two| two[0] == two[1]) {
                    assert!(catch_up > Duration::ZERO || two[1].nanos_since(two[0]) + 1 >= share);
                }
                assert!(cluster.seen[0].with(|record| record.busy) > 0);
            });
        }
    }
}

#[test]
fn equal_frames_to_two_nodes_do_not_change_places() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 3, |config| {
            config.line(LinkProfile::plain(LineRate::mbps(10_000), Duration::ZERO))
        });
        let mut port = cluster.nics[0].host().open_port().unwrap();
        let (small, large) = (port.register(100).unwrap(), port.register(9_000).unwrap());
        for round in 0..60 {
            let node = 1 + round / 3 % 2;
            let region = if round % 7 == 0 { &large } else { &small };
            port.submit(&command(SEND, node, region)).unwrap();
        }
        for _ in 0..60 {
            completion(&mut port).await;
        }
        for seen in &cluster.seen[1..] {
            let arrived = seen.wait_for(30).await;
            assert!(arrived.is_sorted_by_key(|arrival| arrival.header.sequence));
            for arrival in arrived {
                assert_eq!(arrival.payload.len() == 9_000, arrival.header.sequence % 7 == 0);
            }
        }
    });
}

#[test]
fn a_shutdown_first_sends_the_frames_that_wait_for_the_line() {
    run(async {
        // 8 frames of 1 KB wait for 64 ms on a line of 1 Mb/s.
        let slow = LinkProfile::plain(LineRate::mbps(1), Duration::ZERO);
        let mut cluster = Cluster::start("127.0.0.1", 2, |config| config.line(slow));
        let nic = cluster.nics.remove(0);
        let mut port = nic.host().open_port().unwrap();
        let region = port.register(1_000).unwrap();
        for _ in 0..8 {
            port.submit(&command(SEND, 1, &region)).unwrap();
            completion(&mut port).await;
        }
        assert_eq!(nic.shutdown().await.frames_sent, 8);
        cluster.seen[1].wait_for(8).await;
    });
}

#[test]
fn a_shutdown_that_is_dropped_frees_the_address() {
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        run(async {
            // 20 frames of 1 KB wait for 16 s on a line of 10 kb/s.
            let slow = LinkProfile::plain(LineRate::new(10_000).unwrap(), Duration::ZERO);
            let mut cluster =
                Cluster::start("127.0.0.1", 2, |config| config.line(slow).coprocessor(coprocessor));
            let nic = cluster.nics.remove(0);
            let mut port = nic.host().open_port().unwrap();
            let region = port.register(1_000).unwrap();
            for _ in 0..20 {
                port.submit(&command(SEND, 1, &region)).unwrap();
                completion(&mut port).await;
            }
            let ended = tokio::time::timeout(Duration::from_millis(20), nic.shutdown()).await;
            assert!(ended.is_err(), "frames wait for the line");
            let is_free = async {
                while UdpSocket::bind(cluster.peers[0]).is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let is_free = tokio::time::timeout(Duration::from_secs(2), is_free).await;
            assert!(is_free.is_ok(), "the NIC still sends");
        });
    }
}

#[test]
fn a_sleep_is_never_early_and_the_past_is_over_at_once() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 1, |config| config);
        let host = cluster.nics[0].host();
        for micros in [0, 1, 50, 700, 1_999, 2_001, 5_000] {
            let at = host.now() + Duration::from_micros(micros);
            host.sleep_until(at).await;
            assert!(host.now() >= at);
        }
        host.sleep_until(midplane_simhw::time::Instant::ZERO).await;
        // A sleep that is given up, many at once, and one on a task.
        let long = host.now() + Duration::from_secs(3_600);
        let given_up = tokio::time::timeout(Duration::from_millis(1), host.sleep_until(long)).await;
        assert!(given_up.is_err());
        let (done, mut all_done) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..100_u64 {
            let (sleeper, done) = (host.clone(), done.clone());
            host.spawn(async move {
                sleeper.sleep_until(sleeper.now() + Duration::from_micros(10 * number)).await;
                let _ = done.send(());
            });
        }
        drop(done);
        let mut count = 0;
        while all_done.recv().await.is_some() {
            count += 1;
        }
        assert_eq!(count, 100);
    });
}
