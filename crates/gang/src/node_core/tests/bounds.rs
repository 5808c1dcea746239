//! Bounds of what a client can make the daemons store and send.

use std::time::Duration;

use midplane_simhw::time::Instant;

use super::root_config;
use crate::names::JobId;
use crate::node_core::message::{Adopted, Cluster, Over, Program, RankEvent, Reply, Request};
use crate::node_core::order::Outcome;
use crate::node_core::reason::MOST_BYTES;
use crate::node_core::replica::Durable;
use crate::node_core::requests::MOST_WAITING;
use crate::node_core::user::{Caller, User};
use crate::node_core::{Effect, Input, JobManager, NodeConfig, NodeCore, Step, StepOutcome};

const NOW: Instant = Instant::ZERO;

/// Creates the daemon of host 0.
fn daemon(hosts: u16) -> NodeCore {
    let cluster = Cluster { hosts, slots: 1, arity: 2 };
    let (has_channels, takes_over) = (false, cluster.takes_over());
    let (host, patience, memory) = (0, Duration::from_secs(1), u64::MAX);
    let node = NodeConfig { host, cluster, patience, has_channels, memory, takes_over };
    NodeCore::new(node, Some(root_config(hosts)), Durable::default())
}

/// Creates the daemon of a single host.
fn root() -> NodeCore {
    daemon(1)
}

fn run(core: &mut NodeCore, program: Program) {
    let caller = Caller { client: 1, user: User::default() };
    let request = Request::Run { ranks: 1, weight: 1, program };
    core.handle(NOW, Input::Request(caller, request));
}

/// Returns the result of a job whose first step has this outcome.
fn result(core: &mut NodeCore, mut outcome: Outcome) -> Over {
    for _ in 0..100 {
        match core.poll_effect() {
            Some(Effect::Reply(_, Reply::Over(over))) => return over,
            Some(Effect::Step(number, Step::Start(..))) => {
                let done = StepOutcome::from(std::mem::take(&mut outcome));
                core.handle(NOW, Input::StepDone(number, Ok(done)));
            }
            Some(Effect::Step(number, _)) => {
                core.handle(NOW, Input::StepDone(number, Ok(StepOutcome::default())));
            }
            _ => core.handle_timeout(NOW),
        }
    }
    panic!("the job does not end: {}", core.explain(NOW));
}

/// Regression: the daemons stored the name of a missing program of nearly two megabytes as the reason of each of 64
/// jobs. The table then exceeded a message, and no daemon could join.
#[test]
fn the_reason_of_a_job_s_end_is_short_whatever_its_program_is_called() {
    let long = || "x".repeat(1_900_000);
    let mut core = root();
    run(&mut core, Program::default());
    let failed = vec![(JobId(1), 0, long())];
    let over = result(&mut core, Outcome { failed, ..Outcome::default() });
    let why = over.why.unwrap();
    assert!(why.contains("xxx ...") && why.len() <= MOST_BYTES, "{} bytes", why.len());

    let mut core = root();
    run(&mut core, Program::default());
    let event = RankEvent::Aborted { code: 1, message: long() };
    core.handle(NOW, Input::Rank(JobId(1), 0, event));
    let why = result(&mut core, Outcome::default()).why.unwrap();
    assert!(why.contains("aborted") && why.len() <= MOST_BYTES, "{} bytes", why.len());
}

/// Regression: on one or two hosts, the order to launch the job exceeded a message, and the second host was lost.
#[test]
fn a_program_that_exceeds_a_message_is_refused_without_a_takeover_too() {
    let mut core = root();
    run(&mut core, Program { environment: vec![vec![b'x'; 8 << 20]], ..Program::default() });
    let reply = core.poll_effect();
    let is_refused = matches!(
        &reply,
        Some(Effect::Reply(1, Reply::Refused(why))) if why.contains("a smaller environment")
    );
    assert!(is_refused && core.poll_effect().is_none());
}

/// Requests a signal for job 1, and returns the reply.
fn signal(core: &mut NodeCore, signal: i32) -> Option<Effect> {
    while core.poll_effect().is_some() {}
    let caller = Caller { client: 2, user: User::default() };
    let request = Request::Kill { job: JobId(1), signal: Some(signal) };
    core.handle(NOW, Input::Request(caller, request));
    core.poll_effect()
}

/// Regression: the reply was that it was done, and no rank received the signal.
#[test]
fn a_signal_that_is_not_sent_is_refused() {
    let mut core = root();
    run(&mut core, Program::default());
    for number in [0, 32, 64] {
        let reply = signal(&mut core, number);
        assert!(matches!(reply, Some(Effect::Reply(2, Reply::Refused(_)))), "{reply:?}");
    }
}

/// Regression: the process that waits for the adopted ones received it, and these continued.
#[test]
fn a_signal_for_processes_that_another_program_has_started_is_refused() {
    let mut core = root();
    let adopts = Some(Adopted::Folder("/sys/fs/cgroup/a.service".into()));
    run(&mut core, Program { adopts, ..Program::default() });
    match signal(&mut core, 19) {
        Some(Effect::Reply(2, Reply::Refused(why))) => {
            assert!(why.contains("signal them there"), "{why}");
        }
        reply => panic!("{reply:?}"),
    }
}

/// Regression: while a root took over, it stored all requests of a connection, each of up to eight mebibytes.
#[test]
fn a_root_that_takes_over_stores_one_request_of_each_connection_and_few_in_all() {
    let mut core = daemon(3);
    let (config, table) = (root_config(3), &core.durable.table);
    core.manager = Some(JobManager::take_over(NOW, &core.config, config, table));
    let most = MOST_WAITING as u64;
    for (client, request) in [(1, Request::List), (1, Request::Signal(2)), (1, Request::List)]
        .into_iter()
        .chain((2..=most + 1).map(|client| (client, Request::List)))
    {
        let caller = Caller { client, user: User::default() };
        core.handle(NOW, Input::Request(caller, request));
    }
    assert_eq!(core.waiting.len(), MOST_WAITING);
    let replies: Vec<Effect> = std::iter::from_fn(|| core.poll_effect()).collect();
    let refused = replies.iter().map(|effect| match effect {
        Effect::Reply(client, Reply::NoRoot(why)) if why.contains("try again") => *client,
        other => panic!("{other:?}"),
    });
    assert_eq!(refused.collect::<Vec<_>>(), [1, most + 1]);
}
