//! Two units: one behaviour a test.

use std::time::Duration;

use midplane_nicvm::control::{
    ACKNOWLEDGEMENT_DELAY, Control, ControlConfig, Event, MAX_MESSAGE, SendError,
};
use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::time::Instant;

use super::network::{EXTENSION, Network};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

fn up(node: NodeId, incarnation: u32) -> Event {
    Event::PeerUp { node, incarnation: Incarnation(incarnation) }
}

#[test]
fn a_first_message_shakes_hands_and_arrives() {
    let mut pair = Network::new(1, 2, ControlConfig::default());
    pair.send(0, 1).unwrap();
    pair.drive_until_quiet();
    assert_eq!(pair.received(1), 1);
    assert_eq!((pair.news(0), pair.news(1)), (vec![up(B, 1)], vec![up(A, 1)]));
    // Hello, welcome, message, acknowledgement.
    assert_eq!(pair.frames_sent(), 4);
}

#[test]
fn hellos_that_cross_make_one_connection() {
    let mut pair = Network::new(1, 2, ControlConfig::default());
    for _ in 0..3 {
        pair.send(0, 1).unwrap();
        pair.send(1, 0).unwrap();
    }
    pair.drive_until_quiet();
    assert_eq!((pair.received(0), pair.received(1)), (3, 3));
    assert_eq!((pair.news(0), pair.news(1)), (vec![up(B, 1)], vec![up(A, 1)]));
    assert_eq!(pair.frames_sent_of(Kind::Hello), 2);
}

#[test]
fn an_idle_pair_sends_nothing_and_waits_for_nothing() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    let frames = pair.frames_sent();
    assert!(pair.units.iter().all(|unit| unit.control.poll_timeout().is_none()));
    pair.drive_for(Duration::from_secs(3_600));
    assert_eq!(pair.frames_sent(), frames);
}

#[test]
fn one_loss_resends_one_message_without_waiting_for_the_time_out() {
    for lost in 0..16 {
        let mut pair = Network::connected_pair(ControlConfig::default());
        pair.lose_next = Some((Kind::Control, lost));
        (0..20).for_each(|_| pair.send(0, 1).unwrap());
        let took = pair.drive_until_quiet();
        assert_eq!(pair.received(1), 21);
        assert_eq!(pair.units[0].control.counters().retransmitted, 1, "message {lost}");
        assert!(took < Duration::from_millis(1), "message {lost} took {took:?}");
    }
}

#[test]
fn the_last_message_lost_is_sent_again_after_the_time_out() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    pair.lose_next = Some((Kind::Control, 0));
    pair.send(0, 1).unwrap();
    let took = pair.drive_until_quiet();
    assert_eq!((pair.received(1), pair.units[0].control.counters().retransmitted), (2, 1));
    assert!((1_000..3_000).contains(&took.as_micros()), "{took:?}");
}

#[test]
fn a_lost_acknowledgement_delivers_nothing_twice() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    pair.lose_next = Some((Kind::Acknowledge, 0));
    pair.send(0, 1).unwrap();
    pair.drive_until_quiet();
    assert_eq!((pair.received(1), pair.units[1].control.counters().duplicates), (2, 1));
}

#[test]
fn acknowledgements_ride_on_answers() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    let before = pair.frames_sent_of(Kind::Acknowledge);
    for turn in 0..10 {
        pair.send(turn % 2, 1 - turn % 2).unwrap();
        pair.drive_for(Duration::from_micros(50));
    }
    pair.drive_until_quiet();
    assert_eq!(pair.frames_sent_of(Kind::Acknowledge) - before, 1, "only the last answer's own");
}

#[test]
fn a_round_trip_does_not_count_the_wait_of_its_acknowledgement() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    for _ in 0..100 {
        pair.send(0, 1).unwrap();
        pair.drive_until_quiet();
    }
    let trip = pair.units[0].control.round_trip(B).unwrap();
    assert_eq!(trip.min, Duration::from_micros(40));
    assert!(trip.smoothed.abs_diff(trip.min) < Duration::from_nanos(100), "{trip:?}");
}

#[test]
fn a_peer_that_never_answers_is_down_at_dead_after_and_not_before() {
    let mut config = ControlConfig::default();
    config = config.dead_after(Duration::from_millis(80));
    for connected in [false, true] {
        let mut pair =
            if connected { Network::connected_pair(config) } else { Network::new(1, 2, config) };
        let before = pair.news(0).len();
        pair.cut_both(0, 1);
        pair.send(0, 1).unwrap();
        pair.drive_for(Duration::from_nanos(79_999_999));
        assert_eq!(pair.news(0).len(), before);
        pair.drive_for(Duration::from_nanos(1));
        assert_eq!(pair.news(0)[before..], [Event::PeerDown { node: B }]);
        let control = &pair.units[0].control;
        assert_eq!((control.pending(B), control.poll_timeout()), (0, None));
        assert_eq!(control.counters().dropped, 1);
    }
}

#[test]
fn a_live_peer_declared_dead_learns_of_it_and_both_reconnect() {
    for speaker in [0, 1] {
        let mut pair = Network::connected_pair(ControlConfig::default());
        pair.cut_both(0, 1);
        pair.send(0, 1).unwrap();
        pair.drive_for(Duration::from_secs(1));
        pair.cut.clear();
        // B does not know of it: its first message is lost, and B receives an event that says so.
        pair.send(speaker, 1 - speaker).unwrap();
        pair.drive_until_quiet();
        assert_eq!(pair.news(1)[1..][..1], [Event::PeerDown { node: A }]);
        pair.send(speaker, 1 - speaker).unwrap();
        pair.drive_until_quiet();
        assert_eq!(pair.news(0), [up(B, 1), Event::PeerDown { node: B }, up(B, 1)]);
        assert_eq!(pair.news(1), [up(A, 1), Event::PeerDown { node: A }, up(A, 1)]);
    }
}

