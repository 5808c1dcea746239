//! Jobs of several users under a daemon of root, and daemons of other users.
//!
//! These scenes need root, which starts clients as the user `nobody`. They are skipped without root, and where that
//! user or its group have other numbers or names.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use midplane_gang::live::client;
use midplane_gang::live::daemon::probe_control_groups;
use midplane_gang::live::link::{self, Frame, Stream};
use midplane_gang::live::message::Request;
use midplane_gang::names::JobId;

use rustix::process::{Pid, Signal, kill_process};

use crate::parts::{end_with_test, runtime};
use crate::saved::checkpoint_soon;
use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, itself, itself_as, lives, said, wait_until};

const NOBODY: u32 = 65_534;
/// A third user, whose name does not matter.
const OTHER: u32 = 1;

/// Returns the group of the user `nobody`, as an option of a stage; `None` if the scene must be skipped.
fn group() -> Option<&'static str> {
    let id = |what: &str| {
        let output = Command::new("id").args([what, "nobody"]).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let is_root = rustix::process::geteuid().is_root();
    let ids = (id("-u"), id("-g"));
    let is_usual = ids == (Some(format!("{NOBODY}\n")), Some(format!("{NOBODY}\n")));
    let name = Command::new("id").args(["-gn", "nobody"]).output().ok()?.stdout;
    let option = match &name[..] {
        b"nogroup\n" => Some("auto for nogroup"),
        b"nobody\n" => Some("auto for nobody"),
        _ => None,
    };
    let option = option.filter(|_| is_root && is_usual);
    if option.is_none() {
        println!("skipped: it takes root, and a user nobody with the number {NOBODY}");
    }
    option
}

/// Returns whether another user can run this program by its path.
fn is_in_reach() -> bool {
    let path = std::env::current_exe().unwrap();
    let open = |folder: &Path| folder.metadata().is_ok_and(|it| it.permissions().mode() & 1 != 0);
    path.ancestors().all(open)
}

/// Sends a request, as JSON, and prints the reply or the error.
pub(crate) fn ask(socket: &str, request: &str) -> ! {
    end_with_test();
    let request: Request = serde_json::from_str(request).unwrap();
    match runtime().block_on(client::ask(socket.as_ref(), &request)) {
        Ok(reply) => println!("{reply:?}"),
        Err(error) => println!("{error}"),
    }
    std::process::exit(0)
}

/// Sends input to a job of any user.
pub(crate) async fn feed(socket: &str, job: &str, text: &str) {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (mut sender, mut receiver) = link::local(stream);
    let job = JobId(job.parse().unwrap());
    sender.send(&Frame::message(&Request::Feed(job))).await.unwrap();
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    // The daemon may have closed the connection.
    let _ = sender.send(&Frame::Data { rank: 0, stream: Stream::Input, bytes }).await;
    let _ = sender.send(&Frame::message(&())).await;
    let _ = receiver.receive().await;
}

pub(crate) fn checkpoint(socket: &str, job: &str, folder: &str) -> ! {
    end_with_test();
    let job = JobId(job.parse().unwrap());
    match runtime().block_on(client::checkpoint(socket.as_ref(), job, folder.as_ref(), true)) {
        Ok(saved) => println!("{saved:?}"),
        Err(error) => println!("{error}"),
    }
    std::process::exit(0)
}

/// Returns the reply to a user's request.
fn answer(stage: &Stage, uid: u32, request: &Request) -> String {
    let request = serde_json::to_string(request).unwrap();
    let mut asking = itself_as(uid);
    let output = asking.arg("--ask").arg(stage.socket(0)).arg(request).output().unwrap();
    said(output).1
}

fn checkpoint_as(stage: &Stage, uid: u32, job: u32, folder: &Path) -> String {
    let mut asking = itself_as(uid);
    asking.arg("--checkpoint").arg(stage.socket(0)).arg(job.to_string()).arg(folder);
    said(asking.output().unwrap()).1
}

fn restore_as(stage: &Stage, uid: Option<u32>, folder: &Path) -> (i32, String, String) {
    let mut client = uid.map_or_else(itself, itself_as);
    client.arg("--restore").arg(stage.socket(0)).arg(folder);
    said(client.stdin(Stdio::null()).output().unwrap())
}

