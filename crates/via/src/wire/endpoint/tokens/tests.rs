//! Senders, a port with a small buffer and a receiver, in virtual time, and the invariants of any run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Bytes of the pipe in a packet, and of its headers.
const PAYLOAD: u64 = 1_400;
const HEADERS: u64 = 110;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    seed: u64,
    senders: usize,
    buffer: u64,
    /// Nanoseconds that a byte takes at the port.
    byte_nanos: u64,
    /// Bytes that each sender sends.
    total: u64,
    /// Most nanoseconds that a sender pauses between two messages; if 0, it has all its messages from the start.
    pause: u64,
    deaths: bool,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A packet reaches the port: its sender, its bytes, and the offset that it requests.
    Port(usize, u64, u64),
    /// A packet reaches the receiver.
    Arrival(usize, u64, u64),
    /// A limit reaches a sender: it may send up to this offset.
    Limit(usize, u64),
    /// A sender gets its next message.
    Message(usize),
    Death(usize),
}

#[derive(Clone, Debug, Default)]
struct Sender {
    delay: u64,
    written: u64,
    sent: u64,
    limit: u64,
    /// The last limit that was sent to it.
    sent_limit: u64,
    requested: u64,
    received: u64,
    /// The time when it last received a token, or got its last message.
    served_at: u64,
    is_dead: bool,
}

struct Run {
    setting: Setting,
    rng: Rng,
    tokens: Tokens,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    now: u64,
    port_free_at: u64,
    /// Bytes received from each sender when the first one was done.
    at_first: Option<(u64, Vec<u64>)>,
    longest_wait: u64,
}

impl Run {
    fn new(setting: Setting) -> Self {
        let mut rng = Rng::new(setting.seed, "incast");
        let mut this = Self {
            setting,
            tokens: Tokens::new(setting.buffer),
            senders: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            now: 1,
            port_free_at: 0,
            at_first: None,
            longest_wait: 0,
            rng: Rng::new(setting.seed, "messages"),
        };
        // In the longest round trip, the port forwards a quarter of the bytes that tokens allow in flight.
        let most_trip = this.tokens.bound * setting.byte_nanos / 4;
        for slot in 0..setting.senders {
            let limit = this.tokens.draw_allowance();
            this.tokens.add(slot as u32, limit);
            let delay = rng.below(most_trip / 2 + 1);
            this.senders.push(Sender { delay, limit, sent_limit: limit, ..Sender::default() });
            this.at(rng.below(most_trip / 4), Event::Message(slot));
            if setting.deaths && rng.chance(0.3) && slot > 0 {
                let span = setting.total * setting.senders as u64 * setting.byte_nanos;
                this.at(rng.below(span), Event::Death(slot));
            }
        }
        this
    }

