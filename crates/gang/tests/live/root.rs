//! A root that is killed, and another host that takes over.

use std::io::Read;
use std::process::Child;
use std::time::Duration;

use midplane_gang::live::client::{ClientError, ask};
use midplane_gang::live::message::{Listing, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::parts::runtime;
use crate::stage::{Stage, said, wait_until};

/// Returns the listing of a host's daemon; `None` if there is no root.
fn listing(stage: &Stage, host: u16) -> Option<Listing> {
    match runtime().block_on(ask(&stage.socket(host), &Request::List)) {
        Ok(Reply::Listing(listing)) => Some(listing),
        _ => None,
    }
}

/// Starts three connected daemons. Returns the root's host and the two others.
fn three() -> (Stage, u16, [u16; 2]) {
    let stage = Stage::tree(3, 1, 20);
    wait_until("all are there", || {
        listing(&stage, 0).is_some_and(|listing| listing.hosts == [true; 3])
    });
    let root = listing(&stage, 0).unwrap().root;
    let others = [(root + 1) % 3, (root + 2) % 3];
    (stage, root, others)
}

/// Returns the script of a rank that writes its number, waits until a file exists, and reads a line.
fn waiter(stage: &Stage) -> String {
    let folder = stage.path().display();
    format!(
        "echo began; echo $$ > {folder}/rank-$GANG_JOB-$GANG_RANK; \
         until [ -e {folder}/end ]; do sleep 0.02; done; [ $GANG_RANK != 0 ] || read line; echo ended $line"
    )
}

/// Reads the first line of a client's output.
fn has_begun(client: &mut Child) {
    let mut first = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"began\n");
}

/// A job without ranks on the root's host ends well, its output and its exit code reach its client on another host,
/// and jobs start again.
pub(crate) fn takes_over() {
    let (mut stage, root, others) = three();
    // Jobs get the least loaded slot: one on each host, and one on two of them.
    let script = waiter(&stage);
    let mut clients = Vec::new();
    for number in 1..=3 {
        let mut client = stage.client_at(others[0], 1, "pipes", &["sh", "-c", &script]);
        let mut client = client.stdin(std::process::Stdio::piped()).spawn().unwrap();
        stage.number(&format!("rank-{number}-0"));
        has_begun(&mut client);
        clients.push(client);
    }
    let hosts: Vec<u16> = {
        let listing = listing(&stage, others[0]).unwrap();
        listing.jobs.iter().map(|job| job.slots.0).collect()
    };
    stage.daemons[usize::from(root)].kill().unwrap();
    stage.daemons[usize::from(root)].wait().unwrap();
    let began = midplane_gang::live::clock::now();
    wait_until("another host is the root", || {
        listing(&stage, others[1]).is_some_and(|listing| others.contains(&listing.root))
    });
    let took = midplane_gang::live::clock::now().nanos_since(began);
    println!("  another host has taken over after {:?}", Duration::from_nanos(took));
    std::fs::write(stage.path().join("end"), "").unwrap();
    for (host, mut client) in hosts.into_iter().zip(clients) {
        use std::io::Write;
        if host != root {
            writeln!(client.stdin.take().unwrap(), "well").unwrap();
        }
        let (code, out, error) = stage.end(client);
        match host == root {
            true => assert!(code == 1 && error.contains("is gone"), "{code} {out} {error}"),
            false => assert_eq!((code, out.as_str()), (0, "ended well\n"), "{error}"),
        }
    }
    let after = said(stage.client_at(others[1], 2, "pipes", &["true"]).output().unwrap());
    // The slots of two ranks are those of hosts 0 and 1.
    match root {
        2 => assert_eq!(after, (0, String::new(), String::new())),
        _ => assert!(after.2.contains("can't be reached"), "{after:?}"),
    }
    // The daemon that was killed joins again.
    stage.start(root, &format!("1:{}", "5a".repeat(32)));
    wait_until("all are there again", || {
        listing(&stage, root).is_some_and(|listing| listing.hosts == [true; 3])
    });
    let all = stage.client_at(root, 3, "pipes", &["true"]).output().unwrap();
    assert_eq!(said(all), (0, String::new(), String::new()));
}

