//! Tests transfers from one port to another: command, frame, memory, completion.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::hardware::Firmware;
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::Status;
use midplane_simhw::udp::{Coprocessor, UdpConfig, UdpNic};

use crate::udp::firmware::{
    COPY, Cluster, RECEIVE, SEND, SEND_AND_ABORT, command, completion, run,
};

#[test]
fn a_message_goes_from_one_nodes_memory_to_the_others() {
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        run(async {
            let cluster = Cluster::start("127.0.0.1", 2, |config| config.coprocessor(coprocessor));
            let mut here = cluster.nics[0].host().open_port().unwrap();
            let mut there = cluster.nics[1].host().open_port().unwrap();
            // Larger than an Ethernet packet, at odd offsets.
            let message: Vec<u8> = (0..10_001_u32).map(|byte| byte as u8).collect();
            let from = here.register(20_000).unwrap();
            from.write(3, &message).unwrap();
            let to = there.register(10_010).unwrap();
            let mut receive = command(RECEIVE, 0, &to);
            receive.region = to.range(5, 10_004).unwrap();
            receive.cookie = 77;
            there.submit(&receive).unwrap();
            let mut send = command(SEND, 1, &from);
            send.region = from.range(3, 10_001).unwrap();
            send.cookie = 78;
            here.submit(&send).unwrap();
            let sent = completion(&mut here).await;
            assert_eq!((sent.status, sent.cookie, sent.length), (Status::Done, 78, 10_001));
            let received = completion(&mut there).await;
            assert_eq!((received.status, received.cookie), (Status::Done, 77));
            assert_eq!(received.length, 10_001);
            let mut bytes = vec![0; 10_001];
            to.read(5, &mut bytes).unwrap();
            assert_eq!(bytes, message);
        });
    }
}

#[test]
fn a_frame_to_itself_arrives_without_the_network() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 1, |config| config);
        let mut port = cluster.nics[0].host().open_port().unwrap();
        let region = port.register(8).unwrap();
        for number in 0..100_u64 {
            region.write(0, &number.to_le_bytes()).unwrap();
            port.submit(&command(SEND, 0, &region)).unwrap();
            completion(&mut port).await;
        }
        let arrived = cluster.seen[0].wait_for(100).await;
        for (number, arrival) in (0_u64..).zip(&arrived) {
            assert_eq!(arrival.payload, number.to_le_bytes());
        }
        assert_eq!(cluster.nics[0].counters().frames_sent, 0);
    });
}

#[test]
fn an_aborted_turn_sends_nothing_and_holds_no_line_time() {
    run(async {
        let mut cluster = Cluster::start("127.0.0.1", 2, |config| config);
        let nic = cluster.nics.remove(0);
        let mut port = nic.host().open_port().unwrap();
        let region = port.register(1_000).unwrap();
        for opcode in [SEND_AND_ABORT, SEND_AND_ABORT, SEND] {
            port.submit(&command(opcode, 1, &region)).unwrap();
            completion(&mut port).await;
        }
        assert_eq!(nic.shutdown().await.frames_sent, 1);
        assert_eq!(cluster.seen[1].wait_for(1).await[0].header.sequence, 0);
    });
}

#[test]
fn a_transfer_within_a_node_ends_in_a_later_turn() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 1, |config| config);
        let mut port = cluster.nics[0].host().open_port().unwrap();
        let region = port.register(2_000).unwrap();
        region.write(0, &[9; 1_000]).unwrap();
        port.submit(&command(COPY, 0, &region)).unwrap();
        assert_eq!(completion(&mut port).await.length, 1_000);
        let mut copy = [0; 1_000];
        region.read(1_000, &mut copy).unwrap();
        assert_eq!(copy, [9; 1_000]);
    });
}

#[test]
fn a_dropped_region_is_refused_and_a_dropped_port_is_forgotten() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 2, |config| config);
        let host = cluster.nics[0].host();
        let mut port = host.open_port().unwrap();
        let id = port.id();
        let region = port.register(10).unwrap();
        let send = command(SEND, 1, &region);
        drop(region);
        port.submit(&send).unwrap();
        assert_eq!(completion(&mut port).await.status, Status::Region);
        drop(port);
        // The number is free again once the NIC has seen the port close.
        for _ in 0..2_000 {
            if host.open_port().unwrap().id() == id {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("port {id} never came back");
    });
}

