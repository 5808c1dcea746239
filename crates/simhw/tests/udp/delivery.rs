//! Tests that frames arrive whole, in order, at the right node.

use std::time::Duration;

use midplane_simhw::host::Host as _;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Status;
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::Coprocessor;

use crate::udp::firmware::{Cluster, ECHO, SEND, command, completion, run};

#[test]
fn a_frame_and_its_echo_cross_between_two_nics() {
    for ip in ["127.0.0.1", "::1"] {
        for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
            run(async {
                let cluster = Cluster::start(ip, 2, |config| config.coprocessor(coprocessor));
                let mut port = cluster.nics[0].host().open_port().unwrap();
                let region = port.register(5).unwrap();
                region.write(0, b"hello").unwrap();
                let mut send = command(SEND, 1, &region);
                send.flags = u16::from(ECHO);
                port.submit(&send).unwrap();
                completion(&mut port).await;
                let there = cluster.seen[1].wait_for(1).await;
                assert_eq!(there[0].payload, b"hello");
                assert_eq!(there[0].header.source.0, 0);
                let back = cluster.seen[0].wait_for(1).await;
                assert_eq!(back[0].payload, b"hello");
                assert_eq!(back[0].header.source.0, 1);
            });
        }
    }
}

/// Long frames are sent directly from the application's memory if the line takes them at once.
#[test]
fn memory_may_be_rewritten_once_it_was_read_however_long_its_frames_wait() {
    for mbps in [400_000, 2_000] {
        for length in [1_000, 5_000, 60_000] {
            run(async {
                let line = LinkProfile::plain(LineRate::mbps(mbps), Duration::ZERO);
                let cluster = Cluster::start("127.0.0.1", 2, |config| config.line(line));
                let mut port = cluster.nics[0].host().open_port().unwrap();
                let region = port.register(length).unwrap();
                for number in 0..12_u8 {
                    region.write(0, &vec![number; length]).unwrap();
                    port.submit(&command(SEND, 1, &region)).unwrap();
                    assert_eq!(completion(&mut port).await.status, Status::Done);
                }
                region.write(0, &vec![99; length]).unwrap();
                for (number, arrival) in (0..12_u8).zip(cluster.seen[1].wait_for(12).await) {
                    assert!(arrival.payload == vec![number; length], "{length} B, {mbps} Mb/s");
                }
            });
        }
    }
}