pub(crate) fn of_a_job() {
    let Some(group) = group() else { return };
    let stage = Stage::for_group(1, 2, 20, ("none", group));
    let socket = stage.socket(0).metadata().unwrap();
    assert_eq!((socket.mode() & 0o777, socket.uid(), socket.gid()), (0o660, 0, NOBODY));
    let script = "id -u; id -ru; id -g; id -G; grep 'realtime prio' /proc/self/limits | tr -s ' '; \
                  grep -E 'NoNewPrivs|CapEff|CapPrm|CapAmb' /proc/self/status; \
                  echo by name > /dev/stderr; echo $HOME";
    let mut client = stage.client_of(NOBODY, 0, 1, &["sh", "-c", script]);
    let (code, out, error) = said(client.env("HOME", "/home/sent").output().unwrap());
    let groups = Command::new("id").args(["-G", "nobody"]).output().unwrap().stdout;
    let groups = String::from_utf8(groups).unwrap();
    let none = "0000000000000000";
    let expected = format!(
        "{NOBODY}\n{NOBODY}\n{NOBODY}\n{groups}Max realtime priority 0 0 \nCapPrm:\t{none}\nCapEff:\t{none}\n\
         CapAmb:\t{none}\nNoNewPrivs:\t1\n/home/sent\n"
    );
    assert_eq!((code, out), (0, expected), "{error}");
    assert!(error.contains("by name"), "{error}");
    // A job of root runs as root.
    let (code, out, _) = stage.run(1, &["sh", "-c", "id -u; grep NoNewPrivs /proc/self/status"]);
    assert_eq!((code, out.as_str()), (0, "0\nNoNewPrivs:\t1\n"));
    // A program or a folder that root's daemon can read and the user can't is refused.
    let secret = stage.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("program"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(secret.join("program"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o700)).unwrap();
    let program = secret.join("program");
    let client = stage.client_of(NOBODY, 0, 1, &[program.to_str().unwrap()]).output().unwrap();
    let (code, _, error) = said(client);
    assert!(code == 126 && error.contains("there is no such file"), "{code} {error}");
    // The dynamic loader of the shim would write there as root.
    let trace = stage.path().join("trace");
    let mut client = stage.client_of(NOBODY, 0, 1, &["true"]);
    client.env("LD_DEBUG", "statistics").env("LD_DEBUG_OUTPUT", &trace);
    assert_eq!(said(client.output().unwrap()).0, 0);
    let left: Vec<_> = std::fs::read_dir(stage.path()).unwrap().flatten().collect();
    let is_trace = |name: std::ffi::OsString| name.as_encoded_bytes().starts_with(b"trace");
    assert!(!left.iter().any(|entry| is_trace(entry.file_name())), "{left:?}");
    // The terminal belongs to the user.
    let mut client = itself_as(NOBODY);
    client.arg("--client").arg(stage.socket(0)).args(["1", "terminal", "sh", "-c"]);
    client.arg("tty > /dev/null && echo by name > $(tty)").stdin(Stdio::null());
    let (code, out, error) = said(client.output().unwrap());
    assert!(code == 0 && out.contains("by name"), "{code} {out} {error}");
}

/// Tests that jobs of a user start while the user continues all processes that the daemon has suspended.
pub(crate) fn starts_despite_signals() {
    let Some(group) = group() else { return };
    let stage = Stage::for_group(1, 2, 20, ("none", group));
    let daemon = stage.daemons[0].id();
    let script = format!(
        "while :; do for it in $(cat /proc/{daemon}/task/{daemon}/children); do kill -CONT $it; done; done 2> /dev/null"
    );
    let mut continues = stage.client_of(NOBODY, 0, 1, &["sh", "-c", &script]).spawn().unwrap();
    wait_until("it runs", || listing(&stage).jobs.iter().any(|job| job.runs));
    for _ in 0..20 {
        let client = stage.client_of(NOBODY, 0, 1, &["id", "-u"]).spawn().unwrap();
        assert_eq!(stage.end(client), (0, format!("{NOBODY}\n"), String::new()));
    }
    ask_for(&stage, &Request::Kill { job: JobId(1), signal: None });
    assert_eq!(continues.wait().unwrap().code(), Some(137));
}

pub(crate) fn of_clients() {
    let Some(group) = group() else { return };
    let stage = Stage::for_group(1, 4, 20, ("none", group));
    let mut roots = stage.client(1, &["cat"]).stdin(Stdio::piped()).spawn().unwrap();
    wait_until("it runs", || listing(&stage).jobs.iter().any(|job| job.runs));
    let mut nobodys = stage.client_of(NOBODY, 0, 1, &["sleep", "1000"]).spawn().unwrap();
    wait_until("both run", || listing(&stage).jobs.iter().filter(|job| job.runs).count() == 2);
    let users: Vec<_> = listing(&stage).jobs.into_iter().map(|job| job.user).collect();
    assert_eq!(users, ["root", "nobody"]);
    let job = JobId(1);
    let folder = b"/tmp/stolen".to_vec();
    for request in [
        Request::Kill { job, signal: None },
        Request::Kill { job, signal: Some(9) },
        Request::Attach(job),
        Request::Checkpoint { job, folder, end: true },
    ] {
        let refused = answer(&stage, NOBODY, &request);
        assert_eq!(refused, "job 1 is root's: only root may do this\n", "{request:?}");
    }
    assert!(answer(&stage, NOBODY, &Request::List).contains("\"nobody\""));
    let mut feeding = itself_as(NOBODY);
    feeding.arg("--feed").arg(stage.socket(0)).args(["1", "stolen"]);
    assert!(feeding.output().unwrap().status.success());
    roots.stdin.take().unwrap().write_all(b"own").unwrap();
    assert_eq!(said(roots.wait_with_output().unwrap()), (0, "own".into(), String::new()));
    let refused = answer(&stage, NOBODY, &Request::Attach(job));
    assert!(refused.contains("there is no job 1"), "{refused}");
    // A user outside the group can't connect, and a user without a name is refused.
    let refused = answer(&stage, OTHER, &Request::List);
    assert!(refused.contains("may not use its daemon"), "{refused}");
    // Root may signal the job, and its user may end it.
    ask_for(&stage, &Request::Kill { job: JobId(2), signal: Some(18) });
    assert_eq!(answer(&stage, NOBODY, &Request::Kill { job: JobId(2), signal: None }), "Done\n");
    assert_eq!(nobodys.wait().unwrap().code(), Some(137));
}

pub(crate) fn on_other_hosts() {
    let Some(group) = group() else { return };
    let stage = Stage::for_group(3, 1, 20, ("none", group));
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    for host in 0..3 {
        let client = stage.client_of(NOBODY, host, 3, &["sh", "-c", "id -u; id -G"]);
        let (code, out, error) = said({ client }.output().unwrap());
        let ids: Vec<&str> = out.lines().collect();
        assert_eq!((code, ids), (0, vec!["65534"; 6]), "{error}");
    }
    let sleeps = stage.client(3, &["sleep", "1000"]).spawn().unwrap();
    wait_until("it runs", || listing(&stage).jobs.iter().any(|job| job.runs));
    let job = listing(&stage).jobs[0].job;
    let end = Request::Kill { job, signal: None };
    for host in 0..3 {
        let request = serde_json::to_string(&end).unwrap();
        let mut asking = itself_as(NOBODY);
        let output = asking.arg("--ask").arg(stage.socket(host)).arg(request).output().unwrap();
        assert!(said(output).1.contains("only root may do this"));
    }
    ask_for(&stage, &end);
    assert_eq!(said(sleeps.wait_with_output().unwrap()).0, 137);
}

pub(crate) fn of_checkpoints() {
    let Some(group) = group() else { return };
    if !is_in_reach() {
        return println!("skipped: other users can't reach this program");
    }
    let stage = Stage::for_group(1, 2, 10, ("shm", group));
    let [own, secret] = ["own", "secret"].map(|name| stage.path().join(name));
    for (folder, user) in [(&own, NOBODY), (&secret, 0)] {
        std::fs::create_dir(folder).unwrap();
        chown(folder, Some(user), None).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let itself = std::env::current_exe().unwrap();
    let talk = [itself.to_str().unwrap(), "--talk", "10000"];
    let client = stage.client_of(NOBODY, 0, 2, &talk).spawn().unwrap();
    // Into a folder that is root's alone, and through a link into it: refused, and the job continues.
    std::os::unix::fs::symlink(&secret, own.join("link")).unwrap();
    for folder in [secret.join("saved"), own.join("link/saved"), own.join("link")] {
        let mut answer = String::new();
        wait_until("it can be saved", || {
            answer = checkpoint_as(&stage, NOBODY, 1, &folder);
            !answer.contains("can't be saved") && !answer.contains("no job")
        });
        assert!(answer.contains("Permission denied"), "{folder:?}: {answer}");
    }
    assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0);
    let answer = checkpoint_as(&stage, NOBODY, 1, &own.join("saved"));
    assert!(answer.contains("Saved"), "{answer}");
    let (_, _, error) = said(client.wait_with_output().unwrap());
    assert!(error.contains("it was saved in"), "{error}");
    for entry in std::fs::read_dir(own.join("saved")).unwrap().flatten() {
        let about = entry.metadata().unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (NOBODY, 0o600), "{:?}", entry.path());
    }
    // Root does not run a checkpoint that another user has written; that user does.
    let (code, _, error) = restore_as(&stage, None, &own.join("saved"));
    assert!(code == 2 && error.contains("its program would run as root"), "{code} {error}");
    let (code, out, error) = restore_as(&stage, Some(NOBODY), &own.join("saved"));
    assert_eq!((code, out.lines().count()), (0, 2), "{error}");
    // A file that never ends keeps that user's request waiting, and nothing else.
    let endless = own.join("endless");
    std::fs::create_dir(&endless).unwrap();
    chown(&endless, Some(NOBODY), None).unwrap();
    let made = Command::new("mkfifo").arg(endless.join("manifest.json")).status().unwrap();
    assert!(made.success());
    chown(endless.join("manifest.json"), Some(NOBODY), None).unwrap();
    let mut waits = itself_as(NOBODY);
    waits.arg("--restore").arg(stage.socket(0)).arg(&endless);
    let mut waits = waits.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Another user can't restore a checkpoint of root.
    let client = stage.client(2, &talk).spawn().unwrap();
    wait_until("it is listed", || !listing(&stage).jobs.is_empty());
    let job = listing(&stage).jobs[0].job;
    let roots = stage.path().join("roots");
    checkpoint_soon(&stage, job.0, &roots, true);
    client.wait_with_output().unwrap();
    let (code, _, error) = restore_as(&stage, Some(NOBODY), &roots);
    assert!(code == 2 && error.contains("Permission denied"), "{code} {error}");
    let (code, out, error) = restore_as(&stage, None, &roots);
    assert_eq!((code, out.lines().count()), (0, 2), "{error}");
    // The waiting request does not keep the daemon from ending.
    assert!(waits.try_wait().unwrap().is_none());
    let mut stage = stage;
    kill_process(Pid::from_child(&stage.daemons[0]), Signal::TERM).unwrap();
    stage.daemons[0].wait().unwrap();
    waits.wait().unwrap();
}

