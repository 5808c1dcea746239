//! A scheduler whose jobs run on all nodes, and its daemons.

use std::sync::Arc;

use midplane_gang::daemon::{Daemon, DaemonConfig, Start};
use midplane_gang::schedule::{Request, RoundRobin};
use midplane_gang::scheduler::{Scheduler, Submission};
use midplane_gang::scheduler_core::SchedulerConfig;
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::{SimHost, World};

/// Starts the daemons of all nodes but the root's.
pub(crate) fn start_daemons(world: &mut World<Unit>, config: DaemonConfig, start: &Start<SimHost>) {
    for node in 1..config.nodes {
        let (host, start) = (world.host(NodeId(node)), Arc::clone(start));
        world.spawn(NodeId(node), async move {
            Daemon::open(host, config, start).await.unwrap().serve().await.unwrap();
        });
    }
}

/// Opens the root's daemon, and submits a job of each of these programs.
pub(crate) async fn open_scheduler(
    host: SimHost,
    (config, start): (DaemonConfig, Start<SimHost>),
    scheduler_config: SchedulerConfig,
    programs: &[u32],
) -> Scheduler<SimHost> {
    let root = Daemon::open(host, config, start).await.unwrap();
    let policy = Box::new(RoundRobin::new(config.nodes));
    let scheduler = Scheduler::new(root, policy, scheduler_config);
    for program in programs {
        let request = Request { nodes: config.nodes, weight: 1 };
        let submission = Submission { request, ranks: config.nodes, program: *program };
        scheduler.client().submit(submission);
    }
    scheduler
}
