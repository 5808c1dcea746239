//! Tests with two processes: the test starts itself again as the peer.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use super::side::{ANY, Side, next};
use crate::abi::constants::ECONNRESET;
use crate::address::BYTES;

/// Environment variable set for the process that is the peer.
const PEER: &str = "MIDPLANE_FI_PEER";
const ROUNDS: usize = 1000;

fn spawn(test: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program)
        .args(["--exact", "--nocapture", test])
        .env(PEER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Exchanges endpoint names with the peer over its standard streams.
fn meet(side: &Side, child: &mut Child) -> u64 {
    child.stdin.as_mut().unwrap().write_all(&side.name()).unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = lines
        .by_ref()
        .map(Result::unwrap)
        .find_map(|line| line.split_once("name ").map(|(_, name)| name.to_owned()));
    let line = line.expect("the peer prints its name");
    let name: Vec<_> = line.split(' ').map(|byte| byte.parse().unwrap()).collect();
    side.set_route(&name.try_into().unwrap())
}

fn answer(side: &Side) -> u64 {
    let mut name = [0; BYTES];
    std::io::stdin().read_exact(&mut name).unwrap();
    let to = side.set_route(&name);
    let mine = side.name().map(|byte| byte.to_string()).join(" ");
    println!("name {mine}");
    to
}

fn exchange(side: &Side, to: u64, is_first: bool) {
    for round in 0..ROUNDS {
        let length = if round % 100 == 0 { 100_000 } else { round };
        let (sent, mut got) = (vec![round as u8; length], vec![0; length]);
        let (tag, is_turn) = (round as u64, is_first == (round % 2 == 0));
        if is_turn {
            assert_eq!(side.send(to, tag, &sent, 0, 1), 0);
            assert_eq!(next(side).1, 0);
        } else {
            side.receive(to, (tag, 0), &mut got, 2);
            assert_eq!((next(side).1, got), (0, sent));
        }
    }
}

#[test]
fn two_processes_exchange_messages_and_the_end_of_one_is_an_error() {
    let side = Side::open();
    if std::env::var_os(PEER).is_some() {
        let to = answer(&side);
        exchange(&side, to, false);
        std::process::abort();
    }
    let test = "tests::processes::two_processes_exchange_messages_and_the_end_of_one_is_an_error";
    let mut child = spawn(test);
    let to = meet(&side, &mut child);
    exchange(&side, to, true);
    let mut got = [0; 8];
    side.receive(to, (0, u64::MAX), &mut got, 7);
    side.receive(ANY, (0, u64::MAX), &mut got, 8);
    let (entry, error, _) = next(&side);
    assert_eq!((entry.op_context as usize, error), (7, ECONNRESET));
    assert!(side.poll().is_none(), "another peer may still send");
    child.wait().unwrap();
}
