//! Begin and end of the wire's connections, and attacks by strangers.

use std::io::IoSlice;
use std::net::SocketAddr;

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::{Key, SecretKey};
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, Event, PipeId};
use midplane_via::wire::pipe::{Config, Ended, RefuseReason};

use crate::wire_pair::{App, MS, Pair, Path, SECOND, seeds};

#[test]
fn a_cut_path_ends_both_sides_within_the_idle_timeout() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    pair.is_cut = true;
    pair.pipe(0, dialed).write(&[IoSlice::new(b"lost")]);
    pair.run(2 * SECOND);
    let now = pair.now;
    assert!(pair.pipe(0, dialed).is_suspected(now));
    pair.run(31 * SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Lost));
    assert_eq!(pair.pipe(1, accepted).ended(), Some(Ended::Lost));
}

#[test]
fn an_idle_pipe_stays_open_and_costs_a_few_datagrams_a_minute() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    pair.run(SECOND);
    let before = pair.datagrams;
    pair.run(600 * SECOND);
    assert!(pair.pipe(0, dialed).ended().is_none() && pair.pipe(1, accepted).ended().is_none());
    assert!(pair.datagrams - before < 500, "{}", pair.datagrams - before);
}

/// Regression: the last bytes were not sent again once the peer had acknowledged the close after them.
#[test]
fn a_close_arrives_after_the_last_byte() {
    for seed in 0..100 {
        let mut pair = Pair::new(seed, Path::clean(5 * MS), Config::default);
        let (dialed, accepted) = pair.connect();
        pair.path.loss = 0.3;
        let bytes = 5_000 + 1_000 * seed;
        let mut app = App::new(dialed, 1, bytes, 2);
        app.work(0, &mut pair);
        let now = pair.now;
        pair.pipe(0, dialed).close(now);
        pair.run(4 * SECOND);
        assert_eq!(pair.pipe(1, accepted).ended(), Some(Ended::ClosedByPeer), "seed {seed}");
        assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Closed), "seed {seed}");
        let mut app = App::new(accepted, 2, 0, 1);
        app.work(1, &mut pair);
        assert_eq!(app.read, bytes, "seed {seed}");
    }
}

#[test]
fn a_dial_without_a_peer_ends_with_no_answer() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    pair.is_cut = true;
    let dialed = pair.dial();
    pair.run(11 * SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::NoAnswer));
}

#[test]
fn a_restarted_peer_ends_the_old_pipe_at_the_next_packet() {
    for key in [None, Some(Key::new(1, [7; 32]))] {
        let config = || Config::default().key(key.clone());
        let mut pair = Pair::new(5, Path::clean(MS), config);
        let (dialed, _) = pair.connect();
        pair.ends[1] = Endpoint::new(config(), 99);
        pair.pipe(0, dialed).write(&[IoSlice::new(b"who are you?")]);
        pair.run(SECOND);
        assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Restarted));
    }
}

#[test]
fn a_restarted_dialer_ends_the_acceptors_old_pipe() {
    let mut pair = Pair::new(5, Path::clean(MS), Config::default);
    let (_, accepted) = pair.connect();
    pair.ends[0] = Endpoint::new(Config::default(), 99);
    pair.connect();
    pair.run(SECOND);
    assert_eq!(pair.pipe(1, accepted).ended(), Some(Ended::Restarted));
}

#[test]
fn a_key_that_does_not_fit_ends_the_dial_and_costs_the_acceptor_nothing() {
    let key = |byte| Some(Key::new(1, [byte; 32]));
    for (ours, theirs) in [(key(1), key(2)), (key(1), None), (None, key(2))] {
        let configs = [ours, theirs].map(|key| Config::default().key(key));
        let mut pair = Pair::with(7, Path::clean(MS), configs);
        let dialed = pair.dial();
        pair.run(2 * SECOND);
        assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::KeyMismatch));
        assert_eq!(pair.ends[1].pipes(), 0);
    }
}

#[test]
fn ends_with_keys_of_their_own_prove_them_and_connect_with_older_ends() {
    let own = |byte: u8| -> SecretKey { format!("{byte:02x}").repeat(32).parse().unwrap() };
    let (one, other) = (own(3), own(4));
    for has_other in [true, false] {
        let keys = [Some(one.clone()), has_other.then(|| other.clone())];
        let configs =
            keys.map(|own| Config::default().key(Some(Key::new(1, [7; 32]))).own_key(own));
        let mut pair = Pair::with(7, Path { loss: 0.2, ..Path::clean(MS) }, configs);
        let (dialed, accepted) = pair.connect();
        let known = [(0, dialed), (1, accepted)].map(|(end, id)| pair.pipe(end, id).peer_key());
        let proven = [other.public(), one.public()].map(|key| has_other.then_some(key));
        assert_eq!(known, proven);
    }
}

