//! Scenes of the standard streams of jobs.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::stage::{Stage, lives, said, wait_until};

/// Bytes that a rank writes: more than fit into the pipes and queues up to its client.
const LONG: usize = 4 << 20;

/// Tests that a client that pauses reads all output, even if its job's processes have ended long before.
pub(crate) fn a_client_pauses() {
    let stage = Stage::alone(1, 20);
    let folder = stage.path().display();
    let script = format!("echo $$ > {folder}/rank; exec head -c {LONG} /dev/zero");
    let mut client = stage.client(1, &["sh", "-c", &script]).spawn().unwrap();
    let mut output = client.stdout.take().unwrap();
    let rank = stage.number("rank");
    let (mut part, mut read) = (vec![0; 32 << 10], 0);
    while lives(rank) {
        read += output.read(&mut part).unwrap();
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // Longer than streams stay open whose client reads.
    std::thread::park_timeout(Duration::from_secs(4));
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    assert_eq!(read + rest.len(), LONG, "{read} bytes before the pause");
    assert_eq!(client.wait().unwrap().code(), Some(0));
}

/// Tests that rank 0 gets input after all ranks of its host have closed their output.
pub(crate) fn input_without_output() {
    for hosts in [1, 2] {
        let stage = Stage::tree(hosts, 1, 20);
        let folder = stage.path().display();
        let script = format!("exec > {folder}/log-$GANG_RANK 2>&1; cat; echo end");
        let mut client = stage.client(hosts, &["sh", "-c", &script]);
        let mut client = client.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = client.stdin.take().unwrap();
        input.write_all(b"begin\n").unwrap();
        let log = || stage.file("log-0").unwrap_or_default();
        wait_until("the input arrives", || log() == "begin\n");
        std::thread::park_timeout(Duration::from_millis(300));
        input.write_all(b"more\n").unwrap();
        wait_until("more input arrives", || log() == "begin\nmore\n");
        drop(input);
        assert_eq!(stage.end(client).0, 0);
        assert_eq!(log(), "begin\nmore\nend\n");
    }
}

pub(crate) fn unfinished_lines() {
    let stage = Stage::alone(1, 20);
    let client = stage.client_as(1, "labelled", &["printf", "whole\nrest"]).output().unwrap();
    assert_eq!(said(client), (0, "[0] whole\n[0] rest\n".into(), String::new()));
}