/// A task that rings a doorbell runs the NIC, unless another one does. Either way no doorbell is left unhandled, and
/// work for a later turn gets one.
#[test]
fn ports_that_ring_at_once_are_all_answered() {
    run(async {
        let cluster =
            Cluster::start("127.0.0.1", 1, |config| config.coprocessor(Coprocessor::Task));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mut port = cluster.nics[0].host().open_port().unwrap();
                tokio::task::spawn_blocking(move || {
                    let region = port.register(16).unwrap();
                    for round in 0..500_u64 {
                        region.write(0, &round.to_le_bytes()).unwrap();
                        port.submit(&command(COPY, 0, &region)).unwrap();
                        assert_eq!(port.wait().unwrap().length, 8);
                        let mut copy = [0; 8];
                        region.read(8, &mut copy).unwrap();
                        assert_eq!(copy, round.to_le_bytes());
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.await.unwrap();
        }
    });
}

/// A task that polls again and again runs the NIC itself: its runtime gets no turn.
#[test]
fn a_process_that_never_waits_receives() {
    run(async {
        let cluster =
            Cluster::start("127.0.0.1", 2, |config| config.coprocessor(Coprocessor::Task));
        let mut here = cluster.nics[0].host().open_port().unwrap();
        let mut there = cluster.nics[1].host().open_port().unwrap();
        let (from, to) = (here.register(8).unwrap(), there.register(8).unwrap());
        for round in 0..100_u64 {
            from.write(0, &round.to_le_bytes()).unwrap();
            there.submit(&command(RECEIVE, 0, &to)).unwrap();
            here.submit(&command(SEND, 1, &from)).unwrap();
            for port in [&mut here, &mut there] {
                let mut polls = 0_u32;
                while port.poll().is_none() {
                    polls += 1;
                    assert!(polls < 10_000_000, "round {round}: no frame arrives");
                    std::thread::yield_now();
                }
            }
            let mut bytes = [0; 8];
            to.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, round.to_le_bytes());
        }
    });
}

/// NICs that busy-poll for long, the tasks that they serve, and a task that only sleeps all share one thread.
#[test]
fn a_busy_polling_nic_lets_all_other_tasks_run() {
    run(async {
        let mut cluster = Cluster::start("127.0.0.1", 2, |config| {
            config.coprocessor(Coprocessor::Task).spin(Duration::from_secs(1))
        });
        let mut here = cluster.nics[0].host().open_port().unwrap();
        let mut there = cluster.nics[1].host().open_port().unwrap();
        let (from, to) = (here.register(8).unwrap(), there.register(8).unwrap());
        let began = tokio::time::Instant::now();
        for round in 0..20_u64 {
            from.write(0, &round.to_le_bytes()).unwrap();
            there.submit(&command(RECEIVE, 0, &to)).unwrap();
            here.submit(&command(SEND, 1, &from)).unwrap();
            assert_eq!(completion(&mut here).await.status, Status::Done);
            assert_eq!(completion(&mut there).await.status, Status::Done);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for nic in cluster.nics.drain(..) {
            nic.shutdown().await;
        }
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(10),
            "{took:?}: they wait for one another's busy-polling"
        );
    });
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_nic_sleeps() {
    use rustix::time::{ClockId, clock_gettime};

    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    run(async {
        let _cluster = Cluster::start("127.0.0.1", 2, |c| c.coprocessor(Coprocessor::Task));
        let before = used();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let used = used() - before;
        assert!(used < Duration::from_millis(60), "{used:?} of 300 ms");
    });
}

/// Counts how often its ending NIC asks whether it may stop, and never lets it.
struct Waiting(Arc<AtomicU32>);

impl Firmware for Waiting {
    fn may_stop(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Starts a NIC on a task that busy-polls for `spin`, and that waits for its peers when it ends. Returns it with the
/// count of the turns that it takes meanwhile.
fn waiting_nic(spin: Duration) -> (UdpNic, Arc<AtomicU32>) {
    let turns = Arc::new(AtomicU32::new(0));
    let config = UdpConfig::new(NodeId(0), vec!["127.0.0.1:9".parse().unwrap()])
        .bind("127.0.0.1:0".parse().unwrap())
        .coprocessor(Coprocessor::Task)
        .spin(spin);
    (UdpNic::start(config, Waiting(Arc::clone(&turns))).unwrap(), turns)
}

#[test]
fn a_nic_that_ends_while_it_busy_polls_sleeps_between_its_turns() {
    run(async {
        let (nic, turns) = waiting_nic(Duration::from_secs(10));
        // The runtime reports the datagram, and a poll takes it.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(&[0; 8], nic.address()).unwrap();
        let counted = async {
            while nic.counters().drops.of(DropCause::Malformed) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), counted).await.expect("it is malformed");
        nic.shutdown().await;
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns < 100, "{turns} turns within the 200 ms that it waits");
    });
}

#[test]
fn a_shutdown_that_is_dropped_while_the_nic_waits_for_its_peers_ends_the_nic_at_once() {
    run(async {
        let (nic, turns) = waiting_nic(Duration::ZERO);
        let mut shutdown = Box::pin(nic.shutdown());
        while turns.load(Ordering::Relaxed) == 0 {
            let ended = tokio::time::timeout(Duration::from_millis(1), &mut shutdown).await;
            assert!(ended.is_err(), "it did not wait for its peers");
        }
        drop(shutdown);
        // The NIC's task runs on this thread, long before the 200 ms are over.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&turns), 1, "the NIC still has its firmware");
    });
}
