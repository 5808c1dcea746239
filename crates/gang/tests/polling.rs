//! A process that only polls receives messages and notices free space, as one that waits does.

use std::time::Duration;

use crate::job::{TIGHT, open, places, world};
use midplane_gang::channel::{Channel, SendError};
use midplane_gang::names::{JobId, Rank};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;

#[test]
fn a_process_that_only_polls_its_channel_sends_and_receives() {
    const COUNT: u8 = 100;
    let mut world = world(2, 1, Faults::NONE);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let task = async move {
        let mut network = open(&hosts, JobId(1), &places(2, 2), TIGHT, false).await;
        network.run(&hosts[0]).await.unwrap();
        let mut ends = Vec::new();
        for (held, host) in network.ranks().iter().zip(&hosts) {
            let descriptor = held.controller.descriptor(held.context);
            ends.push(Channel::attach(host, descriptor).await.unwrap());
        }
        let (mut sent, mut received) = (0, 0);
        let until = hosts[0].now() + Duration::from_millis(20);
        while received < COUNT && hosts[0].now() < until {
            if sent < COUNT {
                match ends[0].try_send(Rank(1), &[sent; 60]) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            while let Some((_, bytes)) = ends[1].try_receive() {
                assert_eq!(bytes, [received; 60]);
                received += 1;
            }
            hosts[0].sleep_until(hosts[0].now() + Duration::from_micros(10)).await;
        }
        (sent, received)
    };
    assert_eq!(world.block_on(NodeId(0), task), Some((COUNT, COUNT)));
}
