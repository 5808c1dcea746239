//! Each law of congestion control over a bottleneck in virtual time.

use midplane_via::wire::pipe::Config;
use midplane_via::wire::pipe::congestion::Congestion;

use crate::wire_pair::{App, MS, Pair, Path, SECOND};

/// Returns the laws, each with the least share of a link that a lone sender fills, and the least of Jain's index of
/// two.
fn laws() -> Vec<(Congestion, f64, f64)> {
    vec![
        (Congestion::Cubic, 0.9, 0.9),
        #[cfg(feature = "bbr")]
        (Congestion::Bbr, 0.8, 0.8),
        (Congestion::Warp, 0.8, 0.8),
    ]
}

fn pair(congestion: Congestion, line: u64, queue: u64, delay: u64) -> Pair {
    let path = Path { line, queue, ..Path::clean(delay) };
    Pair::new(5, path, || Config::default().congestion(congestion.factory()))
}

/// Connects a sender of endless bytes and their receiver.
fn stream(pair: &mut Pair) -> [App; 2] {
    let (dialed, accepted) = pair.connect();
    [App::new(dialed, 1, u64::MAX, 2), App::new(accepted, 2, 0, 1)]
}

/// Runs the streams; returns the bits a second that each receives.
fn rates(pair: &mut Pair, streams: &mut [[App; 2]], nanos: u64) -> Vec<f64> {
    let before: Vec<u64> = streams.iter().map(|[_, to]| to.read).collect();
    pair.run_until(nanos, |pair| {
        for [from, to] in streams.iter_mut() {
            from.work(0, pair);
            to.work(1, pair);
        }
        None::<()>
    });
    let read = streams.iter().zip(before).map(|([_, to], before)| to.read - before);
    read.map(|bytes| bytes as f64 * 8.0 * 1e9 / nanos as f64).collect()
}

#[test]
fn a_lone_sender_fills_the_link() {
    for (congestion, least, _) in laws() {
        for (line, queue, delay) in [(20_000_000, 50_000, 5 * MS), (100_000_000, 64_000, 2 * MS)] {
            let mut pair = pair(congestion, line, queue, delay);
            let mut streams = [stream(&mut pair)];
            rates(&mut pair, &mut streams, 3 * SECOND);
            let share = rates(&mut pair, &mut streams, 5 * SECOND)[0] / line as f64;
            assert!((least..1.0).contains(&share), "{congestion:?} at {line} bit/s: {share:.3}");
        }
    }
}

/// Regression: acknowledgements wait for up to a millisecond, many times the round trip here. Warp took that for a queue,
/// and its least rate was that of a path of 100 ms: it took a second to begin.
#[test]
fn a_lone_sender_fills_a_fast_short_link() {
    for (congestion, least, _) in laws() {
        let mut pair = pair(congestion, 1_000_000_000, 128_000, MS / 100);
        let mut streams = [stream(&mut pair)];
        rates(&mut pair, &mut streams, 100 * MS);
        let share = rates(&mut pair, &mut streams, 50 * MS)[0] / 1e9;
        assert!((least..1.0).contains(&share), "{congestion:?}: {share:.3}");
    }
}

#[test]
fn a_sender_follows_a_drop_of_the_rate_to_a_tenth_and_its_return() {
    for (congestion, least, _) in laws() {
        let mut pair = pair(congestion, 50_000_000, 50_000, 5 * MS);
        let mut streams = [stream(&mut pair)];
        rates(&mut pair, &mut streams, 5 * SECOND);
        pair.path.line = 5_000_000;
        rates(&mut pair, &mut streams, 5 * SECOND);
        let share = rates(&mut pair, &mut streams, 5 * SECOND)[0] / 5e6;
        assert!((least..1.0).contains(&share), "{congestion:?}, a tenth: {share:.3}");
        pair.path.line = 50_000_000;
        rates(&mut pair, &mut streams, 15 * SECOND);
        let share = rates(&mut pair, &mut streams, 5 * SECOND)[0] / 50e6;
        assert!((least..1.0).contains(&share), "{congestion:?}, the whole again: {share:.3}");
    }
}

#[test]
fn two_senders_share_the_link_although_one_began_first() {
    for (congestion, least, fair) in laws() {
        let mut pair = pair(congestion, 20_000_000, 30_000, 5 * MS);
        let mut streams = vec![stream(&mut pair)];
        rates(&mut pair, &mut streams, 3 * SECOND);
        streams.push(stream(&mut pair));
        rates(&mut pair, &mut streams, 10 * SECOND);
        let got = rates(&mut pair, &mut streams, 10 * SECOND);
        let (sum, squares) = (got[0] + got[1], got[0] * got[0] + got[1] * got[1]);
        let jain = sum * sum / (2.0 * squares);
        assert!(sum >= least * 20e6 && jain >= fair, "{congestion:?}: {got:.0?}, Jain {jain:.3}");
    }
}

#[test]
fn a_connection_names_its_law() {
    for (congestion, ..) in laws() {
        let mut pair = pair(congestion, 0, 0, MS);
        let (dialed, _) = pair.connect();
        let name = pair.pipe(0, dialed).stats().congestion;
        assert_eq!(name, format!("{congestion:?}").to_lowercase());
    }
}
