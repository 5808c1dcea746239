//! Frames that arrive before the NIC has given the host its receive queue: other processes' frames do not displace
//! those of the peer, and the frames stored for the peer are bounded.

use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_via::outcome::AsyncError;

use super::pair::{End, Setting, connected_over, pause};
use super::rings::rings;
use super::{attributes, descriptor, errors};

/// More frames than an interface stores.
const FLOOD: usize = 5_000;

/// Floods the client's ring after the client has offered its receive queue, before its NIC gives it the queue. The
/// frames come from another node or from the peer. Returns whether the server's message arrived, and the client's
/// errors.
fn flooded_by(node: Option<NodeId>) -> (bool, Vec<AsyncError>) {
    let (both, [to_client, _]) = rings(1_000, 64);
    let client = move |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        for _ in 0..FLOOD {
            let frame = ([2 << 32, 10, 0, 0, 0], vec![7; 10]);
            match node {
                Some(node) => to_client.send_as(node, frame),
                None => to_client.send(frame),
            }
            // No time passes: the NIC can't give the queue to the host meanwhile.
            end.nic.poll();
        }
        // The host has the queue, and the server's message is in the ring, before the client polls again.
        pause(&end.host, Duration::from_millis(5)).await;
        for _ in 0..100 {
            end.nic.poll();
        }
        let done = end.nic.receive_done(end.vi).unwrap();
        (done.is_some_and(|done| done.outcome.is_ok()), errors(&mut end))
    };
    let server = |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        // Time in which the gate opens, if the connection lasts.
        for _ in 0..100 {
            pause(&end.host, Duration::from_micros(20)).await;
            end.nic.poll();
        }
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        end.nic.poll();
    };
    connected_over(Setting::default(), attributes(), 10, both, client, server).0
}

#[test]
fn frames_of_another_process_displace_no_message_of_the_peer() {
    assert_eq!(flooded_by(Some(NodeId(7))), (true, vec![]));
}

#[test]
fn a_peer_that_floods_a_queue_before_the_host_has_it_loses_its_connection() {
    assert_eq!(flooded_by(None), (false, vec![AsyncError::ConnectionLost]));
}
