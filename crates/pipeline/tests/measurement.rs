//! Tests that the estimates recover stages from timings.

use midplane_pipeline::estimate::{
    BlackBoxError, FitError, HopPath, Monitor, Path, Verdict, fit, hops, instrumented, observe,
};
use midplane_pipeline::fixed::Signature;
use midplane_pipeline::{Pipeline, Stage};
use proptest::prelude::*;

fn chain(stages: &[(f64, f64)]) -> Pipeline {
    Pipeline::new(stages.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect()).unwrap()
}

struct Exact(Pipeline);

impl Path for Exact {
    fn latency(&mut self, bytes: f64) -> f64 {
        self.0.latency(&[bytes], None).get()
    }
    fn interval(&mut self, bytes: f64) -> f64 {
        self.0.stages().iter().map(|stage| stage.time(bytes).get()).fold(0.0, f64::max)
    }
}

impl HopPath for Exact {
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64> {
        // The second hop does not answer.
        (hops != 2)
            .then(|| self.0.stages()[..hops].iter().map(|stage| stage.time(bytes).get()).sum())
    }
}

#[test]
fn a_shifting_bottleneck_is_found_where_it_shifts() {
    let gms = chain(&[(2.1, 0.0256), (4.0, 0.0601), (2.1, 0.0256), (92.8, 0.0262)]);
    let seen = observe(&mut Exact(gms.clone()), 128.0, 16_384.0).unwrap();
    let switch = seen.switches().next().unwrap();
    assert!((switch - 2619.5).abs() < 30.0, "{switch}");
    assert_eq!(seen.count(8000.0), 3);
    assert!((seen.latency(8000.0, 3).get() / 796.2 - 1.0).abs() < 0.001);
}

#[test]
fn a_bottleneck_of_a_narrow_range_of_sizes_is_found() {
    // The first stage is the slowest only from 2,523 to 3,219 bytes.
    let costs = [(123.15, 0.0541), (194.41, 0.02585), (1.0, 0.0385), (5.07, 0.0908)];
    let truth = chain(&costs);
    let seen = observe(&mut Exact(truth.clone()), 256.0, 65_536.0).unwrap();
    assert_eq!(seen.bottlenecks.len(), 3);
    assert_eq!(seen.count(55_251.0), Signature::new(&truth).count(55_251.0, 1, 65_536));
}

#[test]
fn hops_that_do_not_answer_are_merged() {
    let path = chain(&[(2.0, 0.01), (4.0, 0.06), (90.0, 0.02)]);
    let found = hops(&mut Exact(path), 3, (64.0, 8192.0), 3).unwrap();
    let near = |stage: &Stage, g: f64, c: f64| {
        (stage.overhead().get() - g).abs() < 1e-6 && (stage.per_byte().get() - c).abs() < 1e-9
    };
    assert_eq!(found.stages().len(), 2);
    assert!(
        near(&found.stages()[0], 2.0, 0.01) && near(&found.stages()[1], 94.0, 0.08),
        "{found:?}"
    );
}

#[test]
fn invalid_timings_are_refused() {
    assert_eq!(fit(&[(1.0, 1.0)]), Err(FitError::TooFew(1)));
    assert_eq!(fit(&[(5.0, 1.0), (5.0, 2.0)]), Err(FitError::OneSize(5.0)));
    assert_eq!(fit(&[(1.0, 1.0), (2.0, f64::NAN)]), Err(FitError::BadTiming(1)));
    let range = observe(&mut Exact(chain(&[(1.0, 1.0)])), 5.0, 5.0);
    assert_eq!(range, Err(BlackBoxError::Range { low: 5.0, high: 5.0 }));
}

#[test]
fn a_doubled_stage_is_replanned_within_32_messages() {
    let old = chain(&[(7.2, 0.0072), (5.2, 0.0249), (7.5, 0.0249), (7.4, 0.0079)]);
    let mut monitor = Monitor::new(&old);
    for message in 0..100 {
        for stage in 0..4 {
            assert_eq!(
                monitor.handle_timing(
                    stage,
                    800.0 + f64::from(message),
                    old.stages()[stage].time(800.0 + f64::from(message)).get()
                ),
                Verdict::Steady
            );
        }
    }
    let mut verdicts = Vec::new();
    for _ in 0..32 {
        verdicts.push(monitor.handle_timing(1, 820.0, 2.0 * old.stages()[1].time(820.0).get()));
    }
    assert!(verdicts.contains(&Verdict::Suspect(1)) && verdicts.contains(&Verdict::Replan));
    let now = monitor.pipeline().stages()[1];
    assert!((now.time(820.0).get() / (2.0 * old.stages()[1].time(820.0).get()) - 1.0).abs() < 0.01);
}

