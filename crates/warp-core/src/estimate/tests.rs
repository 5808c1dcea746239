use midplane_simhw::rng::Rng;
use proptest::prelude::*;

use super::*;
use crate::stamp::Encoder;

const SPAN: u64 = 10_000;

/// Feeds an estimator with messages sent every `gap` nanoseconds and delayed by `delay`. Returns
/// the estimates.
fn feed(count: u64, gap: u64, mut delay: impl FnMut(u64) -> u64) -> Vec<Estimate> {
    let mut estimator = Estimator::new(Grouping::new(SPAN, 4));
    let mut encoder = Encoder::default();
    let sends = (1..=count).map(|i| i * gap);
    sends
        .filter_map(|sent| {
            let stamp = encoder.stamp(Instant::from_nanos(sent));
            estimator.handle_arrival(stamp, Instant::from_nanos(sent + delay(sent)))
        })
        .collect()
}

#[test]
fn a_queue_that_grows_by_a_fifth_is_a_warp_of_1_2() {
    let estimates = feed(100, 1_000, |sent| 5_000 + sent / 5);
    assert!(estimates.len() >= 8, "fewer than one estimate a group: {}", estimates.len());
    let last = estimates.last().unwrap();
    assert!((last.warp - 1.2).abs() < 1e-3, "{last:?}");
    let exact = 5_000 + last.newest.as_nanos() as i64 / 5;
    assert!((last.delay_ns - exact).abs() < 10, "{last:?}, not {exact}");
}

#[test]
fn a_sender_slower_than_a_group_is_estimated_at_each_message() {
    let estimates = feed(20, 3 * SPAN, |_| 5_000);
    assert!(estimates.len() >= 18, "{}", estimates.len());
    assert!(estimates.iter().all(|estimate| (estimate.warp - 1.0).abs() < 1e-9));
}

#[test]
fn bursts_with_equal_stamps_are_one_point_not_an_infinite_ratio() {
    let mut estimator = Estimator::new(Grouping::new(SPAN, 4));
    let mut encoder = Encoder::default();
    for burst in 1..100_u64 {
        for place in 0..8 {
            let now = burst * 2 * SPAN + place * 500;
            let stamp = encoder.stamp(Instant::from_nanos(burst * 2 * SPAN));
            if let Some(estimate) = estimator.handle_arrival(stamp, Instant::from_nanos(now)) {
                assert!((estimate.warp - 1.0).abs() < 0.2, "{estimate:?} at {now}");
            }
        }
    }
}

#[test]
fn a_clock_that_is_set_starts_over() {
    let step = 30_000_000_000;
    let estimates = feed(200, 1_000, |sent| if sent < 100_000 { 5_000 } else { 5_000 + step });
    assert!(
        estimates.iter().all(|estimate| (estimate.warp - 1.0).abs() < 1e-6),
        "the offset shows as a warp"
    );
    assert_eq!((estimates[0].epoch, estimates.last().unwrap().epoch), (0, 1));
}

#[test]
fn the_noise_of_the_slope_agrees_with_the_formula() {
    let mut rng = Rng::new(1, "noise");
    let sigma = 1_000.0;
    // The noise is uniform with a deviation of sigma; each group has one message.
    let half = (sigma * 3.0_f64.sqrt()) as u64;
    let estimates = feed(20_000, SPAN, |_| 50_000 + rng.between(0, 2 * half));
    let mean = |of: &dyn Fn(&Estimate) -> f64| {
        estimates.iter().map(of).sum::<f64>() / estimates.len() as f64
    };
    let warp = mean(&|estimate| estimate.warp);
    let deviation = mean(&|estimate| (estimate.warp - 1.0).powi(2)).sqrt();
    // The exact deviation is sigma / (G sqrt(sum of squares about the mean)); the sum is 5 for four
    // points one apart.
    let predicted = sigma / (SPAN as f64 * 5.0_f64.sqrt());
    assert!((warp - 1.0).abs() < 0.002, "the estimate is biased: {warp}");
    assert!((deviation / predicted - 1.0).abs() < 0.05, "{deviation} against {predicted}");
    let noise = mean(&|estimate| estimate.noise_ns);
    assert!((noise / sigma - 1.0).abs() < 0.2, "{noise}");
}

#[test]
fn any_stamps_give_finite_estimates() {
    let made = std::cell::Cell::new(0);
    // Mostly small steps: after a leap the estimate begins anew.
    let step = || prop_oneof![199 => 0..3_000_u64, 1 => any::<u64>()];
    let arrival = (prop_oneof![9 => Just(1_u64), 1 => any::<u64>()], step(), step());
    proptest!(|(arrivals in proptest::collection::vec(arrival, 1..200))| {
        let mut estimator = Estimator::new(Grouping::new(SPAN, 4));
        let (mut sequence, mut sent, mut now) = (0_u64, 1_000_u64, 50_000_u64);
        for (number, later, after) in arrivals {
            sequence = sequence.wrapping_add(number);
            sent = sent.wrapping_add(later);
            now = now.wrapping_add(after);
            let stamp = Stamp { sequence, sent: Instant::from_nanos(sent) };
            if let Some(estimate) = estimator.handle_arrival(stamp, Instant::from_nanos(now)) {
                made.set(made.get() + 1);
                prop_assert!(estimate.warp.is_finite() && estimate.noise_ns.is_finite());
            }
        }
    });
    assert!(made.get() > 100, "{} estimates were made", made.get());
}

proptest! {
    #[test]
    fn loss_doubling_and_reordering_leave_the_slope_alone(seed: u64, percent in 70_u64..160) {
        let mut rng = Rng::new(seed, "faults");
        let mut estimator = Estimator::new(Grouping::new(SPAN, 4));
        let mut arrivals = Vec::new();
        for sequence in 0..400_u64 {
            let sent = 100_000 + sequence * 1_000;
            let stamp = Stamp { sequence, sent: Instant::from_nanos(sent) };
            let base = sent + 1_000_000 + sent * percent / 100 - sent;
            let late = if rng.chance(0.05) { 2_500 } else { 0 };
            if !rng.chance(0.1) {
                arrivals.push((base + late, stamp));
            }
            if rng.chance(0.01) {
                arrivals.push((base + 1_500, stamp));
            }
        }
        arrivals.sort_by_key(|(at, stamp)| (*at, stamp.sequence));
        let estimates: Vec<f64> = arrivals
            .iter()
            .filter_map(|(at, stamp)| estimator.handle_arrival(*stamp, Instant::from_nanos(*at)))
            .map(|estimate| estimate.warp)
            .collect();
        let mean = estimates.iter().sum::<f64>() / estimates.len() as f64;
        prop_assert!((mean - percent as f64 / 100.0).abs() < 0.03, "{} for {}", mean, percent);
        let count = estimator.arrivals();
        prop_assert!(count.received + count.missing <= 400 && count.received + count.missing >= 395);
    }
}
