//! Tests of the packet model, with noise, loss, reordering and jitter, which the fluid model lacks.

use midplane_warp::estimate::Grouping;
use midplane_warp::model::{Faults, PacketSender, Packets, PacketsConfig, jain};
use proptest::prelude::*;

use crate::controller::scenario::{Draw, LOOP, PRODUCT, SERVICE, settle_packets};

fn check_packets(senders: usize, seed: u64) {
    let draw = Draw::random(senders, seed);
    let settled = settle_packets(&draw, draw.packets(seed));
    println!("W2 {senders} senders, seed {seed}: {settled:.3?}");
    let what = format!("{senders} senders, seed {seed}: {settled:?}");
    assert!(settled.rate_error <= 0.02, "{what}");
    assert!((settled.queue - 1.0).abs() <= 0.1 && settled.queue_p99 <= 2.0, "{what}");
    assert!(settled.jain >= 0.99, "{what}");
}

#[test]
fn w2_w3_packets_with_noise_meet_rate_and_queue() {
    for senders in [1, 2, 5, 16, 64] {
        (0..2).for_each(|seed| check_packets(senders, seed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]
    #[test]
    fn w2_w3_packets_with_noise_meet_rate_and_queue_from_new_seeds(seed: u64) {
        for senders in [1, 2, 5, 16, 64] {
            check_packets(senders, seed);
        }
    }
}

#[test]
fn w6_lost_reordered_doubled_and_bursty_stamps_leave_the_equilibrium() {
    for burst in [1, 4] {
        let draw = Draw::even(4, 0.5 * PRODUCT, 0.0);
        let mut packets = draw.packets(9);
        packets.config.burst = burst;
        packets.faults = Faults {
            loss: 0.1,
            reordered: 0.05,
            duplicate: 0.01,
            noise_ns: 12_500.0,
            ..packets.faults
        };
        let settled = settle_packets(&draw, packets);
        println!("W6 bursts of {burst}: {settled:.3?}");
        assert!(settled.rate_error <= 0.03 && settled.jain >= 0.99, "{burst}: {settled:?}");
    }
}

#[test]
fn w9_jitter_on_one_of_two_starves_neither_while_the_queue_covers_it() {
    // The jitter is half, one, two and four times the queue's own delay.
    for (jitter, bound) in [(0.5, 4.0), (1.0, 4.0), (2.0, f64::MAX), (4.0, f64::MAX)] {
        let draw = Draw::even(2, 0.5 * PRODUCT, 0.0);
        let mut packets = draw.packets(3);
        packets.senders[1].jitter_ns = (jitter * draw.target / SERVICE * 1e9) as u64;
        packets.run(draw.feedback_delay() * 300, LOOP, |_| ());
        let before: Vec<f64> = packets.senders.iter().map(|sender| sender.delivered).collect();
        packets.run(draw.feedback_delay() * 300, LOOP, |_| ());
        let sent = |at: usize| packets.senders[at].delivered - before[at];
        let ratio = sent(0) / sent(1);
        println!("W9 jitter of {jitter} queue delays: {ratio:.2} to 1");
        assert!(ratio <= bound, "{jitter}: {ratio}");
    }
}

#[test]
fn w10_beside_a_flow_that_fills_the_buffer() {
    let config = PacketsConfig {
        service: SERVICE,
        buffer: PRODUCT,
        packet: 1_000,
        burst: 1,
        grouping: Grouping::new(125_000, 4),
    };
    let draw = Draw::even(1, 0.5 * PRODUCT, 0.0);
    let ours = PacketSender::new(&config, Some(draw.controller(0.0)), LOOP);
    let mut other = PacketSender::new(&config, None, LOOP);
    other.fixed = SERVICE * 0.6;
    let mut packets = Packets::new(config, vec![ours, other], 5);
    let mut growth = SERVICE * 0.01;
    let mut dropped = 0;
    // The other sender is loss-based: its rate rises until packets are lost, and then halves.
    for _ in 0..2_000 {
        packets.run(LOOP, LOOP, |_| ());
        let is_lost = packets.dropped > dropped;
        dropped = packets.dropped;
        let other = &mut packets.senders[1].fixed;
        *other = if is_lost { *other * 0.5 } else { *other + growth };
        growth = SERVICE * 0.01;
    }
    let sent: Vec<f64> = packets.senders.iter().map(|sender| sender.delivered).collect();
    let share = sent[0] / (sent[0] + sent[1]);
    println!("W10 beside a loss-based flow: a share of {share:.2}, Jain {:.2}", jain(&sent));
    assert!(share >= 0.2, "{share}");
}
