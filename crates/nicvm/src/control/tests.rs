//! Two units over a network that loses, doubles, reorders and replays anything at any time.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

use super::*;

const LATENCY_NS: u64 = 20_000;

#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    loss: f64,
    duplicate: f64,
    delay_ns: u64,
    replay: f64,
}

type Wire = Vec<(Instant, usize, Header, Vec<u8>)>;

/// What one life of a sender has sent to one life of a receiver, and what came of it.
struct Pair {
    units: [Control; 2],
    incarnations: [Incarnation; 2],
    now: Instant,
    wire: Wire,
    history: Vec<(usize, Header, Vec<u8>)>,
    weather: Weather,
    rng: Rng,
    frames: u64,
    events: [VecDeque<Event>; 2],
    config: ControlConfig,
}

impl Pair {
    fn seeded(seed: u64) -> Self {
        let config = ControlConfig::default();
        let unit = |node| Control::new(NodeId(node), Incarnation::FIRST, config.clone());
        Self {
            units: [unit(0), unit(1)],
            incarnations: [Incarnation::FIRST; 2],
            now: Instant::ZERO,
            wire: Vec::new(),
            history: Vec::new(),
            weather: Weather::default(),
            rng: Rng::new(seed, "pair"),
            frames: 0,
            events: Default::default(),
            config,
        }
    }

    fn send(&mut self, from: usize, message: u32) {
        let to = NodeId(1 - from as u16);
        let body = message.to_le_bytes();
        let _ = self.units[from].send(self.now, to, ExtensionId(9), &body);
        self.collect();
    }

    fn restart(&mut self, unit: usize) {
        self.incarnations[unit] = self.incarnations[unit].next();
        let node = NodeId(unit as u16);
        self.units[unit] = Control::new(node, self.incarnations[unit], self.config.clone());
    }

    /// Puts on the wire what the units have to say.
    fn collect(&mut self) {
        for from in 0..2 {
            while let Some(Transmit { header, body }) = self.units[from].poll_transmit(self.now) {
                let body = body.to_vec();
                self.frames += 1;
                self.history.push((1 - from, header, body.clone()));
                let copies = 1 + u64::from(self.rng.chance(self.weather.duplicate));
                for _ in 0..copies {
                    if self.rng.chance(self.weather.loss) {
                        continue;
                    }
                    let late = self.rng.between(0, self.weather.delay_ns);
                    let at = self.now.plus_nanos(LATENCY_NS + late);
                    self.wire.push((at, 1 - from, header, body.clone()));
                }
            }
            while let Some(event) = self.units[from].poll_event() {
                self.events[from].push_back(event);
            }
        }
    }

    /// Lets everything happen that is due by `until`.
    fn run_until(&mut self, until: Instant) {
        loop {
            self.collect();
            let frame = (0..self.wire.len()).min_by_key(|at| self.wire[*at].0);
            let frame_at = frame.map_or(Instant::FAR_FUTURE, |at| self.wire[at].0);
            let timer_at = |unit: &Control| unit.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
            let timer = timer_at(&self.units[0]).min(timer_at(&self.units[1]));
            let next = frame_at.min(timer);
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            if frame_at <= timer {
                let (_, to, header, body) = self.wire.swap_remove(frame.expect("it is due"));
                self.units[to].handle_frame(self.now, &header, &body);
            } else {
                for unit in &mut self.units {
                    unit.handle_timeout(self.now);
                }
            }
            if !self.history.is_empty() && self.rng.chance(self.weather.replay) {
                let at = self.rng.below(self.history.len() as u64) as usize;
                let (to, header, body) = self.history[at].clone();
                self.wire.push((self.now.plus_nanos(LATENCY_NS), to, header, body));
            }
        }
        self.now = until;
    }

    fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn received(&mut self, unit: usize) -> Vec<u32> {
        let events = std::mem::take(&mut self.events[unit]);
        let message = |event| match event {
            Event::Message { body, .. } => Some(u32::from_le_bytes(body[..].try_into().unwrap())),
            _ => None,
        };
        events.into_iter().filter_map(message).collect()
    }
}

