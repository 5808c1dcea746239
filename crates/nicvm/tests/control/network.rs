//! Units on a network with faults, in virtual time, and the model that checks them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use midplane_nicvm::control::{Control, ControlConfig, Event, SendError};
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

pub(crate) const EXTENSION: ExtensionId = ExtensionId(7);

/// Faults that the network applies to frames; all off by default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) doubling: f64,
    /// Most nanoseconds that a frame is late, at random.
    pub(crate) jitter: u64,
}

type Bytes = (Header, Vec<u8>);

pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) units: Vec<Unit>,
    pub(crate) faults: Faults,
    pub(crate) latency: u64,
    /// Pairs (from, to) between which no frame passes.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Frames to lose: kind and how many of that kind to let pass before.
    pub(crate) lose_next: Option<(Kind, usize)>,
    pub(crate) rng: Rng,
    config: ControlConfig,
    /// By arrival, then order of sending: index into the archive.
    under_way: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    archive: Vec<Bytes>,
    order: u64,
    model: Model,
}

pub(crate) struct Unit {
    pub(crate) control: Control,
    pub(crate) incarnation: Incarnation,
    pub(crate) events: Vec<Event>,
    /// By peer: events of loss seen, and messages sent since the last one.
    epochs: BTreeMap<usize, (u32, u32)>,
    /// By peer: when the present connection, or the attempt at one, began.
    fresh_since: BTreeMap<usize, Instant>,
    born: Instant,
}

/// The contents of a message, from which its delivery is checked.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Message {
    from: usize,
    to: usize,
    incarnation: u32,
    epoch: u32,
    number: u32,
    /// The receiver's incarnation that the sender last knew; 0 for any.
    meant_for: u32,
}

#[derive(Default)]
struct Model {
    delivered: BTreeSet<Message>,
    /// By sender, its incarnation and receiver: the last message delivered.
    last: BTreeMap<(usize, u32, usize), Message>,
    /// By node and incarnation: when that incarnation ended.
    ended: BTreeMap<(usize, u32), Instant>,
}

impl Network {
    pub(crate) fn new(seed: u64, units: usize, config: ControlConfig) -> Self {
        let unit = |node| Unit::new(node, Incarnation(1), config, Instant::ZERO);
        Self {
            now: Instant::ZERO,
            units: (0..units).map(unit).collect(),
            faults: Faults::default(),
            latency: 20_000,
            cut: BTreeSet::new(),
            lose_next: None,
            rng: Rng::new(seed, "network"),
            config,
            under_way: BinaryHeap::new(),
            archive: Vec::new(),
            order: 0,
            model: Model::default(),
        }
    }

    /// Creates a pair that has exchanged one message each way and is quiet.
    #[track_caller]
    pub(crate) fn connected_pair(config: ControlConfig) -> Self {
        let mut pair = Self::new(1, 2, config);
        pair.send(0, 1).unwrap();
        pair.drive_until_quiet();
        pair.send(1, 0).unwrap();
        pair.drive_until_quiet();
        assert_eq!((pair.received(0), pair.received(1)), (1, 1));
        pair
    }

    pub(crate) fn send(&mut self, from: usize, to: usize) -> Result<(), SendError> {
        let unit = &mut self.units[from];
        let peer = NodeId(to as u16);
        let believed = unit.control.peer_incarnation(peer).map_or(0, |incarnation| incarnation.0);
        let (epoch, number) = *unit.epochs.entry(to).or_default();
        let words = [unit.incarnation.0, epoch, number, believed];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        unit.control.send(self.now, peer, EXTENSION, &bytes)?;
        unit.epochs.get_mut(&to).unwrap().1 += 1;
        self.drain(from);
        Ok(())
    }

    /// Crashes a unit, and starts its next incarnation.
    pub(crate) fn restart(&mut self, node: usize) {
        let ended = self.units[node].incarnation;
        self.model.ended.insert((node, ended.0), self.now);
        self.units[node] = Unit::new(node, ended.next(), self.config, self.now);
    }

    pub(crate) fn cut_both(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    /// Delivers once more a random one of all frames that were ever sent.
    pub(crate) fn replay_any(&mut self) {
        self.replay_of_first(self.archive.len());
    }

    /// Delivers once more a random one of the first `count` frames that were ever sent.
    pub(crate) fn replay_of_first(&mut self, count: usize) {
        if count > 0 {
            let index = self.rng.below(count as u64) as usize;
            self.deliver(index);
        }
    }

    /// Advances the time by `time`, with all frames and timers due until then.
    pub(crate) fn drive_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.next_instant().filter(|at| *at <= end) {
            self.step(at);
        }
        self.now = end;
    }

    /// Runs until no unit waits for anything and nothing is under way; returns how long it took.
    #[track_caller]
    pub(crate) fn drive_until_quiet(&mut self) -> Duration {
        let start = self.now;
        while let Some(at) = self.next_instant() {
            assert!(at.since(start) < Duration::from_secs(60), "never quiet");
            self.step(at);
        }
        self.now.since(start)
    }

    pub(crate) fn frames_sent(&self) -> usize {
        self.archive.len()
    }

    pub(crate) fn frames_sent_of(&self, kind: Kind) -> usize {
        self.archive.iter().filter(|(header, _)| header.kind == kind).count()
    }

    /// Counts the messages that the present incarnation of a unit has received.
    pub(crate) fn received(&self, node: usize) -> usize {
        let messages = |event: &&Event| matches!(event, Event::Message { .. });
        self.units[node].events.iter().filter(messages).count()
    }

