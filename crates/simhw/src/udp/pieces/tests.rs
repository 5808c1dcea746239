//! Tests that pieces are reassembled in any order, and that nothing else is.

use proptest::prelude::*;

use super::*;
use crate::region::Payload;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn header(source: u16, length: usize) -> Header {
    Header {
        source: NodeId(source),
        destination: NodeId(9),
        incarnation: Incarnation(3),
        length: (length - HEADER_BYTES) as u16,
        ..Header::default()
    }
}

/// Returns the pieces of a frame of `length` bytes.
fn pieces(source: u16, number: u32, length: usize, datagram: usize) -> Vec<(Header, Vec<u8>)> {
    let bytes = frame(length);
    let header = header(source, length);
    let cut = cut(&header, number, length, datagram);
    cut.map(|(header, part)| (header, bytes[part].to_vec())).collect()
}

fn frame(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[derive(Default)]
struct Receiver {
    joiner: Joiner,
    given_up: u64,
}

impl Receiver {
    fn take(
        &mut self,
        now: Instant,
        piece: &(Header, Vec<u8>),
    ) -> Result<Option<Vec<u8>>, DropCause> {
        let frame = Frame { header: piece.0, payload: Payload::from(&piece.1[..]) };
        self.joiner.take(now, &frame, &mut self.given_up)
    }
}

proptest! {
    #[test]
    fn pieces_join_to_their_frame_in_any_order_and_fit_their_datagrams(
        length in 2_000_usize..HEADER_BYTES + MAX_PAYLOAD, datagram in 400_usize..1_900,
        (order, again) in (any::<u64>(), 0_usize..200),
    ) {
        let mut all = pieces(1, 7, length, datagram);
        let fits = all.iter().all(|(header, bytes)| {
            header.frame_bytes() <= datagram && usize::from(header.length) == bytes.len()
        });
        prop_assert!(fits);
        let count = all.len();
        // One piece arrives twice, and all arrive out of order.
        all.insert(0, all[again % count].clone());
        let mut rng = crate::rng::Rng::new(order, "order");
        for at in (1..all.len()).rev() {
            all.swap(at, rng.between(0, at as u64) as usize);
        }
        let mut receiver = Receiver::default();
        let mut joined = Vec::new();
        for piece in &all {
            joined.extend(receiver.take(NOW, piece).unwrap());
        }
        prop_assert_eq!(joined.len(), 1);
        prop_assert!(joined[0] == frame(length));
    }

    /// Any words of a peer give an error or a piece; nothing panics or takes more memory than documented.
    #[test]
    fn memory_is_bounded_for_any_words_of_peers(
        said in proptest::collection::vec((0_u16..3, 0_u32..6, 0_u16..2_000, any::<[u64; 2]>(), 0_usize..4), 1..200),
    ) {
        let mut receiver = Receiver::default();
        for (source, sequence, length, words, kind) in said {
            let total = u64::from(length) * 4 + 300;
            let words = match kind {
                0 => words,
                1 => [total << 32, u64::from(length)],
                2 => [(total << 32) | (words[0] % total), u64::from(length)],
                _ => [(total << 32) | u64::from(length), u64::from(length)],
            };
            let header = Header {
                kind: Kind::Piece, source: NodeId(source), sequence, length, words, ..Header::default()
            };
            let _ = receiver.take(NOW, &(header, vec![1; usize::from(length)]));
            let kept: usize = receiver.joiner.partial.values().flatten().map(|known| known.bytes.len()).sum();
            prop_assert!(kept <= 3 * INCOMPLETE * (HEADER_BYTES + MAX_PAYLOAD));
            prop_assert!(receiver.joiner.partial.values().all(|known| known.len() <= INCOMPLETE));
        }
    }
}

#[test]
fn a_flood_of_incomplete_frames_is_evicted_by_later_frames_and_counted() {
    let mut receiver = Receiver::default();
    for number in 0..10_000 {
        let half = &pieces(1, number, 10_288, 1_472)[..4];
        assert!(half.iter().all(|piece| receiver.take(NOW, piece) == Ok(None)));
    }
    let whole = pieces(1, 10_000, 10_288, 1_472);
    let mut joined = whole.iter().filter_map(|piece| receiver.take(NOW, piece).unwrap());
    assert_eq!(joined.next(), Some(frame(10_288)));
    drop(joined);
    assert_eq!(receiver.given_up, 10_000 - INCOMPLETE as u64 + 1);
}

#[test]
fn incomplete_frames_of_one_peer_evict_none_of_another() {
    let mut receiver = Receiver::default();
    let mut slow = pieces(2, 0, 5_000, 1_472);
    let last = slow.pop().unwrap();
    slow.iter().for_each(|piece| assert_eq!(receiver.take(NOW, piece), Ok(None)));
    for number in 0..100 {
        receiver.take(NOW, &pieces(1, number, 5_000, 1_472)[0]).unwrap();
    }
    assert_eq!(receiver.take(NOW, &last), Ok(Some(frame(5_000))));
}

#[test]
fn old_pieces_and_those_of_an_earlier_incarnation_complete_no_frame() {
    let all = pieces(1, 5, 3_000, 1_472);
    let mut receiver = Receiver::default();
    receiver.take(NOW, &all[0]).unwrap();
    for (header, bytes) in &all[1..] {
        let header = Header { incarnation: Incarnation(4), ..*header };
        assert_eq!(receiver.take(NOW, &(header, bytes.clone())), Ok(None));
    }
    let late = NOW.plus_nanos(TIMEOUT + 1);
    assert!(all[1..].iter().all(|piece| receiver.take(late, piece) == Ok(None)));
    assert_eq!(receiver.given_up, 2);
}
