//! A shared medium: one cable, one sender at a time, collisions if two begin at once.
//!
//! Carrier sense with collision detection and truncated binary exponential backoff, as in IEEE 802.3, clause
//! 4.2.3. Like the switch, the model takes the time and the pieces to send, and returns what arrives and when.
//! All stations are equally far apart.

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::Framing;
use crate::rng::Rng;
use crate::switch::Piece;
use crate::time::{Instant, LineRate, nanos};

/// The parameters of a shared medium.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MediumProfile {
    /// Rate in bits per second.
    pub rate: LineRate,
    /// Propagation delay of a bit from any station to any other.
    pub propagation: Duration,
    /// Framing of the pieces; the overhead includes preamble and gap.
    pub framing: Framing,
    /// Bits of a slot: the backoff after a collision is a multiple of it.
    pub slot_bits: u32,
    /// Bits before a frame that are sent even if the station detects a collision meanwhile.
    pub preamble_bits: u32,
    /// Bits that a station sends after it has detected a collision, so that all stations detect it.
    pub jam_bits: u32,
    /// Bits of silence between two frames.
    pub gap_bits: u32,
    /// Least bytes of a piece on the cable, including its preamble; shorter pieces are padded.
    pub min_bytes: u32,
    /// Collisions of one piece after which the station drops it.
    pub attempts: u8,
    /// Collisions after which the range of the backoff no longer doubles.
    pub backoff_limit: u8,
}

impl MediumProfile {
    /// Ethernet of 10 Mb/s on one cable.
    ///
    /// Read: slot, jam, gap, least frame, attempts and backoff limit (IEEE 802.3, clause 4.4.2.1).
    /// Derived: 2 us from end to end are some 400 m of cable at 0.77 of light's speed and two
    /// transceivers, a laboratory's network; the standard allows 25.6 us.
    pub const ETHERNET_10: Self = Self {
        rate: LineRate::mbps(10),
        propagation: Duration::from_micros(2),
        framing: Framing::ETHERNET,
        slot_bits: 512,
        preamble_bits: 64,
        jam_bits: 32,
        gap_bits: 96,
        min_bytes: 72,
        attempts: 16,
        backoff_limit: 10,
    };

    fn bits(&self, bits: u64) -> u64 {
        (bits * 1_000_000_000).div_ceil(self.rate.bits_per_second())
    }

    /// Returns the nanoseconds for which a piece occupies the cable, without the gap. `bytes` includes the gap.
    fn duration(&self, bytes: u32) -> u64 {
        let sent = bytes.saturating_sub(self.gap_bits / 8).max(self.min_bytes);
        self.bits(u64::from(sent) * 8)
    }
}

/// The result of sending a piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum Outcome {
    /// The piece passed: its last bit left at `sent`, and reaches every other station at `arrives`.
    Passed {
        /// The sender.
        station: usize,
        /// The piece.
        piece: Piece,
        /// When its last bit left.
        sent: Instant,
        /// When its last bit arrives.
        arrives: Instant,
    },
    /// The piece was dropped: each attempt collided.
    GivenUp {
        /// The sender.
        station: usize,
        /// The piece.
        piece: Piece,
    },
}

/// Counters of a medium.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MediumStats {
    /// Pieces that passed.
    pub passed: u64,
    /// Times that a station stopped sending because of a collision: two or more for each collision.
    pub collisions: u64,
    /// Pieces that were dropped after too many collisions.
    pub given_up: u64,
    /// Nanoseconds for which pieces that passed were on the cable.
    pub busy_ns: u64,
}

/// A shared medium and its stations, numbered from 0.
///
/// After any `&mut self` call, call `Medium::poll` until it returns `None`. `Medium::next_due` then tells
/// when to call it again.
#[derive(Debug)]
pub struct Medium {
    profile: MediumProfile,
    propagation: u64,
    stations: Vec<Station>,
    /// Signals that are on the cable, or were less than a gap ago.
    signals: Vec<Signal>,
    stats: MediumStats,
}

#[derive(Debug)]
struct Station {
    urgent: VecDeque<Waiting>,
    ordinary: VecDeque<Waiting>,
    current: Option<Piece>,
    /// Collisions of the current piece so far.
    collisions: u8,
    turn: Turn,
    rng: Rng,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ready: Instant,
    piece: Piece,
}

