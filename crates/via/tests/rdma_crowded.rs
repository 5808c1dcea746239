//! A port that is shallower than what its process may send: a full port delays messages, and loses none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pair::job::join;
use crate::pair::{Setting, pattern, pause, world};
use midplane_simhw::id::NodeId;
use midplane_via::message::communicator::wait_all;
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::request::Mode;
use midplane_via::rdma::RdmaConfig;

/// Gives rank 0 a shallow port. It sends more to all others at once than the port holds, and all answer at once.
fn burst(nodes: u16, depth: usize, lengths: [usize; 3]) {
    const EACH: u32 = 60;
    let mut world = world(Setting { nodes, ..Setting::default() });
    let done = Arc::new(Mutex::new(0));
    for rank in 0..nodes {
        let (host, done) = (world.host(NodeId(rank)), Arc::clone(&done));
        world.spawn(NodeId(rank), async move {
            let shallow = RdmaConfig::default().depth(depth);
            let config = if rank == 0 { shallow } else { RdmaConfig::default() };
            let all = join(&host, rank, nodes, config).await;
            let others: Vec<_> =
                if rank == 0 { (1..u32::from(nodes)).map(Rank).collect() } else { vec![Rank(0)] };
            let mut sends = vec![];
            for number in 0..EACH {
                for other in &others {
                    let bytes = pattern(number, lengths[number as usize % 3]);
                    sends.push(all.isend(Mode::Standard, *other, Tag(1), bytes).unwrap());
                }
            }
            for number in 0..EACH {
                for other in &others {
                    let got = all.receive(*other, Tag(1)).await.unwrap();
                    assert!(got.bytes == pattern(number, lengths[number as usize % 3]));
                }
            }
            for sent in wait_all(sends).await {
                sent.unwrap();
            }
            *done.lock().unwrap() += 1;
            // The process serves the others until they are done.
            let _ = all.receive(all.rank(), Tag(2)).await;
            pause(&host, Duration::from_secs(5)).await;
        });
    }
    let limit = world.now() + Duration::from_secs(60);
    while *done.lock().unwrap() < nodes && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    assert_eq!(*done.lock().unwrap(), nodes, "all ranks end");
}

#[test]
fn a_full_port_loses_no_process() {
    for depth in [64, 100, 200] {
        burst(4, depth, [8, 600, 100]);
    }
}

#[test]
fn messages_of_all_sizes_pass_a_full_port() {
    burst(3, 64, [8, 9_000, 70_000]);
}