#[test]
fn messages_arrive_in_order_and_an_idle_pair_is_silent() {
    let mut pair = Pair::seeded(1);
    for message in 0..100 {
        pair.send(0, message);
    }
    pair.run_for(Duration::from_millis(20));
    assert_eq!(pair.received(1), (0..100).collect::<Vec<_>>());
    let frames = pair.frames;
    assert_eq!(pair.units[0].poll_timeout(), None);
    assert_eq!(pair.units[1].poll_timeout(), None);
    pair.run_for(Duration::from_secs(10));
    assert_eq!(pair.frames, frames);
    let trip = pair.units[0].round_trip(NodeId(1)).unwrap();
    assert_eq!(trip.least, Duration::from_nanos(2 * LATENCY_NS));
}

#[test]
fn one_loss_resends_one_message() {
    let mut pair = Pair::seeded(2);
    pair.send(0, 0);
    pair.run_for(Duration::from_millis(2));
    for message in 1..20 {
        pair.send(0, message);
    }
    let lost = pair.wire.iter().position(|(_, _, header, _)| header.kind == Kind::Control);
    pair.wire.remove(lost.unwrap());
    pair.run_for(Duration::from_millis(1));
    // Well before any timeout.
    assert_eq!(pair.received(1).len(), 20);
    assert_eq!(pair.units[0].counters().resent, 1);
}

#[test]
fn a_silent_peer_is_declared_dead_within_the_bound() {
    let mut pair = Pair::seeded(3);
    pair.send(0, 1);
    pair.run_for(Duration::from_millis(5));
    pair.weather.loss = 1.0;
    pair.send(0, 2);
    pair.run_for(Duration::from_millis(499));
    assert!(!pair.events[0].iter().any(|event| matches!(event, Event::PeerDown { .. })));
    pair.run_for(Duration::from_millis(2));
    assert!(pair.events[0].iter().any(|event| matches!(event, Event::PeerDown { .. })));
    assert_eq!(pair.units[0].counters().abandoned, 1);
    // It lives: what is sent anew arrives, and what was given up does not.
    pair.weather.loss = 0.0;
    pair.send(0, 3);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.received(1), [1, 3]);
}

#[test]
fn a_restarted_peer_is_known_as_such() {
    let mut pair = Pair::seeded(4);
    pair.send(0, 1);
    pair.run_for(Duration::from_millis(5));
    pair.restart(1);
    pair.received(1);
    pair.send(0, 2);
    pair.run_for(Duration::from_millis(50));
    let second = Incarnation::FIRST.next();
    let restarted = Event::PeerRestarted { node: NodeId(1), incarnation: second };
    assert!(pair.events[0].contains(&restarted));
    assert_eq!(pair.received(1), []);
    pair.send(0, 3);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.received(1), [3]);
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, u8),
    Run(u64),
    Restart(usize),
    Storm(u8, u8, u64, u8),
    Outage(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_usize..2, 1_u8..40).prop_map(|(from, count)| Op::Send(from, count)),
        6 => (0_u64..20_000_000).prop_map(Op::Run),
        1 => (0_usize..2).prop_map(Op::Restart),
        2 => (0_u8..60, 0_u8..40, 0_u64..2_000_000, 0_u8..30)
            .prop_map(|(loss, dup, delay, replay)| Op::Storm(loss, dup, delay, replay)),
        1 => (0_u64..900_000_000).prop_map(Op::Outage),
    ]
}

