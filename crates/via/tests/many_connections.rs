//! Many connections that end at once, and many errors of one: each end is reported, and the errors are bounded.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::pair::{CLIENT, SERVER, Setting, address, connected, name, pause, reliable, world};
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::PortOptions;
use midplane_via::attributes::ViAttributes;
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::{Nic, WorkQueue};
use midplane_via::outcome::AsyncError;

/// Connects so many interfaces of a client with those of a process on `node`, which then exits. Returns how many ends
/// of connections the client receives.
fn ends(count: usize, node: NodeId) -> usize {
    let mut world = world(Setting::default());
    let (client, server) = (world.host(CLIENT), world.host(node));
    world.spawn(node, async move {
        let mut nic = Nic::open(&server, PortOptions::default()).await.unwrap();
        for _ in 0..count {
            let vi = nic.create_vi(reliable()).await.unwrap();
            let request = nic.connect_wait(name("service"), None).await.unwrap();
            nic.accept(&request, vi).await.unwrap();
        }
        pause(&server, Duration::from_millis(5)).await;
    });
    let ends = world.block_on(CLIENT, async move {
        let mut nic = Nic::open(&client, PortOptions::default()).await.unwrap();
        for _ in 0..count {
            let vi = nic.create_vi(reliable()).await.unwrap();
            while nic.connect(vi, address(node, "service"), None).await.is_err() {
                pause(&client, Duration::from_micros(20)).await;
            }
        }
        // The client computes while the connections end.
        pause(&client, Duration::from_millis(50)).await;
        let mut ended = BTreeSet::new();
        let limit = client.now() + Duration::from_millis(50);
        while client.now() < limit {
            while let Some((vi, error)) = nic.next_error() {
                assert_eq!(error, AsyncError::ConnectionLost);
                assert!(ended.insert(vi), "each ends once");
            }
            pause(&client, Duration::from_micros(10)).await;
        }
        ended.len()
    });
    ends.expect("nothing waits for ever")
}

#[test]
fn the_ends_of_all_connections_are_reported_to_a_process_that_polls_late() {
    assert_eq!(ends(400, SERVER), 400);
}

#[test]
fn the_ends_of_all_connections_within_one_nic_are_reported() {
    assert_eq!(ends(100, CLIENT), 100);
}

#[test]
fn errors_that_are_not_taken_are_bounded_and_displace_no_end_of_a_connection() {
    let (_, errors) = connected(
        Setting::default(),
        ViAttributes::default(),
        10,
        |mut end| async move {
            for _ in 0..600 {
                end.nic.post_send(end.vi, Descriptor::default()).unwrap();
                end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            }
            pause(&end.host, Duration::from_millis(5)).await;
            end.nic.disconnect(end.vi).await.unwrap();
            pause(&end.host, Duration::from_millis(50)).await;
        },
        |mut end| async move {
            let limit = end.host.now() + Duration::from_millis(50);
            while end.host.now() < limit {
                end.nic.poll();
                pause(&end.host, Duration::from_micros(10)).await;
            }
            let errors = std::iter::from_fn(|| end.nic.next_error());
            errors.map(|(_, error)| error).collect::<Vec<_>>()
        },
    );
    let (last, others) = errors.split_last().unwrap();
    assert_eq!(*last, AsyncError::ConnectionLost);
    assert_eq!(others, [AsyncError::ReceiveQueueEmpty; 256]);
}
