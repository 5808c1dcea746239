//! Two endpoints of the wire in virtual time, and the path between them.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::LazyLock;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, Event, PipeId};
use midplane_via::wire::pipe::{Config, Pipe};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// The faults and limits of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) delay: u64,
    pub(crate) jitter: u64,
    pub(crate) loss: f64,
    pub(crate) double: f64,
    pub(crate) corrupt: f64,
    /// Bytes of the longest datagram.
    pub(crate) mtu: usize,
    /// Bits per second of the line, and bytes of the queue before it; no line if 0.
    pub(crate) line: u64,
    pub(crate) queue: u64,
}

impl Path {
    pub(crate) const fn clean(delay: u64) -> Self {
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
pub(crate) struct Pair {
    pub(crate) now: Instant,
    rng: Rng,
    pub(crate) path: Path,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) addresses: [SocketAddr; 2],
    /// Datagrams on the way, by the time of arrival and a number.
    flying: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    number: u64,
    free_at: [Instant; 2],
    pub(crate) events: [Vec<Event>; 2],
    pub(crate) is_cut: bool,
    /// Datagrams that both ends have sent, and their bytes.
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl Pair {
    pub(crate) fn new(seed: u64, path: Path, config: impl Fn() -> Config) -> Self {
        Self::with(seed, path, [config(), config()])
    }

    pub(crate) fn with(seed: u64, path: Path, configs: [Config; 2]) -> Self {
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
            bytes: 0,
        }
    }

    pub(crate) fn dial(&mut self) -> PipeId {
        self.ends[0].dial(self.now, self.addresses[1])
    }

    /// Dials, and returns both ends once they are established.
    #[track_caller]
    pub(crate) fn connect(&mut self) -> (PipeId, PipeId) {
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

    pub(crate) fn pipe(&mut self, end: usize, id: PipeId) -> &mut Pipe {
        self.ends[end].pipe(id).expect("not released")
    }

    fn send(&mut self, from: usize, mut datagram: Vec<u8>) {
        self.datagrams += 1;
        self.bytes += datagram.len() as u64;
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

    /// Advances to the next arrival or timeout, at most to `until`; returns whether there is one.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
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

    pub(crate) fn run_until<T>(
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

    pub(crate) fn run(&mut self, nanos: u64) {
        self.run_until(nanos, |_| None::<()>);
    }
}

/// The bytes of all streams, once and a part of them again: a prime number of them, so that no packet's length divides it.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..PERIOD + MOST).map(|at| byte(at % PERIOD)).collect()
});
const PERIOD: u64 = 65_521;
/// Most bytes that are written or compared at once.
const MOST: u64 = 10_000;

/// Returns bytes of a stream that differ from those beside them and from those of other streams.
fn bytes_at(stream: u64, offset: u64, count: usize) -> &'static [u8] {
    &BYTES[((offset + 7_919 * stream) % PERIOD) as usize..][..count]
}

/// An application at one end: writes a stream, and checks the one that it reads.
pub(crate) struct App {
    id: PipeId,
    stream: u64,
    pub(crate) written: u64,
    pub(crate) total: u64,
    peer: u64,
    pub(crate) read: u64,
    pub(crate) most_read: usize,
}

impl App {
    pub(crate) const fn new(id: PipeId, stream: u64, total: u64, peer: u64) -> Self {
        Self { id, stream, written: 0, total, peer, read: 0, most_read: usize::MAX }
    }

    pub(crate) fn work(&mut self, end: usize, pair: &mut Pair) {
        let pipe = pair.pipe(end, self.id);
        loop {
            let bytes = pipe.readable().len().min(self.most_read).min(MOST as usize);
            if bytes == 0 {
                break;
            }
            let expected = bytes_at(self.peer, self.read, bytes);
            assert!(pipe.readable()[..bytes] == *expected, "from {} to {bytes} further", self.read);
            pipe.consume(bytes);
            self.read += bytes as u64;
            if self.most_read != usize::MAX {
                break;
            }
        }
        while self.written < self.total && pipe.room() > 0 {
            let most = (self.total - self.written).min(MOST);
            let bytes = bytes_at(self.stream, self.written, most as usize);
            let (first, second) = bytes.split_at(bytes.len() / 3);
            self.written += pipe.write(&[IoSlice::new(first), IoSlice::new(second)]) as u64;
        }
        assert!(pipe.stats().memory_bytes <= 18 << 20, "memory");
    }
}

/// Runs both applications until each has read all; returns whether they have.
pub(crate) fn exchange(pair: &mut Pair, apps: &mut [App; 2], nanos: u64) -> bool {
    let until = pair.now.plus_nanos(nanos);
    loop {
        apps[0].work(0, pair);
        apps[1].work(1, pair);
        if apps[0].read == apps[1].total && apps[1].read == apps[0].total {
            return true;
        }
        // A slow reader reads again a millisecond later.
        let waits = (0..2).any(|end| !pair.pipe(end, apps[end].id).readable().is_empty());
        let next = if waits { pair.now.plus_nanos(MS).min(until) } else { until };
        if !pair.step(next) && next == until {
            return false;
        }
    }
}

/// A seed of this run, or the one of a failure: `WIRE_SEED=n`.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("WIRE_SEED").ok().and_then(|seed| seed.parse().ok());
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let (first, count) = first.map_or((fresh, count), |first| (first, 1));
    (0..count).map(move |at| first.wrapping_add(at)).inspect(|seed| println!("WIRE_SEED={seed}"))
}
