//! Two ends of a session in one thread: random programs against a model, and peers that break the protocol.

mod bounds;
pub(super) mod drivers;
mod own;

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::Key;
use midplane_simhw::shm::rings::RingPair;
use midplane_simhw::time::Instant;
use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::byte_pipe::Pipes;
use super::core::{Core, Direct, Ended, Event};
use super::line::Line;
use super::piped::Piped;
use super::wire::{Dialing, Wire};
use crate::wire::buffer::Buffer;
use crate::wire::endpoint::{Endpoint, Event as PipeEvent, PipeId};
use crate::wire::pipe::Config;
use crate::wire::socket::Clock;

/// Bytes of the rings: few frames fill one.
const RING: usize = 16 * 1024;

pub(super) fn pair() -> [Core; 2] {
    let [one, other] = RingPair::local(RING).unwrap();
    [Core::new(Wire::ring(one), true), Core::new(Wire::ring(other), false)]
}

#[derive(Clone, Debug)]
enum Op {
    Open { end: usize },
    Write { end: usize, stream: usize, length: usize },
    Read { end: usize, stream: usize, length: usize },
    Finish { end: usize, stream: usize },
    Drop { end: usize, stream: usize },
    Turn { end: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = || (0_usize..2, 0_usize..6);
    let op = prop_oneof![
        1 => (0_usize..2).prop_map(|end| Op::Open { end }),
        6 => (place(), 1_usize..40_000)
            .prop_map(|((end, stream), length)| Op::Write { end, stream, length }),
        6 => (place(), 1_usize..40_000)
            .prop_map(|((end, stream), length)| Op::Read { end, stream, length }),
        1 => place().prop_map(|(end, stream)| Op::Finish { end, stream }),
        1 => place().prop_map(|(end, stream)| Op::Drop { end, stream }),
        6 => (0_usize..2).prop_map(|end| Op::Turn { end }),
    ];
    proptest::collection::vec(op, 1..250)
}

/// Returns the byte at an offset of a direction, so that loss, duplication and reordering are detected.
fn byte(end: usize, stream: u32, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 9) ^ (u64::from(stream) * 7) ^ end as u64) as u8
}

/// The model's state for one end of a stream.
#[derive(Debug, Default)]
struct Known {
    written: u64,
    read: u64,
    is_finished: bool,
    has_ended: bool,
    is_dropped: bool,
}

/// Two endpoints over UDP, in virtual time, and the network between them, which loses about one datagram in `loses`.
/// By the seed, datagrams are short or as long as the network carries, and sealed or not.
struct Network {
    pipes: [Arc<Pipes>; 2],
    now: Instant,
    rng: Rng,
    loses: u64,
}

impl Network {
    fn new(loses: u64, seed: u64) -> (Self, [Core; 2]) {
        let mtu = if seed.is_multiple_of(2) { 1_200 } else { 65_000 };
        let key = seed.is_multiple_of(3).then(|| Key::new(1, [7; 32]));
        let config = Config::default().mtu_limit(mtu).key(key);
        let pipes =
            [1, 2].map(|seed| Pipes::new(Endpoint::new(config.clone(), seed), Clock::start()));
        let mut network = Self {
            pipes,
            now: Instant::from_nanos(1),
            rng: Rng::new(seed, "network"),
            loses: u64::MAX,
        };
        let dialed = network.pipes[0].endpoint().dial(network.now, ADDRESSES[1]);
        let mut ids = [Some(dialed), None];
        for _ in 0..100 {
            network.step(&mut ids);
        }
        network.loses = loses;
        let [one, other] = ids.map(|id| id.expect("a network without loss connects them"));
        let wire = |end: usize, id| Wire::Piped(Piped::new(Arc::clone(&network.pipes[end]), id));
        let ends = [Core::new(wire(0, one), true), Core::new(wire(1, other), false)];
        (network, ends)
    }

