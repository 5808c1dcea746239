//! Tests of the law's equilibrium in the fluid model: rates, queue and shares.

use std::time::Duration;

use midplane_warp::model::{FluidSender, jain};
use proptest::prelude::*;

use crate::controller::scenario::{Draw, LOOP, PRODUCT, SERVICE, settle_fluid};

/// `benches/laws.rs` runs 1,000 seeds.
fn check_settles(seed: u64) {
    for senders in [1, 2, 3, 7, 16, 33, 64, 128] {
        let draw = Draw::random(senders, seed);
        let mut settled = settle_fluid(&draw, false);
        if senders == 1 && draw.starts[0] > SERVICE {
            // It has filled the queue before it could measure the empty path: the queue stays longer until a drain.
            assert!(settled.queue <= 1.25, "seed {seed}: {settled:?}");
            settled = settle_fluid(&draw, true);
        }
        let what = format!("{senders} senders, seed {seed}: {settled:?}");
        assert!(settled.rate_error <= 0.01, "{what}");
        assert!((settled.queue - 1.0).abs() <= 0.1 && settled.queue_p99 <= 2.0, "{what}");
        assert!(settled.jain >= 0.99, "{what}");
    }
}

#[test]
fn w2_w3_rate_and_queue_meet_their_targets_from_any_start() {
    (0..6).for_each(check_settles);
}

/// A sender that is alone and starts at nearly twice the link's rate.
#[test]
fn w3_a_drain_ends_what_a_start_above_the_links_rate_leaves() {
    [2_097, 1_416, 16_786_021_196_926_950_772].into_iter().for_each(check_settles);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn w2_w3_rate_and_queue_meet_their_targets_from_new_seeds(seed: u64) {
        check_settles(seed);
    }
}

#[test]
fn w3_the_queue_settles_at_its_target() {
    for target in [0.1, 0.5, 2.0] {
        let settled = settle_fluid(&Draw::even(8, target * PRODUCT, 0.0), false);
        assert!((settled.queue - 1.0).abs() <= 0.1 && settled.queue_p99 <= 2.0, "{settled:?}");
    }
}

#[test]
fn w4_shares_are_fair_within_200_delays_from_one_to_a_hundred() {
    for senders in [2, 8, 32, 128] {
        for large in [1, senders / 2] {
            let mut draw = Draw::even(senders, 0.5 * PRODUCT, SERVICE / 100.0);
            draw.starts[..large].fill(SERVICE);
            let mut fluid = draw.fluid();
            let mut fair_after = None;
            for delays in 1..=200 {
                fluid.run(draw.feedback_delay(), |_| ());
                let fair = jain(&fluid.rates()) >= 0.99;
                fair_after = if fair { fair_after.or(Some(delays)) } else { None };
            }
            println!(
                "W4 {senders} senders, {large} of them large: fair after {fair_after:?} delays"
            );
            assert!(fair_after.is_some(), "{senders} senders, {large} large");
        }
    }
}

#[test]
fn w4_a_loop_ten_times_as_long_gets_its_share() {
    let draw = Draw::even(2, 0.5 * PRODUCT, 0.0);
    let mut fluid = draw.fluid();
    fluid.senders()[1].delay = LOOP * 10;
    fluid.run(LOOP * 2_000, |_| ());
    assert!(jain(&fluid.rates()) >= 0.95, "{:?}", fluid.rates());
    let mut fluid = draw.fluid();
    for (sender, backlog) in fluid.senders().iter_mut().zip([0.1, 0.4]) {
        // Each of two senders has half of the target.
        let weighted = Draw::even(2, 2.0 * backlog * PRODUCT, 0.0);
        sender.controller = weighted.controller(0.0);
    }
    fluid.run(LOOP * 500, |_| ());
    let rates = fluid.rates();
    assert!(
        (rates[1] / rates[0] - 4.0).abs() < 0.1,
        "rates are in proportion to the backlogs: {rates:?}"
    );
}

#[test]
fn w5_an_hour_of_skew_moves_the_queue_by_less_than_a_fifth() {
    for ppm in [-100.0, 100.0] {
        let draw = Draw::even(2, 0.5 * PRODUCT, 0.0);
        let mut fluid = draw.fluid();
        // With steps of a quarter of a loop, an hour takes 14 million steps.
        let mut coarse = midplane_warp::model::Fluid::new(SERVICE, LOOP / 4, Vec::new());
        for sender in fluid.senders() {
            let mut sender = FluidSender::new(sender.controller.clone(), LOOP);
            sender.skew_ppm = ppm;
            coarse.add(sender);
        }
        coarse.run(Duration::from_secs(1), |_| ());
        let (mut most, mut least) = (0.0_f64, f64::MAX);
        coarse.run(Duration::from_secs(HOUR), |fluid| {
            most = most.max(fluid.queue());
            least = least.min(fluid.load());
        });
        println!("W5 {ppm} ppm: queue at most {:.3} of its target", most / draw.target);
        assert!(most <= 1.2 * draw.target && least > 0.98, "{ppm} ppm: {most} {least}");
    }
}

/// Seconds of skew; the sweep runs an hour, this test two minutes.
const HOUR: u64 = 120;

#[test]
fn a_latecomer_gets_no_more_than_its_share_after_two_drains() {
    let draw = Draw::even(3, 0.5 * PRODUCT, 0.0);
    let mut fluid = draw.fluid();
    fluid.run(LOOP * 300, |_| ());
    fluid.add(FluidSender::new(draw.controller(0.0), LOOP));
    fluid.run(LOOP * 500, |_| ());
    let unfair = jain(&fluid.rates());
    for _ in 0..3 {
        fluid.request_drain();
        fluid.run(LOOP * 300, |_| ());
    }
    let fair = jain(&fluid.rates());
    println!("latecomer: Jain {unfair:.3} before, {fair:.3} after the drains");
    assert!(fair >= 0.99, "{unfair} {fair}: {:?}", fluid.rates());
}
