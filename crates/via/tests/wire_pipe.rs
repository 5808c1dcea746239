//! Pipes between two endpoints in virtual time, over a path that loses, doubles, reorders, changes and holds up.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::SocketAddr;

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::Key;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, Event, PipeId};
use midplane_via::wire::pipe::{Config, Ended, Pipe};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// What the path does to datagrams.
#[derive(Clone, Copy, Debug)]
struct Path {
    delay: u64,
    jitter: u64,
    loss: f64,
    double: f64,
    corrupt: f64,
    /// Bytes of the longest datagram.
    mtu: usize,
    /// Bits per second, and bytes of the queue before the line; none if 0.
    line: u64,
    queue: u64,
}

impl Path {
    const fn clean(delay: u64) -> Self {
        Self {
            delay,
            jitter: 0,
            loss: 0.0,
            double: 0.0,
            corrupt: 0.0,
            mtu: 1_472,
            line: 0,
            queue: 0,
        }
    }
}

/// Two endpoints and the path between them.
struct Pair {
    now: Instant,
    rng: Rng,
    path: Path,
    ends: [Endpoint; 2],
    addresses: [SocketAddr; 2],
    /// By when they arrive, and a number.
    flying: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    number: u64,
    free_at: [Instant; 2],
    events: [Vec<Event>; 2],
    is_cut: bool,
    datagrams: u64,
}

impl Pair {
    fn new(seed: u64, path: Path, config: impl Fn() -> Config) -> Self {
        Self::with(seed, path, [config(), config()])
    }

    fn with(seed: u64, path: Path, configs: [Config; 2]) -> Self {
        let mut end = 0;
        Self {
            now: Instant::from_nanos(1),
            rng: Rng::new(seed, "path"),
            path,
            ends: configs.map(|config| {
                end += 1;
                Endpoint::new(config, seed ^ end)
            }),
            addresses: ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()],
            flying: BTreeMap::new(),
            number: 0,
            free_at: [Instant::ZERO; 2],
            events: [Vec::new(), Vec::new()],
            is_cut: false,
            datagrams: 0,
        }
    }

    fn dial(&mut self) -> PipeId {
        self.ends[0].dial(self.now, self.addresses[1])
    }

    /// Dials, and returns both ends once they are established.
    #[track_caller]
    fn connect(&mut self) -> (PipeId, PipeId) {
        let dialed = self.dial();
        let accepted = self.run_until(10 * SECOND, |pair| {
            pair.events[1].iter().find_map(|event| match event {
                Event::Accepted(id, _) => Some(*id),
                _ => None,
            })
        });
        let accepted = accepted.expect("established");
        self.events[1].clear();
        (dialed, accepted)
    }

    fn pipe(&mut self, end: usize, id: PipeId) -> &mut Pipe {
        self.ends[end].pipe(id).expect("not released")
    }

    fn send(&mut self, from: usize, mut datagram: Vec<u8>) {
        self.datagrams += 1;
        let Path { delay, jitter, loss, double, corrupt, mtu, line, queue } = self.path;
        if self.is_cut || datagram.len() > mtu || self.rng.chance(loss) {
            return;
        }
        let mut at = self.now;
        if line > 0 {
            let free_at = self.free_at[from].max(self.now);
            let nanos = |bytes: u64| bytes * 8 * SECOND / line;
            if free_at.nanos_since(self.now) > nanos(queue) {
                return;
            }
            at = free_at.plus_nanos(nanos(datagram.len() as u64 + 28));
            self.free_at[from] = at;
        }
        if self.rng.chance(corrupt) {
            let bit = self.rng.below(8 * datagram.len() as u64);
            datagram[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let copies = if self.rng.chance(double) { 2 } else { 1 };
        for _ in 0..copies {
            let at = at.plus_nanos(delay + self.rng.below(jitter + 1));
            self.number += 1;
            self.flying.insert((at, self.number), (1 - from, datagram.clone()));
        }
    }

    fn drain(&mut self) {
        for end in 0..2 {
            let mut out = Vec::new();
            while let Some(outgoing) = self.ends[end].poll_transmit(self.now, &mut out, 32) {
                assert_eq!(outgoing.transmit.bytes, out.len());
                let datagrams: Vec<Vec<u8>> =
                    out.chunks(outgoing.transmit.segment_bytes).map(<[u8]>::to_vec).collect();
                out.clear();
                for datagram in datagrams {
                    self.send(end, datagram);
                }
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event);
            }
        }
    }

    /// Goes to the next arrival or timeout, at most to `until`; returns whether there is one.
    fn step(&mut self, until: Instant) -> bool {
        self.drain();
        let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
        let timeouts = self.ends.iter().filter_map(Endpoint::poll_timeout);
        let Some(at) = timeouts.chain(arrival).min().filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(at);
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let (to, mut datagram) = entry.remove();
            self.ends[to].handle_datagram(self.now, self.addresses[1 - to], &mut datagram);
        }
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        true
    }

    fn run_until<T>(
        &mut self,
        nanos: u64,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let until = self.now.plus_nanos(nanos);
        loop {
            if let Some(found) = found(self) {
                return Some(found);
            }
            if !self.step(until) {
                return found(self);
            }
        }
    }

    fn run(&mut self, nanos: u64) {
        self.run_until(nanos, |_| None::<()>);
    }
}

