//! Engines over the carrier in memory: windows, losses, finalising, counters, dropped and cancelled requests.

use std::task::Poll;

use crate::engines::{Process, cluster, message, receive, send, settle, take};
use midplane_via::message::engine::{Config, Engine, WhenFull};
use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::request::{Failure, Load, Mode, Operation, State};
use midplane_via::message::transport::{Claim, Wait};

#[test]
fn a_full_window_leads_to_rendezvous_waiting_or_refusal() {
    for policy in [WhenFull::Rendezvous, WhenFull::Wait, WhenFull::Refuse] {
        let config = Config::default().eager(100).window(820).when_full(policy);
        let mut pair = cluster(2, MemoryConfig::default(), config);
        settle(&mut pair);
        // Each message counts 164 bytes: four fit their context's part of the window.
        let sends: Vec<_> =
            (0..6).map(|n| send(&mut pair[0], Mode::Standard, 1, n, &message(0, n, 100))).collect();
        settle(&mut pair);
        let done = sends.iter().filter(|s| pair[0].requests().state(**s) == Some(State::Done));
        assert_eq!(done.count(), if policy == WhenFull::Refuse { 6 } else { 4 }, "{policy:?}");
        assert!(pair[1].unexpected_bytes() <= 820);
        let refused = sends.iter().filter(|s| {
            let outcome = pair[0].requests().peek(**s).map(|(_, result)| result);
            outcome == Some(Err(Failure::Refused(Peer(1))))
        });
        assert_eq!(refused.count(), if policy == WhenFull::Refuse { 2 } else { 0 });
        let receives: Vec<_> =
            (0..4).map(|n| receive(&mut pair[1], Some(0), Some(n), 100)).collect();
        settle(&mut pair);
        for request in receives {
            assert!(take(&mut pair[1], request).unwrap().result.is_ok());
        }
    }
}

#[test]
fn the_loss_of_a_process_ends_only_requests_that_may_wait_for_it() {
    let mut ends = network(3, MemoryConfig::default());
    let mut third = ends.pop().unwrap();
    let everyone = [Peer(0), Peer(1), Peer(2)];
    let mut pair: Vec<_> =
        ends.into_iter().map(|end| Engine::new(end, Config::default())).collect();
    for engine in &mut pair {
        engine.init().unwrap();
        engine.add_processes(&everyone).unwrap();
    }
    settle(&mut pair);
    let from_lost = receive(&mut pair[0], Some(2), None, 10);
    let from_any = receive(&mut pair[0], None, Some(9), 10);
    let from_other = receive(&mut pair[0], Some(1), None, 10);
    let to_lost = send(&mut pair[0], Mode::Standard, 2, 0, b"x");
    third.kill();
    settle(&mut pair);
    for request in [from_lost, from_any, to_lost] {
        let outcome = take(&mut pair[0], request).expect("it has ended");
        assert_eq!(outcome.result, Err(Failure::PeerLost(Peer(2))));
    }
    let late = receive(&mut pair[0], Some(2), None, 10);
    assert!(take(&mut pair[0], late).unwrap().result.is_err());
    let late = send(&mut pair[0], Mode::Standard, 2, 0, b"x");
    settle(&mut pair);
    assert!(take(&mut pair[0], late).unwrap().result.is_err());
    let _ = send(&mut pair[1], Mode::Standard, 0, 0, b"here");
    settle(&mut pair);
    assert_eq!(take(&mut pair[0], from_other).unwrap().bytes, b"here");
    assert_eq!(pair[0].explain().lost, [Peer(2)]);
}

#[test]
fn finalising_waits_for_sends_and_fails_receives() {
    let mut pair = cluster(2, MemoryConfig::default().depth(1), Config::default());
    let sends: Vec<_> =
        (0..20).map(|n| send(&mut pair[0], Mode::Standard, 1, n, &[7; 10])).collect();
    let stuck = receive(&mut pair[0], Some(1), None, 1);
    assert_eq!(pair[0].finalize(), Poll::Pending);
    settle(&mut pair);
    assert_eq!(pair[0].finalize(), Poll::Ready(()));
    assert_eq!(take(&mut pair[0], stuck).unwrap().result, Err(Failure::Finalized));
    for request in sends {
        assert!(take(&mut pair[0], request).unwrap().result.is_ok());
    }
    let there = receive(&mut pair[1], Some(0), Some(19), 10);
    assert_eq!(take(&mut pair[1], there).unwrap().bytes, [7; 10]);
}

