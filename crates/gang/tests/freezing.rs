//! Duration of a freeze, over numbers of nodes and arities of the tree of daemons, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use crate::job::world;
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::daemon::{Costs, Daemon, DaemonConfig, Mode, Start};
use midplane_gang::schedule::{Request, RoundRobin};
use midplane_gang::scheduler::{Phases, Scheduler, Submission};
use midplane_gang::scheduler_core::{PreemptWhenAlone, SchedulerConfig};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;

const GEOMETRY: Geometry = Geometry {
    send: FifoSize { messages: 7, bytes: 512 },
    receive: FifoSize { messages: 5, bytes: 512 },
    message: 200,
};
const SLICE: Duration = Duration::from_millis(2);

/// Returns the median freeze, in microseconds, of a job with one idle rank a node.
fn freeze(nodes: u16, arity: u16) -> f64 {
    let (mode, costs) = (Mode::Resident, Costs::default());
    let config = DaemonConfig {
        nodes,
        arity,
        mode,
        geometry: GEOMETRY,
        channels: 1,
        costs,
        local_rings: false,
    };
    let mut world = world(nodes, 5, Faults::NONE);
    world.set_digesting(false);
    let start: Start<SimHost> = Arc::new(move |host, _, _, _| {
        Box::pin(async move { host.sleep_until(host.now() + 3 * SLICE).await })
    });
    for node in 1..nodes {
        let (host, start) = (world.host(NodeId(node)), Arc::clone(&start));
        world.spawn(NodeId(node), async move {
            Daemon::open(host, config, start).await.unwrap().serve().await.unwrap();
        });
    }
    let host = world.host(NodeId(0));
    let (phases, early_wakeup) = (Phases::Two, Duration::ZERO);
    let scheduler_config = SchedulerConfig {
        slice: SLICE,
        phases,
        preempt_when_alone: PreemptWhenAlone::Always,
        early_wakeup,
    };
    let task = async move {
        let root = Daemon::open(host, config, start).await.unwrap();
        let mut scheduler =
            Scheduler::new(root, Box::new(RoundRobin::new(nodes)), scheduler_config);
        let request = Request { nodes, weight: 1 };
        scheduler.client().submit(Submission { request, ranks: nodes, program: 0 });
        scheduler.run().await.unwrap();
        scheduler.switches().cloned().collect::<Vec<_>>()
    };
    let switches = world.block_on(NodeId(0), task).expect("it comes to its end");
    let mut freezes: Vec<f64> =
        switches.iter().skip(1).map(|switch| switch.freeze.as_secs_f64() * 1e6).collect();
    freezes.sort_by(f64::total_cmp);
    freezes[freezes.len() / 2]
}

/// Fits `start + step * x` to points by least squares. Also returns the share of the variance that the line explains.
fn line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let mean =
        |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(&|it| it.0), mean(&|it| it.1));
    let (xx, xy) = (mean(&|it| (it.0 - x).powi(2)), mean(&|it| (it.0 - x) * (it.1 - y)));
    let step = xy / xx;
    let rest = mean(&|it| (it.1 - y - step * (it.0 - x)).powi(2));
    (y - step * x, step, 1.0 - rest / mean(&|it| (it.1 - y).powi(2)))
}

#[test]
fn a_freeze_grows_as_the_logarithm_of_the_nodes_to_the_base_of_the_arity() {
    for (arity, explained_at_least) in [(2, 0.95), (4, 0.95), (16, 0.85)] {
        let nodes = (1..=10).map(|power| 1_u16 << power);
        let logarithm = |nodes: u16| f64::from(nodes).ln() / f64::from(arity).ln();
        let points: Vec<(f64, f64)> =
            nodes.map(|nodes| (logarithm(nodes), freeze(nodes, arity))).collect();
        let (start, step, explained) = line(&points);
        println!(
            "arity {arity}: {start:.1} us + {step:.1} us x log, R2 {explained:.3}: {points:.1?}"
        );
        assert!(step > 0.0 && explained > explained_at_least, "arity {arity}: {explained}");
        // The freeze has no part that grows linearly with the nodes.
        let (few, many) = (points[4].1, points[9].1);
        assert!(many < 4.0 * few, "arity {arity}: {few} us for 32 nodes, {many} for 1,024");
    }
}
