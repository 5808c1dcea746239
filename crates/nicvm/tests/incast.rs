//! Many senders to one receiver, in virtual time: losses without coordination, and none with it (DVCM paper, section
//! 4.3).

use std::time::Duration;

use crate::cluster::{Cluster, Load};

const SIZES: [(usize, f64); 4] = [(600, 0.95), (1500, 0.95), (4096, 0.96), (10_240, 0.97)];

#[test]
fn uncoordinated_senders_lose_most_of_what_they_send() {
    for senders in [2, 3, 16] {
        let load = Load { coordinated: false, ..Load::default() };
        let outcome = Cluster::ethernet(senders).run(load);
        assert!(outcome.loss() > 0.45, "{senders} senders: {outcome:?}");
    }
}

/// Compares two seconds of the load with one uncoordinated sender on the same link.
fn check(senders: u16) {
    for (message_bytes, share) in SIZES {
        let load = Load { message_bytes, time: Duration::from_secs(2), ..Load::default() };
        let alone = Cluster::ethernet(1).run(Load { coordinated: false, ..load }).goodput_mbps();
        let outcome = Cluster::ethernet(senders).run(load);
        let what = format!("{senders} senders, {message_bytes} bytes: {outcome:?}");
        assert_eq!(outcome.lost(), 0, "{what}");
        assert!(outcome.goodput_mbps() > share * alone, "of {alone} Mb/s: {what}");
        assert!(outcome.jain() > 0.99, "{what}");
        // The receiver neither sends nor receives a control message.
        assert_eq!(outcome.receiver, Default::default(), "{what}");
    }
}

#[test]
fn two_coordinated_senders_lose_nothing_fill_the_link_and_share_it() {
    check(2);
}

#[test]
fn three_coordinated_senders_lose_nothing_fill_the_link_and_share_it() {
    check(3);
}

#[test]
fn eight_coordinated_senders_lose_nothing_fill_the_link_and_share_it() {
    check(8);
}

#[test]
fn sixteen_coordinated_senders_lose_nothing_fill_the_link_and_share_it() {
    check(16);
}

#[test]
fn coordination_costs_a_single_sender_less_than_one_percent() {
    for (message_bytes, _) in SIZES {
        let load = Load { message_bytes, ..Load::default() };
        let alone = Cluster::ethernet(1).run(Load { coordinated: false, ..load }).goodput_mbps();
        let coordinated = Cluster::ethernet(1).run(load).goodput_mbps();
        assert!(coordinated > 0.99 * alone, "{message_bytes} bytes: {coordinated} of {alone}");
    }
}

#[test]
fn the_only_active_sender_is_not_slowed_down_by_idle_ones() {
    let load = Load { active: 1, ..Load::default() };
    let alone = Cluster::ethernet(1).run(Load { coordinated: false, ..load }).goodput_mbps();
    let outcome = Cluster::ethernet(8).run(load);
    assert!(outcome.goodput_mbps() > 0.99 * alone, "of {alone} Mb/s: {outcome:?}");
    assert_eq!(outcome.lost(), 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = |seed| {
        let mut cluster = Cluster::ethernet(3);
        cluster.seed = seed;
        cluster.run(Load { time: Duration::from_millis(50), ..Load::default() }).digest
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}