    /// Advances by a millisecond; everything sent arrives, each train of datagrams in one buffer.
    fn step(&mut self, ids: &mut [Option<PipeId>; 2]) {
        self.now = self.now.plus_nanos(1_000_000);
        for from in [0, 1, 0, 1] {
            let mut sender = self.pipes[from].endpoint();
            let mut receiver = self.pipes[1 - from].endpoint();
            sender.handle_timeout(self.now);
            let (mut train, mut buffer) = (Vec::new(), Buffer::new(1 << 16));
            while let Some(outgoing) = sender.poll_transmit(self.now, &mut train, 44) {
                let (stride, mut length) = (outgoing.transmit.segment_bytes, 0);
                for datagram in train.chunks(stride) {
                    if !self.rng.next_u64().is_multiple_of(self.loses) {
                        buffer[length..length + datagram.len()].copy_from_slice(datagram);
                        length += datagram.len();
                    }
                }
                let from = ADDRESSES[from];
                receiver.handle_buffer(self.now, from, &mut buffer, length, stride);
                train.clear();
            }
            while let Some(event) = receiver.poll_event() {
                if let PipeEvent::Accepted(id, _) = event {
                    ids[1 - from] = Some(id);
                }
                if let PipeEvent::Progress(id) = event {
                    let _ = receiver.pipe(id);
                }
            }
        }
    }
}

const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2),
];

/// Takes the bytes that a session over TCP has written.
pub(super) fn take_outgoing(line: &Line) -> Vec<u8> {
    let (mut buffers, mut taken) = (line.buffers(), Vec::new());
    while let readable @ [_, ..] = buffers.outgoing.readable() {
        let count = readable.len();
        taken.extend_from_slice(readable);
        buffers.has_sent(count);
    }
    taken
}

/// Two ends over TCP. The system accepts and delivers bytes in arbitrary pieces.
struct Lines {
    lines: [Arc<Line>; 2],
    /// Bytes in transit from each end.
    sent: [Vec<u8>; 2],
    rng: Rng,
}

impl Lines {
    fn new(seed: u64) -> (Self, [Core; 2]) {
        let lines: [Arc<Line>; 2] = Default::default();
        let core = |end: usize| {
            Core::new(Wire::Piped(Piped::over_line(Arc::clone(&lines[end]))), end == 0)
        };
        let ends = [core(0), core(1)];
        (Self { lines, sent: Default::default(), rng: Rng::new(seed, "lines") }, ends)
    }

    /// Moves some of the bytes that each end has written, if the other end accepts more.
    fn step(&mut self) {
        for from in [0, 1] {
            let sent = &mut self.sent[from];
            sent.extend(take_outgoing(&self.lines[from]));
            let mut receiver = self.lines[1 - from].buffers();
            if receiver.wants_more() {
                let most = sent.len().min(64 * 1024) as u64;
                let count = self.rng.between(0, most) as usize;
                receiver.incoming.write(&sent[..count]);
                sent.drain(..count);
            }
        }
    }
}

struct World {
    ends: [Core; 2],
    network: Option<Network>,
    lines: Option<Lines>,
    streams: Vec<u32>,
    known: BTreeMap<(usize, u32), Known>,
}

impl World {
    fn over_rings() -> Self {
        Self::new(None, pair())
    }

    fn over_pipes(loses: u64, seed: u64) -> Self {
        let (network, ends) = Network::new(loses, seed);
        Self::new(Some(network), ends)
    }

    fn over_lines(seed: u64) -> Self {
        let (lines, ends) = Lines::new(seed);
        Self { lines: Some(lines), ..Self::new(None, ends) }
    }

    fn new(network: Option<Network>, ends: [Core; 2]) -> Self {
        Self { ends, network, lines: None, streams: Vec::new(), known: BTreeMap::new() }
    }

