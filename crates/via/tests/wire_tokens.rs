//! Many senders to one endpoint through a port with a small buffer, in virtual time.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::SocketAddr;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use midplane_via::wire::endpoint::{Endpoint, Event, PipeId};
use midplane_via::wire::pipe::Config;

use crate::wire_pair::{App, MS, Pair, Path, SECOND, seeds};

const BUFFER: u64 = 64 << 10;
/// Nanoseconds that a byte takes at the port: 100 Mb/s.
const BYTE_NANOS: u64 = 80;
/// Bytes of the longest datagram, and of the headers before each.
const MTU: usize = 1_472;
const HEADERS: u64 = 28 + 18;

/// A place on the way of a datagram of one sender.
#[derive(Clone, Copy, Debug)]
enum Place {
    Port,
    Receiver,
    Sender,
}

struct Star {
    now: Instant,
    receiver: Endpoint,
    senders: Vec<Sender>,
    flying: BTreeMap<(Instant, u64), (Place, usize, Vec<u8>)>,
    number: u64,
    port_free_at: Instant,
    dropped: u64,
    /// The connections at the receiver, and the bytes that were read.
    accepted: BTreeMap<PipeId, usize>,
    /// Bytes received from each sender when the first one was done, and that time.
    at_first: Option<(Instant, Vec<u64>)>,
}

struct Sender {
    end: Endpoint,
    id: PipeId,
    delay: u64,
    left: u64,
    received: u64,
    is_earlier: bool,
    is_dead: bool,
}

fn address(of: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + of as u8], 7))
}

impl Star {
    /// Makes `senders` senders of `total` bytes each.
    fn new(seed: u64, senders: usize, total: u64, receiver: Config) -> Self {
        let mut rng = Rng::new(seed, "star");
        let now = Instant::from_nanos(1);
        let sender = |at| {
            let mut end = Endpoint::new(Config::default(), seed ^ (at + 1));
            let id = end.dial(now, address(0));
            let delay = 20_000 + rng.below(MS / 4);
            Sender { end, id, delay, left: total, received: 0, is_earlier: false, is_dead: false }
        };
        Self {
            now,
            receiver: Endpoint::new(receiver, seed),
            senders: (0..senders as u64).map(sender).collect(),
            flying: BTreeMap::new(),
            number: 0,
            port_free_at: now,
            dropped: 0,
            accepted: BTreeMap::new(),
            at_first: None,
        }
    }

    fn fly(&mut self, at: Instant, place: Place, sender: usize, datagram: Vec<u8>) {
        self.number += 1;
        self.flying.insert((at, self.number), (place, sender, datagram));
    }

    fn drain_sender(&mut self, at: usize) {
        let sender = &mut self.senders[at];
        if sender.is_dead {
            return;
        }
        while sender.end.poll_event().is_some() {}
        let pipe = sender.end.pipe(sender.id).expect("not released");
        assert_eq!(pipe.ended(), None);
        let bytes = vec![at as u8; sender.left.min(pipe.room() as u64) as usize];
        sender.left -= pipe.write(&[IoSlice::new(&bytes)]) as u64;
        let (mut out, mut all) = (Vec::new(), Vec::new());
        while let Some(outgoing) = sender.end.poll_transmit(self.now, &mut out, 32) {
            all.extend(out.chunks(outgoing.transmit.segment_bytes).map(<[u8]>::to_vec));
            out.clear();
        }
        let arrives = self.now.plus_nanos(sender.delay);
        for mut datagram in all.into_iter().filter(|datagram| datagram.len() <= MTU) {
            if self.senders[at].is_earlier && datagram[0] == 1 {
                datagram[4..8].fill(0);
            }
            self.fly(arrives, Place::Port, at, datagram);
        }
    }

