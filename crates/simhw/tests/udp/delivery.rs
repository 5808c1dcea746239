//! Frames arrive whole, in order, at the right node.

use midplane_simhw::host::Host as _;
use midplane_simhw::udp::Coprocessor;

use crate::firmware::{Cluster, ECHO, SEND, command, completion, run};

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
