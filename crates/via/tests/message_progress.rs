//! Every legal program ends, however small the windows are and however long messages wait unreceived.
//!
//! A random program is made together with an order of its steps in which it ends if sends never block: it waits for a
//! receive after the message was sent, and for a send after its receive is posted. The program then runs in another
//! order, over engines whose windows hold one packet or a few.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::engines::{Process, cluster, message, receive, send, settle, take};
use crate::programs;
use midplane_via::message::engine::Config;
use midplane_via::message::envelope::Context;
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::request::{Mode, Request};
use midplane_via::message::transport::{Claim, Wait};

const ANYTHING: Pattern = Pattern { context: Context(0), source: None, tag: None };

/// Passes `rounds` messages of 64 bytes in each direction, in turn.
fn ping_pong(pair: &mut [Process], tag: u32, rounds: u32) {
    let pass = |pair: &mut [Process], from: usize, number: u32| {
        let request = receive(&mut pair[1 - from], Some(from as u32), Some(tag), 64);
        let bytes = message(from as u32, number, 64);
        let _ = send(&mut pair[from], Mode::Standard, 1 - from as u32, tag, &bytes);
        for _ in 0..100 {
            if let Some(outcome) = take(&mut pair[1 - from], request) {
                assert_eq!(outcome.bytes, bytes);
                return;
            }
            pair[0].advance(Wait::Not);
            pair[1].advance(Wait::Not);
        }
        panic!("stuck after {number} messages:\n{}{}", pair[0].explain(), pair[1].explain());
    };
    for number in 0..rounds {
        pass(pair, 0, number);
        pass(pair, 1, number);
    }
}

fn hold(pair: &mut [Process], count: u32, length: usize) -> Vec<Request> {
    (0..count)
        .map(|number| send(&mut pair[0], Mode::Standard, 1, 1, &message(0, number, length)))
        .collect()
}

fn receive_held(pair: &mut [Process], count: u32, length: usize) {
    for number in 0..count {
        let request = receive(&mut pair[1], Some(0), Some(1), length);
        settle(pair);
        assert_eq!(take(&mut pair[1], request).unwrap().bytes, message(0, number, length));
    }
}

#[test]
fn sixty_four_unreceived_messages_block_no_others() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default());
    hold(&mut pair, 64, 8192);
    settle(&mut pair);
    ping_pong(&mut pair, 2, 5_000);
    assert_eq!(pair[0].counters().demoted, 0, "half a window is enough for the other messages");
    receive_held(&mut pair, 64, 8192);
    assert_eq!(pair[1].unexpected_bytes(), 0);
}

#[test]
fn more_unreceived_messages_than_a_window_holds_block_no_others() {
    for window in [256, 4096, 1 << 16] {
        let mut pair = cluster(2, MemoryConfig::default(), Config::default().window(window));
        let sends = hold(&mut pair, 5_000, 100);
        settle(&mut pair);
        assert!(pair[1].unexpected_bytes() <= window as u64);
        ping_pong(&mut pair, 2, 100);
        receive_held(&mut pair, 40, 100);
        for send in &sends {
            pair[0].requests().cancel(*send);
        }
        // A turn ends after the first request that completes.
        for _ in 0..sends.len() {
            pair[0].advance(Wait::Not);
            pair[1].advance(Wait::Not);
        }
        while pair[1].iprobe(&ANYTHING, Claim::Leave).is_some() {
            let request = receive(&mut pair[1], Some(0), Some(1), 100);
            settle(&mut pair);
            assert!(take(&mut pair[1], request).unwrap().result.is_ok());
        }
        ping_pong(&mut pair, 1, 100);
    }
}

fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Number of random programs in a test run; `MIDPLANE_PROGRAMS` sets another number.
const PROGRAMS: u64 = 4_000;

#[test]
fn every_legal_program_ends() {
    let count = std::env::var("MIDPLANE_PROGRAMS").ok().and_then(|count| count.parse().ok());
    let first = fresh();
    for number in 0..count.unwrap_or(PROGRAMS) {
        programs::run(first.wrapping_add(number));
    }
}

/// Seeds of programs that once did not end: a message was given to two receives, because its hint was in flight when
/// the receiver asked for it.
const FAILED: [u64; 1] = [15_855_264_933_569_604_455];

#[test]
fn programs_that_failed_before_end() {
    for seed in FAILED {
        programs::run(seed);
    }
}
