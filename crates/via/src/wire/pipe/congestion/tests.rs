//! Properties of every law, whatever is passed to it.

use proptest::prelude::*;

use super::*;

fn all() -> Vec<Congestion> {
    vec![
        Congestion::Cubic,
        #[cfg(feature = "bbr")]
        Congestion::Bbr,
        Congestion::Warp,
    ]
}

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send { bytes: u64, is_application_limited: bool },
    Ack { at: usize, round_trip: u64, is_window_limited: bool },
    Lose { at: usize, is_persistent: bool },
    Mtu(usize),
    Pass(u64),
    GoBack(u64),
}

fn nanos() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1_u64..1_000_000, 1_000_000_u64..10_000_000_000, Just(1 << 50)]
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![4 => 1_u64..1_500, 1 => Just(0), 1 => Just(65_000)];
    prop_oneof![
        6 => (bytes, any::<bool>())
            .prop_map(|(bytes, is_application_limited)| Op::Send { bytes, is_application_limited }),
        5 => (0_usize..50, nanos(), any::<bool>())
            .prop_map(|(at, round_trip, is_window_limited)| Op::Ack { at, round_trip, is_window_limited }),
        1 => (0_usize..50, prop::bool::weighted(0.1))
            .prop_map(|(at, is_persistent)| Op::Lose { at, is_persistent }),
        1 => (1_200_usize..65_001).prop_map(Op::Mtu),
        3 => nanos().prop_map(Op::Pass),
        1 => nanos().prop_map(Op::GoBack),
    ]
}

/// Passes the events to a law, and checks its window and rate after each.
fn run(congestion: Congestion, ops: &[Op]) {
    let mut now = Instant::from_nanos(1);
    let mut law = congestion.factory()(Start { now, mtu: 1_200, seed: 7 });
    let (mut flying, mut next, mut mtu): (Vec<(u64, u64, Instant)>, _, _) = (Vec::new(), 0, 1_200);
    for op in ops {
        match *op {
            Op::Send { bytes, is_application_limited } => {
                law.on_sent(now, Sending { number: next, bytes, is_application_limited });
                flying.push((next, bytes, now));
                next += 1;
            }
            Op::Ack { at, round_trip, is_window_limited } if at < flying.len() => {
                let (number, bytes, sent) = flying.remove(at);
                let took = now.nanos_since(sent);
                let latest_round_trip = if round_trip % 4 > 0 { took } else { round_trip };
                let (waited, min_round_trip) = (round_trip / 2, round_trip);
                let acked = Acked {
                    number,
                    sent,
                    bytes,
                    is_window_limited,
                    round_trip,
                    latest_round_trip,
                    waited,
                    min_round_trip,
                };
                law.on_acked(now, acked);
            }
            Op::Lose { at, is_persistent } if at < flying.len() => {
                let (number, bytes, sent) = flying.remove(at);
                law.on_lost(now, Lost { number, sent, bytes, is_persistent });
            }
            Op::Mtu(bytes) => {
                law.on_mtu(bytes);
                mtu = bytes;
            }
            Op::Pass(nanos) => now = now.plus_nanos(nanos),
            Op::GoBack(nanos) => {
                now = Instant::from_nanos(now.as_nanos().saturating_sub(nanos).max(1))
            }
            Op::Ack { .. } | Op::Lose { .. } => {}
        }
        let window = law.window();
        assert!(window >= mtu as u64, "{congestion:?}: {window} bytes after {op:?}");
        assert!(window <= 1 << 40, "{congestion:?}: {window} bytes after {op:?}");
        assert!(law.rate().is_none_or(|rate| rate > 0), "{congestion:?}: no rate after {op:?}");
    }
}

// Regression: Warp's least rate was a packet in four round trips, however long these were.
#[test]
fn an_acknowledgement_after_days_leaves_a_rate() {
    let send = || Op::Send { bytes: 1, is_application_limited: false };
    let acknowledged = Op::Ack { at: 0, round_trip: 61, is_window_limited: false };
    run(Congestion::Warp, &[send(), Op::Pass(1 << 50), acknowledged]);
}

proptest! {
    #[test]
    fn no_events_make_a_law_stop_panic_or_grow_without_bound(
        ops in prop::collection::vec(op(), 1..400),
    ) {
        for congestion in all() {
            run(congestion, &ops);
        }
    }
}

#[test]
fn a_law_has_the_name_of_its_choice() {
    for congestion in all() {
        let law = congestion.factory()(Start { now: Instant::from_nanos(1), mtu: 1_200, seed: 7 });
        assert_eq!(law.name(), format!("{congestion:?}").to_lowercase());
    }
}
