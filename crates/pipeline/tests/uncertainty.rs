//! Tests plans from uncertain costs: equal fragments where a ramp is risky, ramps elsewhere.

use midplane_pipeline::auto::Refragment;
use midplane_pipeline::estimate::{HopPath, Monitor, Verdict, hops, instrumented};
use midplane_pipeline::{
    Family, Limits, Pipeline, Plan, Planner, Request, Stage, auto, fixed, stage::StageError,
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

/// Returns the latency of a plan, which may refragment, on a chain for which it was not made.
fn latency_on(chain: &Pipeline, plan: &Plan) -> f64 {
    plan.rows(chain, None).iter().map(|row| row.end.get()).fold(0.0, f64::max)
}

/// Returns the geometric means of the latencies of unequal plans over those of equal fragments, on
/// random chains whose costs err: of ramps if each fragment errs by itself and if each stage errs as
/// a whole, and of refragmenting plans if each stage does.
fn unequal_over_equal(error: f64) -> [f64; 3] {
    const TURNS: usize = 20;
    let mut dice = Dice(7);
    let (mut sums, mut count) = ([0.0; 3], 0);
    for turn in 0..300 {
        let chain = dice.chain(2 + turn % 7);
        let request = Request::new(dice.between(1000.0, 65_536.0));
        let equal = fixed(&chain, &request).unwrap();
        let ramp = auto(&chain, &request, None, Refragment::Never).unwrap();
        let refragmenting = auto(&chain, &request, None, Refragment::WhereItHelps).unwrap();
        if equal.fragments().len() < 2 {
            continue;
        }
        count += TURNS;
        for _ in 0..TURNS {
            let wrong = chain.stages().iter().map(|stage| {
                let factor = dice.factor(error);
                Stage::new(stage.overhead().get() * factor, stage.per_byte().get() * factor)
            });
            let wrong = Pipeline::new(wrong.collect::<Result<_, _>>().unwrap()).unwrap();
            let mut scattered =
                |plan: &Plan| latency(&chain, plan.fragments(), |_| dice.factor(error));
            sums[0] += (scattered(&ramp) / scattered(&equal)).ln();
            let base = latency_on(&wrong, &equal);
            sums[1] += (latency_on(&wrong, &ramp) / base).ln();
            sums[2] += (latency_on(&wrong, &refragmenting) / base).ln();
        }
    }
    sums.map(|sum| (sum / count as f64).exp())
}

/// Checks that unequal fragments still win at the threshold, 0.35, and lose soon above it.
#[test]
fn unequal_fragments_win_up_to_the_threshold() {
    for (error, wins) in [(0.0, true), (0.1, true), (0.2, true), (0.35, true), (0.6, false)] {
        let ratios = unequal_over_equal(error);
        println!("error {error}: unequal over equal {ratios:.4?}");
        assert!(ratios.iter().all(|ratio| (*ratio < 1.0) == wins), "{error}: {ratios:?}");
    }
}

fn uncertain(chain: &Pipeline, at: usize, error: f64) -> Pipeline {
    let mut stages = chain.stages().to_vec();
    let at = at % stages.len();
    stages[at] = stages[at].with_error(error).unwrap();
    Pipeline::new(stages).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn one_uncertain_stage_makes_all_fragments_equal(
        seed: u64, n in 1_usize..7, at in 0_usize..7, error in 0.36_f64..1e12, bytes in 100_u64..200_000,
    ) {
        let chain = uncertain(&Dice(seed).chain(n), at, error);
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
    fn a_small_error_changes_no_plan(seed: u64, n in 1_usize..7, at in 0_usize..7, error in 0.0_f64..=0.35, bytes in 100.0_f64..200_000.0) {
        let chain = Dice(seed).chain(n);
        let request = Request::new(bytes);
        let plan = |chain: &Pipeline| auto(chain, &request, None, Refragment::WhereItHelps).unwrap();
        prop_assert_eq!(plan(&uncertain(&chain, at, error)), plan(&chain));
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

/// Probes whose times scatter by a tenth: little of the whole path, but all of a short last hop.
struct Scattered(Dice);

impl HopPath for Scattered {
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64> {
        let us = 1000.0 + 0.1 * bytes + if hops == 2 { 1.0 + 0.001 * bytes } else { 0.0 };
        Some(us * self.0.factor(0.1))
    }
}

#[test]
fn a_hop_that_drowns_in_the_noise_of_the_others_is_uncertain() {
    let found = hops(&mut Scattered(Dice(5)), 2, (64.0, 8192.0), 1).unwrap();
    assert_eq!(family(&found), Family::Fixed, "{found:?}");
}

#[test]
fn a_suspected_stage_has_no_ramp_until_its_new_costs_are_known() {
    let mut monitor = Monitor::new(&ramped());
    assert_ne!(family(&monitor.pipeline()), Family::Fixed);
    let mut verdicts = Vec::new();
    for message in 0..16 {
        let bytes = 800.0 + f64::from(message);
        let us = 2.0 * ramped().stages()[1].time(bytes).get();
        verdicts.push(monitor.handle_timing(1, bytes, us));
        match verdicts.last() {
            Some(Verdict::Suspect(1)) => assert_eq!(family(&monitor.pipeline()), Family::Fixed),
            Some(Verdict::Replan) => assert_ne!(family(&monitor.pipeline()), Family::Fixed),
            _ => {}
        }
    }
    assert!(verdicts.contains(&Verdict::Suspect(1)) && verdicts.contains(&Verdict::Replan));
}

#[test]
fn growing_scatter_alone_is_a_reason_to_replan() {
    let (mut monitor, mut dice) = (Monitor::new(&ramped()), Dice(9));
    let mut replanned = false;
    for _ in 0..400 {
        let bytes = dice.between(100.0, 8000.0);
        let us = ramped().stages()[1].time(bytes).get() * dice.factor(0.6);
        replanned |= monitor.handle_timing(1, bytes, us) == Verdict::Replan
            && family(&monitor.pipeline()) == Family::Fixed;
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
