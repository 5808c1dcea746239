use proptest::prelude::*;

use super::joining::MOST;
use super::piece::DATAGRAM_BYTES;
use super::senders::MAX_SENDERS;
use super::*;

/// 2026-01-01, in milliseconds since 1970.
const NEW_YEAR: u64 = 1_767_225_600_000;

fn key() -> Key {
    Key::new(1, [7; 32])
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn gossip(key: Option<&Key>, cluster: &str, run: u8) -> Gossip {
    let mut gossip = Gossip::new(key, cluster, [run; 16]);
    gossip.set_time(Instant::ZERO, NEW_YEAR);
    gossip
}

/// Cuts a message; returns its datagrams.
fn cut(sender: &mut Gossip, message: &[u8]) -> Vec<Vec<u8>> {
    assert!(sender.send(Instant::ZERO, address(2), message));
    std::iter::from_fn(|| sender.poll_transmit()).map(|(_, datagram)| datagram).collect()
}

/// Passes datagrams to a receiver; returns the messages that they form.
fn join(receiver: &mut Gossip, now: Instant, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut joined = Vec::new();
    for datagram in datagrams {
        receiver.handle_datagram(now, address(1), &mut datagram.clone());
        joined.extend(std::iter::from_fn(|| receiver.poll_message()).map(|(_, message)| message));
    }
    joined
}

fn message(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn the_bytes_of_gossip_never_change() {
    let mut plain = gossip(None, "c", 9);
    cut(&mut plain, b"before");
    let mut golden = vec![7, 1, 0, 0, 0, 0, 0, 0];
    golden.extend([9; 16]);
    golden.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    golden.extend([0, 168, 218, 118, 155, 1, 0, 0, 0, 0]);
    golden.extend(b"a message");
    assert_eq!(cut(&mut plain, b"a message"), [golden]);

    // The seal as made by another implementation: HMAC of Python's blake2s, HChaCha20 by hand, OpenSSL's
    // ChaCha20-Poly1305.
    let sealed = cut(&mut gossip(Some(&key()), "c", 9), b"a message").remove(0);
    let mut golden = vec![7, 1, 1, 0, 0, 0, 0, 0];
    golden.extend([9; 16]);
    golden.extend([0; 8]);
    golden.extend([
        24, 81, 46, 213, 29, 165, 152, 173, 30, 182, 84, 93, 1, 110, 50, 107, 123, 232, 168, 5,
        134, 1, 111, 234, 167, 167, 211, 183, 187, 15, 106, 52, 62, 35, 174,
    ]);
    assert_eq!(sealed, golden);
}

#[test]
fn messages_of_any_length_arrive_and_no_datagram_is_longer_than_a_path_takes() {
    for key in [None, Some(key())] {
        let (mut sender, mut receiver) =
            (gossip(key.as_ref(), "c", 1), gossip(key.as_ref(), "c", 2));
        for bytes in [1, PIECE_BYTES, PIECE_BYTES + 1, 65_507, MAX_MESSAGE] {
            let message = message(bytes, 3);
            let datagrams = cut(&mut sender, &message);
            assert_eq!(datagrams.len(), bytes.div_ceil(PIECE_BYTES));
            assert!(datagrams.iter().all(|datagram| datagram.len() <= DATAGRAM_BYTES));
            assert_eq!(join(&mut receiver, Instant::ZERO, &datagrams), [message]);
        }
        assert_eq!(receiver.joining.len(), 0);
        assert_eq!(receiver.counters(), Counters { received: 5, ..Counters::default() });
        assert!(!sender.send(Instant::ZERO, address(2), &[]));
        assert!(!sender.send(Instant::ZERO, address(2), &vec![0; MAX_MESSAGE + 1]));
    }
}

#[test]
fn messages_of_another_key_or_cluster_are_refused() {
    let (ours, theirs) = (key(), Key::new(1, [8; 32]));
    let thieves = [(Some(&theirs), "c"), (None, "c"), (Some(&ours), "d")];
    for (key, cluster) in thieves {
        let datagrams = cut(&mut gossip(key, cluster, 1), &message(5_000, 1));
        let mut receiver = gossip(Some(&ours), "c", 2);
        assert!(join(&mut receiver, Instant::ZERO, &datagrams).is_empty());
        let refused = Counters { refused: 5, ..Counters::default() };
        assert_eq!((receiver.counters(), receiver.joining.len()), (refused, 0));
        assert_eq!(receiver.senders.len(), 0);
    }
    // Nor does a node without the key accept datagrams of one with it.
    let datagrams = cut(&mut gossip(Some(&ours), "c", 1), b"secret");
    assert!(!datagrams[0].windows(6).any(|window| window == b"secret"));
    assert!(join(&mut gossip(None, "c", 2), Instant::ZERO, &datagrams).is_empty());
}

#[test]
fn recorded_datagrams_are_refused() {
    let mut sender = gossip(Some(&key()), "c", 1);
    let datagrams: Vec<_> = (0..200).flat_map(|at| cut(&mut sender, &[at])).collect();
    let mut receiver = gossip(Some(&key()), "c", 2);
    assert_eq!(join(&mut receiver, Instant::ZERO, &datagrams).len(), 200);
    assert!(join(&mut receiver, Instant::ZERO, &datagrams).is_empty());
    assert_eq!(receiver.counters().refused, 200);
    // A receiver that has just started accepts it for a while.
    let now = Instant::ZERO.plus_nanos((MAX_SKEW + 1) * 1_000_000);
    let mut young = gossip(Some(&key()), "c", 3);
    assert_eq!(join(&mut young, Instant::ZERO, &datagrams[..1]).len(), 1);
    let mut young = gossip(Some(&key()), "c", 3);
    assert!(join(&mut young, now, &datagrams).is_empty());
    assert_eq!(young.counters().skewed, 200);
    // The same limit applies after the clock was set.
    young.set_time(now, NEW_YEAR + MAX_SKEW);
    assert_eq!(join(&mut young, now, &datagrams[..1]).len(), 1);
}

#[test]
fn windows_are_kept_until_their_datagrams_are_too_old() {
    let mut receiver = gossip(Some(&key()), "c", 2);
    let mut first = gossip(Some(&key()), "c", 1);
    let taken = cut(&mut first, b"taken");
    assert_eq!(join(&mut receiver, Instant::ZERO, &taken).len(), 1);
    for at in 1..MAX_SENDERS as u64 {
        let mut run = [0; 16];
        run[..8].copy_from_slice(&at.to_le_bytes());
        assert!(receiver.senders.accept(NEW_YEAR, Stamp { run, number: 0 }, NEW_YEAR));
    }
    let mut late = gossip(Some(&key()), "c", 3);
    assert!(join(&mut receiver, Instant::ZERO, &cut(&mut late, b"too many")).is_empty());
    assert_eq!(receiver.senders.len(), MAX_SENDERS);
    let now = Instant::ZERO.plus_nanos(MAX_SKEW * 1_000_000);
    assert!(join(&mut receiver, now, &taken).is_empty(), "still known");
    let now = now.plus_nanos(1_000_000);
    late.set_time(now, NEW_YEAR + MAX_SKEW + 1);
    let datagrams = {
        assert!(late.send(now, address(2), b"room"));
        vec![late.poll_transmit().unwrap().1]
    };
    assert_eq!(join(&mut receiver, now, &datagrams).len(), 1);
    assert_eq!(receiver.senders.len(), 1);
    assert!(join(&mut receiver, now, &taken).is_empty(), "too old");
}

#[test]
fn queues_are_bounded_and_drop_their_oldest_message() {
    let mut sender = gossip(None, "c", 1);
    for at in 0..MAX_WAITING as u8 + 2 {
        assert!(sender.send(Instant::ZERO, address(2), &[at; 2_000]));
    }
    let datagrams: Vec<_> = std::iter::from_fn(|| sender.poll_transmit()).collect();
    assert_eq!(datagrams.len(), 2 * MAX_WAITING);
    assert_eq!(sender.counters().dropped, 2);
    // First pieces without second ones.
    let mut receiver = gossip(None, "c", 2);
    let beginnings = (0..MOST + 3).map(|_| cut(&mut sender, &[1; MAX_MESSAGE]).remove(0));
    let beginnings: Vec<_> = beginnings.collect();
    assert!(join(&mut receiver, Instant::ZERO, &beginnings).is_empty());
    assert_eq!((receiver.joining.len(), receiver.counters().dropped), (MOST, 3));
    assert!(receiver.joining.bytes() <= MOST * MAX_PIECES * PIECE_BYTES);
    for at in 0..=MAX_WAITING as u8 {
        for mut datagram in cut(&mut sender, &[at]) {
            receiver.handle_datagram(Instant::ZERO, address(1), &mut datagram);
        }
    }
    assert_eq!(receiver.poll_message(), Some((address(1), vec![1])), "the first was dropped");
    assert_eq!(receiver.inbox.len(), MAX_WAITING - 1);
    assert_eq!(receiver.counters().dropped, 4);
}

proptest! {
    #[test]
    fn each_message_whose_pieces_all_arrive_is_joined_once_and_no_other(
        lengths in proptest::collection::vec(1_usize..6_000, 1..15),
        is_sealed: bool,
        fates in proptest::collection::vec((0_u8..20, 0_u64..40), 100),
    ) {
        let key = is_sealed.then(key);
        let (mut sender, mut receiver) =
            (gossip(key.as_ref(), "c", 1), gossip(key.as_ref(), "c", 2));
        let (mut arriving, mut whole) = (Vec::new(), Vec::new());
        let mut fates = fates.into_iter().cycle();
        let mut at = 0;
        for (seed, length) in (0..).zip(lengths) {
            let message = message(length, seed);
            let mut is_whole = true;
            for datagram in cut(&mut sender, &message) {
                let (fate, delay) = fates.next().unwrap();
                at += 1;
                is_whole &= fate != 0;
                let copies = match fate { 0 => 0, 1 => 3, _ => 1 };
                arriving.extend((0..copies).map(|copy| (at + delay * (1 + copy), datagram.clone())));
            }
            if is_whole {
                whole.push(message);
            }
        }
        arriving.sort_by_key(|(at, _)| *at);
        let arriving: Vec<_> = arriving.into_iter().map(|(_, datagram)| datagram).collect();
        let mut joined = join(&mut receiver, Instant::ZERO, &arriving);
        if !is_sealed {
            // Without a key, a copy cannot be distinguished from another message of the same bytes.
            joined.sort();
            joined.dedup();
        }
        joined.sort();
        whole.sort();
        prop_assert_eq!(joined, whole);
    }

    #[test]
    fn no_datagram_makes_a_receiver_panic_or_keep_more_than_its_bounds(
        datagrams in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..80), 0_usize..1_300, 0_u8..4, any::<u8>()), 1..60),
        is_sealed: bool,
    ) {
        let key = is_sealed.then(key);
        let mut receiver = gossip(key.as_ref(), "c", 2);
        for (mut bytes, length, kind, last) in datagrams {
            bytes.resize(length, last);
            let head = [7, 1, u8::from(is_sealed), 0, 0, 0, 0, 0];
            if kind > 0 && bytes.len() >= 42 {
                bytes[..8].copy_from_slice(&head);
            }
            if kind > 1 && bytes.len() >= 42 {
                bytes[8..32].fill(0);
                bytes[41] %= 64;
                bytes[40] %= bytes[41] + 1;
            }
            receiver.handle_datagram(Instant::ZERO, address(1), &mut bytes);
            prop_assert!(receiver.joining.len() <= MOST && receiver.inbox.len() <= MAX_WAITING);
            if is_sealed {
                prop_assert!(receiver.joining.len() + receiver.inbox.len() == 0);
            }
        }
    }

    #[test]
    fn a_changed_byte_is_refused(bytes in 1_usize..3_000, at: prop::sample::Index, by in 1_u8..) {
        let mut datagrams = cut(&mut gossip(Some(&key()), "c", 1), &message(bytes, 1));
        let mut receiver = gossip(Some(&key()), "c", 2);
        let datagram = &mut datagrams[0];
        let at = at.index(datagram.len());
        datagram[at] ^= by;
        prop_assert!(join(&mut receiver, Instant::ZERO, &datagrams).is_empty());
        prop_assert_eq!(receiver.counters().refused, 1);
    }
}