#[test]
fn a_restarted_peer_gets_no_message_for_its_former_incarnation() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    (0..40).for_each(|_| pair.send(0, 1).unwrap());
    pair.restart(1);
    pair.drive_until_quiet();
    let restarted = Event::PeerRestarted { node: B, incarnation: Incarnation(2) };
    assert_eq!(pair.news(0), [up(B, 1), restarted]);
    assert_eq!((pair.received(1), pair.news(1)), (0, vec![]));
    assert_eq!(pair.units[0].control.counters().dropped, 40);
    pair.send(0, 1).unwrap();
    pair.drive_until_quiet();
    assert_eq!((pair.received(1), pair.news(1)), (1, vec![up(A, 1)]));
    assert_eq!(pair.news(0), [up(B, 1), restarted], "reported once");
}

#[test]
fn a_restarted_unit_that_sends_first_is_recognised() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    pair.restart(0);
    pair.send(0, 1).unwrap();
    pair.drive_until_quiet();
    let restarted = Event::PeerRestarted { node: A, incarnation: Incarnation(2) };
    assert_eq!((pair.received(1), pair.news(1)), (2, vec![up(A, 1), restarted]));
}

#[test]
fn answers_to_frames_for_a_former_incarnation_are_rate_limited() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    pair.restart(1);
    let header = Header {
        kind: Kind::Acknowledge,
        source: A,
        destination: B,
        incarnation: Incarnation(1),
        destination_incarnation: Incarnation(1),
        hop_limit: DEFAULT_HOP_LIMIT,
        words: [0, 1 | 1 << 32],
        ..Header::default()
    };
    let control = &mut pair.units[1].control;
    let mut answers = 0;
    for micros in 0..10_000 {
        let now = pair.now.plus_nanos(micros * 1_000);
        control.handle_frame(now, &header, &[]);
        answers += std::iter::from_fn(|| control.poll_transmit(now).map(|_| ())).count();
    }
    assert_eq!(answers, 10, "one a millisecond");
    assert_eq!(control.counters().stale_incarnation, 10_000);
}

#[test]
fn a_peer_that_has_restarted_with_an_older_incarnation_is_reported_once() {
    let mut pair = Network::connected_pair(ControlConfig::default());
    pair.restart(0);
    let hello = Header {
        kind: Kind::Hello,
        source: A,
        destination: B,
        incarnation: Incarnation(1),
        hop_limit: DEFAULT_HOP_LIMIT,
        words: [0, 1],
        ..Header::default()
    };
    let hear = |pair: &mut Network, hellos| {
        for _ in 0..hellos {
            pair.units[1].control.handle_frame(pair.now, &hello, &[]);
        }
        pair.units[1].control.counters().older_restarts
    };
    // Late hellos of the former process, among frames of the present one.
    for _ in 0..3 {
        pair.send(0, 1).unwrap();
        pair.drive_until_quiet();
        assert_eq!(hear(&mut pair, 2), 0);
    }
    assert_eq!(hear(&mut pair, 1), 1);
    assert_eq!(hear(&mut pair, 100), 1);
}

/// Ends both units, unit 1 `later` than unit 0. Each stops as soon as it is settled, and then neither sends nor
/// receives. Returns how long each waited.
fn end_both(mut pair: Network, later: Duration) -> [Duration; 2] {
    let begun = [pair.now, pair.now + later];
    let (mut has_sent, mut waited) = ([false; 2], [None; 2]);
    while waited.contains(&None) {
        for end in 0..2 {
            // A unit that has received a goodbye sends none.
            if pair.now >= begun[end] && !std::mem::replace(&mut has_sent[end], true) {
                let is_alone = pair.received(end) > 1;
                if !is_alone {
                    pair.send(end, 1 - end).unwrap();
                }
            }
            let is_over = has_sent[end] && pair.units[end].control.is_settled();
            if is_over && waited[end].is_none() {
                waited[end] = Some(pair.now.since(begun[end]));
                pair.cut_both(end, 1 - end);
            }
        }
        pair.drive_for(Duration::from_micros(1));
        assert!(pair.now.since(begun[1]) < Duration::from_secs(1), "{waited:?}");
    }
    waited.map(Option::unwrap)
}

#[test]
fn units_that_end_together_wait_for_one_round_trip_each() {
    for later in 0..100 {
        let pair = Network::connected_pair(ControlConfig::default());
        let round_trip = Duration::from_nanos(2 * pair.latency);
        let longest = round_trip + ACKNOWLEDGEMENT_DELAY + Duration::from_micros(2);
        let waited = end_both(pair, Duration::from_micros(later));
        assert!(waited.iter().all(|waited| *waited <= longest), "{later} us later: {waited:?}");
    }
}

#[test]
fn invalid_sends_are_refused() {
    let mut config = ControlConfig::default();
    config = config.window(4).queue(2);
    let mut control = Control::new(A, Incarnation::FIRST, config);
    let mut send = |to, body: &[u8]| control.send(Instant::ZERO, to, EXTENSION, body);
    assert_eq!(send(A, b"me"), Err(SendError::ToItself));
    assert_eq!(send(B, &[0; MAX_MESSAGE + 1]), Err(SendError::TooLong { length: 101 }));
    assert_eq!(send(B, &[0; 5_000]), Err(SendError::TooLong { length: 5_000 }));
    for _ in 0..6 {
        send(B, &[0; MAX_MESSAGE]).unwrap();
    }
    assert_eq!(send(B, b""), Err(SendError::QueueFull { limit: 6 }));
}
