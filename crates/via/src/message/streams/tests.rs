//! Tests of streams with arbitrary bytes, and with packets and buffers of any size.

use std::task::{Context as TaskContext, Waker};

use midplane_simhw::rng::Rng;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::message::envelope::{Context, Kind, Marks, Tag};

/// Writes bytes for which the stream has room.
fn write(stream: &mut DuplexStream, bytes: &[u8]) {
    let mut writing = std::pin::pin!(stream.write_all(bytes));
    let written = writing.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
    assert!(matches!(written, Poll::Ready(Ok(()))));
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
