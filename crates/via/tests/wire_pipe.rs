//! Bytes over the wire in virtual time: on paths that lose, duplicate, reorder, change and delay datagrams.

use std::io::IoSlice;
use std::net::SocketAddr;

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::Key;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, Event};
use midplane_via::wire::pipe::Config;

use crate::wire_pair::{App, MS, Pair, Path, SECOND, exchange, seeds};

#[test]
fn bytes_arrive_once_and_in_order_on_a_path_with_all_faults() {
    for seed in seeds(30) {
        let mut rng = Rng::new(seed, "scenario");
        let path = Path {
            delay: rng.between(10_000, 30 * MS),
            jitter: rng.between(0, 10 * MS),
            loss: rng.unit() * 0.2,
            double: rng.unit() * 0.2,
            corrupt: 0.0,
            mtu: 1_200 + rng.below(8_000) as usize,
            line: [0, 10_000_000][rng.below(2) as usize],
            queue: 30_000,
        };
        let key = rng.chance(0.3).then(|| Key::new(1, [7; 32]));
        let mut pair = Pair::new(seed, path, || Config::default().key(key.clone()));
        let (dialed, accepted) = pair.connect();
        // Sealed packets may be changed on the way as well.
        pair.path.corrupt = if key.is_some() { 0.05 } else { 0.0 };
        let total = rng.below(400_000);
        let mut apps = [App::new(dialed, 1, total, 2), App::new(accepted, 2, 100_000, 1)];
        apps[1].most_read = 1_000 + rng.below(20_000) as usize;
        assert!(
            exchange(&mut pair, &mut apps, 300 * SECOND),
            "seed {seed}: {path:?} {:?} {:?}",
            pair.ends[0].peek(dialed).unwrap().stats(),
            pair.ends[1].peek(accepted).unwrap().stats()
        );
        let now = pair.now;
        pair.pipe(0, dialed).close(now);
        pair.run(40 * SECOND);
        let ends = [(0, dialed), (1, accepted)].map(|(end, id)| pair.pipe(end, id).ended());
        assert!(ends[0].is_some() && ends[1].is_some(), "seed {seed}: {ends:?}");
    }
}

#[test]
fn datagrams_grow_to_what_the_path_carries() {
    let mut pair = Pair::new(1, Path { mtu: 65_507, ..Path::clean(100_000) }, Config::default);
    let (dialed, accepted) = pair.connect();
    let mut apps = [App::new(dialed, 1, 1_000_000, 2), App::new(accepted, 2, 0, 1)];
    assert!(exchange(&mut pair, &mut apps, SECOND));
    assert_eq!(pair.pipe(0, dialed).stats().mtu, 65_000);

    let mut pair = Pair::new(1, Path::clean(100_000), Config::default);
    let (dialed, accepted) = pair.connect();
    let mut apps = [App::new(dialed, 1, 10_000_000, 2), App::new(accepted, 2, 0, 1)];
    assert!(exchange(&mut pair, &mut apps, 10 * SECOND));
    pair.run(2 * SECOND);
    assert_eq!(pair.pipe(0, dialed).stats().mtu, 1_472);
}

/// Returns the seconds that `total` bytes take.
fn seconds_for(pair: &mut Pair, total: u64) -> f64 {
    let (dialed, accepted) = pair.connect();
    let begun = pair.now;
    let mut apps = [App::new(dialed, 1, total, 2), App::new(accepted, 2, 0, 1)];
    assert!(exchange(pair, &mut apps, 600 * SECOND));
    println!("{:?}", pair.pipe(0, dialed).stats());
    pair.now.nanos_since(begun) as f64 / 1e9
}

#[test]
fn a_bottleneck_is_filled_to_nine_tenths() {
    for (queue, delay) in [(64_000, 2 * MS), (250_000, 10 * MS)] {
        let path = Path { line: 100_000_000, queue, ..Path::clean(delay) };
        let mut pair = Pair::new(1, path, Config::default);
        let seconds = seconds_for(&mut pair, 40_000_000);
        let share = 40_000_000.0 * 8.0 / seconds / 100e6;
        assert!(share > 0.9, "{share}");
    }
}

#[test]
fn one_loss_in_a_hundred_does_not_stall_a_pipe() {
    let path = Path { line: 100_000_000, queue: 64_000, loss: 0.01, ..Path::clean(2 * MS) };
    let mut pair = Pair::new(1, path, Config::default);
    let seconds = seconds_for(&mut pair, 10_000_000);
    // Cubic counts each loss as congestion; 10 Mb/s is a third of the rate by Reno's formula here.
    assert!(seconds < 8.0, "{seconds}");
}