    fn at(&mut self, after: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + after, self.number, event)));
    }

    /// Sends as much as a sender may, and requests more.
    fn send(&mut self, slot: usize) {
        loop {
            let sender = &mut self.senders[slot];
            if sender.is_dead {
                return;
            }
            let bytes = sender.written.min(sender.limit).saturating_sub(sender.sent).min(PAYLOAD);
            let is_blocked = sender.written > sender.limit && sender.requested <= sender.limit;
            if bytes == 0 && !is_blocked {
                return;
            }
            sender.sent += bytes;
            sender.requested = sender.written;
            let (delay, wanted) = (sender.delay, sender.written);
            self.at(delay, Event::Port(slot, bytes, wanted));
        }
    }

    fn on_port(&mut self, slot: usize, bytes: u64, wanted: u64) {
        let begin = self.port_free_at.max(self.now);
        let queued = (begin - self.now) / self.setting.byte_nanos + bytes + HEADERS;
        assert!(queued <= self.setting.buffer, "{queued} bytes at the port: {:?}", self.setting);
        self.port_free_at = begin + (bytes + HEADERS) * self.setting.byte_nanos;
        self.at(self.port_free_at - self.now, Event::Arrival(slot, bytes, wanted));
    }

    fn on_arrival(&mut self, slot: usize, bytes: u64, wanted: u64) {
        let setting = self.setting;
        let sender = &mut self.senders[slot];
        sender.received += bytes;
        let received = sender.received;
        if received == setting.total && self.at_first.is_none() {
            let all = self.senders.iter().map(|sender| sender.received).collect();
            self.at_first = Some((self.now, all));
        } else if received == wanted && received < setting.total {
            let pause = self.rng.below(setting.pause + 1);
            self.at(pause, Event::Message(slot));
        }
        let flow = Flow { received, wanted: Some(wanted), most: u64::MAX };
        let limit = self.tokens.observe(Instant::from_nanos(self.now), slot as u32, flow);
        if wanted > self.senders[slot].sent_limit {
            self.send_limit(slot, limit);
        }
        self.grant();
    }

    fn grant(&mut self) {
        while let Some((slot, limit)) = self.tokens.poll_grant(Instant::from_nanos(self.now)) {
            self.send_limit(slot as usize, limit);
        }
        self.check();
    }

    fn send_limit(&mut self, slot: usize, limit: u64) {
        let sender = &mut self.senders[slot];
        if limit > sender.sent_limit {
            sender.sent_limit = limit;
            let delay = sender.delay;
            self.at(delay, Event::Limit(slot, limit));
        }
    }

    /// Checks that the bytes in flight are within the bound, and equal the sum of the shares.
    fn check(&self) {
        let tokens = &self.tokens;
        let shares = tokens.shares.iter().flatten();
        assert_eq!(tokens.in_flight, shares.map(|share| share.in_flight).sum::<u64>());
        assert!(tokens.in_flight <= tokens.bound, "{:?}", self.setting);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Port(slot, bytes, wanted) => self.on_port(slot, bytes, wanted),
            Event::Arrival(slot, bytes, wanted) => self.on_arrival(slot, bytes, wanted),
            Event::Limit(slot, limit) => {
                let sender = &mut self.senders[slot];
                let waited = self.now - sender.served_at;
                (sender.limit, sender.served_at) = (limit, self.now);
                if !sender.is_dead {
                    self.longest_wait = self.longest_wait.max(waited);
                }
                self.send(slot);
            }
            Event::Message(slot) => {
                let random = 1 + self.rng.below(64 << 10);
                let length = if self.setting.pause > 0 { random } else { self.setting.total };
                let sender = &mut self.senders[slot];
                sender.written = (sender.written + length).min(self.setting.total);
                sender.served_at = self.now;
                self.send(slot);
            }
            Event::Death(slot) => self.senders[slot].is_dead = true,
        }
    }

    /// Runs until no events are left.
    fn run(mut self) -> Self {
        loop {
            let alarm = self.tokens.poll_timeout().map(Instant::as_nanos);
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            match (event, alarm) {
                (None, None) => break,
                (Some(at), alarm) if alarm.is_none_or(|alarm| at <= alarm) => {
                    let Some(Reverse((at, _, event))) = self.events.pop() else { break };
                    self.now = at;
                    self.step(event);
                }
                (_, Some(alarm)) => {
                    self.now = alarm;
                    self.tokens.handle_timeout(Instant::from_nanos(alarm));
                    self.grant();
                }
                (Some(_), None) => unreachable!("an event without an alarm is taken above"),
            }
        }
        for sender in self.senders.iter().filter(|sender| !sender.is_dead) {
            assert_eq!(sender.received, self.setting.total, "{:?}", self.setting);
        }
        assert_eq!(self.tokens.waiting.len(), 0);
        self
    }

    /// Returns the bytes per second until the first sender was done.
    fn goodput(&self) -> f64 {
        let (at, received) = self.at_first.as_ref().expect("one is done");
        received.iter().sum::<u64>() as f64 / *at as f64 * 1e9
    }
}

/// Returns Jain's index of fairness.
fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}

fn drawn(seed: u64) -> Setting {
    let mut rng = Rng::new(seed, "setting");
    let buffer = 1024 * (24 + rng.below(105));
    let quantum = Tokens::new(buffer).quantum;
    Setting {
        seed,
        senders: 2 + rng.below(31) as usize,
        buffer,
        byte_nanos: [1, 8, 80][rng.below(3) as usize],
        total: 160 * quantum,
        pause: 0,
        deaths: false,
    }
}

/// Returns `count` new seeds, or the one of a failure: `WIRE_SEED=n`.
fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let given = std::env::var("WIRE_SEED").ok().and_then(|seed| seed.parse().ok());
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let (first, count) = given.map_or((fresh, count), |seed| (seed, 1));
    (0..count).map(move |at| first.wrapping_add(at))
}

#[test]
fn equal_senders_have_equal_shares_of_a_port_that_neither_overflows_nor_idles() {
    for seed in seeds(500) {
        let setting = drawn(seed);
        let run = Run::new(setting).run();
        let (_, received) = run.at_first.as_ref().unwrap();
        let fairness = jain(received);
        assert!(fairness >= 0.99, "Jain's index is {fairness}: {setting:?}");
        let alone = Run::new(Setting { senders: 1, ..setting }).run();
        let share = run.goodput() / alone.goodput();
        assert!(share >= 0.95, "{share} of one sender's: {setting:?}");
        let line = 1e9 / setting.byte_nanos as f64 * PAYLOAD as f64 / (PAYLOAD + HEADERS) as f64;
        let share = run.goodput() / line;
        assert!(share >= 0.9, "{share} of the port's rate: {setting:?}");
    }
}

#[test]
fn a_failed_sender_delays_others_by_one_lease_of_one_token_and_every_byte_arrives() {
    for seed in seeds(500) {
        let mut setting = Setting { deaths: true, ..drawn(seed) };
        setting.pause = 1 + Rng::new(seed, "pause").below(2 * MS);
        let run = Run::new(setting).run();
        // Each of the others may have one turn, and the packets at the port are ahead.
        let turns =
            (run.tokens.quantum * setting.senders as u64 + setting.buffer) * setting.byte_nanos;
        // Each sender that dies withholds a token from the others for one lease.
        let deaths = run.senders.iter().filter(|sender| sender.is_dead).count() as u64;
        let most = LEASE * (1 + deaths.div_ceil(TOKENS)) + 2 * turns;
        assert!(run.longest_wait <= most, "waited {} ns: {setting:?}", run.longest_wait);
        assert!(run.now < 3_600 * SECOND);
    }
}