pub(crate) fn of_a_daemon() {
    if group().is_none() {
        return;
    }
    let stage = Stage::for_user(NOBODY);
    let socket = stage.socket(0).metadata().unwrap();
    assert_eq!((socket.mode() & 0o777, socket.uid()), (0o600, NOBODY));
    let client = stage.client_of(NOBODY, 0, 1, &["id", "-u"]).output().unwrap();
    assert_eq!(said(client), (0, format!("{NOBODY}\n"), String::new()));
    // Root can connect, but the daemon can't run anything as root.
    let (code, _, error) = stage.run(1, &["true"]);
    assert!(code == 2 && error.contains("runs jobs of nobody alone"), "{code} {error}");
    let other = answer(&stage, OTHER, &Request::List);
    assert!(other.contains("may not use its daemon"), "{other}");
    // Even if the mode of the socket admits the user.
    std::fs::set_permissions(stage.socket(0), PermissionsExt::from_mode(0o666)).unwrap();
    let other = answer(&stage, OTHER, &Request::List);
    assert!(other.contains("serves nobody alone"), "{other}");
}

pub(crate) fn of_adoption() {
    let Some(group) = group() else { return };
    let folder = match probe_control_groups() {
        Ok(folder) => folder.with_file_name(format!("rights-{}", std::process::id())),
        Err(error) => return println!("skipped: {error}"),
    };
    std::fs::create_dir(&folder).unwrap();
    let stage = Stage::for_group(1, 2, 15, ("none", group));
    let mut client = itself_as(NOBODY);
    client.arg("--adopt").arg(stage.socket(0)).arg(&folder);
    let (code, _, error) = said(client.stdin(Stdio::null()).output().unwrap());
    std::fs::remove_dir(&folder).unwrap();
    assert!(code == 2 && error.contains("for root alone"), "{code} {error}");
}

pub(crate) fn a_daemon_is_killed() {
    let Some(group) = group() else { return };
    let mut stage = Stage::for_group(1, 1, 20, ("none", group));
    let own = stage.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o777)).unwrap();
    let script = format!("echo $$ > {}/rank; sleep 1000", own.display());
    let mut client = stage.client_of(NOBODY, 0, 1, &["sh", "-c", &script]).spawn().unwrap();
    let rank = stage.number("own/rank");
    stage.daemons[0].kill().unwrap();
    wait_until("the rank ends", || !lives(rank));
    client.wait().unwrap();
}