    /// Returns all events other than messages, in order.
    pub(crate) fn news(&self, node: usize) -> Vec<Event> {
        let messages = |event: &&Event| !matches!(event, Event::Message { .. });
        self.units[node].events.iter().filter(messages).copied().collect()
    }

    fn next_instant(&self) -> Option<Instant> {
        let frame = self.under_way.peek().map(|Reverse((at, ..))| *at);
        let timers = self.units.iter().filter_map(|unit| unit.control.poll_timeout());
        timers.chain(frame).min()
    }

    fn step(&mut self, at: Instant) {
        self.now = self.now.max(at);
        if self.under_way.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Reverse((_, _, index)) = self.under_way.pop().unwrap();
            self.deliver(index);
            return;
        }
        for node in 0..self.units.len() {
            let control = &mut self.units[node].control;
            if control.poll_timeout().is_some_and(|at| at <= self.now) {
                control.handle_timeout(self.now);
                assert!(control.poll_timeout().is_none_or(|at| at > self.now), "timer stuck");
                self.drain(node);
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        let (header, body) = &self.archive[index];
        let node = header.destination.index();
        self.units[node].control.handle_frame(self.now, header, body);
        self.drain(node);
    }

    fn drain(&mut self, node: usize) {
        while let Some(frame) = self.units[node].control.poll_transmit(self.now) {
            let frame = (frame.header, frame.body.to_vec());
            self.put_on_wire(frame);
        }
        while let Some(event) = self.units[node].control.poll_event() {
            self.judge(node, &event);
            self.units[node].events.push(event);
        }
    }

    fn put_on_wire(&mut self, frame: Bytes) {
        let header = frame.0;
        let ends = (header.source.index(), header.destination.index());
        // Every frame survives encoding and parsing.
        let bytes = [&header.emit()[..], &frame.1].concat();
        assert_eq!(Header::parse(&bytes).unwrap(), (header, &frame.1[..]));
        self.archive.push(frame);
        if self.loses(header.kind) || self.cut.contains(&ends) || self.rng.chance(self.faults.loss)
        {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.faults.doubling));
        for _ in 0..copies {
            let late = self.rng.between(0, self.faults.jitter);
            let at = self.now.plus_nanos(self.latency + late);
            self.order += 1;
            self.under_way.push(Reverse((at, self.order, self.archive.len() - 1)));
        }
    }

    fn loses(&mut self, kind: Kind) -> bool {
        match self.lose_next {
            Some((chosen, 0)) if chosen == kind => {
                self.lose_next = None;
                true
            }
            Some((chosen, before)) if chosen == kind => {
                self.lose_next = Some((chosen, before - 1));
                false
            }
            _ => false,
        }
    }

    fn judge(&mut self, node: usize, event: &Event) {
        let unit = &mut self.units[node];
        match *event {
            Event::Message { from, to, body } => {
                let extension = to.extension;
                assert_eq!(extension, EXTENSION);
                let message = Message::read(from.index(), node, &body);
                let present = unit.incarnation.0;
                assert!(
                    message.meant_for == 0 || message.meant_for == present,
                    "for another incarnation"
                );
                let known = unit.control.peer_incarnation(from);
                assert!(
                    known.is_some_and(|incarnation| incarnation.0 >= message.incarnation),
                    "unannounced"
                );
                self.model.on_delivery(message);
            }
            Event::PeerUp { node: peer, incarnation } => {
                let fresh = *unit.fresh_since.get(&peer.index()).unwrap_or(&unit.born);
                let ended = self.model.ended.get(&(peer.index(), incarnation.0));
                assert!(
                    ended.is_none_or(|ended| *ended >= fresh),
                    "a former incarnation passed for alive"
                );
            }
            Event::PeerRestarted { node: peer, .. } | Event::PeerDown { node: peer } => {
                let epoch = unit.epochs.entry(peer.index()).or_default();
                *epoch = (epoch.0 + 1, 0);
                unit.fresh_since.insert(peer.index(), self.now);
            }
            _ => unreachable!("no other events"),
        }
    }
}

impl Unit {
    fn new(node: usize, incarnation: Incarnation, config: ControlConfig, born: Instant) -> Self {
        Self {
            control: Control::new(NodeId(node as u16), incarnation, config),
            incarnation,
            events: Vec::new(),
            epochs: BTreeMap::new(),
            fresh_since: BTreeMap::new(),
            born,
        }
    }
}

impl Message {
    fn read(from: usize, to: usize, body: &[u8]) -> Self {
        let word = |i: usize| u32::from_le_bytes(body[4 * i..][..4].try_into().unwrap());
        assert_eq!(body.len(), 16);
        let (incarnation, epoch, number, meant_for) = (word(0), word(1), word(2), word(3));
        Self { from, to, incarnation, epoch, number, meant_for }
    }
}

impl Model {
    /// Checks that the delivered messages of each epoch are a prefix of the sent ones, and that epochs come in order.
    fn on_delivery(&mut self, message: Message) {
        assert!(self.delivered.insert(message), "delivered twice: {message:?}");
        let last = self.last.insert((message.from, message.incarnation, message.to), message);
        let next = match last {
            Some(last) if last.epoch == message.epoch => last.number + 1,
            Some(last) => {
                assert!(last.epoch < message.epoch, "{message:?} after {last:?}");
                0
            }
            None => 0,
        };
        assert_eq!(message.number, next, "not the next: {message:?} after {last:?}");
    }
}
