//! Tests of streams with arbitrary bytes, and with packets and buffers of any size.

use std::task::{Context as TaskContext, Waker};

use midplane_simhw::rng::Rng;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, BufStream, DuplexStream, ReadBuf, duplex};

use super::*;
use crate::message::envelope::{Context, Kind, Marks, Tag};

/// Writes bytes for which the stream has room.
fn write(stream: &mut DuplexStream, bytes: &[u8]) {
    let mut writing = std::pin::pin!(stream.write_all(bytes));
    let written = writing.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
    assert!(matches!(written, Poll::Ready(Ok(()))));
}

/// Returns whether the other end of a stream was dropped.
fn has_ended(stream: &mut DuplexStream) -> bool {
    let mut buffer = [0];
    let mut into = ReadBuf::new(&mut buffer);
    let mut context = TaskContext::from_waker(Waker::noop());
    let read = std::pin::Pin::new(stream).poll_read(&mut context, &mut into);
    matches!(read, Poll::Ready(Ok(()))) && into.filled().is_empty()
}

fn envelope(length: usize) -> Envelope {
    Envelope {
        length: length as u32,
        tag: Tag(1),
        kind: Kind::Eager,
        marks: Marks::NONE,
        source: Peer(1),
        context: Context(0),
        sequence: 0,
        to: 0,
        from: 0,
    }
}

proptest! {
    #[test]
    fn any_bytes_are_packets_or_break_the_stream(seed: u64, length in 0_usize..400, is_near: bool) {
        let mut rng = Rng::new(seed, "bytes");
        let mut bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
        if is_near && length > 20 {
            // A length that may be valid, and a kind that may exist.
            bytes[..4].copy_from_slice(&(24 + rng.next_u64() as u32 % 60).to_le_bytes());
            bytes[12..16].copy_from_slice(&[rng.below(15) as u8, rng.below(20) as u8, 0, 0]);
        }
        let (mut carrier, feed) = StreamCarrier::new(Peer(0), 2);
        let (own, mut other) = duplex(1 << 12);
        feed.source().connect(Peer(1), own);
        write(&mut other, &bytes);
        drop(other);
        let mut is_broken = false;
        for _ in 0..1_000 {
            match carrier.poll() {
                Some(Event::Packet { payload, .. }) => prop_assert!(!is_broken && payload.len() < length),
                Some(Event::Broken(Peer(1))) => is_broken = true,
                _ => {}
            }
        }
        prop_assert!(is_broken);
        prop_assert_eq!(carrier.post(Peer(1), &envelope(0), &[]), Err(Refusal::Lost));
    }

    #[test]
    fn packets_of_any_length_arrive_through_streams_of_any_size(
        lengths in prop::collection::vec(0_usize..70_000, 1..20), held in 1_usize..100_000,
    ) {
        let lengths: Vec<_> = lengths.into_iter().map(|length| length.min(ROOM)).collect();
        let (mut one, first) = StreamCarrier::new(Peer(0), 2);
        let (mut other, second) = StreamCarrier::new(Peer(1), 2);
        let (own, other_end) = duplex(held);
        first.source().connect(Peer(1), own);
        second.source().connect(Peer(0), other_end);
        let (mut sent, mut received) = (0, 0);
        let mut idle = 0;
        while received < lengths.len() {
            if let Some(length) = lengths.get(sent) {
                let payload = vec![sent as u8; *length];
                sent += usize::from(one.post(Peer(1), &envelope(*length), &payload).is_ok());
            }
            one.poll();
            match other.poll() {
                Some(Event::Packet { payload, .. }) => {
                    prop_assert!(payload.to_vec() == vec![received as u8; lengths[received]]);
                    received += 1;
                    idle = 0;
                }
                _ => idle += 1,
            }
            prop_assert!(idle < 500_000, "{} of {} received", received, lengths.len());
        }
    }
}

/// Regression: packets stayed in the buffer of a stream that sends only what is flushed.
#[test]
fn packets_arrive_through_streams_that_buffer_and_are_flushed_once_they_have_left_it() {
    const HELD: usize = 1 << 10;
    let (mut one, first) = StreamCarrier::new(Peer(0), 2);
    let (mut other, second) = StreamCarrier::new(Peer(1), 2);
    let (own, other_end) = duplex(HELD);
    first.source().connect(Peer(1), BufStream::new(own));
    second.source().connect(Peer(0), BufStream::new(other_end));
    assert!(matches!(one.poll(), Some(Event::Returned(Peer(1)))));
    for length in [0, 100, HELD, 5_000, ROOM] {
        assert_eq!(one.post(Peer(1), &envelope(length), &vec![7; length]), Ok(()));
        assert_eq!(one.is_flushed(), length < HELD, "the stream holds {HELD} bytes of {length}");
        let has_arrived = (0..10_000).any(|_| {
            one.is_flushed();
            let event = other.poll();
            matches!(event, Some(Event::Packet { payload, .. }) if payload.len() == length)
        });
        assert!(has_arrived, "{length} bytes");
        assert!(one.is_flushed());
    }
}

/// Regression: streams that came last stayed open until the carrier was dropped.
#[test]
fn a_closed_carrier_holds_no_stream_and_wants_none() {
    let (mut carrier, mut feed) = StreamCarrier::new(Peer(0), 4);
    let mut others = Vec::new();
    let mut connect = |peer| {
        let (own, other) = duplex(1);
        feed.source().connect(Peer(peer), own);
        others.push(other);
    };
    connect(1);
    connect(2);
    // Takes both events, and the first stream.
    assert!(matches!(carrier.poll(), Some(Event::Returned(Peer(1)))));
    connect(3);
    assert!(!others.iter_mut().any(has_ended));
    carrier.close();
    assert!(others.iter_mut().all(has_ended));
    let wanted = std::pin::pin!(feed.wanted());
    let wanted = wanted.poll(&mut TaskContext::from_waker(Waker::noop()));
    assert_eq!(wanted, Poll::Ready(None));
}
