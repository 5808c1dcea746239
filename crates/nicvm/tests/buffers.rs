//! Receive buffers in the token: a receiver that is slow is never overrun.

use std::time::Duration;

use crate::cluster::{Cluster, Load};
use midplane_nicvm::coordination::Coordination;
use midplane_simhw::fault::Faults;
use midplane_simhw::frame::MAX_PAYLOAD;
use proptest::prelude::*;

#[test]
fn a_slow_receiver_is_never_overrun() {
    for (senders, buffers) in [(1, 1), (2, 2), (3, 8), (8, 3)] {
        let mut cluster = Cluster::ethernet(senders);
        cluster.config = cluster.config.buffers(true);
        let keeps = Duration::from_millis(2);
        let load = Load { buffers, keeps, burst: 8, ..Load::default() };
        let outcome = cluster.run(load);
        let what = format!("{senders} senders, {buffers} buffers: {outcome:?}");
        assert_eq!(outcome.lost(), 0, "{what}");
        // At 2 ms a message, the receiver is the bottleneck, and stays busy.
        assert!(outcome.in_time.iter().sum::<u64>() > 100, "{what}");
    }
}

#[test]
fn a_receiver_that_keeps_up_costs_little() {
    let mut cluster = Cluster::ethernet(3);
    cluster.config = cluster.config.buffers(true);
    let outcome = cluster.run(Load::default());
    let plain = Cluster::ethernet(3).run(Load::default()).goodput_mbps();
    println!("{:.2} of {plain:.2} Mb/s", outcome.goodput_mbps());
    assert_eq!(outcome.lost(), 0, "{outcome:?}");
    assert!(outcome.goodput_mbps() > 0.9 * plain, "of {plain} Mb/s: {outcome:?}");
}

/// Loses frames of `mtu` bytes; at most `most` of the messages of 10,240 bytes are lost.
fn check_loss(seed: u64, buffers: usize, mtu: usize, most: f64) {
    let mut cluster = Cluster::ethernet(3);
    cluster.config = cluster.config.buffers(true);
    cluster.profile.mtu = mtu;
    cluster.seed = seed;
    cluster.faults = Faults { loss: 0.02, ..Faults::NONE };
    let load = Load { buffers, burst: 8, drain: Duration::from_secs(20), ..Load::default() };
    let outcome = cluster.run(load);
    let what = format!("seed {seed}, {buffers} buffers: {outcome:?}");
    println!("seed {seed}: {:.2} Mb/s, lost {}", outcome.goodput_mbps(), outcome.lost());
    assert!(outcome.finished == 3, "everything was sent in the end: {what}");
    assert!(outcome.in_time.iter().all(|messages| *messages > 10), "{what}");
    assert!(outcome.loss() < most, "{what}");
}

fn check_lost_messages(seed: u64) {
    check_loss(seed, 4, MAX_PAYLOAD, 0.05);
}

#[test]
fn lost_messages_return_their_buffers() {
    (0..2).for_each(check_lost_messages);
}

#[test]
fn messages_that_lost_a_frame_return_their_buffers() {
    for (seed, buffers) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
        check_loss(seed, buffers, 4_096, 0.2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn lost_messages_return_their_buffers_from_new_seeds(seed: u64) {
        check_lost_messages(seed);
    }
}

#[test]
fn a_pause_of_the_receiver_longer_than_all_timeouts_loses_nothing() {
    let mut cluster = Cluster::ethernet(3);
    cluster.config = cluster.config.buffers(true);
    let load = Load {
        buffers: 2,
        keeps: Duration::from_millis(900),
        burst: 2,
        time: Duration::from_millis(1),
        drain: Duration::from_secs(20),
        ..Load::default()
    };
    let outcome = cluster.run(load);
    assert_eq!(outcome.lost(), 0, "{outcome:?}");
    assert_eq!(outcome.finished, 3, "{outcome:?}");
}

#[test]
fn a_message_longer_than_a_quarter_of_a_lease_needs_one_buffer() {
    let mut cluster = Cluster::ethernet(2);
    // A quarter of a lease is 100,000 bytes at 100 Mb/s.
    cluster.config = cluster.config.buffers(true).lease(Duration::from_millis(32));
    cluster.profile.mtu = 4_096;
    let load = Load { message_bytes: 150_000, buffers: 1, burst: 2, ..Load::default() };
    let outcome = cluster.run(load);
    assert_eq!((outcome.lost(), outcome.finished), (0, 2), "{outcome:?}");
    assert!(outcome.in_time.iter().all(|messages| *messages > 3), "{outcome:?}");
}

#[test]
fn buffers_and_bytes_ahead_exclude_each_other() {
    let mut cluster = Cluster::ethernet(2);
    cluster.config = cluster.config.buffers(true).ahead(100);
    assert!(Coordination::new(cluster.config).is_err());
}
