//! Tests plans from uncertain costs: equal fragments where a ramp is risky, ramps elsewhere.

use midplane_pipeline::auto::Refragment;
use midplane_pipeline::estimate::{HopPath, Monitor, Verdict, hops, instrumented};
use midplane_pipeline::{
    Family, Grouping, Limits, Pipeline, Plan, PlanError, Planner, Request, Stage, auto, fixed,
    stage::StageError,
};
use proptest::prelude::*;

use crate::dice::Dice;

/// Returns the latency if `factor` gives how much longer a stage takes for its next
/// fragment.
fn latency(chain: &Pipeline, sizes: &[f64], mut factor: impl FnMut(usize) -> f64) -> f64 {
    let mut free = vec![0.0; chain.stages().len()];
    sizes.iter().fold(0.0, |_, &bytes| {
        let stages = chain.stages().iter().zip(&mut free).enumerate();
        stages.fold(0.0, |at: f64, (index, (stage, free))| {
            *free = at.max(*free) + stage.time(bytes).get() * factor(index);
            *free
        })
    })
}

/// Returns how much lower the mean latency of ramps is than that of equal fragments, as a fraction of
/// it, and the same of what `auto` chooses. The time of each fragment in each stage has an error, drawn
/// by `draw` for each stage of 500 random chains, around a value of the chain.
fn gains(draw: impl Fn(&mut Dice, f64) -> f64) -> [f64; 2] {
    const TURNS: usize = 100;
    let (mut dice, mut sums, mut count) = (Dice(23), [0.0; 2], 0.0);
    for turn in 0..500 {
        let exact = dice.chain(2 + turn % 7);
        let request = Request::new(dice.between(1000.0, 65_536.0));
        let base = dice.between(0.05, 1.0);
        let errors: Vec<f64> = exact.stages().iter().map(|_| draw(&mut dice, base)).collect();
        let equal = fixed(&exact, &request).unwrap();
        if equal.fragments().len() < 2 {
            continue;
        }
        let stages = exact.stages().iter().zip(&errors);
        let stages = stages.map(|(stage, &error)| stage.with_error(error).unwrap()).collect();
        let known = Pipeline::new(stages).unwrap();
        let plans = [&exact, &known].map(|chain| auto(chain, &request, None, Refragment::Never));
        let mut mean = |plan: &Plan| -> f64 {
            let once = |_| latency(&exact, plan.fragments(), |stage| dice.factor(errors[stage]));
            (0..TURNS).map(once).sum()
        };
        let reference = mean(&equal);
        for (sum, plan) in sums.iter_mut().zip(plans) {
            let plan = plan.unwrap();
            *sum +=
                if plan.family() == Family::Fixed { 0.0 } else { 1.0 - mean(&plan) / reference };
        }
        count += 1.0;
    }
    sums.map(|sum| sum / count)
}

/// Checks that ramps win clearly below the threshold of 0.35, and lose above it.
#[test]
fn ramps_win_below_the_threshold_and_lose_above_it() {
    let gains = [0.0, 0.1, 0.2, 0.35, 0.6].map(|error| gains(|_, _| error)[0]);
    println!("ramps gain {gains:.4?} at errors of 0, 0.1, 0.2, 0.35 and 0.6");
    assert!(gains[0] > 0.04 && gains[1] > 0.02 && gains[2] > 0.01, "{gains:?}");
    assert!(gains[3].abs() < 0.005 && gains[4] < -0.005, "{gains:?}");
}

/// Checks that the choice by the stages' mean error is better than ramps alone and than equal fragments
/// alone, where the errors of a chain's stages differ by up to nine times.
#[test]
fn the_choice_by_mean_error_is_better_than_either_plan_alone() {
    let [ramps, chosen] = gains(|dice, base| (base * dice.between(1.0 / 3.0, 3.0)).min(1.0));
    println!("over equal fragments, ramps gain {ramps:.4}, the choice {chosen:.4}");
    assert!(chosen > ramps + 0.002 && chosen > 0.008, "{chosen} and {ramps}");
}