/// A byte of a stream that differs from its neighbours and from other streams.
const fn byte_at(stream: u64, offset: u64) -> u8 {
    ((offset ^ stream).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// An application at one end: writes a stream, and checks the one that it reads.
struct App {
    id: PipeId,
    stream: u64,
    written: u64,
    total: u64,
    peer: u64,
    read: u64,
    most_read: usize,
}

impl App {
    const fn new(id: PipeId, stream: u64, total: u64, peer: u64) -> Self {
        Self { id, stream, written: 0, total, peer, read: 0, most_read: usize::MAX }
    }

    fn work(&mut self, end: usize, pair: &mut Pair) {
        let pipe = pair.pipe(end, self.id);
        loop {
            let bytes = pipe.readable().len().min(self.most_read);
            if bytes == 0 {
                break;
            }
            for (at, byte) in pipe.readable()[..bytes].iter().enumerate() {
                assert_eq!(*byte, byte_at(self.peer, self.read + at as u64), "at {}", self.read);
            }
            pipe.consume(bytes);
            self.read += bytes as u64;
            if self.most_read != usize::MAX {
                break;
            }
        }
        while self.written < self.total && pipe.room() > 0 {
            let most = (self.total - self.written).min(10_000);
            let bytes: Vec<u8> =
                (self.written..self.written + most).map(|at| byte_at(self.stream, at)).collect();
            let (first, second) = bytes.split_at(bytes.len() / 3);
            self.written += pipe.write(&[IoSlice::new(first), IoSlice::new(second)]) as u64;
        }
        assert!(pipe.stats().memory_bytes <= 18 << 20, "memory");
    }
}

/// Runs both applications until each has read all; returns whether they have.
fn exchange(pair: &mut Pair, apps: &mut [App; 2], nanos: u64) -> bool {
    pair.run_until(nanos, |pair| {
        apps[0].work(0, pair);
        apps[1].work(1, pair);
        let done = apps[0].read == apps[1].total && apps[1].read == apps[0].total;
        done.then_some(())
    })
    .is_some()
}

/// A seed of this run, or the one of a failure: `WIRE_SEED=n`.
fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("WIRE_SEED").ok().and_then(|seed| seed.parse().ok());
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let (first, count) = first.map_or((fresh, count), |first| (first, 1));
    (0..count).map(move |at| first.wrapping_add(at)).inspect(|seed| println!("WIRE_SEED={seed}"))
}

#[test]
fn bytes_arrive_once_and_in_order_on_a_path_that_does_everything_wrong() {
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
        // What is sealed may be changed on the way as well.
        pair.path.corrupt = if key.is_some() { 0.05 } else { 0.0 };
        let (dialed, accepted) = pair.connect();
        let total = rng.below(400_000);
        let mut apps = [App::new(dialed, 1, total, 2), App::new(accepted, 2, 100_000, 1)];
        apps[1].most_read = 1 + rng.below(20_000) as usize;
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

#[test]
fn a_close_is_heard_after_the_last_byte() {
    let mut pair = Pair::new(3, Path { loss: 0.3, ..Path::clean(5 * MS) }, Config::default);
    let (dialed, accepted) = pair.connect();
    let mut app = App::new(dialed, 1, 50_000, 2);
    app.work(0, &mut pair);
    let now = pair.now;
    pair.pipe(0, dialed).close(now);
    pair.run(4 * SECOND);
    assert_eq!(pair.pipe(1, accepted).ended(), Some(Ended::ClosedByPeer));
    assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::Closed));
    let mut app = App::new(accepted, 2, 0, 1);
    app.work(1, &mut pair);
    assert_eq!(app.read, 50_000);
}

#[test]
fn nobody_at_the_address_is_no_answer() {
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
        assert_eq!(pair.pipe(0, dialed).ended(), Some(Ended::KeyDoesNotFit));
        assert_eq!(pair.ends[1].pipes(), 0);
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

/// Seconds that `total` bytes take.
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
fn one_loss_in_a_hundred_slows_and_stops_nothing() {
    let path = Path { line: 100_000_000, queue: 64_000, loss: 0.01, ..Path::clean(2 * MS) };
    let mut pair = Pair::new(1, path, Config::default);
    let seconds = seconds_for(&mut pair, 10_000_000);
    // Cubic takes each loss for congestion; 10 Mb/s is a third of what Reno's formula gives here.
    assert!(seconds < 8.0, "{seconds}");
}

#[test]
fn two_pipes_share_a_bottleneck() {
    let path = Path { line: 100_000_000, queue: 100_000, ..Path::clean(5 * MS) };
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
    assert!((first + second) * 8.0 / 20.0 > 90e6, "{first} {second}");
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
        // Pipes whose packets are changed may end or read anything: they only must not panic or wait for ever.
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
