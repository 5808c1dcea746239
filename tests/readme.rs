//! The README's programs, as they are printed: a service that is killed and comes back, three senders that lose nothing.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const README: &str = include_str!("../README.md");
const PROGRAM: &str = include_str!("../examples/hello.rs");
const GREET: &str = include_str!("../examples/greet.rs");
const SENDERS: usize = 3;
const LINES: usize = 1_000;
/// Longest between two lines, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_readme_prints_the_programs_that_are_run_here() {
    for program in [PROGRAM, GREET] {
        let (_, code) = program.split_once("\n\n").expect("what it is, then the program");
        assert!(README.contains(&format!("```rust,no_run\n{code}```\n")));
    }
}

/// A process of the program; it ends with this test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Node {
    fn start(program: &PathBuf, rank: usize, peers: &[SocketAddr]) -> Self {
        let mut command = Command::new(program);
        command.arg(rank.to_string()).args(peers.iter().map(ToString::to_string));
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn input(&mut self) -> ChildStdin {
        self.0.stdin.take().unwrap()
    }

    fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }
}

/// A program, which `cargo test` builds with all other examples before it runs tests; built where only this test was
/// asked for.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let program = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !program.is_file() {
        let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--package", "midplane", "--example", name])
            .status();
        assert!(built.unwrap().success());
    }
    program
}

/// Addresses that were free a moment ago.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<_> =
        (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
}

#[test]
fn three_senders_lose_no_line_to_one_receiver() {
    let (program, peers) = (program("hello"), free_addresses(1 + SENDERS));
    let mut receiver = Node::start(&program, 0, &peers);
    let mut senders: Vec<Node> =
        (1..=SENDERS).map(|rank| Node::start(&program, rank, &peers)).collect();
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
    let (line, lines) = std::sync::mpsc::channel();
    let mut output = receiver.output();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        while output.read_line(&mut text).is_ok_and(|length| length > 0) {
            // Nobody hears it where the test has failed.
            let _ = line.send(std::mem::take(&mut text));
        }
    });
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    while next.values().sum::<usize>() < SENDERS * LINES {
        let line = lines.recv_timeout(PATIENCE);
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

/// A process of the other program, in a cluster of this test's.
#[cfg(target_os = "linux")]
fn greet(argument: &str) -> Node {
    let mut command = Command::new(program("greet"));
    command.arg(argument).env("MIDPLANE_CLUSTER", format!("greet-{}", std::process::id()));
    Node(command.stdout(Stdio::piped()).spawn().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_that_is_killed_is_reached_again_once_it_is_back() {
    for name in ["Ada", "Grace"] {
        // The client waits for the service, which comes second.
        let mut client = greet(name);
        let service = greet("serve");
        let mut greeting = String::new();
        client.output().read_line(&mut greeting).unwrap();
        let expected = format!("hello {name}, of greet-");
        assert!(greeting.starts_with(&expected), "{greeting}");
        // Dropping it kills it.
        drop(service);
    }
}