#[test]
fn a_dial_whose_own_key_was_removed_in_transit_proves_no_key() {
    let own = |byte: u8| -> Option<SecretKey> { format!("{byte:02x}").repeat(32).parse().ok() };
    let configs =
        [own(3), own(4)].map(|own| Config::default().key(Some(Key::new(1, [7; 32]))).own_key(own));
    let mut pair = Pair::with(7, Path::clean(MS), configs);
    let (now, mut out) = (pair.now, Vec::new());
    let dialed = pair.dial();
    pair.ends[0].poll_transmit(now, &mut out, 1).unwrap();
    // An attacker on the path clears the flag: membership then finds that a key was claimed and not proven.
    assert_eq!(out[3], 1);
    out[3] = 0;
    let from = pair.addresses[0];
    pair.ends[1].handle_datagram(now, from, &mut out);
    pair.run(SECOND);
    assert!(pair.pipe(0, dialed).is_established());
    assert_eq!(pair.pipe(0, dialed).peer_key(), None);
}

#[test]
fn dials_past_the_bound_of_half_open_ones_need_a_cookie_and_get_in() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let dialed: Vec<PipeId> = (0..40).map(|_| pair.dial()).collect();
    pair.run(3 * SECOND);
    assert!(pair.ends[1].counters().turned_away > 0);
    for id in dialed {
        assert!(pair.pipe(0, id).is_established() && pair.pipe(0, id).ended().is_none());
    }
}

#[test]
fn a_flood_of_dials_is_bounded_in_memory_and_answered_with_less_than_it_sends() {
    let mut end = Endpoint::new(Config::default(), 1);
    let now = Instant::from_nanos(SECOND);
    let (mut received, mut sent, mut out) = (0, 0, Vec::new());
    for dialer in 1..20_000_u64 {
        let mut dial = vec![0; 1_200];
        dial[..2].copy_from_slice(&[1, 1]);
        dial[8..16].copy_from_slice(&dialer.to_le_bytes());
        received += dial.len();
        let from = SocketAddr::from(([10, 1, (dialer >> 8) as u8, dialer as u8], 5));
        end.handle_datagram(now, from, &mut dial);
        while let Some(outgoing) = end.poll_transmit(now, &mut out, 32) {
            sent += outgoing.transmit.bytes;
            out.clear();
        }
    }
    assert!(end.pipes() <= 64, "{}", end.pipes());
    assert!(sent < 3 * received);
    end.handle_timeout(now.plus_nanos(6 * SECOND));
    assert_eq!(end.pipes(), 0);
    assert_eq!(end.poll_event(), None);
}

#[test]
fn random_and_changed_packets_neither_panic_nor_harm_other_pipes() {
    for seed in seeds(10) {
        let mut rng = Rng::new(seed, "hostile");
        let mut pair = Pair::new(seed, Path { corrupt: 0.5, ..Path::clean(MS) }, Config::default);
        // Pipes whose packets are changed may end or read anything; they only must not panic or wait for ever.
        let dialed = pair.dial();
        let random = vec![1; 5_000];
        pair.run_until(20 * SECOND, |pair| {
            let mut noise: Vec<u8> = (0..rng.below(80)).map(|_| rng.next_u64() as u8).collect();
            if noise.len() > 2 {
                noise[0] = 1 + rng.below(6) as u8;
                noise[1] = 1;
            }
            let end = rng.below(2) as usize;
            let (now, from) = (pair.now, pair.addresses[1 - end]);
            pair.ends[end].handle_datagram(now, from, &mut noise);
            if let Some(pipe) = pair.ends[0].pipe(dialed) {
                pipe.write(&[IoSlice::new(&random)]);
            }
            let accepted = pair.events[1].iter().find_map(|event| match event {
                Event::Accepted(id, _) => Some(*id),
                _ => None,
            });
            if let Some(pipe) = accepted.and_then(|id| pair.ends[1].pipe(id)) {
                let bytes = pipe.readable().len();
                pipe.consume(bytes);
            }
            (pair.datagrams > 20_000).then_some(())
        });
    }
}