/// Runs a scenario against the simplest model: to one life, from one life, what arrives is a
/// subsequence of what was sent, in order and once; and without a gap while no stream is given up.
fn check(seed: u64, ops: &[Op]) {
    let mut pair = Pair::seeded(seed);
    let mut next: u32 = 0;
    let mut last = [None::<u32>; 2];
    let verify = |pair: &mut Pair, last: &mut [Option<u32>; 2]| {
        for unit in 0..2 {
            for message in pair.received(unit) {
                assert!(
                    last[unit].is_none_or(|last| message > last),
                    "seed {seed}: {message} again"
                );
                last[unit] = Some(message);
            }
        }
    };
    for op in ops {
        match *op {
            Op::Send(from, count) => {
                for _ in 0..count {
                    pair.send(from, next);
                    next += 1;
                }
            }
            Op::Run(time) => pair.run_for(Duration::from_nanos(time)),
            Op::Restart(unit) => pair.restart(unit),
            Op::Storm(loss, duplicate, delay_ns, replay) => {
                pair.weather = Weather {
                    loss: f64::from(loss) / 100.0,
                    duplicate: f64::from(duplicate) / 100.0,
                    delay_ns,
                    replay: f64::from(replay) / 100.0,
                };
            }
            Op::Outage(time) => {
                let weather = std::mem::replace(
                    &mut pair.weather,
                    Weather { loss: 1.0, ..Weather::default() },
                );
                pair.run_for(Duration::from_nanos(time));
                pair.weather = weather;
            }
        }
        verify(&mut pair, &mut last);
    }
    // The network heals: everything settles, and a new message in each direction arrives.
    pair.weather = Weather::default();
    pair.run_for(Duration::from_secs(5));
    verify(&mut pair, &mut last);
    for from in 0..2 {
        // The first may only tell that the peer has restarted.
        for _ in 0..2 {
            pair.send(from, next);
            next += 1;
            pair.run_for(Duration::from_secs(2));
        }
        assert_eq!(pair.received(1 - from).last(), Some(&(next - 1)), "seed {seed}: stuck");
    }
    assert!(pair.units.iter().all(|unit| unit.poll_timeout().is_none()), "seed {seed}: not quiet");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn exactly_once_and_in_order_whatever_happens(
        seed: u64, ops in proptest::collection::vec(any_op(), 1..25),
    ) {
        check(seed, &ops);
    }

    #[test]
    fn without_outages_and_restarts_nothing_is_lost(
        seed: u64, loss in 0_u8..40, duplicate in 0_u8..40, delay_ns in 0_u64..1_000_000,
        count in 1_u32..300,
    ) {
        let mut pair = Pair::seeded(seed);
        // Nobody is declared dead on a network this bad.
        pair.config.dead_after(Duration::from_secs(3600));
        let config = pair.config.clone();
        pair.units[0] = Control::new(NodeId(0), Incarnation::FIRST, config.clone());
        pair.units[1] = Control::new(NodeId(1), Incarnation::FIRST, config);
        pair.weather = Weather {
            loss: f64::from(loss) / 100.0,
            duplicate: f64::from(duplicate) / 100.0,
            delay_ns,
            replay: 0.05,
        };
        for message in 0..count {
            pair.send(0, message);
        }
        pair.run_for(Duration::from_secs(7200));
        prop_assert_eq!(pair.received(1), (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn any_frame_is_used_or_counted(
        frames in proptest::collection::vec(
            (0_u8..5, any::<[u32; 5]>(), any::<[u64; 2]>(), 0_u16..3, any::<u8>(), 0_usize..150), 1..60),
    ) {
        let kinds = [Kind::Data, Kind::Control, Kind::Acknowledge, Kind::Hello, Kind::Welcome];
        let mut pair = Pair::seeded(1);
        pair.send(0, 1);
        for (kind, [a, b, sequence, acknowledgement, gap], words, source, flags, length) in frames {
            let header = Header {
                kind: kinds[usize::from(kind)],
                source: NodeId(source),
                destination: NodeId(0),
                incarnation: Incarnation(a % 3),
                destination_incarnation: Incarnation(b % 3),
                sequence: sequence % 64,
                acknowledgement: acknowledgement % 64,
                words: [words[0] % 4, words[1]],
                flags,
                ..Header::default()
            };
            pair.now = pair.now.plus_nanos(u64::from(gap % 1_000_000));
            pair.units[0].handle_frame(pair.now, &header, &vec![0; length]);
            pair.units[0].handle_timeout(pair.now);
            pair.collect();
        }
    }
}
