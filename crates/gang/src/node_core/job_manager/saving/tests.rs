use bytes::Bytes;

use super::*;
use crate::channel::geometry::Geometry;
use crate::node_core::job_manager::RootConfig;
use crate::node_core::message::{Cluster, End, RankEvent};
use crate::node_core::order::Outcome;
use crate::node_core::tests::root_config;

const RANKS: u16 = 3;
const NOW: Instant = Instant::ZERO;

fn program() -> Program {
    Program {
        command: vec![b"gang".to_vec(), b"a b".to_vec()],
        environment: vec![b"PATH=/bin".to_vec()],
        folder: b"/tmp".to_vec(),
        terminal: Some((24, 80)),
        keep_going: false,
        woken: true,
        memory: None,
        adopts: None,
        images: false,
    }
}

/// A root with one job.
struct Scene {
    root: JobManager,
    job: JobId,
}

fn caller(client: ClientId) -> Caller {
    Caller { client, user: User::default() }
}

impl Scene {
    /// Creates a root with a job whose ranks can all be saved.
    fn new() -> Self {
        Self::with_memory(1 << 20)
    }

    fn with_memory(most: u64) -> Self {
        let cluster = Cluster { hosts: 1, slots: RANKS, arity: 2 };
        let (geometry, names) = (Some(Geometry::PM), vec!["here".into()]);
        let config = RootConfig { geometry, most_saved: most, names, ..root_config(RANKS) };
        let mut root = JobManager::new(cluster, config);
        let request = Request { nodes: RANKS, weight: 1 };
        let job = root.admit(NOW, caller(1), (request, RANKS), (program(), false)).unwrap();
        (0..RANKS).for_each(|rank| root.able(job, rank));
        let mut scene = Self { root, job };
        assert!(matches!(scene.replies()[..], [Reply::Accepted(_)]));
        scene
    }

    /// Requests a checkpoint. Returns whether the ranks were asked for their states.
    fn save(&mut self) -> Result<bool, String> {
        let folder = b"/nonexistent/saved".to_vec();
        self.root.save(self.job, caller(2), (folder, false))?;
        Ok(self.says(Word::Ask))
    }

    /// Returns whether a word was sent to all ranks of the job.
    fn says(&mut self, word: Word) -> bool {
        self.words().contains(&word)
    }

    /// Returns the words that were sent to the ranks of the job.
    fn words(&mut self) -> Vec<Word> {
        let word = |out| match out {
            Out::Everywhere(Down::Say(job, word)) if job == self.job => Some(word),
            _ => None,
        };
        std::iter::from_fn(|| self.root.poll_out()).filter_map(word).collect()
    }

    /// Returns whether blocked ranks may continue.
    fn goes(&mut self) -> bool {
        self.words().iter().any(|word| matches!(word, Word::Go | Word::GoAlone(_)))
    }

    fn add_chunk(&mut self, rank: u16, chunk: &StateChunk) -> bool {
        self.root.add_chunk(NOW, self.job, rank, chunk);
        self.goes()
    }

    /// Has a rank send its state, in two parts. Returns whether ranks may continue.
    fn hand_over(&mut self, rank: u16) -> bool {
        let (kind, bytes) = (ChunkKind::State, Bytes::from_static(b"x"));
        let chunk = |at, is_last| StateChunk { kind, at, bytes: bytes.clone(), is_last };
        assert!(!self.add_chunk(rank, &chunk(0, false)));
        self.add_chunk(rank, &chunk(1, true))
    }

    /// Ends a rank. Returns whether ranks may continue.
    fn rank_ends(&mut self, rank: u16, end: End) -> bool {
        self.root.handle_rank(NOW, (self.job, rank), RankEvent::Ended(end));
        self.goes()
    }

    fn replies(&mut self) -> Vec<Reply> {
        std::iter::from_fn(|| self.root.poll_reply()).map(|(_, reply)| reply).collect()
    }

    #[track_caller]
    fn is_refused(&mut self, what: &str) {
        let replies = self.replies();
        let [Reply::Refused(why)] = &replies[..] else { panic!("{replies:?}") };
        assert!(why.contains(what), "{why}");
    }
}

#[test]
fn a_program_survives_being_written_as_text() {
    let program = Program { keep_going: true, ..program() };
    assert_eq!(Program::from_json(&program.to_json().unwrap()).unwrap(), program);
    let foreign = Program { command: vec![vec![0xFF]], ..program };
    assert_eq!(foreign.to_json(), None);
    assert!(Program::from_json("{\"command\":[]}").is_err());
}

