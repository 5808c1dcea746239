//! The program and its ranks as processes of this host.
#![cfg(target_os = "linux")]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for a process to exit, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fixed_points"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cluster = format!("fixed-points-test-{}", std::process::id());
    command.env("MIDPLANE_CLUSTER", cluster).spawn().unwrap()
}

/// Returns what a process, and those that it has started, write to a pipe until all have exited.
fn read_all(pipe: impl Read + Send + 'static, process: &mut Child) -> String {
    let (sender, text) = mpsc::channel();
    std::thread::spawn(move || sender.send(std::io::read_to_string(pipe)));
    let text = text.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
        let _ = process.kill();
        panic!("the process does not exit")
    });
    text.unwrap()
}

#[test]
fn a_rank_exits_when_its_input_ends() {
    let mut rank = start(&["page-rank", "--rank", "0"]);
    drop(rank.stdin.take());
    let output = rank.stdout.take().unwrap();
    read_all(output, &mut rank);
}

#[test]
fn a_closed_pipe_ends_the_output_without_an_error() {
    let mut process = start(&["page-rank", "--ranks", "2"]);
    drop(process.stdout.take());
    let errors = process.stderr.take().unwrap();
    assert_eq!(read_all(errors, &mut process), "");
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_missing_argument_is_named_in_one_line() {
    let mut process = start(&["shortest-paths"]);
    let errors = process.stderr.take().unwrap();
    let error = read_all(errors, &mut process);
    assert!(error.contains("--to <NODE>") && error.lines().count() == 1, "{error}");
}
