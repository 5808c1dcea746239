//! Datagrams that the system has received together.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::wire::pipe::packet::{PLAIN_HEADER_BYTES, plain_header};

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const THERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2);

/// Moves all datagrams that are due, each on its own.
fn exchange(now: Instant, [here, there]: [&mut Endpoint; 2]) {
    let mut datagram = Vec::new();
    for _ in 0..10 {
        while here.poll_transmit(now, &mut datagram, 1).is_some() {
            there.handle_datagram(now, HERE, &mut datagram);
            datagram.clear();
        }
        while there.poll_transmit(now, &mut datagram, 1).is_some() {
            here.handle_datagram(now, THERE, &mut datagram);
            datagram.clear();
        }
    }
}

#[test]
fn datagrams_in_one_buffer_reach_their_connections_and_the_others_are_counted() {
    let mut now = Instant::from_nanos(1);
    // Without longer probes of the MTU, a long datagram has as many bytes as all other long ones.
    let [mut here, mut there] =
        [1, 2].map(|seed| Endpoint::new(Config::default().mtu_limit(1_200), seed));
    let dialed = [here.dial(now, THERE), here.dial(now, THERE)];
    exchange(now, [&mut here, &mut there]);
    let accepted: Vec<PipeId> = std::iter::from_fn(|| there.poll_event())
        .filter_map(|event| match event {
            Event::Accepted(id, HERE) => Some(id),
            _ => None,
        })
        .collect();
    assert_eq!(accepted.len(), 2);

    for (index, id) in dialed.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..5_000).map(|at| (at * 7 / 5 + index) as u8).collect();
        assert_eq!(here.pipe(id).unwrap().write(&[IoSlice::new(&bytes)]), bytes.len());
    }
    // The connections send in turn: first all long datagrams, then a forged one and the short ones.
    let (mut datagrams, mut datagram) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        now = now.plus_nanos(100_000);
        here.handle_timeout(now);
        while here.poll_transmit(now, &mut datagram, 1).is_some() {
            datagrams.push(std::mem::take(&mut datagram));
        }
    }
    let stride = datagrams.iter().map(Vec::len).max().unwrap();
    let (mut long, short): (Vec<_>, Vec<_>) =
        datagrams.into_iter().partition(|datagram| datagram.len() == stride);
    assert!(long.len() > 4 && short.len() > 1);
    long.insert(3, vec![4; stride]);
    let mut buffer = Buffer::new(1 << 16);
    let train = [long.concat(), short[0].clone()].concat();
    buffer[..train.len()].copy_from_slice(&train);
    there.handle_buffer(now, HERE, &mut buffer, train.len(), stride);
    for mut datagram in short.into_iter().skip(1) {
        there.handle_datagram(now, HERE, &mut datagram);
    }

    assert_eq!(there.counters().strangers, 1);
    let mut received: Vec<Vec<u8>> = Vec::new();
    for id in accepted {
        let (pipe, mut all) = (there.pipe(id).unwrap(), Vec::new());
        while let readable @ [_, ..] = pipe.readable() {
            let count = readable.len();
            all.extend_from_slice(readable);
            pipe.consume(count);
        }
        received.push(all);
    }
    for (index, received) in received.into_iter().enumerate() {
        let expected: Vec<u8> = (0..5_000).map(|at| (at * 7 / 5 + index) as u8).collect();
        assert_eq!(received, expected, "connection {index}");
    }
}

/// Has an endpoint send all that is due; returns trains of at most `segments` datagrams, and the length of each datagram
/// but the last.
fn trains(now: Instant, endpoint: &mut Endpoint, segments: usize) -> Vec<(Vec<u8>, usize)> {
    endpoint.handle_timeout(now);
    let mut out = Vec::new();
    let next = || {
        out.clear();
        let outgoing = endpoint.poll_transmit(now, &mut out, segments)?;
        Some((out.clone(), outgoing.transmit.segment_bytes))
    };
    std::iter::from_fn(next).collect()
}

fn write(pipe: &mut Pipe, bytes: usize) {
    let begin = pipe.stats().bytes_written as usize;
    let bytes: Vec<u8> = (begin..begin + bytes).map(|at| (at * 7 / 5) as u8).collect();
    pipe.write(&[IoSlice::new(&bytes)]);
}

/// Reads up to `most` bytes.
fn read(pipe: &mut Pipe, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < most && !pipe.readable().is_empty() {
        let part = pipe.readable();
        let part = part[..part.len().min(most - all.len())].to_vec();
        pipe.consume(part.len());
        all.extend(part);
    }
    all
}

