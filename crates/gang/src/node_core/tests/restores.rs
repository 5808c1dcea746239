//! Clients that restore jobs, and leave or ask again while their checkpoints are read.

use std::time::Duration;

use super::cluster::{Cluster, PATIENCE};
use super::node::{program, state_of};
use crate::channel::geometry::Geometry;
use crate::checkpoint::Checkpoint;
use crate::context::{ChannelContext, NetworkContext};
use crate::names::{Epoch, JobId, Rank};
use crate::node_core::message::{Cluster as Shape, Reply, Request};
use crate::node_core::user::{Caller, User};
use crate::node_core::{ClientId, Input};
use crate::scheduler_core::tests::two_phases;

/// Creates a host whose disk has a checkpoint, and a client that restores it. It is not read yet.
fn restoring() -> (Cluster, ClientId) {
    let config = two_phases(Duration::from_millis(10));
    let shape = Shape { hosts: 1, slots: 2, arity: 2 };
    let mut cluster = Cluster::new(0, shape, config, false);
    let program = program(Duration::from_millis(20));
    let ranks = vec![ChannelContext::fresh(Rank(0), Geometry::PM)];
    let network = NetworkContext { job: JobId(1), epoch: Epoch(1), ranks };
    let processes = vec![state_of(Duration::ZERO)];
    let saved = Checkpoint { network, processes, program: program.to_json().unwrap() };
    cluster.disk.insert(Vec::new(), (program, saved));
    let client = cluster.request(Request::Restore { folder: Vec::new(), weight: 1 });
    assert!(cluster.clients[&client].replies.is_empty());
    (cluster, client)
}

/// Regression: the job ran without a client, and no client was notified.
#[test]
fn a_checkpoint_that_is_read_for_a_client_that_has_left_starts_no_job() {
    for may_return in [false, true] {
        let (mut cluster, client) = restoring();
        cluster.call(0, |core, now| core.handle(now, Input::ClientGone { client, may_return }));
        cluster.run_until(cluster.now + PATIENCE);
        assert!(cluster.jobs.is_empty() && cluster.clients[&client].replies.is_empty());
    }
}

/// Regression: the second job had no client once the first one had ended.
#[test]
fn a_client_that_restores_a_job_can_t_begin_another() {
    let (mut cluster, client) = restoring();
    let restore = Request::Restore { folder: Vec::new(), weight: 1 };
    let run = Request::Run { ranks: 1, weight: 1, program: program(Duration::ZERO) };
    let user = User { name: "ada".into(), uid: 1000 };
    for request in [restore, run] {
        let caller = Caller { client, user: user.clone() };
        cluster.call(0, |core, now| core.handle(now, Input::Request(caller, request)));
        let last = cluster.clients[&client].replies.last();
        assert!(matches!(last, Some(Reply::Refused(why)) if why.contains("has a job")), "{last:?}");
    }
    cluster.run_until(cluster.now + PATIENCE);
    let last = cluster.clients[&client].replies.last();
    assert!(matches!(last, Some(Reply::Over(_))), "{last:?}");
}
