//! Jobs that are saved, and continue elsewhere.

use std::path::Path;
use std::process::{Child, Stdio};

use midplane_gang::checkpoint::Checkpoint;
use midplane_gang::live::client::{self, ClientError};
use midplane_gang::live::message::{Request, Saved};
use midplane_gang::names::JobId;

use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, itself, said, wait_until};

pub(crate) fn checkpoint(
    stage: &Stage,
    job: u32,
    folder: &Path,
    end: bool,
) -> Result<Saved, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client::checkpoint(&stage.socket(0), JobId(job), folder, end))
}

/// Saves a job as soon as all its ranks can be saved.
pub(crate) fn checkpoint_soon(stage: &Stage, job: u32, folder: &Path, end: bool) -> Saved {
    let mut saved = None;
    wait_until("the job is saved", || match checkpoint(stage, job, folder, end) {
        Ok(it) => saved.replace(it).is_none(),
        Err(ClientError::Refused(why)) if why.contains("can't be saved") => false,
        Err(ClientError::Refused(why)) if why.contains("no job") => false,
        Err(error) => panic!("{error}"),
    });
    saved.expect("it was saved")
}

pub(crate) fn restore(stage: &Stage, folder: &Path) -> Child {
    let mut client = itself();
    client.arg("--restore").arg(stage.socket(0)).arg(folder);
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn refused(stage: &Stage, folder: &Path) -> String {
    let (code, _, error) = said(restore(stage, folder).wait_with_output().unwrap());
    assert_eq!(code, 2, "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(listing(stage).jobs, []);
    error
}

fn talkers(count: &str) -> [String; 3] {
    let itself = std::env::current_exe().unwrap();
    [itself.to_str().unwrap(), "--talk", count].map(str::to_owned)
}

/// One job is killed. The other is saved with messages under way, and ends elsewhere: on another number of hosts.
pub(crate) fn ends_elsewhere() {
    let mut messages = 0;
    for (from, to) in [(1, 2), (2, 1)] {
        let stage = Stage::with_network(from, 4 / from, 10, "shm");
        wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
        let talk = talkers("2000");
        let talk = [&talk[0][..], &talk[1], &talk[2]];
        let doomed = stage.client(4, &talk).spawn().unwrap();
        wait_until("it is job 1", || listing(&stage).jobs.len() == 1);
        let client = stage.client(4, &talk).spawn().unwrap();
        let folder = stage.path().join("saved");
        let saved = checkpoint_soon(&stage, 2, &folder, true);
        messages += saved.messages;
        let (code, _, error) = said(client.wait_with_output().unwrap());
        assert!(code == 137 && error.contains("it was saved in"), "{code} {error}");
        ask_for(&stage, &Request::Kill { job: JobId(1), signal: None });
        assert_eq!(said(doomed.wait_with_output().unwrap()).0, 137);
        let other = Stage::with_network(to, 4 / to, 10, "shm");
        wait_until("all are there", || listing(&other).hosts.iter().all(|here| *here));
        // Runs next to another job, so that it is preempted again.
        let beside = other.client(4, &talk).spawn().unwrap();
        let (code, out, error) = said(restore(&other, &folder).wait_with_output().unwrap());
        let mut lines: Vec<&str> = out.lines().collect();
        lines.sort_unstable();
        assert_eq!(error, "");
        assert_eq!((code, lines), (0, vec!["0 has all", "1 has all", "2 has all", "3 has all"]));
        drop(other);
        let _ = beside.wait_with_output();
    }
    assert!(messages > 0, "nothing was on its way: this shows little");
}

pub(crate) fn goes_on() {
    let stage = Stage::with_network(1, 2, 10, "shm");
    let talk = talkers("4000");
    let client = stage.client(2, &[&talk[0], &talk[1], &talk[2]]).spawn().unwrap();
    let folder = stage.path().join("saved");
    checkpoint_soon(&stage, 1, &folder, false);
    let again = checkpoint(&stage, 1, &folder, false).unwrap_err();
    assert!(again.to_string().contains("a checkpoint is there"), "{again}");
    let (code, out, error) = said(client.wait_with_output().unwrap());
    assert_eq!((code, out.lines().count(), error.as_str()), (0, 2, ""));
    let (code, out, _) = said(restore(&stage, &folder).wait_with_output().unwrap());
    assert_eq!((code, out.lines().count()), (0, 2));
}

/// A rank ends although it was asked for its state: its job can't be saved, and continues.
pub(crate) fn a_rank_ends_instead() {
    let stage = Stage::with_network(1, 3, 10, "shm");
    let itself = std::env::current_exe().unwrap();
    let client = stage.client(3, &[itself.to_str().unwrap(), "--leave"]).spawn().unwrap();
    let mut why = String::new();
    wait_until("it is asked", || {
        let refused = checkpoint(&stage, 1, &stage.path().join("saved"), false).unwrap_err();
        why = refused.to_string();
        !why.contains("no job") && !why.contains("has not begun")
    });
    assert!(why.contains("rank 1 ended"), "{why}");
    let (code, out, error) = said(client.wait_with_output().unwrap());
    assert_eq!((code, out.lines().count(), error.as_str()), (0, 2, ""));
}

pub(crate) fn refusals() {
    let stage = Stage::with_network(1, 2, 10, "shm");
    let none = checkpoint(&stage, 7, &stage.path().join("none"), false).unwrap_err();
    assert_eq!(none.to_string(), "there is no job 7; `midplane gang list` shows which there are");
    let sleeper = stage.client(1, &["sleep", "1000"]).spawn().unwrap();
    wait_until("it runs", || listing(&stage).jobs.iter().any(|job| job.runs));
    let deaf = checkpoint(&stage, 1, &stage.path().join("none"), false).unwrap_err();
    assert!(deaf.to_string().contains("rank 0 can't be saved"), "{deaf}");
    ask_for(&stage, &Request::Kill { job: JobId(1), signal: None });
    sleeper.wait_with_output().unwrap();
    let talk = talkers("20000");
    let client = stage.client(2, &[&talk[0], &talk[1], &talk[2]]).spawn().unwrap();
    let folder = stage.path().join("saved");
    checkpoint_soon(&stage, 2, &folder, true);
    client.wait_with_output().unwrap();
    wait_until("it is gone", || listing(&stage).jobs.is_empty());
    let there = folder.clone();
    let whole = Checkpoint::read_from(&there).unwrap();
    assert!(refused(&stage, &stage.path().join("nowhere")).contains("no checkpoint here"));
    for name in ["network.bin", "process-1.bin", "manifest.json"] {
        let path = there.join(name);
        let bytes = std::fs::read(&path).unwrap();
        for damage in [&bytes[..bytes.len() / 2], &bytes[1..], b"foreign"] {
            std::fs::write(&path, damage).unwrap();
            let said = refused(&stage, &there);
            assert!(said.contains(name), "{name}: {said}");
        }
        std::fs::write(&path, bytes).unwrap();
    }
    let manifest = std::fs::read_to_string(there.join("manifest.json")).unwrap();
    std::fs::write(there.join("manifest.json"), manifest.replace("\"format\": 3", "\"format\": 0"))
        .unwrap();
    assert!(refused(&stage, &there).contains("manifest.json: format 0"));
    std::fs::remove_file(there.join("manifest.json")).unwrap();
    assert!(refused(&stage, &there).contains("never finished"));
    // Too many ranks, and other channels.
    whole.write_to(&stage.path().join("again")).unwrap();
    let small = Stage::with_network(1, 1, 10, "shm");
    assert!(refused(&small, &stage.path().join("again")).contains("there are 1 slots"));
    let without = Stage::alone(2, 10);
    assert!(refused(&without, &stage.path().join("again")).contains("--fabric"));
}