/// Returns all that can be seen of two connections but their memory, which may differ.
fn seen(endpoints: [&mut Endpoint; 2], id: PipeId) -> [Option<crate::wire::pipe::Stats>; 2] {
    endpoints.map(|endpoint| {
        let pipe = endpoint.peek(id)?;
        Some(crate::wire::pipe::Stats { memory_bytes: 0, ..pipe.stats() })
    })
}

/// Two connected endpoints, the ids of their connection, and the first time after the handshake.
struct Connected {
    ends: [Endpoint; 2],
    ids: [PipeId; 2],
    now: Instant,
}

impl Connected {
    fn new() -> Self {
        // How a larger window grows also depends on the parts in which bytes are read.
        let config = Config::default().mtu_limit(1_400).receive_window(0);
        let [mut here, mut there] = [1, 2].map(|seed| Endpoint::new(config.clone(), seed));
        let mut now = Instant::from_nanos(1);
        let dialed = here.dial(now, THERE);
        for _ in 0..10 {
            now = now.plus_nanos(1_000_000);
            exchange(now, [&mut here, &mut there]);
        }
        let mut accepted = None;
        while let Some(event) = there.poll_event() {
            if let Event::Accepted(id, _) = event {
                accepted = Some(id);
            }
        }
        while here.poll_event().is_some() {}
        Self { ends: [here, there], ids: [dialed, accepted.unwrap()], now }
    }

    /// Sends until both ends know how long datagrams may be.
    fn settled(mut self) -> Self {
        for _ in 0..100 {
            self.now = self.now.plus_nanos(1_000_000);
            for (end, id) in self.ends.iter_mut().zip(self.ids) {
                end.handle_timeout(self.now);
                read(end.pipe(id).unwrap(), usize::MAX);
                write(end.pipe(id).unwrap(), 2_000);
            }
            let [here, there] = &mut self.ends;
            exchange(self.now, [here, there]);
        }
        self
    }
}

proptest! {
    /// Sending and handling datagrams in trains has the same effect as one by one, also after loss, reordering, damage
    /// and copies.
    #[test]
    fn trains_of_datagrams_have_the_effects_of_single_ones(
        steps in proptest::collection::vec(
            (
                proptest::array::uniform2(prop_oneof![Just(0), 1_usize..2_000, 2_000_usize..60_000]),
                any::<bool>(), 0_u8..6, any::<[prop::sample::Index; 3]>(), 1..u8::MAX,
            ),
            1..40,
        ),
    ) {
        let Connected { ends: [mut here, mut there], ids: [dialed, accepted], mut now } =
            Connected::new().settled();
        let Connected { ends: [mut here_apart, mut there_apart], .. } = Connected::new().settled();
        for (bytes, closes, change, [index, other, byte], flip) in steps {
            now = now.plus_nanos(700_000);
            for here in [&mut here, &mut here_apart] {
                if let Some(pipe) = here.pipe(dialed) {
                    write(pipe, bytes[0]);
                    if closes && change == 5 {
                        pipe.close(now);
                    }
                }
            }
            for there in [&mut there, &mut there_apart] {
                if let Some(pipe) = there.pipe(accepted) {
                    write(pipe, bytes[1] / 8);
                }
            }
            let sent = trains(now, &mut here, 44);
            let joined = |trains: &[(Vec<u8>, usize)]| {
                trains.iter().flat_map(|(train, _)| train.clone()).collect::<Vec<u8>>()
            };
            prop_assert_eq!(joined(&sent), joined(&trains(now, &mut here_apart, 1)));
            for (train, stride) in sent {
                let mut datagrams: Vec<Vec<u8>> = train.chunks(stride).map(<[u8]>::to_vec).collect();
                // The last may be shorter than the others, and stays the last.
                let most = datagrams.len().saturating_sub(1);
                match change {
                    0 if most > 0 => drop(datagrams.remove(index.index(most))),
                    1 if most > 0 => datagrams.swap(index.index(most), other.index(most)),
                    2 if most > 0 => datagrams[index.index(most)][byte.index(stride)] ^= flip,
                    3 if most > 0 => datagrams.insert(0, datagrams[index.index(most)].clone()),
                    _ => {}
                }
                let train = datagrams.concat();
                let mut buffer = Buffer::new(1 << 17);
                buffer[..train.len()].copy_from_slice(&train);
                there.handle_buffer(now, HERE, &mut buffer, train.len(), stride);
                datagrams.iter_mut().for_each(|one| there_apart.handle_datagram(now, HERE, one));
            }
            if let [Some(one), Some(each)] = [there.pipe(accepted), there_apart.pipe(accepted)] {
                let most = other.index(100_000);
                prop_assert_eq!(read(one, most), read(each, most));
            }
            let answers = trains(now, &mut there, 44);
            prop_assert_eq!(joined(&answers), joined(&trains(now, &mut there_apart, 1)));
            for (train, stride) in answers {
                for here in [&mut here, &mut here_apart] {
                    train.chunks(stride).for_each(|one| here.handle_datagram(now, THERE, &mut one.to_vec()));
                }
            }
            for (twins, id) in [([&mut here, &mut here_apart], dialed), ([&mut there, &mut there_apart], accepted)] {
                let [one, each] = twins;
                loop {
                    let event = one.poll_event();
                    prop_assert_eq!(event, each.poll_event());
                    if event.is_none() {
                        break;
                    }
                }
                prop_assert_eq!(one.poll_timeout(), each.poll_timeout());
                let [left, right] = seen([one, each], id);
                prop_assert_eq!(left, right);
            }
        }
    }
}