#[test]
fn two_pipes_share_a_bottleneck() {
    let path = Path { line: 50_000_000, queue: 50_000, ..Path::clean(5 * MS) };
    let mut pair = Pair::new(11, path, Config::default);
    let first = pair.connect();
    let second = pair.connect();
    let mut apps = [first, second]
        .map(|(dialed, accepted)| [App::new(dialed, 1, u64::MAX, 2), App::new(accepted, 2, 0, 1)]);
    pair.run_until(20 * SECOND, |pair| {
        for [from, to] in &mut apps {
            from.work(0, pair);
            to.work(1, pair);
        }
        None::<()>
    });
    let [first, second] = [apps[0][1].read as f64, apps[1][1].read as f64];
    let share = first / second;
    assert!((0.5..2.0).contains(&share), "{first} {second}");
    assert!((first + second) * 8.0 / 20.0 > 45e6, "{first} {second}");
}

#[test]
fn a_reader_that_stops_holds_its_writer_and_no_more_than_the_window() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    let mut app = App::new(dialed, 1, 100_000_000, 2);
    pair.run_until(5 * SECOND, |pair| {
        app.work(0, pair);
        None::<()>
    });
    let held = pair.pipe(1, accepted).stats();
    assert_eq!(held.bytes_received, 256 << 10);
    assert!(held.memory_bytes <= 512 << 10);
    let mut apps = [app, App::new(accepted, 2, 0, 1)];
    apps[0].total = 3_000_000.max(apps[0].written);
    assert!(exchange(&mut pair, &mut apps, 20 * SECOND));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let path = Path { loss: 0.05, jitter: MS, ..Path::clean(MS) };
        let mut pair = Pair::new(42, path, Config::default);
        let (dialed, accepted) = pair.connect();
        let mut apps = [App::new(dialed, 1, 300_000, 2), App::new(accepted, 2, 1_000, 1)];
        assert!(exchange(&mut pair, &mut apps, 60 * SECOND));
        (pair.now, pair.datagrams, pair.pipe(0, dialed).stats())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_path_that_is_cut_at_any_time_ends_both_sides_or_loses_nothing() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed, "cuts");
        let path = Path { loss: 0.02, line: 50_000_000, queue: 50_000, ..Path::clean(3 * MS) };
        let mut pair = Pair::new(seed, path, Config::default);
        let (dialed, accepted) = pair.connect();
        let mut apps = [App::new(dialed, 1, 3_000_000, 2), App::new(accepted, 2, 3_000_000, 1)];
        let mut is_done = false;
        for _ in 0..3 {
            is_done = is_done || exchange(&mut pair, &mut apps, rng.below(300 * MS));
            pair.is_cut = true;
            pair.run(rng.below(40 * SECOND));
            pair.is_cut = false;
        }
        is_done = is_done || exchange(&mut pair, &mut apps, 100 * SECOND);
        let ends = [(0, dialed), (1, accepted)].map(|(end, id)| pair.pipe(end, id).ended());
        assert!(is_done || (ends[0].is_some() && ends[1].is_some()), "seed {seed}: {ends:?}");
        // No number of timeouts makes the next one later than a second or two.
        if ends == [None, None] {
            assert!(is_done, "seed {seed}");
        }
    }
}

#[test]
fn a_path_that_grows_narrower_continues_with_shorter_datagrams() {
    let mut pair = Pair::new(
        1,
        Path { mtu: 9_000, line: 100_000_000, queue: 50_000, ..Path::clean(MS) },
        Config::default,
    );
    let (dialed, accepted) = pair.connect();
    let mut apps = [App::new(dialed, 1, u64::MAX, 2), App::new(accepted, 2, 0, 1)];
    pair.run_until(10 * SECOND, |pair| {
        apps[0].work(0, pair);
        apps[1].work(1, pair);
        (pair.pipe(0, dialed).stats().mtu > 8_000).then_some(())
    });
    assert!(pair.pipe(0, dialed).stats().mtu > 8_000);
    pair.path.mtu = 1_400;
    apps[0].total = apps[0].written + 5_000_000;
    assert!(exchange(&mut pair, &mut apps, 25 * SECOND), "{:?}", pair.pipe(0, dialed).stats());
}

