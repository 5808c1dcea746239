//! Two ends of a session in one thread: random programs against a model, and peers that break the protocol.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use midplane_simhw::rng::Rng;
use midplane_simhw::shm::rings::RingPair;
use midplane_simhw::time::Instant;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::below::Pipes;
use super::core::{Core, Direct, Ended, Event};
use super::frame::{FIN, Header, Kind};
use super::line::Line;
use super::piped::Piped;
use super::wire::{Dialing, Wire};
use super::{Handler, Refusal, Session, Sessions, Stream};
use crate::wire::endpoint::{Endpoint, Event as PipeEvent, PipeId};
use crate::wire::pipe::Config;
use crate::wire::socket::Clock;

/// Bytes of the rings: few frames fill one.
const RING: usize = 16 * 1024;

fn pair() -> [Core; 2] {
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
struct Network {
    pipes: [Arc<Pipes>; 2],
    now: Instant,
    rng: Rng,
    loses: u64,
}

impl Network {
    fn new(loses: u64, seed: u64) -> (Self, [Core; 2]) {
        let pipes =
            [1, 2].map(|seed| Pipes::new(Endpoint::new(Config::default(), seed), Clock::start()));
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

    /// Advances by a millisecond; everything sent arrives.
    fn step(&mut self, ids: &mut [Option<PipeId>; 2]) {
        self.now = self.now.plus_nanos(1_000_000);
        for from in [0, 1, 0, 1] {
            let mut sender = self.pipes[from].endpoint();
            let mut receiver = self.pipes[1 - from].endpoint();
            sender.handle_timeout(self.now);
            let mut datagram = Vec::new();
            while sender.poll_transmit(self.now, &mut datagram, 1).is_some() {
                if !self.rng.next_u64().is_multiple_of(self.loses) {
                    receiver.handle_datagram(self.now, ADDRESSES[from], &mut datagram);
                }
                datagram.clear();
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
            let mut taken = Vec::new();
            self.lines[from].buffers().take_outgoing(&mut taken);
            sent.extend(taken);
            let mut receiver = self.lines[1 - from].buffers();
            if receiver.wants_more() {
                let most = sent.len().min(64 * 1024) as u64;
                let count = self.rng.between(0, most) as usize;
                receiver.incoming().extend(sent.drain(..count));
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
        // Like the driver, but without the time for which it leaves a frame to its reader.
        if !core.wake_reader() && !core.pump(None) {
            core.leave_no_frame();
            core.pump(None);
        }
        core.wake_crowded();
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

    /// Finishes all streams: every byte arrives if its reader still exists, and no stream is left.
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
        prop_assert_eq!(core.open("service"), None, "nothing carries it");
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
        let mut over_tcp = Vec::new();
        line.buffers().take_outgoing(&mut over_tcp);
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
            line.buffers().incoming().extend_from_slice(piece);
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

#[test]
fn bytes_beyond_the_credit_end_the_session() {
    let [mut hostile, here] = RingPair::local(1 << 20).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    let push = |pair: &mut RingPair, header: Header, bytes: &[u8]| {
        pair.sender.push(header.words(), &[IoSlice::new(bytes)]);
    };
    push(&mut hostile, Header::new(Kind::Open, 2, 0), b"service");
    for _ in 0..9 {
        assert_eq!(here.ended, None);
        push(&mut hostile, Header::new(Kind::Data, 2, 0), &[0; 32 * 1024]);
        here.pump(None);
    }
    assert_eq!(here.ended, Some(Ended::Violation));
}

#[test]
fn a_service_with_a_name_beyond_the_bound_ends_the_session() {
    for (length, ended) in [(256, None), (257, Some(Ended::Violation))] {
        let [mut hostile, here] = RingPair::local(RING).unwrap();
        let mut here = Core::new(Wire::ring(here), false);
        let header = Header::new(Kind::Open, 2, 0);
        hostile.sender.push(header.words(), &[IoSlice::new(&vec![b'x'; length])]);
        here.pump(None);
        assert_eq!(here.ended, ended);
    }
}

#[test]
fn bytes_that_overtake_the_acceptance_of_their_stream_do_not_hold_it_up() {
    let [mut one, mut other] = pair();
    let stream = one.open("a service").unwrap();
    one.flush();
    other.pump(None);
    // The service's task runs on another thread than the driver, which accepts.
    assert_eq!(other.write(stream, &[IoSlice::new(b"first")], Waker::noop()), 5);
    other.accept(stream);
    other.flush();
    for _ in 0..10 {
        // The opener waits for the acceptance, which is no read.
        one.await_bytes(stream, Waker::noop());
        if !one.wake_reader() {
            one.pump(None);
        }
    }
    assert!(one.flow(stream).unwrap().is_accepted);
}

#[test]
fn of_many_descriptions_the_newest_is_kept() {
    let [mut hostile, here] = RingPair::local(RING).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    for number in 0..100_u8 {
        hostile.sender.push(Header::new(Kind::Hello, 0, 0).words(), &[IoSlice::new(&[number])]);
        here.pump(None);
    }
    assert_eq!(here.events, [Event::Hello(vec![99])]);
}

/// Two streams that the second end has accepted.
fn two_accepted() -> ([Core; 2], [u32; 2]) {
    let [one, other] = RingPair::local(8 * RING).unwrap();
    let mut ends = [Core::new(Wire::ring(one), true), Core::new(Wire::ring(other), false)];
    let streams = [(); 2].map(|()| ends[0].open("service").unwrap());
    ends[0].flush();
    ends[1].pump(None);
    ends[1].events.clear();
    for stream in streams {
        ends[1].accept(stream);
    }
    ends[1].flush();
    ends[0].pump(None);
    (ends, streams)
}

#[test]
fn a_long_frame_waits_for_its_reader_and_a_reader_that_never_comes_holds_up_no_other_stream() {
    let ([mut from, mut to], [one, other]) = two_accepted();
    to.await_bytes(one, Waker::noop());
    let bytes = [7; 20_000];
    assert_eq!(from.write(one, &[IoSlice::new(&bytes)], Waker::noop()), bytes.len());
    assert_eq!(from.write(other, &[IoSlice::new(&bytes)], Waker::noop()), bytes.len());
    let mut out = [0; 20_000];
    let mut into = ReadBuf::new(&mut out);
    // Neither the reader of the other stream nor the driver takes the frame; its own reader is woken.
    assert!(!to.pump(Some(Direct { stream: other, into: &mut into })));
    assert!(!to.pump(None));
    assert_eq!((into.filled().len(), to.wakers.len()), (0, 1));
    to.leave_no_frame();
    assert!(to.pump(Some(Direct { stream: other, into: &mut into })));
    assert_eq!(into.filled(), bytes);
    into.clear();
    assert!(super::stream::copy_held(&mut to, one, &mut into));
    assert_eq!(into.filled(), bytes);
}

#[test]
fn a_thousand_streams_that_carried_a_mebibyte_and_are_idle_keep_little_memory() {
    const STREAMS: usize = 1_000;
    const BYTES: usize = 1 << 20;
    let mut ends = pair();
    let chunk = vec![7; 64 * 1024];
    let mut kept = 0;
    let used = allocation_counter::measure(|| {
        let [from, to] = &mut ends;
        for _ in 0..STREAMS {
            let stream = from.open("service").unwrap();
            from.flush();
            to.pump(None);
            to.events.clear();
            to.accept(stream);
            let (mut written, mut read) = (0, 0);
            let mut out = vec![0; chunk.len()];
            while read < BYTES {
                let next = &chunk[..chunk.len().min(BYTES - written)];
                written += from.write(stream, &[IoSlice::new(next)], Waker::noop());
                from.flush();
                // Half of it is held before it is read.
                if read < BYTES / 2 {
                    to.pump(None);
                }
                let mut into = ReadBuf::new(&mut out);
                while super::stream::copy_held(to, stream, &mut into)
                    || to.pump(Some(Direct { stream, into: &mut into }))
                {
                    read += into.filled().len();
                    into.clear();
                }
                to.flush();
                from.pump(None);
                from.wake_crowded();
            }
        }
        kept = from.streams() + to.streams();
    });
    assert_eq!(kept, 2 * STREAMS);
    // Both processes may use 64 MiB; most of the memory in use is the streams' own state.
    assert!(used.bytes_current < 4 << 20, "{} bytes are kept", used.bytes_current);
}

#[test]
fn bytes_behind_the_end_of_a_stream_end_the_session() {
    let [mut hostile, here] = RingPair::local(RING).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    let frames = [
        (Header::new(Kind::Open, 2, 0), &b"service"[..]),
        (Header { flags: FIN, ..Header::new(Kind::Data, 2, 0) }, b""),
        (Header::new(Kind::Data, 2, 0), b"more"),
    ];
    for (header, bytes) in frames {
        assert_eq!(here.ended, None);
        hostile.sender.push(header.words(), &[IoSlice::new(bytes)]);
        here.pump(None);
    }
    assert_eq!(here.ended, Some(Ended::Violation));
}

#[test]
fn streams_beyond_the_bound_are_refused_and_the_session_goes_on() {
    let [mut here, mut there] = pair();
    let mut opened = 0;
    let mut refused = 0;
    for _ in 0..17_000 {
        while here.open("service").is_none() {
            there.pump(None);
            there.flush();
            here.pump(None);
        }
        there.pump(None);
        there.flush();
        opened += there.events.drain(..).count();
        here.pump(None);
    }
    for stream in (2..34_002).step_by(2) {
        refused += usize::from(here.flow(stream).is_some_and(|flow| flow.reset.is_some()));
    }
    assert_eq!(opened, 16 * 1024);
    assert!(refused > 0 && here.ended.is_none() && there.ended.is_none());
}

/// Records the events of a driver, and keeps the streams that it receives.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<&'static str>>>, Arc<Mutex<Vec<Stream>>>);

impl Recorder {
    fn told(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }

    async fn until(&self, told: &[&str]) {
        while self.told() != told {
            tokio::task::yield_now().await;
        }
    }
}

impl Handler for Recorder {
    fn on_accepted(&mut self, _: &Arc<Session>) {
        self.0.lock().unwrap().push("accepted");
    }

    fn on_hello(&mut self, _: &Arc<Session>, _: &[u8]) {
        self.0.lock().unwrap().push("hello");
    }

    fn on_stream(&mut self, _: &Arc<Session>, _: &str, stream: Stream) -> Result<(), Refusal> {
        self.0.lock().unwrap().push("stream");
        self.1.lock().unwrap().push(stream);
        Ok(())
    }

    fn on_goodbye(&mut self, _: &Arc<Session>) {
        self.0.lock().unwrap().push("goodbye");
    }

    fn on_ended(&mut self, _: &Arc<Session>, _: Ended) {
        self.0.lock().unwrap().push("ended");
    }
}

#[test]
fn a_driver_handles_nothing_of_a_session_before_that_describes_its_process() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for is_peer_gone in [false, true] {
            let [one, other] = RingPair::local(RING).unwrap();
            let (sessions, driver) = Sessions::new(None, None).unwrap();
            let recorder = Recorder::default();
            tokio::spawn(driver.run(recorder.clone()));
            let session = sessions.over_rings(one, true).unwrap();
            let mut peer = Some(Core::new(Wire::ring(other), false));
            let core = peer.as_mut().unwrap();
            core.send_hello(b"peer".to_vec());
            core.flush();
            core.open("service");
            core.flush();
            peer.take_if(|_| is_peer_gone);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(recorder.told(), [""; 0]);
            session.send_hello(b"here".to_vec());
            let told = ["hello", "stream", "ended"];
            recorder.until(&told[..2 + usize::from(is_peer_gone)]).await;
            sessions.close();
        }
    });
}

/// Opens streams between two drivers of the current runtime.
async fn streams<const N: usize>() -> [(Stream, Stream); N] {
    let recorder = Recorder::default();
    let [one, other] = RingPair::local(1 << 20).unwrap();
    let sessions = [(one, true), (other, false)].map(|(pair, is_first)| {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        tokio::spawn(driver.run(recorder.clone()));
        let session = sessions.over_rings(pair, is_first).unwrap();
        session.send_hello(Vec::new());
        session
    });
    let mut all = Vec::new();
    for _ in 0..N {
        let opened = sessions[0].open("service").unwrap();
        opened.accepted().await.unwrap();
        let accepted = recorder.1.lock().unwrap().pop();
        all.push((opened, accepted.unwrap()));
    }
    all.try_into().unwrap()
}

/// A waker that owns a stream, as those of some executors own their task.
struct Owner(#[expect(dead_code, reason = "it is dropped with the waker")] Stream);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_replaced_waker_may_drop_a_stream_of_the_same_session() {
    let (done, ended) = std::sync::mpsc::channel();
    // On a thread of its own, since a failure would never end.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let [(mut stream, _other), (reads, _), (writes, _)] = streams().await;
            let (mut buffer, bytes) = ([0; 8], [0; 4_096]);
            let owner = Waker::from(Arc::new(Owner(reads)));
            for waker in [owner, Waker::noop().clone()] {
                let mut context = Context::from_waker(&waker);
                let mut into = ReadBuf::new(&mut buffer);
                assert!(Pin::new(&mut stream).poll_read(&mut context, &mut into).is_pending());
            }
            let owner = Waker::from(Arc::new(Owner(writes)));
            for waker in [owner, Waker::noop().clone()] {
                let mut context = Context::from_waker(&waker);
                while Pin::new(&mut stream).poll_write(&mut context, &bytes).is_ready() {}
            }
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(10)).expect("no lock is held by then");
}

#[test]
fn reads_and_writes_that_are_ready_let_other_tasks_run_in_between() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let [(mut from, mut to)] = streams().await;
        let count = poll_fn(|context| {
            for count in 0..1_000 {
                if Pin::new(&mut from).poll_write(context, &[7]).is_pending() {
                    return Poll::Ready(count);
                }
            }
            Poll::Ready(1_000)
        });
        let count = count.await;
        assert!(count < 1_000, "a task's budget ends before the window of the stream");
        tokio::task::yield_now().await;
        let read = poll_fn(|context| {
            for read in 0..count {
                let mut buffer = [0];
                let mut into = ReadBuf::new(&mut buffer);
                if Pin::new(&mut to).poll_read(context, &mut into).is_pending() {
                    return Poll::Ready(read);
                }
            }
            Poll::Ready(count)
        });
        assert_eq!(read.await, count, "each read had its byte");
        assert!(!tokio::task::coop::has_budget_remaining());
    });
}

#[test]
fn sessions_whose_runtime_is_dropped_end_on_both_sides() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [one, other] = RingPair::local(RING).unwrap();
    let dropped = runtime();
    let session = dropped.block_on(async {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        tokio::spawn(driver.run(Recorder::default()));
        sessions.over_rings(one, true).unwrap()
    });
    session.send_hello(Vec::new());
    let stream = session.open("service").unwrap();
    runtime().block_on(async {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        let recorder = Recorder::default();
        tokio::spawn(driver.run(recorder.clone()));
        sessions.over_rings(other, false).unwrap().send_hello(Vec::new());
        recorder.until(&["stream"]).await;
        dropped.shutdown_background();
        let told = recorder.until(&["stream", "ended"]);
        let told = tokio::time::timeout(std::time::Duration::from_secs(10), told).await;
        told.expect("the peer is told");
        let error = stream.accepted().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    });
}