#[test]
fn counters_show_how_messages_were_sent_and_received() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default().eager(100));
    let expected = receive(&mut pair[1], Some(0), Some(1), 2);
    let _ = send(&mut pair[0], Mode::Ready, 1, 1, b"abc");
    let _ = send(&mut pair[0], Mode::Ready, 1, 2, b"abc");
    let _ = send(&mut pair[0], Mode::Standard, 1, 3, &[7; 101]);
    settle(&mut pair);
    let cut = take(&mut pair[1], expected).expect("it has ended").result;
    assert_eq!(cut, Err(Failure::Truncated { length: 3, room: 2 }));
    let (sent, received) = (pair[0].counters(), pair[1].counters());
    assert_eq!((sent.eager, sent.rendezvous, sent.demoted), (2, 1, 0));
    assert_eq!((received.expected, received.unexpected, received.ready_too_early), (1, 2, 1));
    assert_eq!((received.truncated, received.malformed), (1, 0));
}

#[test]
fn an_explanation_shows_a_stuck_receive_and_the_unmatched_messages() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default());
    let _ = receive(&mut pair[1], Some(0), Some(5), 1);
    for _ in 0..3 {
        let _ = send(&mut pair[0], Mode::Standard, 1, 6, b"abc");
    }
    settle(&mut pair);
    assert_eq!(
        pair[1].explain().to_string(),
        "a receive waits for a message from 0 with tag 5 in context 0\n  \
         3 unmatched have another tag: from 0 with tag 6 in context 0\n\
         unmatched from 0 with tag 6 in context 0: 3 (0 announced), 9 bytes\n"
    );
}

#[test]
fn the_message_of_a_dropped_receive_returns_to_its_place() {
    for length in [10, 5_000] {
        let config = Config::default().eager(100);
        let mut pair = cluster(2, MemoryConfig::default().room(128), config);
        let dropped = receive(&mut pair[1], Some(0), Some(1), 10_000);
        for number in 0..3 {
            let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, number, length));
        }
        // In the middle of the transfer, or after it.
        pair[0].advance(Wait::Not);
        pair[1].advance(Wait::Not);
        pair[0].advance(Wait::Not);
        pair[1].advance(Wait::Not);
        pair[1].destroy(dropped, true);
        settle(&mut pair);
        for number in 0..3 {
            let request = receive(&mut pair[1], None, None, 10_000);
            settle(&mut pair);
            let outcome = take(&mut pair[1], request).expect("it is there");
            assert_eq!(outcome.bytes, message(0, number, length), "{length}");
        }
        assert_eq!(pair[1].unexpected_bytes(), 0);
    }
}

/// Sends a message of 3,000 bytes and then one of 10, and drops `drops` receives while the bytes of the first are
/// arriving.
fn long_and_short(drops: u32) -> Vec<Process> {
    let memory = MemoryConfig::default().room(500);
    let mut pair = cluster(2, memory, Config::default().eager(400));
    settle(&mut pair);
    let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, 0, 3_000));
    for _ in 0..drops {
        let dropped = receive(&mut pair[1], Some(0), Some(1), 10_000);
        pair[1].advance(Wait::Not);
        assert_eq!(pair[1].requests().state(dropped), Some(State::Active));
        pair[1].destroy(dropped, true);
    }
    let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, 1, 10));
    pair[1].advance(Wait::Not);
    pair
}

/// From the second on, each dropped receive waits for the message of the first.
#[test]
fn a_long_message_of_a_dropped_receive_is_not_overtaken() {
    for (drops, is_whole) in [(1, false), (1, true), (2, false), (2, true), (3, false)] {
        let mut pair = long_and_short(drops);
        if is_whole {
            settle(&mut pair);
        }
        let receives = [(); 2].map(|()| receive(&mut pair[1], Some(0), Some(1), 10_000));
        settle(&mut pair);
        let received = receives.map(|request| take(&mut pair[1], request).expect("it is there"));
        let expected = [message(0, 0, 3_000), message(0, 1, 10)];
        assert_eq!(received.map(|outcome| outcome.bytes), expected, "{drops} {is_whole}");
        assert!(pair[1].explain().waiting.is_empty());
        assert_eq!(pair[1].unexpected_bytes(), 0);
    }
}

#[test]
fn a_posted_receive_gets_the_long_message_of_a_dropped_one() {
    let memory = MemoryConfig::default().room(500);
    let mut pair = cluster(2, memory, Config::default().eager(400));
    settle(&mut pair);
    let [dropped, next] = [(); 2].map(|()| receive(&mut pair[1], Some(0), Some(1), 10_000));
    let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, 0, 3_000));
    pair[1].advance(Wait::Not);
    pair[1].destroy(dropped, true);
    let _ = send(&mut pair[0], Mode::Standard, 1, 1, &message(0, 1, 10));
    pair[1].advance(Wait::Not);
    assert_eq!(pair[1].requests().state(next), Some(State::Active));
    settle(&mut pair);
    assert_eq!(take(&mut pair[1], next).unwrap().bytes, message(0, 0, 3_000));
    let last = receive(&mut pair[1], None, None, 10_000);
    assert_eq!(take(&mut pair[1], last).unwrap().bytes, message(0, 1, 10));
}