/// Idle --piece--> Sensing --silence--> Sending --end--> Idle
///                 Sensing --carrier--> Deferring --its end--> Committed --gap--> Sending
///                 Sending --collision, its end--> Sensing (after the backoff)
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Turn {
    Idle,
    /// Begins to send at this instant unless it detects a carrier.
    Sensing(Instant),
    /// Waits for the end of a carrier.
    Deferring,
    /// Begins to send at this instant, when the gap ends, even if it detects a carrier by then.
    Committed(Instant),
    /// Its own signal ends at this instant.
    Sending {
        ends: Instant,
        collided: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Signal {
    station: usize,
    began: Instant,
    ends: Instant,
}

impl Medium {
    /// Creates a silent medium with `stations` stations.
    ///
    /// # Panics
    /// If a slot is too short for all stations to detect a collision. It must hold the round trip of a signal
    /// and the jam, and the shortest piece must fill it.
    #[must_use]
    #[doc(hidden)]
    pub fn new(profile: MediumProfile, stations: usize, seed: u64, name: &str) -> Self {
        let propagation = nanos(profile.propagation);
        let slot = profile.bits(u64::from(profile.slot_bits));
        assert!(
            2 * propagation + profile.bits(u64::from(profile.jam_bits)) <= slot
                && profile.min_bytes * 8 >= profile.slot_bits,
            "a slot holds the round trip and the jam, and the shortest piece fills it"
        );
        let station = |number| Station {
            urgent: VecDeque::new(),
            ordinary: VecDeque::new(),
            current: None,
            collisions: 0,
            turn: Turn::Idle,
            rng: Rng::new(seed, &format!("{name} station {number}")),
        };
        let stations = (0..stations).map(station).collect();
        let (signals, stats) = (Vec::new(), MediumStats::default());
        Self { profile, propagation, stations, signals, stats }
    }

    /// Queues a piece at a station. The station sends it when its turn comes, and not before `ready`. Urgent
    /// pieces overtake others that have not begun.
    #[doc(hidden)]
    pub fn submit(
        &mut self,
        now: Instant,
        station: usize,
        ready: Instant,
        piece: Piece,
        urgent: bool,
    ) {
        let at = &mut self.stations[station];
        let queue = if urgent { &mut at.urgent } else { &mut at.ordinary };
        queue.push_back(Waiting { ready, piece });
        if at.turn == Turn::Idle {
            self.take_next(station, now);
        }
    }

    /// Returns the next piece that has passed or was dropped by `now`; `None` if there is none.
    #[must_use]
    #[doc(hidden)]
    pub fn poll(&mut self, now: Instant) -> Option<Outcome> {
        while let Some((at, station)) = self.earliest()
            && at <= now
        {
            match self.stations[station].turn {
                Turn::Sensing(_) => self.sense(station, at),
                Turn::Committed(_) => self.begin(station, at),
                Turn::Sending { collided, .. } => {
                    if let Some(outcome) = self.end(station, at, collided) {
                        return Some(outcome);
                    }
                }
                Turn::Idle | Turn::Deferring => unreachable!("nothing is due for it"),
            }
        }
        None
    }

    /// Returns when to call `Medium::poll` again.
    #[must_use]
    #[doc(hidden)]
    pub fn next_due(&self) -> Option<Instant> {
        self.earliest().map(|(at, _)| at)
    }

    /// Returns the medium's counters.
    #[must_use]
    pub const fn stats(&self) -> &MediumStats {
        &self.stats
    }

    /// Returns the number of pieces that a station has yet to send.
    #[must_use]
    #[doc(hidden)]
    pub fn waiting(&self, station: usize) -> usize {
        let at = &self.stations[station];
        at.urgent.len() + at.ordinary.len() + usize::from(at.current.is_some())
    }

    /// Returns the event that is due first: ends before beginnings, then the lower station.
    fn earliest(&self) -> Option<(Instant, usize)> {
        let due = |(number, station): (usize, &Station)| match station.turn {
            Turn::Sending { ends, .. } => Some((ends, 0, number)),
            Turn::Sensing(at) | Turn::Committed(at) => Some((at, 1, number)),
            Turn::Idle | Turn::Deferring => None,
        };
        let (at, _, station) = self.stations.iter().enumerate().filter_map(due).min()?;
        Some((at, station))
    }

    fn take_next(&mut self, station: usize, now: Instant) {
        let at = &mut self.stations[station];
        let next = at.urgent.pop_front().or_else(|| at.ordinary.pop_front());
        at.collisions = 0;
        at.current = next.map(|waiting| waiting.piece);
        at.turn = next.map_or(Turn::Idle, |waiting| Turn::Sensing(now.max(waiting.ready)));
    }

    fn gap(&self) -> u64 {
        self.profile.bits(u64::from(self.profile.gap_bits))
    }

    /// Returns the instant from which a station is free of every signal that reaches it by `known`; `None` if there is
    /// no such signal. Returns [`Instant::FAR_FUTURE`] while one of them is being sent.
    fn silent_since(&self, station: usize, now: Instant, known: Instant) -> Option<Instant> {
        let reach = |signal: &Signal| if signal.station == station { 0 } else { self.propagation };
        let end = |signal: &Signal| match signal.ends {
            ends if ends > now => Instant::FAR_FUTURE,
            ends => ends.plus_nanos(reach(signal)),
        };
        let heard = |signal: &&Signal| signal.began.plus_nanos(reach(signal)) <= known;
        self.signals.iter().filter(heard).map(end).max()
    }

    fn sense(&mut self, station: usize, now: Instant) {
        match self.silent_since(station, now, now) {
            Some(Instant::FAR_FUTURE) => self.stations[station].turn = Turn::Deferring,
            Some(silent) if silent.plus_nanos(self.gap()) > now => {
                self.stations[station].turn = Turn::Committed(silent.plus_nanos(self.gap()));
            }
            _ => self.begin(station, now),
        }
    }

    fn begin(&mut self, station: usize, now: Instant) {
        let forgotten = self.propagation + self.gap();
        self.signals.retain(|signal| signal.ends.plus_nanos(forgotten) > now);
        let piece = self.stations[station].current.expect("a station begins with its piece");
        let ends = now.plus_nanos(self.profile.duration(piece.bytes));
        self.stations[station].turn = Turn::Sending { ends, collided: false };
        let mine = self.signals.len();
        self.signals.push(Signal { station, began: now, ends });
        for other in 0..mine {
            let met = self.signals[other];
            if met.station == station || met.ends.plus_nanos(self.propagation) <= now {
                continue;
            }
            self.collide(mine, now.max(met.began.plus_nanos(self.propagation)));
            self.collide(other, now.plus_nanos(self.propagation));
        }
    }

    /// Marks a signal as collided if its sender still sends at `heard`, when another signal reaches it.
    fn collide(&mut self, signal: usize, heard: Instant) {
        let signal = &mut self.signals[signal];
        if signal.ends <= heard {
            return;
        }
        let profile = &self.profile;
        let preamble = signal.began.plus_nanos(profile.bits(u64::from(profile.preamble_bits)));
        let jam = profile.bits(u64::from(profile.jam_bits));
        signal.ends = signal.ends.min(heard.max(preamble).plus_nanos(jam));
        self.stations[signal.station].turn = Turn::Sending { ends: signal.ends, collided: true };
    }

    fn end(&mut self, station: usize, now: Instant, collided: bool) -> Option<Outcome> {
        let piece = self.stations[station].current.expect("a station sends its piece");
        let outcome = if collided {
            self.stats.collisions += 1;
            self.back_off(station, now).then(|| {
                self.stats.given_up += 1;
                Outcome::GivenUp { station, piece }
            })
        } else {
            self.stats.passed += 1;
            self.stats.busy_ns += self.profile.duration(piece.bytes);
            let arrives = now.plus_nanos(self.propagation);
            Some(Outcome::Passed { station, piece, sent: now, arrives })
        };
        if outcome.is_some() {
            self.take_next(station, now);
        }
        self.wake_deferring(now);
        outcome
    }

    /// Schedules the next attempt; returns `true` if there is none left.
    fn back_off(&mut self, station: usize, now: Instant) -> bool {
        let profile = &self.profile;
        let slot = profile.bits(u64::from(profile.slot_bits));
        let at = &mut self.stations[station];
        at.collisions += 1;
        if at.collisions >= profile.attempts {
            return true;
        }
        let range = 1_u64 << at.collisions.min(profile.backoff_limit);
        at.turn = Turn::Sensing(now.plus_nanos(at.rng.below(range) * slot));
        false
    }

    /// Handles the end of a signal. Each deferring station begins a gap after the end has reached it, unless it
    /// detects another signal.
    fn wake_deferring(&mut self, now: Instant) {
        for station in 0..self.stations.len() {
            if self.stations[station].turn == Turn::Deferring {
                let silent = self.silent_since(station, now, Instant::FAR_FUTURE).unwrap_or(now);
                if silent < Instant::FAR_FUTURE {
                    self.stations[station].turn = Turn::Committed(silent.plus_nanos(self.gap()));
                }
            }
        }
    }
}