/// Otherwise the other ranks and the requesting client would block forever.
#[test]
fn a_rank_that_ends_although_it_is_asked_for_its_state_lets_the_others_go_on() {
    let mut scene = Scene::new();
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(0));
    assert!(scene.rank_ends(1, End::Exited(0)), "rank 0 goes on");
    scene.is_refused("rank 1 ended");
    // Rank 2 was about to send its state when rank 1 ended.
    assert!(scene.hand_over(2), "and rank 2");
    assert!(scene.hand_over(2), "whenever it hands something over");
    let why = scene.save().unwrap_err();
    assert!(why.contains("rank 1 can't be saved: it has ended"), "{why}");
}

#[test]
fn a_rank_that_takes_no_part_any_longer_lets_the_others_go_on() {
    let mut scene = Scene::new();
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(0) && !scene.hand_over(1));
    scene.root.left(scene.job, 2);
    assert_eq!(scene.words(), [Word::GoAlone(0), Word::GoAlone(1)]);
    scene.is_refused("rank 2 ended, or left");
    assert!(scene.save().is_err());
}

#[test]
fn a_job_without_some_of_its_ranks_is_not_asked_for_its_state() {
    let mut scene = Scene::new();
    assert!(!scene.rank_ends(2, End::Exited(0)), "nobody waits");
    let why = scene.save().unwrap_err();
    assert!(why.contains("rank 2 can't be saved"), "{why}");
    assert!(scene.replies().is_empty());
}

#[test]
fn a_rank_that_ends_after_it_has_handed_its_state_over_is_saved() {
    let mut scene = Scene::new();
    scene.root.jobs.get_mut(&scene.job).unwrap().entry.launch.program.keep_going = true;
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(0));
    assert!(!scene.rank_ends(0, End::Killed(9)), "nobody goes on yet");
    assert!(!scene.hand_over(1) && !scene.hand_over(2));
    assert!(scene.root.jobs[&scene.job].saves.is_due);
    assert!(scene.replies().is_empty());
    assert!(scene.root.cut(scene.job, Epoch(1)).is_none(), "its channels' parts are not here");
    scene.is_refused("the contents of the channel of rank 0 are missing");
}

#[test]
fn what_nobody_wants_any_longer_lets_all_go_on_once_all_have_stopped() {
    let mut scene = Scene::new();
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(0) && !scene.hand_over(1));
    scene.root.give_up_saving(2);
    assert!(scene.hand_over(2));
    assert_eq!(scene.save(), Ok(true), "and it may be asked again");
}

#[test]
fn states_that_are_more_than_there_is_memory_for_are_refused_and_dropped_and_all_go_on() {
    let mut scene = Scene::with_memory(5);
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(0) && !scene.hand_over(1));
    assert_eq!(scene.root.jobs[&scene.job].saves.held(), 4);
    assert!(scene.replies().is_empty());
    let (kind, is_last) = (ChunkKind::State, false);
    let chunk = StateChunk { kind, at: 0, bytes: Bytes::from_static(b"xx"), is_last };
    assert!(!scene.add_chunk(2, &chunk));
    scene.is_refused("more than the 5 bytes");
    assert_eq!(scene.root.jobs[&scene.job].saves.held(), 0);
    assert!(scene.save().is_err(), "they are still at it");
    let chunk = StateChunk { at: 2, is_last: true, ..chunk };
    assert!(scene.add_chunk(2, &chunk), "all have stopped, and go on");
    assert_eq!(scene.save(), Ok(true), "and it may be asked again");
}

/// A rank may begin to send its state before a root asks for it, or while an earlier root does.
#[test]
fn a_state_whose_beginning_did_not_arrive_here_is_not_saved() {
    let mut scene = Scene::new();
    let (kind, bytes) = (ChunkKind::State, Bytes::from_static(b"x"));
    let chunk = |at, is_last| StateChunk { kind, at, bytes: bytes.clone(), is_last };
    assert!(!scene.add_chunk(0, &chunk(0, false)), "it was not asked for");
    assert_eq!(scene.save(), Ok(true));
    assert!(!scene.hand_over(1));
    assert!(!scene.add_chunk(0, &chunk(1, false)));
    scene.is_refused("try again");
    assert!(scene.save().is_err(), "rank 0 still sends");
    assert!(scene.add_chunk(0, &chunk(2, true)), "all go on");
    stand_still(&mut scene);
    assert!(scene.root.cut(scene.job, Epoch(1)).is_some());
}

