//! Tests planners with hostile input: the result is a plan within every limit or a typed error,
//! never a NaN, a panic or an endless loop.

use midplane_pipeline::auto::Refragment;
use midplane_pipeline::{
    Grouping, Limits, Pipeline, Plan, PlanError, Planner, Request, Stage, auto, fixed,
    hierarchical, plan, ramp,
};
use midplane_pipeline::{ramp_up, ramp_up_down};
use proptest::prelude::*;

fn wild() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(-1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(5e-324),
        Just(1e12),
        Just(1e13),
        Just(f64::MAX),
        Just(1.0),
        Just(1e-300),
        0.0_f64..1000.0,
        0.0_f64..1e9,
        any::<f64>(),
    ]
}

/// Draws valid costs, extreme ones included.
fn odd() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(5e-324),
        Just(1e-300),
        Just(1e-9),
        Just(1e12),
        0.0_f64..500.0,
        0.0_f64..0.1
    ]
}

fn odd_chain(most: usize) -> impl Strategy<Value = Pipeline> {
    prop::collection::vec((odd(), odd(), odd()), 1..=most).prop_map(|stages| {
        let stage = |(g, c, first)| Stage::new(g, c).unwrap().with_first_overhead(first).unwrap();
        Pipeline::new(stages.into_iter().map(stage).collect()).unwrap()
    })
}

fn every_planner(chain: &Pipeline, request: &Request) -> Vec<Result<Plan, PlanError>> {
    vec![
        fixed(chain, request),
        ramp(chain, request),
        ramp_up(chain, request),
        ramp_up_down(chain, request),
        hierarchical(chain, request, None),
        auto(chain, request, None, Refragment::WhereItHelps),
    ]
}

