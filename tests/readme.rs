//! Tests the README's programs: a service that is killed and restarted, and three senders whose lines all reach one
//! receiver. Processes that a program has started end with it.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::programs::{Process, program};

const README: &str = include_str!("../README.md");
const HELLO: &str = include_str!("../examples/hello.rs");
const SENDERS: usize = 3;
const LINES: usize = 1_000;
/// Longest wait between two lines, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The front page's programs, their sources, and their maximum numbers of lines.
const FRONT_DOOR: [(&str, &str, usize); 6] = [
    ("hello", HELLO, 150),
    ("axum_service", include_str!("../examples/axum_service.rs"), 150),
    ("tonic_service", include_str!("../examples/tonic_service/src/main.rs"), 150),
    ("tower_calls", include_str!("../examples/tower_calls.rs"), 150),
    ("latest_map", include_str!("../examples/latest_map.rs"), 120),
    ("two_hosts", include_str!("../examples/two_hosts.rs"), 150),
];

#[test]
fn programs_of_the_front_page_fit_a_page_and_name_their_dependencies() {
    let manifest = include_str!("../examples/tonic_service/Cargo.toml");
    for (name, program, most) in FRONT_DOOR {
        assert!(program.lines().count() <= most, "{name} has more than {most} lines");
        let block = program.split("//! ```toml").nth(1).unwrap_or(manifest);
        let used = program.lines().filter_map(|line| line.strip_prefix("use ")?.split("::").next());
        for needed in used.filter(|used| !["std", "generated"].contains(used)) {
            assert!(
                block.contains(&format!("\n//! {needed} = "))
                    || block.contains(&format!("\n{needed} = ")),
                "{name} needs {needed}, which its manifest does not name"
            );
        }
    }
}

/// Returns a program's lines from its node's start to the end of the function. Leaves out the differences between the
/// README's programs and the example, which contains both.
fn body(program: &str) -> Vec<String> {
    let lines = program.lines().skip_while(|line| !line.contains("await?;")).map(str::trim);
    let lines = lines.take_while(|line| !line.starts_with("println!") && !line.starts_with("```"));
    let same = |line: &str| line.replace("b\"Ada\"", "name.as_bytes()");
    lines.filter(|line| !line.contains("Node::builder()")).map(same).collect()
}

#[test]
fn the_readme_s_programs_are_the_example_s() {
    let example: Vec<&str> = HELLO.lines().map(str::trim).collect();
    let programs: Vec<_> = README.split("```rust,no_run\n").skip(1).map(body).collect();
    assert_eq!(programs.len(), 2);
    for program in programs {
        assert!(program.len() > 4, "{program:?}");
        let is_there = |lines: &[&str]| lines == program;
        assert!(example.windows(program.len()).any(is_there), "{program:#?}");
    }
}

/// Starts a rank of the program `many_to_one`.
fn rank(rank: usize, peers: &[SocketAddr]) -> Process {
    let mut command = program("many_to_one");
    command.arg(rank.to_string()).args(peers.iter().map(ToString::to_string));
    Process::start(command.stdin(Stdio::piped()))
}