/// A root is paused while its connections stay, and continues once another host is the root. Clients that it served,
/// and the output of ranks on the other hosts, find the new root.
pub(crate) fn is_paused() {
    let (stage, root, others) = three();
    let script = waiter(&stage);
    let begin = |number| {
        let mut client = stage.client_at(others[0], 1, "pipes", &["sh", "-c", &script]);
        let mut client = client.stdin(std::process::Stdio::null()).spawn().unwrap();
        stage.number(&format!("rank-{number}-0"));
        has_begun(&mut client);
        client
    };
    let clients = [1, 2, 3].map(begin);
    let hosts = listing(&stage, others[0]).unwrap().jobs.into_iter().map(|job| job.slots.0);
    let daemon = Pid::from_child(&stage.daemons[usize::from(root)]);
    kill_process(daemon, Signal::STOP).unwrap();
    wait_until("another host is the root", || {
        listing(&stage, others[1]).is_some_and(|listing| others.contains(&listing.root))
    });
    kill_process(daemon, Signal::CONT).unwrap();
    wait_until("the former root has a root", || {
        listing(&stage, root).is_some_and(|listing| listing.root != root)
    });
    std::fs::write(stage.path().join("end"), "").unwrap();
    for (host, client) in hosts.zip(clients) {
        let (code, out, error) = stage.end(client);
        match host == root {
            true => assert!(code == 1 && error.contains("is gone"), "{code} {out} {error}"),
            false => assert_eq!((code, out.as_str()), (0, "ended\n"), "{error}"),
        }
    }
}

/// Without a majority, the error of a request is that there is no root, with the reason.
pub(crate) fn no_majority() {
    let (mut stage, root, others) = three();
    for host in others {
        stage.daemons[usize::from(host)].kill().unwrap();
        stage.daemons[usize::from(host)].wait().unwrap();
    }
    wait_until("the root is none any longer", || listing(&stage, root).is_none());
    let (_, _, error) = said(stage.client_at(root, 1, "pipes", &["true"]).output().unwrap());
    assert!(error.contains("there is no root") && error.contains("2 of the 3"), "{error}");
    let asked = runtime().block_on(ask(&stage.socket(root), &Request::List));
    assert!(matches!(asked, Err(ClientError::NoRoot(_))), "{asked:?}");
}

/// Two jobs that talk over channels take turns on two hosts when the root dies in the middle of it: no message is lost.
pub(crate) fn messages_survive() {
    for network in ["UDP", "shm"] {
        let mut stage = Stage::with_network(5, 1, 10, network);
        wait_until("all are there", || {
            listing(&stage, 0).is_some_and(|listing| listing.hosts == [true; 5])
        });
        assert_eq!(listing(&stage, 0).unwrap().root, 0, "in a new cluster host 0 comes first");
        let itself = std::env::current_exe().unwrap();
        let command = [itself.to_str().unwrap(), "--talk", "3000"];
        let start = |count| {
            let job = |_| stage.client_at(2, 2, "pipes", &command).spawn().unwrap();
            (0..count).map(job).collect::<Vec<_>>()
        };
        // Every second job is on hosts 2 and 3.
        let clients = start(4);
        let runs = |listing: Listing| {
            let is_there = |job: &midplane_gang::live::message::Line| job.preemptions > 3;
            listing.jobs.iter().filter(|job| job.slots.0 == 2 && is_there(job)).count() == 2
        };
        wait_until("they take turns", || listing(&stage, 4).is_some_and(runs));
        stage.daemons[0].kill().unwrap();
        stage.daemons[0].wait().unwrap();
        let ends: Vec<_> = clients.into_iter().map(|client| stage.end(client)).collect();
        let well = ends.iter().filter(|(code, ..)| *code == 0).count();
        let lost = ends.iter().filter(|(_, _, error)| error.contains("is gone")).count();
        assert_eq!((well, lost), (2, 2), "{network}: {ends:?}");
    }
}

/// A client whose daemon is killed finds its job again through the one that follows.
pub(crate) fn clients_outlive_their_daemon() {
    use std::io::Write;
    let (mut stage, root, _) = three();
    assert_eq!(root, 0, "in a new cluster host 0 comes first");
    let script = waiter(&stage);
    let mut client = stage.client_at(1, 1, "pipes", &["sh", "-c", &script]);
    let mut client = client.stdin(std::process::Stdio::piped()).spawn().unwrap();
    stage.number("rank-1-0");
    assert_eq!(listing(&stage, 0).unwrap().jobs[0].slots.0, 2);
    stage.daemons[1].kill().unwrap();
    stage.daemons[1].wait().unwrap();
    stage.start(1, &format!("1:{}", "5a".repeat(32)));
    wait_until("all are there again", || {
        listing(&stage, 1).is_some_and(|listing| listing.hosts == [true; 3])
    });
    std::fs::write(stage.path().join("end"), "").unwrap();
    writeln!(client.stdin.take().unwrap(), "well").unwrap();
    let (code, out, error) = stage.end(client);
    assert_eq!((code, out.as_str()), (0, "began\nended well\n"), "{error}");
    // A client that exits ends its job, wherever it is connected.
    let mut client = stage.client_at(1, 1, "pipes", &["sh", "-c", &script]).spawn().unwrap();
    stage.number("rank-2-0");
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("its job ends", || listing(&stage, 0).unwrap().jobs.is_empty());
}