fn is_sound(plan: &Plan, bytes: f64) -> Result<(), TestCaseError> {
    let sum: f64 = plan.fragments().iter().sum();
    prop_assert!((sum - bytes).abs() <= 1e-9 * bytes, "{sum} against {bytes}");
    prop_assert!(
        plan.fragments().iter().all(|size| size.is_finite() && *size > 0.0),
        "{:?}",
        plan.fragments()
    );
    prop_assert!(
        plan.latency().get().is_finite()
            && plan.lower_bound().get().is_finite()
            && plan.gap().is_finite()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn wild_costs_are_refused_or_kept(g in wild(), c in wild(), first in wild()) {
        let stage = Stage::new(g, c).map(|stage| stage.with_first_overhead(first));
        let good = |x: f64| (0.0..=1e12).contains(&x);
        prop_assert_eq!(stage.is_ok(), good(g) && good(c));
        if let Ok(stage) = stage {
            prop_assert_eq!(stage.is_ok(), good(first));
        }
    }

    #[test]
    fn odd_chains_give_sound_plans(chain in odd_chain(6), bytes in prop_oneof![Just(1e-9), Just(1.0), 0.1_f64..5e4, Just(1e9)]) {
        for plan in every_planner(&chain, &Request::new(bytes).limits(Limits::new().max_fragments(300))).into_iter().flatten() {
            is_sound(&plan, bytes)?;
        }
    }

    #[test]
    fn wild_requests_give_sound_plans_or_errors(
        // The number of possible groupings doubles with each stage.
        chain in odd_chain(4), bytes in wild(), mtu in prop::option::of(wild()), align in prop::option::of(wild()),
        min in prop::option::of(wild()), most in prop::option::of(0_usize..50), flight in prop::option::of(0_usize..9),
        equal in any::<bool>(), count in prop::option::of(0_usize..80),
    ) {
        let mut limits = Limits::new().equal_but_last(equal).max_fragments(most.unwrap_or(90));
        if let Some(mtu) = mtu { limits = limits.mtu(mtu); }
        if let Some(align) = align { limits = limits.align(align); }
        if let Some(min) = min { limits = limits.min_fragment(min); }
        if let Some(flight) = flight { limits = limits.max_in_flight(flight); }
        let mut request = Request::new(bytes).limits(limits);
        if let Some(count) = count { request = request.fragments(count); }
        for plan in every_planner(&chain, &request).into_iter().flatten() {
            is_sound(&plan, bytes)?;
        }
    }

    #[test]
    fn limits_are_kept(
        costs in prop::collection::vec((1.0_f64..200.0, 0.001_f64..0.1), 1..6), bytes in 200_u32..40_000,
        mtu in 100.0_f64..20_000.0, align in prop_oneof![Just(None), Just(Some(64.0)), Just(Some(17.0))],
        min in prop::option::of(1.0_f64..90.0), equal in any::<bool>(),
    ) {
        let chain = Pipeline::new(costs.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect()).unwrap();
        let mut limits = Limits::new().mtu(mtu).equal_but_last(equal);
        if let Some(align) = align { limits = limits.align(align); }
        if let Some(min) = min { limits = limits.min_fragment(min); }
        let request = Request::new(f64::from(bytes)).limits(limits);
        let plans = [fixed(&chain, &request), ramp(&chain, &request), auto(&chain, &request, None, Refragment::WhereItHelps)];
        for plan in plans.into_iter().flatten() {
            is_sound(&plan, f64::from(bytes))?;
            let (last, others) = plan.fragments().split_last().unwrap();
            prop_assert!(*last <= mtu * (1.0 + 1e-9));
            for size in others {
                prop_assert!(*size <= mtu * (1.0 + 1e-9), "{plan:?}");
                prop_assert!(align.is_none_or(|align| (size / align).fract() == 0.0), "{plan:?}");
                prop_assert!(min.is_none_or(|min| *size >= min * (1.0 - 1e-9)), "{plan:?}");
                prop_assert!(!equal || ((size - others[0]).abs() < 1e-9 && *last <= size * (1.0 + 1e-9)), "{plan:?}");
            }
        }
    }

    #[test]
    fn vectors_are_timed_or_refused(chain in odd_chain(6), bytes in wild(), vector in prop::collection::vec(wild(), 0..6)) {
        if let Ok(plan) = plan::time(&chain, &Request::new(bytes), &vector, None) {
            prop_assert!(plan.latency().get().is_finite());
        }
    }

    #[test]
    fn groupings_cover_or_are_refused(stages in 0_usize..6, groups in prop::collection::vec(prop::collection::vec(0_usize..7, 0..4), 0..5)) {
        let flat: Vec<usize> = groups.iter().flatten().copied().collect();
        let covers = stages > 0 && flat == (0..stages).collect::<Vec<_>>() && groups.iter().all(|group| !group.is_empty());
        prop_assert_eq!(Grouping::new(stages, &groups).is_ok(), covers);
    }

    #[test]
    fn the_hot_path_keeps_its_limits(
        costs in prop::collection::vec((1.0_f64..200.0, 0.001_f64..0.1), 1..5), sizes in prop::collection::vec(0_u64..3_000_000, 1..20),
        align in prop_oneof![Just(None), Just(Some(64.0)), Just(Some(512.0))], mtu in prop::option::of(2000_u64..100_000),
    ) {
        let chain = Pipeline::new(costs.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect()).unwrap();
        let mut limits = Limits::new();
        if let Some(mtu) = mtu { limits = limits.mtu(mtu as f64); }
        if let Some(align) = align { limits = limits.align(align); }
        let mut planner = Planner::new(chain, limits).unwrap();
        for cached in [false, true] {
            for &bytes in &sizes {
                let pieces: Vec<u64> = planner.plan(bytes).collect();
                prop_assert_eq!(pieces.iter().sum::<u64>(), bytes);
                prop_assert!(pieces.iter().all(|&size| size > 0 && mtu.is_none_or(|mtu| size <= mtu)), "{cached} {pieces:?}");
                let whole = |size: &u64| align.is_none_or(|align| size.is_multiple_of(align as u64));
                prop_assert!(pieces.iter().rev().skip(1).all(whole), "{pieces:?}");
            }
            while let Some(wanted) = planner.poll_ramp_request() {
                if let Ok(ramp) = wanted.compute() {
                    planner.install(ramp);
                }
            }
        }
    }
}

#[test]
fn a_chain_without_overhead_has_no_best_number_of_fragments() {
    let free = |c| Stage::new(0.0, c).unwrap();
    let chain = Pipeline::new(vec![free(0.01), free(0.02)]).unwrap();
    for plan in every_planner(&chain, &Request::new(4096.0)).into_iter().take(3) {
        assert_eq!(plan, Err(PlanError::Unbounded));
    }
    let bounded = Request::new(4096.0).limits(Limits::new().min_fragment(256.0));
    assert_eq!(fixed(&chain, &bounded).unwrap().fragments().len(), 16);
    assert_eq!(fixed(&chain, &Request::new(4096.0).fragments(7)).unwrap().fragments().len(), 7);
    let alone = Pipeline::new(vec![free(0.01)]).unwrap();
    assert_eq!(fixed(&alone, &Request::new(4096.0)).unwrap().fragments().len(), 1);
}

#[test]
fn alignment_beyond_the_message_is_refused() {
    let chain = Pipeline::new(vec![Stage::new(1.0, 0.01).unwrap()]).unwrap();
    let request = Request::new(100.0).limits(Limits::new().align(128.0));
    assert!(matches!(fixed(&chain, &request), Err(PlanError::AlignBeyondMessage { .. })));
}

#[test]
fn a_rest_of_one_byte_does_not_make_the_last_fragment_the_largest() {
    let stage = Stage::new(1.0, 0.001).unwrap();
    let chain = Pipeline::new(vec![stage; 3]).unwrap();
    let limits = Limits::new().mtu(245.039).align(17.0).equal_but_last(true);
    let request = Request::new(36_177.0).limits(limits);
    let refragment = Refragment::WhereItHelps;
    for plan in [fixed(&chain, &request), auto(&chain, &request, None, refragment)] {
        let plan = plan.unwrap();
        assert!(plan.fragments().last() <= plan.fragments().first(), "{plan:?}");
    }
}

#[test]
fn a_cache_names_the_limit_that_it_does_not_support() {
    let chain = Pipeline::new(vec![Stage::new(1.0, 1.0).unwrap()]).unwrap();
    let refused = |limits| Planner::new(chain.clone(), limits).unwrap_err().to_string();
    assert!(refused(Limits::new().mtu(1.0)).contains("an mtu of at least align + 1 bytes"));
    assert!(refused(Limits::new().mtu(64.0).align(64.0)).contains("an mtu of at least align + 1"));
    assert!(refused(Limits::new().max_in_flight(2)).contains("use fixed or auto"));
    assert!(refused(Limits::new().align(1.5)).contains("a whole number of bytes"));
    assert_eq!(refused(Limits::new().align(f64::NAN)), "align must be a number above 0, not NaN");
    assert_eq!(refused(Limits::new().max_in_flight(0)), "max_in_flight must be at least 1");
}