/// Has all ranks send their states and empty channel contexts.
fn stand_still(scene: &mut Scene) {
    assert_eq!(scene.save(), Ok(true));
    for rank in 0..RANKS {
        assert!(!scene.hand_over(rank));
    }
    for rank in 0..RANKS {
        let fresh = crate::context::ChannelContext::fresh(crate::names::Rank(rank), Geometry::PM);
        let bytes = Bytes::from(wire::encode_long(&fresh).unwrap());
        let chunk = StateChunk { kind: ChunkKind::Context, at: 0, bytes, is_last: true };
        assert!(!scene.add_chunk(rank, &chunk));
    }
}

#[test]
fn a_rank_that_leaves_while_its_checkpoint_is_written_is_in_it() {
    let mut scene = Scene::new();
    stand_still(&mut scene);
    let write = scene.root.cut(scene.job, Epoch(1)).unwrap();
    assert!(write.go);
    scene.root.left(scene.job, 1);
    assert!(!scene.goes());
    assert_eq!(scene.replies(), []);
    scene.root.handle_written(NOW, (scene.job, 3), Err("late".into()));
    assert_eq!(scene.replies(), [], "it is of another client's checkpoint");
    scene.root.handle_written(NOW, (scene.job, 2), Ok(0));
    assert!(matches!(scene.replies()[..], [Reply::Saved(Saved { ranks: RANKS, .. })]));
}

/// Only interfaces that are open in the cut count, not those of earlier preemptions.
#[test]
fn interfaces_that_are_open_in_the_cut_are_refused_by_host() {
    let mut scene = Scene::new();
    let outcome = |host| Outcome { has_interfaces: vec![(JobId(1), host)], ..Outcome::default() };
    scene.root.handle_outcome(NOW, &outcome(4));
    stand_still(&mut scene);
    scene.root.handle_outcome(NOW, &outcome(5));
    assert!(scene.root.cut(scene.job, Epoch(1)).is_none());
    scene.is_refused("on host 5 have Virtual Interfaces");
    stand_still(&mut scene);
    assert!(scene.root.cut(scene.job, Epoch(2)).is_some());
}

/// Regression: it let all ranks continue, also those whose states counted for a checkpoint that was requested meanwhile.
#[test]
fn a_rank_that_saves_of_its_own_accord_lets_no_other_rank_continue() {
    let mut scene = Scene::new();
    let (kind, bytes) = (ChunkKind::State, Bytes::from_static(b"x"));
    let chunk = StateChunk { kind, at: 0, bytes, is_last: true };
    scene.root.add_chunk(NOW, scene.job, 0, &chunk);
    assert_eq!(scene.words(), [Word::GoAlone(0)]);
    // Another rank's state is on its way when the checkpoint is requested, and that rank must stay blocked.
    stand_still(&mut scene);
    assert!(scene.root.cut(scene.job, Epoch(1)).is_some());
}

/// Regression: the cut of a job whose processes have ended, but not its output, kept all other jobs from being checked.
#[test]
fn a_job_that_lingers_stops_no_checks_of_others() {
    let mut scene = Scene::new();
    let lingering = scene.root.jobs.get_mut(&scene.job).unwrap();
    lingering.checks.ordered.push_back(Purpose::Check);
    lingering.is_removed = true;
    let request = Request { nodes: RANKS, weight: 1 };
    let job = scene.root.admit(NOW, caller(3), (request, RANKS), (program(), false)).unwrap();
    scene.root.jobs.get_mut(&job).unwrap().is_launched = true;
    assert_eq!(scene.root.next_check(), Some((job, NOW)));
}

/// Regression: rank 0 had a terminal, which took its output as a terminal does, and which no client had.
#[test]
fn a_job_that_was_saved_with_a_terminal_is_restored_without_one() {
    let mut scene = Scene::new();
    stand_still(&mut scene);
    let Write { checkpoint, .. } = scene.root.cut(scene.job, Epoch(1)).unwrap();
    scene.root.begin_restore(3);
    let read = Ok((program(), Contents::States(checkpoint)));
    scene.root.restore(NOW, Read { caller: caller(3), weight: 1, read });
    let restored = scene.root.job_of(3).unwrap();
    assert_eq!(scene.root.jobs[&restored].entry.launch.program.terminal, None);
}