#[test]
fn a_report_of_an_unreachable_peer_ends_a_pipe_unless_the_peer_answers() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    let (now, peer) = (pair.now, pair.addresses[1]);
    // A forged report.
    pair.ends[0].handle_unreachable(now, peer);
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), None);
    pair.is_cut = true;
    // Its host can't be reached, but may be again soon.
    let now = pair.now;
    pair.ends[0].handle_unreachable(now, SocketAddr::new(peer.ip(), 0));
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), None);
    let now = pair.now;
    pair.ends[0].handle_unreachable(now, peer);
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Unreachable));
}

#[test]
fn a_dialer_whose_address_has_changed_learns_it_at_its_next_packet() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    pair.run(SECOND);
    pair.addresses[0] = "10.0.0.9:7".parse().unwrap();
    pair.pipe(0, dialed).write(&[IoSlice::new(b"from elsewhere")]);
    pair.run(2 * SECOND);
    assert!(pair.pipe(0, dialed).ended().is_some());
}

#[test]
fn reports_that_answer_each_datagram_at_once_cause_one_ping_and_end_the_pipe() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    pair.run(SECOND);
    let (begin, peer) = (pair.now, pair.addresses[1]);
    let (mut now, mut out, mut datagrams) = (begin, Vec::new(), 0);
    pair.ends[0].handle_unreachable(now, peer);
    while now < begin.plus_nanos(2 * SECOND) {
        pair.ends[0].handle_timeout(now);
        while pair.ends[0].poll_transmit(now, &mut out, 1).is_some() {
            // Loopback reports before the send has returned.
            pair.ends[0].handle_unreachable(now, peer);
            datagrams += 1;
            assert!(datagrams < 20, "{datagrams} after {:?}", now.since(begin));
        }
        now = now.plus_nanos(MS);
    }
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Unreachable));
}

#[test]
fn the_exit_of_an_idle_peers_process_is_noticed_within_a_second() {
    let configs = [700 * MS, 10 * SECOND].map(|nanos| Config::default().keepalive(nanos));
    let mut pair = Pair::with(1, Path::clean(5 * MS), configs);
    let (dialed, _) = pair.connect();
    pair.run(5 * SECOND);
    // It exits when it has just answered a ping.
    let heard = pair.pipe(0, dialed).stats().packets_received;
    pair.run_until(SECOND, |pair| {
        (pair.pipe(0, dialed).stats().packets_received > heard).then_some(())
    });
    let (exited, peer) = (pair.now, pair.addresses[1]);
    pair.ends[1] = Endpoint::new(Config::default(), 99);
    pair.is_cut = true;
    let mut sent = pair.datagrams;
    pair.run_until(2 * SECOND, |pair| {
        if pair.datagrams > sent {
            // Its host reports that no process receives at the port.
            sent = pair.datagrams;
            let now = pair.now;
            pair.ends[0].handle_unreachable(now, peer);
        }
        pair.pipe(0, dialed).ended()
    });
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Unreachable));
    assert!(pair.now.nanos_since(exited) < SECOND, "{}", pair.now.nanos_since(exited));
}

#[test]
fn a_report_about_a_peer_over_a_long_path_leaves_it_time_to_answer() {
    let mut pair = Pair::new(1, Path::clean(150 * MS), Config::default);
    let (dialed, _) = pair.connect();
    pair.run(5 * SECOND);
    let (now, peer) = (pair.now, pair.addresses[1]);
    pair.ends[0].handle_unreachable(now, peer);
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), None);
}

/// Regression: the peer was not asked, so a forged reset ended an idle sealed pipe.
#[test]
fn a_forged_reset_ends_no_idle_sealed_pipe() {
    let config = || Config::default().key(Some(Key::new(1, [7; 32])));
    let mut pair = Pair::new(1, Path::clean(MS), config);
    let (dialed, _) = pair.connect();
    let (now, mut out) = (pair.now, Vec::new());
    // The id of the other end is in the clear.
    pair.pipe(0, dialed).write(&[IoSlice::new(b"seen")]);
    pair.ends[0].poll_transmit(now, &mut out, 1).expect("a packet");
    pair.run(3 * SECOND);
    let mut reset = [&[5, 1, 0, 0, 0, 0, 0, 0][..], &out[8..16]].concat();
    for _ in 0..3 {
        let (now, from) = (pair.now, pair.addresses[1]);
        pair.ends[0].handle_datagram(now, from, &mut reset);
        pair.run(SECOND);
        assert_eq!(pair.pipe(0, dialed).ended(), None);
    }
}