fn uncertain(chain: &Pipeline, errors: &[f64]) -> Pipeline {
    let stages = chain.stages().iter().zip(errors.iter().cycle());
    Pipeline::new(stages.map(|(stage, &error)| stage.with_error(error).unwrap()).collect()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn uncertain_stages_make_all_fragments_equal(
        seed: u64, n in 1_usize..7, errors in prop::collection::vec(0.36_f64..1e12, 7), bytes in 100_u64..200_000,
    ) {
        let chain = uncertain(&Dice(seed).chain(n), &errors);
        let request = Request::new(bytes as f64);
        for merged in [chain.clone(), chain.reversed(), chain.merged(0..n).unwrap(), chain.overlapped(0..n).unwrap()] {
            let plan = auto(&merged, &request, None, Refragment::WhereItHelps).unwrap();
            prop_assert_eq!(plan, fixed(&merged, &request).unwrap());
        }
        let mut planner = Planner::new(chain.clone(), Limits::new()).unwrap();
        let sizes: Vec<u64> = planner.plan(bytes).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{sizes:?}");
        prop_assert!(planner.poll_ramp_request().is_none());
    }

    #[test]
    fn small_errors_change_no_plan(
        seed: u64, n in 1_usize..7, errors in prop::collection::vec(0.0_f64..0.34, 7), unknown in 0_usize..7,
        bytes in 100.0_f64..200_000.0,
    ) {
        let chain = Dice(seed).chain(n);
        let request = Request::new(bytes);
        let plan = |chain: &Pipeline| auto(chain, &request, None, Refragment::WhereItHelps).unwrap();
        prop_assert_eq!(plan(&uncertain(&chain, &errors)), plan(&chain));
        // One stage of six with unknown costs does not change the plan either.
        let mut errors = vec![0.0; n];
        if n == 6 {
            errors[unknown % n] = 1e12;
        }
        prop_assert_eq!(plan(&uncertain(&chain, &errors)), plan(&chain));
    }
}

/// Two stages on which a ramp is 15 % faster than equal fragments.
fn ramped() -> Pipeline {
    let stages = [(5.0, 0.005), (5.0, 0.05)];
    Pipeline::new(stages.map(|(g, c)| Stage::new(g, c).unwrap()).into()).unwrap()
}

fn family(chain: &Pipeline) -> Family {
    auto(chain, &Request::new(8000.0), None, Refragment::Never).unwrap().family()
}

#[test]
fn the_scatter_of_timings_reaches_the_plan() {
    let mut dice = Dice(3);
    for (error, equal) in [(0.0, false), (0.1, false), (0.8, true)] {
        let truth = ramped();
        let timings = truth.stages().iter().map(|stage| -> Vec<(f64, f64)> {
            let sizes = (1..=64).map(|step| f64::from(step) * 125.0);
            sizes.map(|bytes| (bytes, stage.time(bytes).get() * dice.factor(error))).collect()
        });
        let seen = instrumented(&timings.collect::<Vec<_>>()).unwrap();
        assert_eq!(family(&seen) == Family::Fixed, equal, "{error}: {seen:?}");
    }
}

/// Probes whose times scatter by a tenth: little compared with the whole path, but as much as a short last hop.
struct Scattered(Dice);

impl HopPath for Scattered {
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64> {
        let us = 1000.0 + 0.1 * bytes + if hops == 2 { 1.0 + 0.001 * bytes } else { 0.0 };
        Some(us * self.0.factor(0.1))
    }
}

#[test]
fn a_hop_within_the_noise_of_the_others_is_uncertain() {
    let found = hops(&mut Scattered(Dice(5)), 2, (64.0, 8192.0), 1).unwrap();
    assert_eq!(family(&found), Family::Fixed, "{found:?}");
}

#[test]
fn a_suspected_stage_is_scaled_at_once() {
    let mut monitor = Monitor::new(&ramped());
    let doubled = 2.0 * ramped().stages()[1].time(800.0).get();
    let verdicts: Vec<Verdict> = (0..3).map(|_| monitor.handle_timing(1, 800.0, doubled)).collect();
    assert_eq!(verdicts.last(), Some(&Verdict::Suspect(1)));
    let now = monitor.pipeline().stages()[1].time(800.0).get();
    assert!((now / doubled - 1.0).abs() < 1e-9, "{now} us instead of {doubled}");
}

#[test]
fn growing_scatter_alone_is_a_reason_to_replan() {
    let (mut monitor, mut dice) = (Monitor::new(&ramped()), Dice(9));
    let mut replanned = false;
    for _ in 0..400 {
        let bytes = dice.between(100.0, 8000.0);
        for (index, stage) in ramped().stages().iter().enumerate() {
            let us = stage.time(bytes).get() * dice.factor(0.8);
            replanned |= monitor.handle_timing(index, bytes, us) == Verdict::Replan
                && family(&monitor.pipeline()) == Family::Fixed;
        }
    }
    assert!(replanned);
}

#[test]
fn an_invalid_error_is_refused() {
    for error in [-0.1, f64::NAN, f64::INFINITY, 1e13] {
        let refused = Stage::new(1.0, 1.0).unwrap().with_error(error);
        assert!(matches!(refused, Err(StageError::Error(_))), "{refused:?}");
    }
}

#[test]
fn groups_that_do_not_cover_the_stages_are_refused_whatever_the_costs() {
    let request = Request::new(8000.0);
    let groups = Grouping::new(3, &[[0_usize].as_slice(), &[1, 2]]).unwrap();
    for error in [0.0, 0.8] {
        let chain = uncertain(&ramped(), &[error]);
        let refused = auto(&chain, &request, Some(&groups), Refragment::Never);
        assert!(matches!(refused, Err(PlanError::Groups(_))), "{error}: {refused:?}");
    }
}