    fn turn(&mut self, end: usize) {
        let core = &mut self.ends[end];
        // Acts as the driver does, but without the time for which that leaves a frame to its reader.
        if !core.wake_reader() && !core.pump(None) {
            core.stop_leaving_frames();
            core.pump(None);
        }
        core.wake_writers();
        core.flush();
        if let Some(network) = &mut self.network {
            network.step(&mut [None; 2]);
        }
        if let Some(lines) = &mut self.lines {
            lines.step();
        }
        core.wakers.clear();
        for event in core.events.drain(..).collect::<Vec<_>>() {
            match event {
                Event::Opened { stream, service } => {
                    assert_eq!(service, "service");
                    self.ends[end].accept(stream);
                    self.known.insert((end, stream), Known::default());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.ends[end].ended, None);
    }

    fn known(&mut self, end: usize, stream: usize) -> Option<(u32, &mut Known)> {
        let number = *self.streams.get(stream % self.streams.len().max(1))?;
        let known = self.known.get_mut(&(end, number)).filter(|known| !known.is_dropped);
        Some((number, known?))
    }

    fn write(&mut self, end: usize, stream: usize, length: usize) {
        let Some((number, known)) = self.known(end, stream) else { return };
        if known.is_finished {
            return;
        }
        let at = known.written;
        let bytes: Vec<u8> = (at..at + length as u64).map(|at| byte(end, number, at)).collect();
        let (head, rest) = bytes.split_at(bytes.len() / 3);
        let parts = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(rest)];
        let written = self.ends[end].write(number, &parts, Waker::noop());
        self.known.get_mut(&(end, number)).unwrap().written += written as u64;
    }

    /// Reads as [`Stream`](super::Stream) does; returns whether there were bytes, or the end.
    fn read(&mut self, end: usize, stream: usize, length: usize) -> bool {
        let Some((number, _)) = self.known(end, stream) else { return false };
        let mut bytes = vec![0; length];
        let mut into = ReadBuf::new(&mut bytes);
        let core = &mut self.ends[end];
        if !super::stream::copy_held(core, number, &mut into) {
            core.pump(Some(Direct { stream: number, into: &mut into }));
            if into.filled().is_empty() && !super::stream::copy_held(core, number, &mut into) {
                core.await_bytes(number, Waker::noop());
            }
        }
        let is_finished = core
            .flow(number)
            .is_none_or(|flow| flow.receive.is_finished && flow.receive.held.is_empty());
        let other = self.known.get(&(1 - end, number)).map_or(0, |known| known.written);
        let known = self.known.get_mut(&(end, number)).unwrap();
        for one in into.filled() {
            assert_eq!(*one, byte(1 - end, number, known.read), "byte {} of {number}", known.read);
            known.read += 1;
        }
        assert!(known.read <= other, "no byte that was not written");
        if is_finished && into.filled().is_empty() {
            known.has_ended = true;
        }
        !into.filled().is_empty() || is_finished
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Open { end } => {
                if self.streams.len() < 6
                    && let Some(number) = self.ends[end].open("service")
                {
                    self.streams.push(number);
                    self.known.insert((end, number), Known::default());
                }
            }
            Op::Write { end, stream, length } => self.write(end, stream, length),
            Op::Read { end, stream, length } => drop(self.read(end, stream, length)),
            Op::Finish { end, stream } => {
                if let Some((number, known)) = self.known(end, stream) {
                    known.is_finished = true;
                    self.ends[end].finish(number);
                }
            }
            Op::Drop { end, stream } => {
                if let Some((number, known)) = self.known(end, stream) {
                    known.is_dropped = true;
                    self.ends[end].drop_stream(number);
                }
            }
            Op::Turn { end } => self.turn(end),
        }
    }

    /// Finishes all streams. Every byte arrives if its reader still exists, and then no stream is left.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 50_000, "it never ends: {:?}", self.known);
            (0..2).for_each(|end| self.turn(end));
            for ((end, stream), known) in &mut self.known {
                if !known.is_dropped {
                    known.is_finished = true;
                    self.ends[*end].finish(*stream);
                }
            }
            let mut all = true;
            for end in 0..2 {
                for stream in 0..self.streams.len() {
                    self.read(end, stream, 50_000);
                }
            }
            for known in self.known.values() {
                all &= known.has_ended || known.is_dropped;
            }
            if all {
                break;
            }
        }
        for ((end, stream), known) in &self.known {
            let other = self.known.get(&(1 - end, *stream)).filter(|_| !known.is_dropped);
            if let Some(other) = other {
                assert_eq!(known.read, other.written, "stream {stream} at end {end}");
            }
        }
        for round in 0.. {
            // A stream that was opened may arrive only now.
            for ((end, stream), known) in std::mem::take(&mut self.known) {
                if !known.is_dropped {
                    self.ends[end].drop_stream(stream);
                }
            }
            if self.ends.each_ref().map(Core::streams) == [0, 0] {
                break;
            }
            assert!(round < 20_000, "streams are kept");
            self.turn(round % 2);
        }
    }
}