#[test]
fn forged_cookies_cause_no_more_dials_than_the_timer() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let dialed = pair.dial();
    let (begin, from, mut out, mut dials) = (pair.now, pair.addresses[1], Vec::new(), 0_u8);
    for step in 0..3_000_u64 {
        let now = begin.plus_nanos(step * MS);
        pair.ends[0].handle_timeout(now);
        while pair.ends[0].poll_transmit(now, &mut out, 1).is_some() {
            dials += 1;
            assert!(dials < 12, "{dials} after {step} ms");
            let mut cookie = vec![2, 1, 0, 0, 0, 0, 0, 0];
            cookie.extend_from_slice(&out[8..16]);
            cookie.extend_from_slice(&[dials; 16]);
            out.clear();
            pair.ends[0].handle_datagram(now, from, &mut cookie);
        }
    }
    assert!(dials > 3, "{dials}");
    assert_eq!(pair.pipe(0, dialed).ended(), None);
}

#[test]
fn a_peer_is_pinged_again_by_a_report_after_its_answer() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    for _ in 0..50 {
        let (now, peer) = (pair.now, pair.addresses[1]);
        pair.ends[0].handle_unreachable(now, peer);
        pair.run(100 * MS);
    }
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), None);
}

#[test]
fn a_report_about_a_host_does_not_end_pipes_to_its_suspended_processes() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    let (now, ip) = (pair.now, pair.addresses[1].ip());
    let gone = pair.ends[0].dial(now, SocketAddr::new(ip, 9));
    pair.is_cut = true;
    pair.ends[0].handle_unreachable(now, SocketAddr::new(ip, 0));
    pair.run(3 * SECOND);
    assert_eq!(pair.pipe(0, gone).ended(), Some(Ended::Unreachable));
    assert_eq!(pair.pipe(0, dialed).ended(), None);
}

#[test]
fn peers_of_another_version_and_full_peers_refuse_with_the_reason() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    pair.ends[1].set_accepting(false);
    let dialed = pair.dial();
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Refused(RefuseReason::Full)));

    let now = pair.now;
    let mut out = Vec::new();
    let dialed = pair.ends[0].dial(now, pair.addresses[1]);
    let dial = pair.ends[0].poll_transmit(now, &mut out, 1).unwrap();
    assert_eq!((dial.transmit.bytes, dial.to), (1_200, pair.addresses[1]));
    // The dial has a later version; the acceptor answers in its own.
    out[1] = 9;
    let from = pair.addresses[0];
    pair.ends[1].handle_datagram(now, from, &mut out);
    out.clear();
    let answer = pair.ends[1].poll_transmit(now, &mut out, 1).unwrap();
    assert_eq!((answer.transmit.bytes, &out[..3]), (16, &[6, 1, 2][..]));
    // A dialer reads the answer of a later version.
    out[1] = 9;
    let from = pair.addresses[1];
    pair.ends[0].handle_datagram(now, from, &mut out);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Version(9)));
}

#[test]
fn the_id_of_a_released_pipe_is_never_reused() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    pair.ends[1].release(accepted);
    assert!(pair.ends[1].pipe(accepted).is_none());
    let (_, again) = pair.connect();
    assert_ne!(accepted, again);
    assert!(pair.ends[1].peek(accepted).is_none());
    // The peer of the released pipe gets a reset when it sends.
    pair.pipe(0, dialed).write(&[IoSlice::new(b"?")]);
    pair.run(SECOND);
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Restarted));
}

#[test]
fn sealed_packets_are_accepted_once_and_only_unchanged() {
    let config = || Config::default().key(Some(Key::new(1, [7; 32])));
    let mut pair = Pair::new(1, Path::clean(MS), config);
    let (dialed, accepted) = pair.connect();
    pair.run(SECOND);
    let (now, from) = (pair.now, pair.addresses[0]);
    pair.pipe(0, dialed).write(&[IoSlice::new(b"secret")]);
    let mut sealed = Vec::new();
    pair.ends[0].poll_transmit(now, &mut sealed, 1).expect("a packet");
    assert!(!sealed.windows(6).any(|bytes| bytes == b"secret"));
    let before = pair.pipe(1, accepted).stats();
    for at in 24..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        pair.ends[1].handle_datagram(now, from, &mut changed);
    }
    assert!(pair.pipe(1, accepted).readable().is_empty());
    pair.ends[1].handle_datagram(now, from, &mut sealed.clone());
    pair.ends[1].handle_datagram(now, from, &mut sealed.clone());
    assert_eq!(pair.pipe(1, accepted).readable(), b"secret");
    let after = pair.pipe(1, accepted).stats();
    assert_eq!(after.dropped - before.dropped, (sealed.len() - 24) as u64 + 1);
}
