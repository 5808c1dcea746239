use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::time::Instant;
use proptest::prelude::*;

use super::*;
use crate::node_core::message::{Cluster, End, Program, RankEvent, Reply};
use crate::node_core::tests::root_config;
use crate::node_core::user::Caller;
use crate::schedule::Request;

const HOSTS: u16 = 3;
const NOW: Instant = Instant::ZERO;

fn caller(client: u64, uid: u32) -> Caller {
    Caller { client, user: User { name: "a".into(), uid } }
}

/// Creates a root with a job that has a rank on each host and has run, and whose program takes no part in checkpoints.
fn scene(program: Program) -> (JobManager, JobId) {
    let cluster = Cluster { hosts: HOSTS, slots: 1, arity: 2 };
    let mut root = JobManager::new(cluster, root_config(HOSTS));
    root.hosts_here(NOW, &[1, 2]);
    let request = Request { nodes: HOSTS, weight: 1 };
    let job = root.admit(NOW, caller(1, 0), (request, HOSTS), (program, false)).unwrap();
    let it = root.jobs.get_mut(&job).unwrap();
    (it.is_launched, it.ran) = (true, Duration::from_millis(1));
    (root, job)
}

fn save(root: &mut JobManager, job: JobId, client: u64, end: bool) -> Result<(), String> {
    root.save(job, caller(client, 0), (b"/saved".to_vec(), end))
}

#[test]
fn jobs_that_images_would_damage_are_refused_with_the_cure() {
    let (mut root, job) = scene(Program::default());
    let why = root.save(job, caller(2, 1000), (Vec::new(), false)).unwrap_err();
    assert!(why.contains("rank 0 can't be saved") && why.contains("root can save it"), "{why}");
    root.barrier_in(NOW, job, 0, Vec::new());
    assert!(save(&mut root, job, 2, false).unwrap_err().contains("PMI"));
    let (mut root, job) = scene(Program { terminal: Some((24, 80)), ..Program::default() });
    assert!(save(&mut root, job, 2, false).unwrap_err().contains("without --terminal"));
    root.jobs.get_mut(&job).unwrap().ran = Duration::ZERO;
    assert!(save(&mut root, job, 2, false).unwrap_err().contains("once it runs"));
}

#[test]
fn a_client_can_t_start_ranks_from_images_that_it_has_not_restored() {
    let (root, job) = scene(Program { images: true, ..Program::default() });
    assert!(!root.jobs[&job].entry.launch.program.images);
}

/// Returns whether the ranks of the job may continue.
fn goes(root: &mut JobManager) -> bool {
    let is_go = |out: &Out| matches!(out, Out::Everywhere(Down::Say(_, Word::Go)));
    std::iter::from_fn(|| root.poll_out()).filter(is_go).count() > 0
}

/// Regression: its hosts kept the job suspended for ever.
#[test]
fn a_job_that_outlives_a_rank_continues_if_the_rank_dies_while_it_is_dumped() {
    let (mut root, job) = scene(Program { keep_going: true, ..Program::default() });
    save(&mut root, job, 2, false).unwrap();
    assert!(root.begin_images(job, Epoch(1)).is_some() && !goes(&mut root));
    root.handle_rank(NOW, (job, 1), RankEvent::Ended(End::Killed(9)));
    assert!(goes(&mut root) && !root.collects(job));
    let replies: Vec<_> = std::iter::from_fn(|| root.poll_reply()).collect();
    assert!(matches!(replies[..], [_, (2, Reply::Refused(_))]), "{replies:?}");
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Save(bool),
    Cut,
    Dumped(u16),
    Written(bool),
    ClientLeaves,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        any::<bool>().prop_map(Act::Save),
        Just(Act::Cut),
        (0..HOSTS).prop_map(Act::Dumped),
        any::<bool>().prop_map(Act::Written),
        Just(Act::ClientLeaves),
    ];
    prop::collection::vec(act, 1..60)
}