    fn drain_receiver(&mut self) {
        while let Some(event) = self.receiver.poll_event() {
            match event {
                Event::Accepted(id, from) => {
                    let sender = (0..self.senders.len()).find(|at| address(at + 1) == from);
                    self.accepted.insert(id, sender.expect("a sender"));
                    self.read(id);
                }
                Event::Progress(id) => self.read(id),
                Event::Established(_) | Event::Ended(..) => {}
            }
        }
        let (mut out, mut all) = (Vec::new(), Vec::new());
        while let Some(outgoing) = self.receiver.poll_transmit(self.now, &mut out, 32) {
            let to = (0..self.senders.len()).find(|at| address(at + 1) == outgoing.to);
            let to = to.expect("a sender");
            all.extend(
                out.chunks(outgoing.transmit.segment_bytes).map(|bytes| (to, bytes.to_vec())),
            );
            out.clear();
        }
        for (to, mut datagram) in all {
            if self.senders[to].is_earlier && datagram[0] == 3 {
                datagram[4..8].fill(0);
            }
            let arrives = self.now.plus_nanos(self.senders[to].delay);
            self.fly(arrives, Place::Sender, to, datagram);
        }
    }

    fn read(&mut self, id: PipeId) {
        let (Some(pipe), Some(&at)) = (self.receiver.pipe(id), self.accepted.get(&id)) else {
            return;
        };
        while !pipe.readable().is_empty() {
            assert!(pipe.readable().iter().all(|byte| *byte == at as u8));
            let bytes = pipe.readable().len();
            pipe.consume(bytes);
            self.senders[at].received += bytes as u64;
        }
    }

    fn step(&mut self) {
        let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
        let living = self.senders.iter().filter(|sender| !sender.is_dead);
        let timeouts = living.filter_map(|sender| sender.end.poll_timeout());
        let at = timeouts.chain(self.receiver.poll_timeout()).chain(arrival).min();
        self.now = self.now.max(at.expect("something happens"));
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let (place, at, mut datagram) = entry.remove();
            match place {
                Place::Port => {
                    let begin = self.port_free_at.max(self.now);
                    let bytes = datagram.len() as u64 + HEADERS;
                    if begin.nanos_since(self.now) / BYTE_NANOS + bytes > BUFFER {
                        self.dropped += 1;
                        continue;
                    }
                    self.port_free_at = begin.plus_nanos(bytes * BYTE_NANOS);
                    self.fly(self.port_free_at, Place::Receiver, at, datagram);
                }
                Place::Receiver => {
                    self.receiver.handle_datagram(self.now, address(at + 1), &mut datagram);
                    self.drain_receiver();
                }
                Place::Sender => {
                    self.senders[at].end.handle_datagram(self.now, address(0), &mut datagram);
                    self.drain_sender(at);
                }
            }
        }
        for at in 0..self.senders.len() {
            if self.senders[at].end.poll_timeout().is_some_and(|timeout| timeout <= self.now) {
                self.senders[at].end.handle_timeout(self.now);
                self.drain_sender(at);
            }
        }
        if self.receiver.poll_timeout().is_some_and(|timeout| timeout <= self.now) {
            self.receiver.handle_timeout(self.now);
            self.drain_receiver();
        }
    }

    /// Runs until each sender that is not dead has sent all; returns the nanoseconds that it took.
    fn run(&mut self, total: u64, mut change: impl FnMut(&mut Self)) -> u64 {
        for at in 0..self.senders.len() {
            self.drain_sender(at);
        }
        let is_done = |sender: &Sender| sender.received == total;
        while !self.senders.iter().all(|sender| sender.is_dead || is_done(sender)) {
            change(self);
            self.step();
            assert!(self.now.as_nanos() < 60 * SECOND, "it takes a minute");
            if self.at_first.is_none() && self.senders.iter().any(is_done) {
                let received = self.senders.iter().map(|sender| sender.received).collect();
                self.at_first = Some((self.now, received));
            }
        }
        self.now.as_nanos()
    }

    /// Returns the bytes that the senders have sent again.
    fn sent_again(&self) -> u64 {
        let pipes = self.senders.iter().filter_map(|sender| sender.end.peek(sender.id));
        pipes.map(|pipe| pipe.stats().bytes_retransmitted).sum()
    }
}

fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Returns the nanoseconds that so many bytes take at the port, headers included.
const fn at_the_port(bytes: u64) -> u64 {
    bytes / 1_400 * (MTU as u64 + HEADERS) * BYTE_NANOS
}