/// Regression: a datagram shorter than the longest one that had passed was sent again for ever.
#[test]
fn a_path_that_grows_too_narrow_for_a_datagram_below_the_longest_carries_its_bytes() {
    for is_alone in [true, false] {
        let mut pair = Pair::new(1, Path::clean(MS), Config::default);
        let (dialed, accepted) = pair.connect();
        let mut apps = [App::new(dialed, 1, 100_000, 2), App::new(accepted, 2, 0, 1)];
        assert!(exchange(&mut pair, &mut apps, SECOND));
        pair.run(10 * SECOND);
        assert_eq!(pair.pipe(0, dialed).stats().mtu, 1_472);
        pair.path.mtu = 1_400;
        pair.pipe(0, dialed).write(&[IoSlice::new(&[7; 1_385])]);
        let mut written = 1_385;
        for _ in 0..300 {
            pair.run(10 * MS);
            if !is_alone {
                // The acknowledgements of short datagrams show that the peer is alive.
                written += pair.pipe(0, dialed).write(&[IoSlice::new(&[7; 10])]);
            }
        }
        pair.run(100 * MS);
        let readable = pair.pipe(1, accepted).readable().len();
        assert_eq!(readable, written, "alone: {is_alone}, {:?}", pair.pipe(0, dialed).stats());
    }
}

#[test]
fn an_idle_pipe_holds_no_memory_for_data() {
    for keepalive in [10 * SECOND, 700 * MS] {
        let mut pair = Pair::new(1, Path::clean(MS), || Config::default().keepalive(keepalive));
        let (dialed, accepted) = pair.connect();
        let mut apps = [App::new(dialed, 1, 1 << 20, 2), App::new(accepted, 2, 1 << 20, 1)];
        assert!(exchange(&mut pair, &mut apps, 10 * SECOND));
        // The search for the longest datagram ends first.
        pair.run(20 * SECOND);
        assert_eq!(pair.pipe(0, dialed).stats().memory_bytes, 0);
        assert_eq!(pair.pipe(1, accepted).stats().memory_bytes, 0);
        let mut apps = [App::new(dialed, 1, 2 << 20, 2), App::new(accepted, 2, 2 << 20, 1)];
        for app in &mut apps {
            (app.written, app.read) = (1 << 20, 1 << 20);
        }
        assert!(exchange(&mut pair, &mut apps, 10 * SECOND));
    }
}

/// Regression: each small message kept the memory of an earlier burst for another second.
#[test]
fn a_burst_leaves_no_memory_although_small_messages_follow() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    let mut apps = [App::new(dialed, 1, 16 << 20, 2), App::new(accepted, 2, 0, 1)];
    assert!(exchange(&mut pair, &mut apps, 10 * SECOND));
    pair.run(100 * MS);
    assert!(pair.pipe(0, dialed).stats().memory_bytes >= 1 << 20);
    for _ in 0..5 {
        pair.pipe(0, dialed).write(&[IoSlice::new(b"small")]);
        pair.run(900 * MS);
        assert_eq!(pair.pipe(1, accepted).readable(), b"small");
        pair.pipe(1, accepted).consume(5);
    }
    for memory in [pair.pipe(0, dialed).stats(), pair.pipe(1, accepted).stats()] {
        assert!(memory.memory_bytes <= 64 << 10, "{memory:?}");
    }
}

#[test]
fn bytes_that_are_read_late_leave_no_memory() {
    let mut pair = Pair::new(1, Path::clean(MS), || Config::default().keepalive(700 * MS));
    let (dialed, accepted) = pair.connect();
    pair.pipe(0, dialed).write(&[IoSlice::new(&[7; 200_000])]);
    pair.run(10 * SECOND);
    while let bytes @ 1.. = pair.pipe(1, accepted).readable().len() {
        pair.pipe(1, accepted).consume(bytes);
    }
    pair.run(2 * SECOND);
    assert_eq!(pair.pipe(1, accepted).stats().memory_bytes, 0);
}

/// Regression: 32 losses made all later acknowledgements 248 bytes longer.
#[test]
fn acknowledgements_are_short_again_after_losses() {
    let mut pair = Pair::new(1, Path { loss: 0.05, ..Path::clean(MS) }, Config::default);
    let (dialed, accepted) = pair.connect();
    let mut apps = [App::new(dialed, 1, 1 << 20, 2), App::new(accepted, 2, 1 << 20, 1)];
    assert!(exchange(&mut pair, &mut apps, 60 * SECOND));
    pair.path.loss = 0.0;
    pair.run(3 * SECOND);
    let before = (pair.datagrams, pair.bytes);
    for _ in 0..100 {
        for (end, id, other) in [(0, dialed, accepted), (1, accepted, dialed)] {
            pair.pipe(end, id).write(&[IoSlice::new(&[7; 10])]);
            let arrived = pair.run_until(SECOND, |pair| {
                (!pair.pipe(1 - end, other).readable().is_empty()).then_some(())
            });
            arrived.expect("nothing is lost");
            pair.pipe(1 - end, other).consume(10);
        }
    }
    let mean = (pair.bytes - before.1) / (pair.datagrams - before.0);
    assert!(mean < 120, "{mean}");
}