/// Returns a train of datagrams for a connection, with these numbers and the first bytes, 1,000 in each.
fn forged(pipe: &Pipe, numbers: &[u64]) -> Vec<u8> {
    let offsets = (0..).step_by(1_000);
    let datagram = |(number, offset): (&u64, u64)| {
        [&plain_header(pipe.local(), *number, offset)[..], &[7; 1_000]].concat()
    };
    numbers.iter().zip(offsets).flat_map(datagram).collect()
}

#[test]
fn a_train_beyond_the_window_or_the_largest_number_is_dropped_from_there_on() {
    // 300 packets of 1,000 bytes exceed the window of 256 KiB.
    let largest = [u64::MAX - 3, u64::MAX - 2, u64::MAX - 1, u64::MAX];
    for (numbers, received) in [((100..400).collect(), 262), (largest.to_vec(), 3)] {
        let Connected { ends: [_, mut there], ids: [_, accepted], now } = Connected::new();
        let train = forged(there.peek(accepted).unwrap(), &numbers);
        let mut buffer = Buffer::new(1 << 19);
        buffer[..train.len()].copy_from_slice(&train);
        there.handle_buffer(now, HERE, &mut buffer, train.len(), PLAIN_HEADER_BYTES + 1_000);
        let stats = there.peek(accepted).unwrap().stats();
        assert_eq!(stats.bytes_received, 1_000 * received);
        assert_eq!(stats.dropped, numbers.len() as u64 - received);
    }
}

#[test]
fn a_train_has_at_most_65_000_bytes() {
    let config = Config::default().receive_window(0).mtu_limit(1_472);
    let [mut here, mut there] = [1, 2].map(|seed| Endpoint::new(config.clone(), seed));
    let mut now = Instant::from_nanos(1);
    let dialed = here.dial(now, THERE);
    let mut longest = 0;
    for _ in 0..200 {
        now = now.plus_nanos(1_000_000);
        write(here.pipe(dialed).unwrap(), 1 << 18);
        let mut out = vec![0];
        here.handle_timeout(now);
        while let Some(Outgoing { transmit, .. }) = here.poll_transmit(now, &mut out, 64) {
            longest = longest.max(transmit.bytes);
            let stride = transmit.segment_bytes;
            let begin = out.len() - transmit.bytes;
            let datagrams = out[begin..].chunks_mut(stride);
            datagrams.for_each(|one| there.handle_datagram(now, HERE, one));
        }
        while let Some(event) = there.poll_event() {
            if let Event::Accepted(id, _) | Event::Progress(id) = event {
                read(there.pipe(id).unwrap(), usize::MAX);
            }
        }
        for (train, stride) in trains(now, &mut there, 44) {
            train
                .chunks(stride)
                .for_each(|one| here.handle_datagram(now, THERE, &mut one.to_vec()));
        }
    }
    assert_eq!(longest, 44 * 1_472);
}

/// Regression: while strangers filled the queue of answers, no connection sent anything.
#[test]
fn answers_to_strangers_and_datagrams_of_connections_alternate() {
    let Connected { ends: [mut here, _], ids: [dialed, _], now } = Connected::new();
    write(here.pipe(dialed).unwrap(), 20_000);
    for id in 0..64 {
        here.handle_datagram(now, THERE, &mut plain_header(1_000 + id, 0, 0));
    }
    let mut out = Vec::new();
    let sent: Vec<bool> = std::iter::from_fn(|| here.poll_transmit(now, &mut out, 1))
        .map(|outgoing| outgoing.pipe.is_some())
        .collect();
    assert_eq!(sent[..6], [false, true, false, true, false, true]);
    assert_eq!(sent.iter().filter(|is_of_connection| !*is_of_connection).count(), 64);
}