#[test]
fn any_number_of_senders_shares_a_narrow_port_and_loses_nothing() {
    // At 6948257879001797919 a sender of three was 5 tokens ahead, which was too much of 24.
    for seed in seeds(6).chain([6_948_257_879_001_797_919]) {
        let senders = 2 + Rng::new(seed, "senders").below(31) as usize;
        // 120 tokens each: connections over longer paths begin some tokens later, and tokens are in flight at the end.
        let total = 1_000_000;
        let mut star = Star::new(seed, senders, total, Config::default().receive_tokens(BUFFER));
        star.run(total, |_| ());
        assert_eq!((star.dropped, star.sent_again()), (0, 0), "{senders} senders");
        let (at, received) = star.at_first.as_ref().expect("one is done");
        let fairness = jain(received);
        assert!(fairness >= 0.99, "{fairness} of {senders}: {received:?}");
        let least = at_the_port(received.iter().sum());
        // The connections are made first.
        let took = at.as_nanos() - 5 * MS;
        assert!(least as f64 / took as f64 > 0.9, "{least} ns of {took}: {senders} senders");
    }
}

#[test]
fn without_tokens_they_overflow_it() {
    let mut star = Star::new(1, 12, 200_000, Config::default());
    star.run(200_000, |_| ());
    assert!(star.dropped > 100, "{}", star.dropped);
}

#[test]
fn dead_holders_delay_others_by_one_lease_at_most() {
    for seed in seeds(6) {
        let mut rng = Rng::new(seed, "deaths");
        let (senders, total) = (3 + rng.below(10) as usize, 200_000);
        let whole = at_the_port(total * senders as u64);
        let mut deaths: Vec<u64> = (0..senders - 1).map(|_| rng.below(2 * whole)).collect();
        let mut star = Star::new(seed, senders, total, Config::default().receive_tokens(BUFFER));
        let took = star.run(total, |star| {
            for (death, sender) in deaths.iter_mut().zip(&mut star.senders) {
                sender.is_dead |= *death <= star.now.as_nanos();
            }
        });
        // Each sender may die with tokens, one after the other.
        let most = 2 * whole + 250 * MS * senders as u64;
        assert!(took < most, "{took} ns");
        assert_eq!(star.dropped, 0);
    }
}

#[test]
fn senders_of_an_earlier_version_are_served_with_others() {
    for seed in seeds(3) {
        let mut star = Star::new(seed, 6, 600_000, Config::default().receive_tokens(BUFFER));
        for sender in &mut star.senders[..3] {
            sender.is_earlier = true;
        }
        star.run(600_000, |_| ());
        let counters = star.receiver.token_counters().expect("it grants tokens");
        assert!(counters.granted > 0 && counters.waiting <= 6, "{counters:?}");
    }
}

#[test]
fn lost_tokens_and_requests_are_sent_again() {
    for seed in seeds(4) {
        let config = || Config::default().receive_tokens(16 << 10);
        let path = Path { loss: 0.1, ..Path::clean(MS) };
        let mut pair = Pair::new(seed, path, config);
        let (dialed, accepted) = pair.connect();
        let mut apps = [App::new(dialed, 1, 150_000, 2), App::new(accepted, 2, 150_000, 1)];
        assert!(crate::wire_pair::exchange(&mut pair, &mut apps, 60 * SECOND), "both read all");
    }
}

#[test]
fn a_lost_update_of_the_window_is_sent_again_long_before_a_keepalive() {
    let mut pair = Pair::new(1, Path::clean(MS), Config::default);
    let (dialed, accepted) = pair.connect();
    let mut sender = App::new(dialed, 1, 300_000, 2);
    sender.work(0, &mut pair);
    pair.run(SECOND);
    // The window is full. The update that follows the read is lost.
    let mut reader = App::new(accepted, 2, 0, 1);
    reader.work(1, &mut pair);
    pair.is_cut = true;
    pair.run(2 * MS);
    pair.is_cut = false;
    let begin = pair.now;
    pair.run_until(9 * SECOND, |pair| {
        sender.work(0, pair);
        reader.work(1, pair);
        (reader.read == 300_000).then_some(())
    });
    assert_eq!(reader.read, 300_000);
    assert!(pair.now.nanos_since(begin) < SECOND, "{} ns", pair.now.nanos_since(begin));
}
