//! Tests of the pure laws: the limits of their stability, and their defects.

use midplane_warp::model::jain;

use crate::controller::loads::{GradientLaw, PaperLaw, gradient, late_swing, paper};

#[test]
fn w1_the_gradient_law_is_stable_to_half_pi_whatever_the_senders() {
    for senders in [1, 5, 64] {
        assert!(late_swing(&gradient(senders, 1.4, 1.5)) < 0.02, "{senders}");
        assert!(late_swing(&gradient(senders, 1.8, 1.5)) > 0.2, "{senders}: the load oscillates");
    }
}

#[test]
fn w1_the_gradient_law_does_not_overshoot_up_to_one_over_e() {
    // From above, the rate falls to the link's and never below.
    let calm = gradient(3, 1.0 / std::f64::consts::E, 1.5);
    assert!(calm.iter().all(|load| *load > 1.0 - 1e-3) && late_swing(&calm) < 1e-6);
    let lively = gradient(3, 0.7, 1.5);
    assert!(lively.iter().any(|load| *load < 0.98), "above 1 / e the law overshoots");
}

#[test]
fn w1_the_papers_law_loses_its_bound_as_senders_are_added() {
    for (senders, epsilon) in [(1, 1.4), (5, 0.28), (64, 1.4 / 64.0)] {
        assert!(late_swing(&paper(senders, epsilon, 1.2)) < 0.02, "{senders}");
    }
    for (senders, epsilon) in [(1, 1.8), (6, 0.3), (64, 1.8 / 64.0)] {
        assert!(late_swing(&paper(senders, epsilon, 1.2)) > 0.2, "{senders}: the load oscillates");
    }
}

#[test]
fn the_pure_laws_never_probe_and_keep_any_split() {
    let mut rates = [PaperLaw::new(0.1, 0.3), PaperLaw::new(0.4, 0.3)];
    for _ in 0..1_000 {
        // The queue is empty, so warp is 1 at half the load.
        rates.iter_mut().for_each(|law| law.adjust(1.0, 0.1));
    }
    assert_eq!(rates.map(|law| law.rate()), [0.1, 0.4]);
    let mut split = [GradientLaw::new(0.1, 0.3), GradientLaw::new(1.1, 0.3)];
    let mut load = 1.2;
    for _ in 0..1_000 {
        split.iter_mut().for_each(|law| law.adjust(load, 0.1));
        load = split.iter().map(GradientLaw::rate).sum();
    }
    assert!((load - 1.0).abs() < 1e-6);
    assert!(jain(&split.map(|law| law.rate())) < 0.6, "the law keeps the initial split");
}

#[test]
fn w5_under_skew_the_pure_laws_queue_grows_at_skew_times_rate() {
    let skew = 1e-4;
    let mut law = GradientLaw::new(1.0, 0.3);
    let mut queue = 0.05_f64;
    let mut mark = 0.0;
    for second in 0..3_600 {
        if second == 1_800 {
            mark = queue;
        }
        for _ in 0..100 {
            let warp = if queue > 0.0 { law.rate() } else { law.rate().max(1.0) };
            law.adjust(warp - skew, 0.01);
            queue = (queue + (law.rate() - 1.0) * 0.01).max(0.0);
        }
    }
    let growth = (queue - mark) / 1_800.0;
    assert!((growth / skew - 1.0).abs() < 0.01, "{growth}");
}