/// A job that its hosts keep suspended for a dump.
#[derive(Default)]
struct Kept {
    ends: bool,
    /// True if a host has failed, or no client waits for the checkpoint any longer.
    is_void: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The ranks continue exactly once: after all hosts have dumped theirs, or when the checkpoint is given up. A
    /// client that stays receives exactly one reply.
    #[test]
    fn a_job_is_kept_still_no_longer_than_it_is_dumped(acts in acts()) {
        let (mut root, job) = scene(Program::default());
        while root.poll_reply().is_some() {}
        let (mut client, mut wants, mut kept, mut is_cut_due) = (1, None, None::<Kept>, 0);
        let (mut dumped, mut written) = (BTreeSet::new(), None);
        let collecting = |root: &JobManager, wants: Option<(u64, bool)>| {
            wants.filter(|_| root.collects(job)).map(|(client, _)| client)
        };
        let mut replies: BTreeMap<u64, usize> = BTreeMap::new();
        for (step, act) in acts.into_iter().enumerate() {
            match act {
                Act::Save(end) => {
                    client += 1;
                    let saves = save(&mut root, job, client, end);
                    prop_assert_eq!(saves.is_ok(), wants.is_none(), "{:?}", saves);
                    if saves.is_ok() {
                        wants = Some((client, end));
                        is_cut_due += 1;
                    }
                }
                Act::Cut if is_cut_due > 0 => {
                    is_cut_due -= 1;
                    let begins = wants.is_some() && !root.collects(job);
                    let collect = root.begin_images(job, Epoch(step as u32));
                    prop_assert_eq!(collect.is_some(), begins);
                    if let (true, Some((client, ends))) = (begins, wants) {
                        // The result of an earlier checkpoint may still be under way; it is lost here.
                        written = Some(client);
                        kept = Some(Kept { ends, ..Kept::default() });
                        dumped.clear();
                    }
                }
                Act::Dumped(host) if root.collects(job) => {
                    root.handle_dumped(job, host);
                    dumped.insert(host);
                }
                // A late result is of a checkpoint that was given up.
                Act::Written(is_ok) if written.is_some() && written != collecting(&root, wants) => {
                    let late = if is_ok { Ok(7) } else { Err("the disk is full".into()) };
                    root.handle_written(NOW, (job, written.take().unwrap()), late);
                }
                // The images are complete only after all hosts have dumped their ranks.
                Act::Written(is_ok) if root.collects(job) => {
                    let of = written.take().unwrap();
                    let all = dumped.len() == usize::from(HOSTS);
                    let is_ok = is_ok && all && !wants.unwrap().1;
                    let result = if is_ok { Ok(7) } else { Err("the disk is full".into()) };
                    if let (false, Some(kept)) = (is_ok, &mut kept) {
                        kept.is_void = true;
                    }
                    root.handle_written(NOW, (job, of), result);
                    wants = None;
                }
                Act::ClientLeaves => {
                    if let Some((client, _)) = wants.take() {
                        root.handle_client_gone(NOW, client, false);
                        replies.insert(client, 1);
                        if let Some(kept) = &mut kept {
                            kept.is_void = true;
                        }
                    }
                }
                _ => {}
            }
            // The hosts ignore an order that arrives twice.
            if goes(&mut root) && let Some(it) = kept.take() {
                prop_assert!(it.is_void || (!it.ends && dumped.len() == usize::from(HOSTS)));
            }
            prop_assert!(kept.is_none() || root.collects(job), "nothing lets the job continue");
            while let Some((client, reply)) = root.poll_reply() {
                prop_assert!(matches!(reply, Reply::Saved(_) | Reply::Refused(_)));
                *replies.entry(client).or_default() += 1;
            }
        }
        prop_assert!(replies.values().all(|count| *count == 1), "{:?}", replies);
        prop_assert!(root.jobs.contains_key(&job));
    }
}
