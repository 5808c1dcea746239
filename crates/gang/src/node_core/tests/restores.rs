//! Clients that restore jobs, and leave or ask again while their checkpoints are read.

use std::time::Duration;

use super::cluster::{Cluster, Host, PATIENCE};
use super::node::{program, state_of};
use crate::channel::geometry::Geometry;
use crate::checkpoint::Checkpoint;
use crate::context::{ChannelContext, NetworkContext};
use crate::names::{Epoch, JobId, Rank};
use crate::node_core::message::{Cluster as Shape, Reply, Request};
use crate::node_core::user::{Caller, User};
use crate::node_core::{ClientId, Input};
use crate::scheduler_core::tests::two_phases;

/// Puts a checkpoint of a job of this many ranks on the disk.
fn save(cluster: &mut Cluster, ranks: u16) {
    let program = program(Duration::from_millis(20));
    let fresh = |rank| ChannelContext::fresh(Rank(rank), Geometry::PM);
    let contexts = (0..ranks).map(fresh).collect();
    let network = NetworkContext { job: JobId(1), epoch: Epoch(1), ranks: contexts };
    let processes = vec![state_of(Duration::ZERO); ranks.into()];
    let saved = Checkpoint { network, processes, program: program.to_json().unwrap() };
    cluster.disk.insert(Vec::new(), (program, saved));
}

/// Creates a host whose disk has a checkpoint, and a client that restores it. It is not read yet.
fn restoring() -> (Cluster, ClientId) {
    let config = two_phases(Duration::from_millis(10));
    let shape = Shape { hosts: 1, slots: 2, arity: 2 };
    let mut cluster = Cluster::new(0, shape, config, false);
    save(&mut cluster, 1);
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

/// Regression: the hosts held the states until another job was launched.
#[test]
fn hosts_drop_the_states_of_a_job_that_ends_before_its_launch() {
    let shape = Shape { hosts: 2, slots: 1, arity: 2 };
    // The restored job is launched after the first slice of the other one.
    let mut cluster = Cluster::new(0, shape, two_phases(Duration::from_secs(10)), false);
    save(&mut cluster, 2);
    cluster.run_until(cluster.now + PATIENCE);
    let program = program(Duration::from_secs(10));
    cluster.request(Request::Run { ranks: 2, weight: 1, program });
    cluster.run_until(cluster.now + PATIENCE);
    let client = cluster.request(Request::Restore { folder: Vec::new(), weight: 1 });
    cluster.run_until(cluster.now + PATIENCE);
    let held = |cluster: &Cluster| {
        let states = |host: &Host| host.core.as_ref().unwrap().agent.states.len();
        cluster.hosts.iter().map(states).collect::<Vec<_>>()
    };
    assert_eq!(held(&cluster), [1, 1]);
    let gone = Input::ClientGone { client, may_return: false };
    cluster.call(0, |core, now| core.handle(now, gone));
    cluster.run_until(cluster.now + PATIENCE);
    assert_eq!(held(&cluster), [0, 0]);
}