proptest! {
    #[test]
    fn each_byte_arrives_once_and_in_order_whatever_is_dropped(ops in ops()) {
        let mut world = World::over_rings();
        for op in ops {
            world.run(op);
        }
        world.settle();
    }

    #[test]
    fn each_byte_arrives_once_and_in_order_over_pipes_that_lose_datagrams(
        ops in ops(),
        loses in 5_u64..100,
        seed: u64,
    ) {
        let mut world = World::over_pipes(loses, seed);
        for op in ops {
            world.run(op);
        }
        world.settle();
    }

    #[test]
    fn each_byte_arrives_once_and_in_order_over_tcp_cut_anywhere(ops in ops(), seed: u64) {
        let mut world = World::over_lines(seed);
        for op in ops {
            world.run(op);
        }
        world.settle();
    }

    #[test]
    fn a_dial_is_carried_by_the_first_transport_that_answers_or_ends(
        udp_answers: bool,
        tcp_answers: bool,
        is_udp_first: bool,
        is_described_first: bool,
    ) {
        let (network, _) = Network::new(u64::MAX, 1);
        let pipes = Arc::clone(&network.pipes[0]);
        let id = pipes.endpoint().dial(network.now, ADDRESSES[1]);
        let line = Arc::new(Line::default());
        let udp = Some(Piped::new(Arc::clone(&pipes), id));
        let mut core = Core::new(Wire::Dialing(Dialing { udp, is_tcp_open: true }), true);
        if is_described_first {
            core.send_hello(b"hello".to_vec());
            core.flush();
        }
        prop_assert_eq!(core.open("service"), None, "no transport carries it");
        let mut carried = None;
        for is_udp in [is_udp_first, !is_udp_first] {
            let has_answered = match (is_udp, udp_answers, tcp_answers) {
                (true, true, _) => core.on_pipe_established(id),
                (true, false, _) => {
                    prop_assert_eq!(core.on_pipe_ended(id), carried.is_none());
                    false
                }
                (false, _, true) => core.on_tcp_established(Arc::clone(&line)),
                (false, _, false) => {
                    core.on_tcp_failed();
                    false
                }
            };
            let answers = if is_udp { udp_answers } else { tcp_answers };
            prop_assert_eq!(has_answered, answers && carried.is_none());
            if has_answered {
                carried = Some(is_udp);
            }
        }
        if !is_described_first {
            core.send_hello(b"hello".to_vec());
        }
        core.flush();
        let ended = carried.is_none().then_some(Ended::Gone);
        prop_assert_eq!(core.ended, ended);
        prop_assert_eq!(core.events.len(), usize::from(ended.is_some()));
        let over_tcp = take_outgoing(&line);
        let over_udp = pipes.endpoint().peek(id).map_or(0, |pipe| pipe.stats().bytes_written);
        let described = |is_here: bool| if is_here { 24 + 5 } else { 0 };
        prop_assert_eq!(over_tcp.len(), described(carried == Some(false)));
        prop_assert_eq!(over_udp, described(carried == Some(true)) as u64);
        // A connection that does not carry the session is released.
        let is_released = pipes.closing().contains(&id);
        prop_assert_eq!(is_released, carried != Some(true));
        // A connection over UDP that ends later concerns the session only if it carries it.
        core.on_pipe_ended(id);
        prop_assert_eq!(core.ended.is_some(), carried != Some(false));
    }

    #[test]
    fn any_bytes_over_tcp_end_their_session_at_most(
        frames in proptest::collection::vec((0_u64..40_000, 0_u64..12, 0_u64..6, any::<u64>()), 0..20),
        bytes in proptest::collection::vec(any::<u8>(), 0..4_000),
    ) {
        let line = Arc::new(Line::default());
        let mut here = Core::new(Wire::Piped(Piped::over_line(Arc::clone(&line))), false);
        here.open("service");
        let mut sent = Vec::new();
        for (length, kind, stream, value) in frames {
            for word in [length, kind | stream << 32, value] {
                sent.extend(word.to_le_bytes());
            }
            sent.resize(sent.len() + length as usize % 3_000, 7);
        }
        sent.extend(bytes);
        for piece in sent.chunks(1_111) {
            line.buffers().incoming.write(piece);
            here.pump(None);
            here.flush();
            while let Some(event) = here.events.pop_front() {
                if let Event::Opened { stream, .. } = event {
                    here.accept(stream);
                }
            }
        }
    }

    #[test]
    fn a_peer_that_sends_anything_ends_its_session_at_most(
        frames in proptest::collection::vec((0_u64..12, 0_u8..2, 0_u32..6, any::<u64>(), 0_usize..3_000), 0..60),
    ) {
        let [mut hostile, here] = RingPair::local(RING).unwrap();
        let mut here = Core::new(Wire::ring(here), false);
        here.open("service");
        for (kind, flags, stream, value, length) in frames {
            let first = kind | u64::from(flags) << 8 | u64::from(stream) << 32;
            if hostile.sender.room().is_some_and(|room| room >= length) {
                hostile.sender.push([first, value], &[IoSlice::new(&vec![b'x'; length])]);
            }
            here.pump(None);
            here.flush();
            while let Some(event) = here.events.pop_front() {
                if let Event::Opened { stream, .. } = event {
                    here.accept(stream);
                }
            }
        }
    }
}