#[test]
fn a_ping_is_acknowledged_at_once() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, _) = pair.connect();
    pair.run(3 * SECOND);
    let begun = pair.now;
    pair.pipe(0, dialed).ping();
    pair.run_until(SECOND, |pair| (pair.pipe(0, dialed).stats().in_flight > 0).then_some(()));
    pair.run_until(SECOND, |pair| (pair.pipe(0, dialed).stats().in_flight == 0).then_some(()));
    let took = pair.now.nanos_since(begun);
    assert!((2 * MS..=4 * MS).contains(&took), "{took}");
}

/// Regression: a close whose turn came when the pacer had no room waited for an acknowledgement.
#[test]
fn a_close_waits_for_the_pacer_and_for_no_round_trip() {
    // Among these lengths are those that fill two datagrams, a whole burst of the pacer.
    for bytes in 2_300..2_360 {
        let mut pair = Pair::new(1, Path::clean(50 * MS), Config::default);
        let (dialed, accepted) = pair.connect();
        pair.run(3 * SECOND);
        let begun = pair.now;
        pair.pipe(0, dialed).write(&[IoSlice::new(&vec![7; bytes])]);
        pair.pipe(0, dialed).close(begun);
        pair.run_until(SECOND, |pair| pair.pipe(1, accepted).ended());
        let took = pair.now.nanos_since(begun);
        assert!(took < 140 * MS, "{bytes} bytes took {took}");
    }
}

#[test]
fn an_answer_carries_the_acknowledgement_of_its_request() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    pair.run(SECOND);
    let before = pair.datagrams;
    for _ in 0..100 {
        for (end, id, other) in [(0, dialed, accepted), (1, accepted, dialed)] {
            pair.pipe(end, id).write(&[IoSlice::new(b"question, or answer")]);
            let arrived = pair.run_until(SECOND, |pair| {
                (!pair.pipe(1 - end, other).readable().is_empty()).then_some(())
            });
            arrived.expect("nothing is lost");
            pair.pipe(1 - end, other).consume(19);
        }
    }
    assert!(pair.datagrams - before <= 210, "{}", pair.datagrams - before);
}

#[test]
fn a_steady_stream_allocates_nothing() {
    // Only the endpoints: the path of the other tests allocates.
    let mut ends = [1, 2].map(|seed| Endpoint::new(Config::default(), seed));
    let addresses: [SocketAddr; 2] = ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()];
    let mut now = Instant::from_nanos(1);
    let dialed = ends[0].dial(now, addresses[1]);
    let mut accepted = None;
    let block = vec![7; 16 << 10];
    let mut out = Vec::with_capacity(1 << 20);
    let mut step = |received: &mut u64| {
        now = now.plus_nanos(100_000);
        if let Some(pipe) = ends[0].pipe(dialed) {
            pipe.write(&[IoSlice::new(&block)]);
        }
        for from in 0..2 {
            while let Some(outgoing) = ends[from].poll_transmit(now, &mut out, 40) {
                for datagram in out.chunks_mut(outgoing.transmit.segment_bytes) {
                    if datagram.len() <= 1_472 {
                        ends[1 - from].handle_datagram(now, addresses[from], datagram);
                    }
                }
                out.clear();
            }
            ends[from].handle_timeout(now);
            while let Some(event) = ends[from].poll_event() {
                if let Event::Accepted(id, _) = event {
                    accepted = Some(id);
                }
            }
        }
        if let Some(pipe) = accepted.and_then(|id| ends[1].pipe(id)) {
            *received += pipe.readable().len() as u64;
            pipe.consume(pipe.readable().len());
        }
    };
    let mut received = 0;
    for _ in 0..5_000 {
        step(&mut received);
    }
    let before = received;
    let info = allocation_counter::measure(|| {
        for _ in 0..2_000 {
            step(&mut received);
        }
    });
    assert!(received - before > 20_000_000, "{}", received - before);
    assert!(info.count_total < 50, "{info:?}");
}
