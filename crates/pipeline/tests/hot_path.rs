//! Tests that the hot path does not allocate, with or without a cached plan.

use midplane_pipeline::{Limits, Pipeline, Planner, Stage};

#[test]
fn planning_a_message_allocates_nothing() {
    let stages = [(7.2, 0.0072), (5.2, 0.0249), (7.5, 0.0249), (7.4, 0.0079)];
    let chain =
        Pipeline::new(stages.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect()).unwrap();
    let mut planner = Planner::new(chain, Limits::new().mtu(9000.0)).unwrap();
    for cached in [false, true] {
        let used = allocation_counter::measure(|| {
            for bytes in (1..2000).map(|step| step * 997) {
                assert_eq!(planner.plan(bytes).sum::<u64>(), bytes);
                assert_eq!(planner.plan(bytes).is_cached(), cached, "{bytes}");
            }
        });
        assert_eq!(used.count_total, 0, "cached: {cached}");
        while let Some(wanted) = planner.poll_ramp_request() {
            let ramp = wanted.compute().unwrap();
            assert!(planner.install(ramp));
        }
    }
}
