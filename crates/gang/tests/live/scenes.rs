//! Scenes of jobs, clients and daemons.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use midplane_gang::live::client::ask;
use midplane_gang::live::daemon::probe_control_groups;
use midplane_gang::live::message::{Listing, Reply, Request};
use midplane_gang::names::JobId;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Stage, itself, lives, said, wait_until};

pub(crate) fn ask_for(stage: &Stage, request: &Request) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ask(&stage.socket(0), request)).unwrap()
}

pub(crate) fn listing(stage: &Stage) -> Listing {
    match ask_for(stage, &Request::List) {
        Reply::Listing(listing) => listing,
        other => panic!("{other:?}"),
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Returns the script of a rank that writes its number and that of a child, and waits.
fn stayer(stage: &Stage) -> String {
    let folder = stage.path().display();
    format!(
        "sleep 1000 & echo $! > {folder}/child-$GANG_JOB-$GANG_RANK; \
         echo $$ > {folder}/rank-$GANG_JOB-$GANG_RANK; wait"
    )
}

/// Starts this program by hand, so that the filter is for it alone.
pub(crate) fn no_such_scene() {
    for arguments in [&["nothing_is_called_so"][..], &["rank", "--exact"]] {
        let output = itself().args(arguments).output().unwrap();
        let (code, out, error) = said(output);
        assert_eq!((code, out.as_str()), (101, ""), "{arguments:?}");
        assert!(
            error.contains(arguments[0]) && error.contains("  rank_0_has_a_terminal"),
            "{error}"
        );
    }
    let one = ["rank_0_has_a_terminal", "--exact", "--test-threads", "1", "--list"];
    let (code, out, _) = said(itself().args(one).output().unwrap());
    assert_eq!((code, out.as_str()), (0, "rank_0_has_a_terminal: test\n"));
}

pub(crate) fn streams_and_exit_code() {
    let stage = Stage::alone(2, 20);
    assert_eq!(
        stage.run(1, &["sh", "-c", "echo out; echo err >&2; exit 7"]),
        (7, "out\n".into(), "err\n".into())
    );
    let mut client = stage.client(2, &["sh", "-c", "[ $GANG_RANK = 1 ] || cat"]);
    let mut client = client.stdin(Stdio::piped()).spawn().unwrap();
    let long = "all of it, and not only the first part\n".repeat(20_000);
    let mut input = client.stdin.take().unwrap();
    let text = long.clone();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let (code, out, _) = said(client.wait_with_output().unwrap());
    writer.join().unwrap();
    assert_eq!((code, out == long), (0, true));
    let (code, _, error) = stage.run(1, &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!((code, error.as_str()), (139, ""));
}

pub(crate) fn what_cannot_begin() {
    let stage = Stage::alone(2, 20);
    let (code, _, error) = stage.run(1, &["no-such-program"]);
    assert!(code == 2 && error.contains("no-such-program: not found in PATH"), "{error}");
    let (code, _, error) = stage.run(1, &["/etc/passwd"]);
    assert!(code == 2 && error.contains("it may not be executed"), "{error}");
    let (code, _, error) = stage.run(3, &["true"]);
    assert!(code == 2 && error.contains("--ranks 3"), "{error}");
    assert_eq!(listing(&stage).jobs, []);
    let again = itself()
        .arg("--daemon")
        .arg(stage.socket(0))
        .args(["0", "2", "20", "", "", "none", "auto"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("Taken"));
    assert_eq!(stage.run(1, &["true"]).0, 0);
}

pub(crate) fn a_rank_dies() {
    let stage = Stage::alone(3, 20);
    let script = stayer(&stage);
    let client = stage.client(2, &["sh", "-c", &script]).spawn().unwrap();
    let [first, second] = ["rank-1-0", "rank-1-1"].map(|name| stage.number(name));
    let child = stage.number("child-1-1");
    let other = stage.client(1, &["sh", "-c", &script]).spawn().unwrap();
    let unharmed = stage.number("rank-2-0");
    kill(second);
    let (code, _, error) = said(client.wait_with_output().unwrap());
    assert!(code == 137 && error.contains("rank 1 on host 0"), "{code} {error}");
    wait_until("its other rank ends", || !lives(first) && !lives(child));
    assert!(lives(unharmed));
    let Reply::Done = ask_for(&stage, &Request::Kill { job: JobId(2), signal: None }) else {
        panic!()
    };
    assert_eq!(said(other.wait_with_output().unwrap()).0, 137);
    assert_eq!(listing(&stage).jobs, []);
}

/// Tests that a job that was sent SIGSTOP does not run in its slices, until it is sent SIGCONT.
pub(crate) fn a_job_is_halted() {
    for (freezer, others) in [("signals", 1), ("signals", 0), ("auto", 1)] {
        let stage = Stage::with(1, 1, 20, ("none", freezer));
        let counts = "while :; do echo; done >> \"$0\"";
        let path = stage.path().join("counts").display().to_string();
        let length = || std::fs::metadata(stage.path().join("counts")).map_or(0, |it| it.len());
        let mut client = stage.client(1, &["sh", "-c", counts, &path]).spawn().unwrap();
        let grows = |what| {
            let before = length();
            wait_until(what, || length() > before);
        };
        grows("it runs");
        let others: Vec<_> =
            (0..others).map(|_| stage.client(1, &["sleep", "1000"]).spawn().unwrap()).collect();
        wait_until("all are there", || listing(&stage).jobs.len() == 1 + others.len());
        let tell = |signal| ask_for(&stage, &Request::Kill { job: JobId(1), signal });
        tell(Some(19));
        wait_until("it is halted", || {
            let before = length();
            std::thread::park_timeout(Duration::from_millis(200));
            length() == before
        });
        let before = length();
        std::thread::park_timeout(Duration::from_millis(500));
        assert_eq!(length(), before, "{freezer}: it runs in its slices");
        tell(Some(18));
        grows("it goes on");
        tell(None);
        assert_eq!(client.wait().unwrap().code(), Some(137));
        for (other, job) in others.into_iter().zip(2..) {
            ask_for(&stage, &Request::Kill { job: JobId(job), signal: None });
            assert_eq!(said(other.wait_with_output().unwrap()).0, 137);
        }
    }
}

pub(crate) fn a_daemon_is_killed() {
    let mut stage = Stage::alone(1, 20);
    let script = stayer(&stage);
    // The jobs share one slot, so one of them is suspended at any time.
    let client = stage.client(1, &["sh", "-c", &script]).spawn().unwrap();
    let other = stage.client(1, &["sh", "-c", &script]).spawn().unwrap();
    let names = ["rank-1-0", "child-1-0", "rank-2-0", "child-2-0"];
    let all = names.map(|name| stage.number(name));
    assert!(all.iter().all(|pid| lives(*pid)));
    stage.daemons[0].kill().unwrap();
    for client in [client, other] {
        let (code, _, error) = said(client.wait_with_output().unwrap());
        assert!(code == 2 && error.contains("the daemon is gone"), "{error}");
    }
    wait_until("all of it ends", || all.iter().all(|pid| !lives(*pid)));
    wait_until("its socket goes", || !stage.socket(0).exists());
}

/// Tests that a daemon keeps its socket even if a killed daemon's cleanup runs later.
pub(crate) fn a_daemon_follows_at_once() {
    let mut stage = Stage::alone(1, 20);
    let daemon = stage.daemons[0].id();
    let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    // It has no other child without jobs.
    let reaper: u32 = children.unwrap().trim().parse().unwrap();
    let signal = |signal| kill_process(Pid::from_raw(reaper as i32).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    stage.daemons[0].kill().unwrap();
    stage.daemons[0].wait().unwrap();
    stage.start(0, &format!("1:{}", "5a".repeat(32)));
    signal(Signal::CONT);
    wait_until("the first one's reaper ends", || !lives(reaper));
    assert!(listing(&stage).jobs.is_empty());
}

/// Regression: the daemon panicked, and its jobs ended.
pub(crate) fn standard_error_is_full() {
    let mut stage = Stage::alone(1, 20);
    stage.daemons[0].kill().unwrap();
    stage.daemons[0].wait().unwrap();
    wait_until("its socket goes", || !stage.socket(0).exists());
    let errors = stage.path().join("0.errors");
    std::fs::remove_file(&errors).unwrap();
    std::os::unix::fs::symlink("/dev/full", &errors).unwrap();
    stage.start(0, "");
    // The next to read them must not read the device, which has no end.
    std::fs::remove_file(&errors).unwrap();
    std::fs::write(&errors, "").unwrap();
    kill_process(Pid::from_child(&stage.daemons[0]), Signal::USR1).unwrap();
    assert_eq!(stage.run(1, &["true"]).0, 0);
}

pub(crate) fn a_client_is_killed() {
    let stage = Stage::alone(1, 20);
    let mut client = stage.client(1, &["sh", "-c", &stayer(&stage)]).spawn().unwrap();
    let all = ["rank-1-0", "child-1-0"].map(|name| stage.number(name));
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("all of it ends", || all.iter().all(|pid| !lives(*pid)));
    wait_until("nobody lists it", || listing(&stage).jobs.is_empty());
}

pub(crate) fn signals() {
    let stage = Stage::alone(1, 30);
    let folder = stage.path().display();
    let script = format!(
        "trap 'echo heard; exit 5' INT; echo $$ > {folder}/began-$GANG_JOB; while :; do sleep 0.01; done"
    );
    let clients = [1, 2].map(|_| stage.client(1, &["sh", "-c", &script]).spawn().unwrap());
    for name in ["began-1", "began-2"] {
        stage.number(name);
    }
    for client in clients {
        kill_process(Pid::from_child(&client), Signal::INT).unwrap();
        assert_eq!(said(client.wait_with_output().unwrap()), (5, "heard\n".into(), String::new()));
    }
}

pub(crate) fn terminal() {
    let stage = Stage::alone(1, 20);
    let mut client = itself();
    client.arg("--client").arg(stage.socket(0)).args([
        "1",
        "terminal",
        "sh",
        "-c",
        "stty size; tty -s",
    ]);
    let output = client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    assert_eq!(said(output.unwrap()), (0, "24 80\r\n".into(), String::new()));
}

/// Returns the spans in which a job's ranks and their children ran.
fn spans(stage: &Stage, job: u32) -> Vec<(u64, u64)> {
    let names = ["0", "1", "0-child", "1-child"].map(|rank| format!("{job}-{rank}"));
    spans_of(stage, &names.each_ref().map(String::as_str))
}

/// Returns the spans in which the processes ran that wrote these files.
pub(crate) fn spans_of(stage: &Stage, names: &[&str]) -> Vec<(u64, u64)> {
    let text: String = names.iter().map(|name| stage.file(name).unwrap()).collect();
    let pair = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap();
        (from.parse().unwrap(), to.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

/// Runs two jobs, each of two ranks with a child of their own, on processors that other processes use as well.
fn turns(freezer: &'static str) {
    let stage = Stage::with(1, 2, 15, ("none", freezer));
    let itself_path = std::env::current_exe().unwrap();
    let path = stage.path().to_str().unwrap();
    // A control group also contains a child that has left its rank's session.
    let child = match freezer == "auto" && probe_control_groups().is_ok() {
        true => "--tick-in-session",
        false => "--tick",
    };
    let tick = [itself_path.to_str().unwrap(), "--tick-with", child, path, "0.8"];
    let mut others: Vec<_> =
        (0..3).map(|_| itself().args(["--spin", "20"]).spawn().unwrap()).collect();
    let clients = [1, 2].map(|_| stage.client(2, &tick).spawn().unwrap());
    for client in clients {
        let (code, _, error) = said(client.wait_with_output().unwrap());
        assert_eq!((code, error.as_str()), (0, ""));
    }
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    let [first, second] = [1, 2].map(|job| spans(&stage, job));
    assert!(first.len() > 4 && second.len() > 4, "{} {}", first.len(), second.len());
    let pairs = first.iter().flat_map(|a| second.iter().map(move |b| (a, b)));
    // A single clock reading is a span of no length, and overlaps nothing.
    let mut together = pairs.filter(|(a, b)| a.0 < b.1 && b.0 < a.1);
    assert_eq!(together.next(), None, "{freezer}: both jobs ran");
}

pub(crate) fn turns_by_groups() {
    turns("auto");
}

pub(crate) fn turns_by_signals() {
    turns("signals");
}

pub(crate) fn messages_survive() {
    let itself = std::env::current_exe().unwrap();
    let talk = [itself.to_str().unwrap(), "--talk", "700"];
    for hosts in [1, 2] {
        let stage = Stage::with_network(hosts, 4 / hosts, 10, "shm");
        wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
        let clients = [1, 2].map(|_| stage.client(4, &talk).spawn().unwrap());
        for client in clients {
            let (code, _, error) = stage.end(client);
            assert_eq!((code, error.as_str()), (0, ""), "{hosts} hosts");
        }
        assert!(listing(&stage).switches > 4, "{} switches", listing(&stage).switches);
    }
}

pub(crate) fn a_tree_loses_one() {
    // Arity 2: hosts 3 and 4 are below 1, which is below 0.
    let mut stage = Stage::tree(5, 1, 20);
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    let (code, out, _) = stage.run(5, &["sh", "-c", "echo $GANG_RANK $GANG_HOST"]);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (0, vec!["0 0", "1 1", "2 2", "3 3", "4 4"]));
    let client = stage.client(5, &["sh", "-c", &stayer(&stage)]).spawn().unwrap();
    let all = [0, 1, 2, 3, 4].map(|rank| stage.number(&format!("rank-2-{rank}")));
    stage.daemons[1].kill().unwrap();
    let (_, _, error) = said(client.wait_with_output().unwrap());
    assert!(error.contains("host 1 (127.0.0.1:") && error.contains("is gone"), "{error}");
    wait_until("all of it ends", || all.iter().all(|pid| !lives(*pid)));
    wait_until("the others are back", || listing(&stage).hosts == [true, false, true, true, true]);
    let (code, _, error) = stage.run(5, &["true"]);
    assert!(code == 2 && error.contains("host 1") && error.contains("can't be reached"), "{error}");
    assert_eq!(stage.run(1, &["true"]).0, 0);
}

/// Regression: the hosts below dialled it again and again, and none above it.
pub(crate) fn a_tree_has_a_silent_host() {
    // Arity 2: hosts 3 and 4 are below 1. The others are a majority, so that the root stays.
    let stage = Stage::tree(7, 1, 20);
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    // The system still accepts connections for it.
    kill_process(Pid::from_child(&stage.daemons[1]), Signal::STOP).unwrap();
    let others = [true, false, true, true, true, true, true];
    wait_until("it is missed", || !listing(&stage).hosts[1]);
    wait_until("the others are back", || listing(&stage).hosts == others);
}

pub(crate) fn another_key() {
    let mut stage = Stage::tree(2, 1, 20);
    wait_until("both are there", || listing(&stage).hosts == [true, true]);
    stage.daemons[1].kill().unwrap();
    stage.daemons[1].wait().unwrap();
    wait_until("it is missed", || listing(&stage).hosts == [true, false]);
    stage.start(1, &format!("1:{}", "5b".repeat(32)));
    wait_until("both daemons say so", || {
        stage.errors(0).contains("a daemon at 127.0.0.1 has another key")
            && stage.errors(1).contains("host 0 does not accept the key of this daemon")
    });
    assert_eq!(listing(&stage).hosts, [true, false]);
}
