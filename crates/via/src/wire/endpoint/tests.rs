//! Datagrams that the system has received together.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};

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