#[test]
fn three_senders_lose_no_line_to_one_receiver() {
    let peers: Vec<SocketAddr> = (0..=SENDERS).map(|_| crate::node::free_address()).collect();
    let mut receiver = rank(0, &peers);
    let mut senders: Vec<Process> = (1..=SENDERS).map(|number| rank(number, &peers)).collect();
    let writers: Vec<_> = senders
        .iter_mut()
        .zip(1..)
        .map(|(sender, rank)| {
            let mut input = sender.input();
            std::thread::spawn(move || {
                for number in 0..LINES {
                    writeln!(input, "line {number} of {rank}").unwrap();
                }
            })
        })
        .collect();
    let (line, lines) = mpsc::channel();
    let mut output = receiver.output();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        while output.read_line(&mut text).is_ok_and(|length| length > 0) {
            // If the test has failed, no receiver is left.
            let _ = line.send(std::mem::take(&mut text));
        }
    });
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    while next.values().sum::<usize>() < SENDERS * LINES {
        let line = lines.recv_timeout(TIMEOUT);
        let line = line.unwrap_or_else(|_| panic!("nothing comes any more; so far: {next:?}"));
        let (node, said) = line.trim_end().split_once(": ").unwrap();
        let number = next.entry(node.to_owned()).or_default();
        assert_eq!(said, format!("line {number} of {node}"), "the one before was lost");
        *number += 1;
    }
    assert_eq!(next.values().copied().collect::<Vec<_>>(), [LINES; SENDERS]);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for sender in &mut senders {
        assert!(sender.0.wait().unwrap().success());
    }
    drop(receiver);
    reader.join().unwrap();
}

/// Starts a process of the other program, in this test's own cluster.
#[cfg(target_os = "linux")]
fn hello(argument: &str) -> Process {
    let mut command = program("hello");
    command.arg(argument).env("MIDPLANE_CLUSTER", format!("hello-{}", std::process::id()));
    Process::start(&mut command)
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_that_is_killed_is_reached_again_once_it_is_back() {
    for name in ["Ada", "Grace"] {
        // The client waits for the service, which starts second.
        let mut client = hello(name);
        let service = hello("--serve");
        let mut greeting = String::new();
        client.output().read_line(&mut greeting).unwrap();
        let expected = format!("hello {name}, of hello-");
        assert!(greeting.starts_with(&expected), "{greeting}");
        // Dropping the process kills it.
        drop(service);
    }
}

/// Returns what a process writes until it exits.
fn read_all(pipe: impl Read + Send + 'static) -> String {
    let (sender, text) = mpsc::channel();
    std::thread::spawn(move || sender.send(std::io::read_to_string(pipe)));
    text.recv_timeout(TIMEOUT).expect("the process exits").unwrap()
}

#[test]
fn a_receiver_whose_output_is_closed_exits_with_an_error() {
    let peers: Vec<SocketAddr> = (0..2).map(|_| crate::node::free_address()).collect();
    let mut command = program("many_to_one");
    command.arg("0").args(peers.iter().map(ToString::to_string));
    let mut receiver = Process::start(command.stderr(Stdio::piped()));
    drop(receiver.output());
    let mut sender = rank(1, &peers);
    writeln!(sender.input(), "a line").unwrap();
    let error = read_all(receiver.0.stderr.take().unwrap());
    assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
    assert_eq!(receiver.0.wait().unwrap().code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn processes_that_an_example_has_started_exit_when_their_input_ends() {
    for (name, arguments) in [("latest_map", ["--work", "1"]), ("tower_calls", ["--serve", "a"])] {
        let mut command = program(name);
        let cluster = format!("input-{}", std::process::id());
        command.args(arguments).env("MIDPLANE_CLUSTER", cluster).stdin(Stdio::piped());
        let mut process = Process::start(&mut command);
        drop(process.input());
        read_all(process.output());
        assert!(process.0.wait().unwrap().success(), "{name}");
    }
}

#[test]
fn examples_name_the_argument_that_is_missing_in_one_line() {
    for (name, arguments, missing) in [
        ("ranks", ["--bind", "127.0.0.1:1"], "--rank <RANK>"),
        ("two_hosts", ["--peer", "127.0.0.1:1"], "--key <FILE>"),
        ("two_hosts", ["--answers", "1"], "--key <FILE>"),
    ] {
        let mut command = program(name);
        let mut process = Process::start(command.args(arguments).stderr(Stdio::piped()));
        let error = read_all(process.0.stderr.take().unwrap());
        assert!(error.trim_end().ends_with(missing) && error.lines().count() == 1, "{error}");
        assert_eq!(process.0.wait().unwrap().code(), Some(2));
    }
}
