//! Datagrams that the system has received together.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;

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

/// Has an endpoint send all that is due; returns trains of datagrams and the length of each datagram but the last.
fn trains(now: Instant, endpoint: &mut Endpoint) -> Vec<(Vec<u8>, usize)> {
    endpoint.handle_timeout(now);
    let mut out = Vec::new();
    let next = || {
        out.clear();
        let outgoing = endpoint.poll_transmit(now, &mut out, 44)?;
        Some((out.clone(), outgoing.transmit.segment_bytes))
    };
    std::iter::from_fn(next).collect()
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

proptest! {
    /// What an endpoint does with datagrams in one buffer is what another one does with each of them, whatever happens to
    /// them on their way.
    #[test]
    fn datagrams_of_a_buffer_are_handled_as_each_on_its_own(
        steps in proptest::collection::vec(
            (0_usize..60_000, any::<bool>(), 0_u8..5, any::<[prop::sample::Index; 3]>(), 1..u8::MAX),
            1..30,
        ),
    ) {
        let mut now = Instant::from_nanos(1);
        // How a larger window grows also depends on the parts in which bytes are read.
        let config = Config::default().mtu_limit(1_400).receive_window(0);
        let [mut here, mut together, mut apart] =
            [1, 2, 2].map(|seed| Endpoint::new(config.clone(), seed));
        let dialed = here.dial(now, THERE);
        let mut accepted = None;
        for (bytes, closes, change, [index, other, byte], flip) in steps {
            now = now.plus_nanos(700_000);
            if let Some(pipe) = here.pipe(dialed) {
                let begin = pipe.stats().bytes_written as usize;
                let bytes: Vec<u8> = (begin..begin + bytes).map(|at| (at * 7 / 5) as u8).collect();
                pipe.write(&[IoSlice::new(&bytes)]);
                if closes && change == 4 {
                    pipe.close(now);
                }
            }
            for (train, stride) in trains(now, &mut here) {
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
                together.handle_buffer(now, HERE, &mut buffer, train.len(), stride);
                datagrams.iter_mut().for_each(|one| apart.handle_datagram(now, HERE, one));
            }
            while let Some(event) = together.poll_event() {
                prop_assert_eq!(Some(event), apart.poll_event());
                if let Event::Accepted(id, _) = event {
                    accepted = Some(id);
                }
            }
            prop_assert_eq!(apart.poll_event(), None);
            if let Some(id) = accepted {
                let most = other.index(100_000);
                let pipes = [together.pipe(id), apart.pipe(id)];
                if let [Some(one), Some(each)] = pipes {
                    prop_assert_eq!(read(one, most), read(each, most));
                    let stats = |pipe: &Pipe| crate::wire::pipe::Stats { memory_bytes: 0, ..pipe.stats() };
                    prop_assert_eq!(stats(one), stats(each));
                }
            }
            let answers = trains(now, &mut together);
            prop_assert_eq!(&answers, &trains(now, &mut apart));
            for (train, stride) in answers {
                train.chunks(stride).for_each(|one| here.handle_datagram(now, THERE, &mut one.to_vec()));
            }
        }
    }
}