#[test]
fn a_probe_finds_the_long_message_of_a_dropped_receive_before_later_ones() {
    let pattern = Pattern { context: Context(0), source: Some(Peer(0)), tag: Some(Tag(1)) };
    for is_whole in [false, true] {
        let mut pair = long_and_short(1);
        let seen = pair[1].iprobe(&pattern, Claim::Leave).map(|found| found.length);
        assert_eq!(seen, Some(3_000));
        let claimed = pair[1].iprobe(&pattern, Claim::Take).and_then(|found| found.claimed);
        let claimed = claimed.expect("it is taken");
        let seen = pair[1].iprobe(&pattern, Claim::Leave).map(|found| found.length);
        assert_eq!(seen, Some(10));
        if is_whole {
            settle(&mut pair);
        }
        pair[1].start(claimed, Load::anything()).unwrap();
        settle(&mut pair);
        assert_eq!(take(&mut pair[1], claimed).unwrap().bytes, message(0, 0, 3_000));
        let last = receive(&mut pair[1], Some(0), Some(1), 10_000);
        assert_eq!(take(&mut pair[1], last).unwrap().bytes, message(0, 1, 10));
    }
}

#[test]
fn the_loss_of_the_sender_ends_a_receive_of_a_dropped_ones_message() {
    let mut pair = long_and_short(1);
    let heir = receive(&mut pair[1], None, None, 10_000);
    drop(pair.remove(0));
    settle(&mut pair);
    let outcome = take(&mut pair[0], heir).expect("it has ended");
    assert_eq!(outcome.result, Err(Failure::PeerLost(Peer(0))));
    assert!(pair[0].explain().waiting.is_empty());
}

#[test]
fn a_message_that_waits_for_its_answer_can_be_cancelled_until_it_matches() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default().eager(100));
    let sends = [
        send(&mut pair[0], Mode::Standard, 1, 1, &[1; 200]),
        send(&mut pair[0], Mode::Synchronous, 1, 2, &[2; 20]),
        send(&mut pair[0], Mode::Synchronous, 1, 3, &[3; 20]),
    ];
    let met = receive(&mut pair[1], Some(0), Some(3), 20);
    settle(&mut pair);
    sends.iter().for_each(|send| pair[0].requests().cancel(*send));
    settle(&mut pair);
    let results = sends.map(|send| take(&mut pair[0], send).unwrap().result);
    assert_eq!(results, [Err(Failure::Cancelled), Err(Failure::Cancelled), Ok(())]);
    assert!(take(&mut pair[1], met).unwrap().result.is_ok());
    assert!(pair[1].explain().unmatched.is_empty());
    assert_eq!(pair[1].unexpected_bytes(), 0);
}

/// Starts a persistent send again before the answer to a withdrawal of its first message arrives. The second message
/// waits at its sender.
#[test]
fn a_late_answer_to_a_withdrawal_does_not_cancel_the_next_start() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default().window(256));
    settle(&mut pair);
    let (mode, to, context, tag) = (Mode::Synchronous, Peer(1), Context(0), Tag(1));
    let sent = pair[0].build(Operation::Send { mode, to, context, tag }).unwrap();
    pair[0].start(sent, Load::Copy(&message(0, 0, 8))).unwrap();
    let first = receive(&mut pair[1], Some(0), Some(1), 8);
    pair[1].advance(Wait::Not);
    assert_eq!(take(&mut pair[1], first).unwrap().bytes, message(0, 0, 8));
    // The withdrawal leaves after the acknowledgement has arrived.
    pair[0].requests().cancel(sent);
    pair[0].advance(Wait::Not);
    assert_eq!(pair[0].requests().take(sent).expect("it was received").result, Ok(()));
    for number in 1..5 {
        let _ = send(&mut pair[0], Mode::Standard, 1, 9, &message(0, number, 8));
    }
    pair[0].start(sent, Load::Copy(&message(0, 5, 8))).unwrap();
    settle(&mut pair);
    assert_eq!(pair[0].requests().state(sent), Some(State::Active));
    let second = receive(&mut pair[1], Some(0), Some(1), 8);
    settle(&mut pair);
    assert_eq!(take(&mut pair[1], second).unwrap().bytes, message(0, 5, 8));
    assert_eq!(take(&mut pair[0], sent).expect("it was received").result, Ok(()));
}

#[test]
fn starting_a_receive_answers_its_sender_at_once() {
    for (mode, length) in [(Mode::Synchronous, 10), (Mode::Standard, 90)] {
        let mut pair = cluster(2, MemoryConfig::default(), Config::default().eager(100));
        let sent = send(&mut pair[0], mode, 1, 1, &message(0, 0, length));
        settle(&mut pair);
        let _ = receive(&mut pair[1], Some(0), Some(1), 10_000);
        pair[0].advance(Wait::Not);
        assert_eq!(pair[0].requests().state(sent), Some(State::Done), "{mode:?}");
    }
}