#[test]
fn a_stage_that_was_thought_to_cost_nothing_is_learned() {
    let mut monitor = Monitor::new(&chain(&[(0.0, 0.0)]));
    let verdicts: Vec<_> = (0..100).map(|_| monitor.handle_timing(0, 10_000.0, 100.0)).collect();
    assert!(verdicts[50..].iter().all(|verdict| *verdict == Verdict::Steady), "{verdicts:?}");
    let learned = monitor.pipeline().stages()[0].time(10_000.0).get();
    assert!((learned / 100.0 - 1.0).abs() < 0.01, "{learned}");
}

#[test]
fn one_outlier_is_no_alarm() {
    let old = chain(&[(7.2, 0.0072), (5.2, 0.0249)]);
    let mut monitor = Monitor::new(&old);
    for turn in 0..200 {
        let slow = if turn % 20 == 0 { 50.0 } else { 1.0 };
        assert_eq!(
            monitor.handle_timing(0, 500.0, slow * old.stages()[0].time(500.0).get()),
            Verdict::Steady
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_quarter_of_outliers_does_not_sway_a_stage(g in 1.0_f64..200.0, c in 0.001_f64..0.1, factor in 2.0_f64..50.0, turn in 0_usize..4) {
        let timing = |index: usize| {
            let bytes = 64.0 * (1.0 + index as f64).powi(2);
            (bytes, (g + c * bytes) * if index % 4 == turn { factor } else { 1.0 })
        };
        let timings: Vec<(f64, f64)> = (0..32).map(timing).collect();
        let found = instrumented(&[timings]).unwrap();
        let stage = found.stages()[0];
        prop_assert!((stage.overhead().get() / g - 1.0).abs() < 0.05, "{stage:?}");
        prop_assert!((stage.per_byte().get() / c - 1.0).abs() < 0.05, "{stage:?}");
    }

    #[test]
    fn without_noise_the_black_box_plans_like_the_truth(costs in prop::collection::vec((1.0_f64..200.0, 0.001_f64..0.1), 2..7), bytes in 2000.0_f64..60_000.0) {
        let truth = chain(&costs);
        let seen = observe(&mut Exact(truth.clone()), 256.0, 65_536.0).unwrap();
        let signature = Signature::new(&truth);
        let at = |count: usize| signature.latency(bytes, count as f64).get();
        prop_assert!(at(seen.count(bytes)) <= at(signature.count(bytes, 1, 65_536)) * 1.02);
    }

    #[test]
    fn wild_timings_never_break_a_monitor(timings in prop::collection::vec((0_usize..3, any::<f64>(), any::<f64>()), 0..200)) {
        let mut monitor = Monitor::new(&chain(&[(7.2, 0.0072), (5.2, 0.0249)]));
        for (stage, bytes, us) in timings {
            let _ = monitor.handle_timing(stage, bytes, us);
        }
        for stage in monitor.pipeline().stages() {
            prop_assert!(stage.overhead().get().is_finite() && stage.per_byte().get().is_finite());
        }
    }
}

#[test]
fn a_monitored_stage_keeps_the_surplus_of_the_first_fragment() {
    let stage = Stage::new(5.0, 0.01).unwrap().with_first_overhead(55.0).unwrap();
    let mut monitor = Monitor::new(&Pipeline::new(vec![stage]).unwrap());
    let surplus = |monitor: &Monitor| {
        let path = monitor.pipeline();
        path.latency(&[1000.0], None).get() - path.stages()[0].time(1000.0).get()
    };
    let mut seen = Vec::new();
    for i in 0..200 {
        let bytes = f64::from(500 + i % 7 * 400);
        let verdict = monitor.handle_timing(0, bytes, 2.0 * stage.time(bytes).get());
        assert!((surplus(&monitor) - 50.0).abs() < 1e-9, "timing {i}: {}", surplus(&monitor));
        seen.push(verdict);
    }
    assert!(seen.contains(&Verdict::Suspect(0)) && seen.contains(&Verdict::Replan));
    let doubled = monitor.pipeline().stages()[0].time(1000.0).get();
    assert!((doubled / 30.0 - 1.0).abs() < 0.05, "{doubled}");
}
