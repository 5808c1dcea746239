//! Tests properties of every plan on random chains.

use midplane_pipeline::auto::Refragment;
use midplane_pipeline::fixed::Signature;
use midplane_pipeline::{
    Grouping, Limits, Pipeline, Plan, Request, Stage, auto, fixed, hierarchical, optimum, ramp,
    ramp_up, ramp_up_down,
};
use proptest::prelude::*;

fn stages(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<Stage>> {
    let stage = (0.5_f64..300.0, 0.0005_f64..0.1).prop_map(|(g, c)| Stage::new(g, c).unwrap());
    prop::collection::vec(stage, count)
}

fn chain(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Pipeline> {
    stages(count).prop_map(|stages| Pipeline::new(stages).unwrap())
}

fn fast_slow_fast() -> impl Strategy<Value = Pipeline> {
    stages(3).prop_map(|mut stages| {
        let g = stages.iter().map(|s| s.overhead().get()).fold(0.0, f64::max);
        let c = stages.iter().map(|s| s.per_byte().get()).fold(0.0, f64::max);
        stages[1] = Stage::new(g, c).unwrap();
        Pipeline::new(stages).unwrap()
    })
}

fn all_plans(chain: &Pipeline, request: &Request) -> Vec<Plan> {
    let mut plans = vec![
        fixed(chain, request).unwrap(),
        ramp(chain, request).unwrap(),
        hierarchical(chain, request, None).unwrap(),
        auto(chain, request, None, Refragment::WhereItHelps).unwrap(),
    ];
    plans.extend(ramp_up(chain, request));
    plans.extend(ramp_up_down(chain, request));
    plans
}

fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn fragments_sum_to_the_message_at_every_level(chain in chain(1..7), bytes in 100.0_f64..200_000.0) {
        for plan in all_plans(&chain, &Request::new(bytes)) {
            prop_assert!(close(plan.fragments().iter().sum(), bytes, 1e-9), "{plan:?}");
            prop_assert!(plan.fragments().iter().all(|&size| size > 0.0), "{plan:?}");
            for level in plan.levels() {
                for (pieces, &size) in level.fragments.iter().zip(plan.fragments()) {
                    prop_assert!(close(pieces.iter().sum(), size, 1e-9));
                }
            }
            prop_assert_eq!(plan.whole_bytes().iter().sum::<u64>(), plan.fragments().iter().sum::<f64>().round() as u64);
        }
    }

    #[test]
    fn no_plan_is_slower_than_one_fragment_nor_faster_than_the_bound(chain in chain(1..7), bytes in 100.0_f64..200_000.0) {
        let whole = chain.latency(&[bytes], None).get();
        for plan in all_plans(&chain, &Request::new(bytes)) {
            if plan.levels().is_empty() {
                prop_assert!(plan.latency().get() <= whole * (1.0 + 1e-12), "{plan:?}");
            }
            prop_assert!(plan.latency().get() >= plan.lower_bound().get() * (1.0 - 1e-12), "{plan:?}");
            prop_assert!(plan.gap() >= 0.0);
        }
    }

    #[test]
    fn auto_is_never_above_a_single_family(chain in chain(1..7), bytes in 100.0_f64..200_000.0) {
        let request = Request::new(bytes);
        let auto = auto(&chain, &request, None, Refragment::WhereItHelps).unwrap();
        for plan in all_plans(&chain, &request) {
            prop_assert!(auto.latency().get() <= plan.latency().get() * (1.0 + 1e-12), "{:?} beats {auto:?}", plan.family());
        }
    }

    #[test]
    fn a_reversed_pipeline_takes_the_reversed_plan(chain in chain(1..7), sizes in prop::collection::vec(1.0_f64..9000.0, 1..20)) {
        let forward = chain.latency(&sizes, None).get();
        let backward: Vec<f64> = sizes.iter().rev().copied().collect();
        prop_assert!(close(chain.reversed().latency(&backward, None).get(), forward, 1e-12));
    }

    #[test]
    fn equal_fragments_match_brute_force(chain in chain(1..9), bytes in 750.0_f64..384_000.0) {
        let plan = fixed(&chain, &Request::new(bytes)).unwrap();
        let signature = Signature::new(&chain);
        let most = 400.max(plan.fragments().len() + 50);
        let best = (1..=most).map(|count| signature.latency(bytes, count as f64).get()).fold(f64::INFINITY, f64::min);
        prop_assert!(close(plan.latency().get(), best, 1e-9), "{} against {best}", plan.latency());
        for (fewest, most) in [(1, 65_536), (3, 9), (5, 5)] {
            let cold = fixed::count(&chain, bytes, fewest, most);
            let known = signature.count(bytes, fewest, most);
            prop_assert!((fewest..=most).contains(&cold));
            let us = |count: usize| signature.latency(bytes, count as f64).get();
            prop_assert!(close(us(cold), us(known), 1e-12), "{cold} against {known}");
        }
        let sizes = vec![bytes / 7.0; 7];
        prop_assert!(close(chain.latency(&sizes, None).get(), signature.latency(bytes, 7.0).get(), 1e-12));
    }

    #[test]
    fn the_three_parts_sum_to_the_latency(chain in chain(1..7), sizes in prop::collection::vec(1.0_f64..9000.0, 1..20)) {
        let parts = chain.parts(&sizes, None);
        let sum = parts.first.get() + parts.busy.get() + parts.last.get();
        prop_assert!(close(sum, chain.latency(&sizes, None).get(), 1e-12));
        let equal = chain.parts(&[500.0; 9], None);
        prop_assert!(equal.idle.get() <= 1e-9 * equal.busy.get(), "equal fragments left the bottleneck idle");
    }

    #[test]
    fn two_stage_ramps_are_bubble_free(chain in chain(2..3), bytes in 1000.0_f64..64_000.0) {
        let plan = ramp_up(&chain, &Request::new(bytes)).unwrap();
        let stages = chain.stages();
        for pair in plan.fragments().windows(2) {
            prop_assert!(close(stages[0].time(pair[1]).get(), stages[1].time(pair[0]).get(), 1e-6), "{plan:?}");
        }
        let rising = plan.fragments().windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-9));
        let falling = plan.fragments().windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-9));
        prop_assert!(rising || falling, "the ramp is not monotone: {plan:?}");
    }

    #[test]
    fn fast_slow_fast_ramps_keep_the_slow_stage_busy(chain in fast_slow_fast(), bytes in 1000.0_f64..64_000.0) {
        let plan = ramp_up_down(&chain, &Request::new(bytes)).unwrap();
        let rows = chain.rows(plan.fragments(), None);
        let slow: Vec<_> = rows.iter().filter(|row| row.stage == 1).collect();
        for pair in slow.windows(2) {
            prop_assert!(close(pair[1].start.get(), pair[0].end.get(), 1e-9), "{plan:?}");
        }
    }

    #[test]
    fn more_credits_are_never_slower(chain in chain(1..6), sizes in prop::collection::vec(1.0_f64..9000.0, 1..20), credits in 1_usize..8) {
        let fewer = chain.latency(&sizes, Some(credits)).get();
        let more = chain.latency(&sizes, Some(credits + 1)).get();
        prop_assert!(more <= fewer * (1.0 + 1e-12));
        prop_assert!(chain.latency(&sizes, None).get() <= more * (1.0 + 1e-12));
    }

    #[test]
    fn credits_are_part_of_the_choice(chain in chain(2..6), bytes in 1000.0_f64..60_000.0, credits in 1_usize..5) {
        let request = Request::new(bytes).limits(Limits::new().max_in_flight(credits));
        let plan = fixed(&chain, &request).unwrap();
        let most = 63.min(bytes as usize);
        let best = (1..=most)
            .map(|count| chain.latency(&vec![bytes / count as f64; count], Some(credits)).get())
            .fold(f64::INFINITY, f64::min);
        prop_assert!(plan.latency().get() <= best * (1.0 + 1e-9), "{} against {best}", plan.latency());
    }

    #[test]
    fn refragmenting_nothing_is_the_flat_recurrence(chain in chain(2..6), bytes in 1000.0_f64..60_000.0) {
        let alone: Vec<Vec<usize>> = (0..chain.stages().len()).map(|stage| vec![stage]).collect();
        let groups = Grouping::new(alone.len(), &alone).unwrap();
        let plan = hierarchical(&chain, &Request::new(bytes), Some(&groups)).unwrap();
        prop_assert!(close(plan.latency().get(), chain.latency(plan.fragments(), None).get(), 1e-12));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_optimum_bounds_every_plan_that_does_not_refragment(chain in chain(2..6), bytes in 1000.0_f64..24_000.0) {
        prop_assume!(Signature::new(&chain).count(bytes, 1, 1000) <= 10);
        let request = Request::new(bytes);
        let best = optimum(&chain, &request).unwrap();
        for plan in all_plans(&chain, &request) {
            if plan.levels().is_empty() {
                prop_assert!(plan.latency().get() >= best.latency().get() * (1.0 - 1e-8), "{plan:?} against {best:?}");
            }
        }
    }

    #[test]
    fn ramps_are_the_optimum_where_the_theorems_say_so(two in chain(2..3), three in fast_slow_fast(), bytes in 1000.0_f64..24_000.0) {
        for chain in [two, three] {
            prop_assume!(Signature::new(&chain).count(bytes, 1, 1000) <= 12);
            let request = Request::new(bytes);
            let best = optimum(&chain, &request).unwrap().latency().get();
            prop_assert!(ramp(&chain, &request).unwrap().latency().get() <= best * (1.0 + 1e-8));
        }
    }
}

/// A chain on which the best last of six fragments is almost zero. As the start of the search for five fragments, that
/// size made the search converge slowly.
#[test]
fn a_ramp_forgets_the_ends_of_another_number_of_fragments() {
    let stages = [(1.4035, 0.0031381), (19.119, 0.07803), (1.154, 0.022274)];
    let stages = stages.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect();
    let chain = Pipeline::new(stages).unwrap();
    let request = Request::new(24_563.7);
    let best = ramp_up_down(&chain, &request).unwrap().latency().get();
    assert!(close(ramp(&chain, &request).unwrap().latency().get(), best, 1e-9));
}
