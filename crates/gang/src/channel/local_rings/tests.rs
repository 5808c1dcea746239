//! Tests of the rings: against queues as a model, with invalid words, with successive processes, and with threads that
//! park.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Poll, Waker};

use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

use super::*;

const LONGEST: u32 = 100;

/// Returns rings of ranks 0, 2, 4 and so on, each with this many bytes for its past.
fn rings(past: &[usize]) -> LocalRings {
    let ranks = past.iter().enumerate().map(|(at, bytes)| (Rank(2 * at as u16), *bytes));
    let layout = Layout::plan(LONGEST, ranks, true).unwrap();
    let link = LinkProfile::plain(LineRate::mbps(1000), std::time::Duration::ZERO);
    let star = Topology::star(1, link, SwitchProfile::new(Buffer::Bytes(1 << 16)));
    let world = World::new(&star, NicProfile::FREE, 1, |_, _| Unit::default());
    let mut port = world.host(NodeId(0)).open_port().unwrap();
    let memory = Memory::Own(std::sync::Arc::new(port.register(layout.bytes()).unwrap()));
    let bells = Bells::near(past.len());
    LocalRings { layout, memory, bells }
}

fn open(rings: &LocalRings, rank: u16) -> RingEnds {
    RingEnds::open(rings.clone(), Rank(rank)).unwrap().unwrap()
}

fn take(ends: &mut RingEnds) -> Option<(Rank, Vec<u8>)> {
    ends.find().unwrap().then(|| {
        let (from, payload) = ends.current().unwrap();
        let message = (from, payload.to_vec());
        ends.consume();
        message
    })
}

#[derive(Clone, Debug)]
enum Op {
    Send(u16, u16, usize),
    Take(u16),
    /// The rank's process ends, and another process opens its ends.
    Follow(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let rank = || (0_u16..3).prop_map(|at| 2 * at);
    prop_oneof![
        4 => (rank(), rank(), 0..=LONGEST as usize).prop_map(|(a, b, length)| Op::Send(a, b, length)),
        3 => rank().prop_map(Op::Take),
        1 => rank().prop_map(Op::Follow),
    ]
}

/// Regression: a daemon that looked for unreceived messages from such a count read beyond the memory, or without an end.
#[test]
fn counts_that_no_receiver_writes_are_damage() {
    let rings = rings(&[0, 0]);
    let place = rings.layout.pair(Rank(2), Rank(2));
    for (consumed, tail) in [(place.bytes - 1, place.bytes), (u64::MAX - 15, u64::MAX - 7)] {
        set_word(&rings.memory, place.head + CONSUMED, consumed);
        set_word(&rings.memory, place.head + TAIL, tail);
        set_word(&rings.memory, place.byte(consumed & !7), header(8, Rank(2)));
        assert!(rings.unreceived(Rank(2)).is_err(), "{consumed}");
    }
    // A ring without a message, whose count can't grow.
    set_word(&rings.memory, place.head + CONSUMED, u64::MAX - 7);
    let unreceived = rings.unreceived(Rank(2)).unwrap();
    assert_eq!((unreceived.messages.len(), unreceived.full), (0, vec![Rank(2)]));
}

proptest! {
    #[test]
    fn rings_are_queues_that_outlive_their_processes(ops in proptest::collection::vec(op(), 0..800)) {
        let rings = rings(&[0, 0, 0]);
        let mut ends: Vec<RingEnds> = [0, 2, 4].map(|rank| open(&rings, rank)).into();
        let mut model: BTreeMap<(u16, u16), VecDeque<Vec<u8>>> = BTreeMap::new();
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Send(from, to, length) => {
                    let bytes = vec![number as u8; length];
                    let (head, rest) = bytes.split_at(length / 3);
                    let has_room = ends[usize::from(from / 2)].push(Rank(to), [head, rest]);
                    let queue = model.entry((from, to)).or_default();
                    prop_assert!(has_room || !queue.is_empty(), "an empty ring has room");
                    if has_room {
                        queue.push_back(bytes);
                    }
                }
                Op::Take(rank) => match take(&mut ends[usize::from(rank / 2)]) {
                    Some((from, bytes)) => {
                        let expected = model.get_mut(&(from.0, rank)).and_then(VecDeque::pop_front);
                        prop_assert_eq!(Some(bytes), expected);
                    }
                    None => {
                        let mut to_it = model.iter().filter(|((_, to), _)| *to == rank);
                        prop_assert!(to_it.all(|(_, queue)| queue.is_empty()));
                    }
                },
                Op::Follow(rank) => {
                    ends[usize::from(rank / 2)] = open(&rings, rank);
                }
            }
        }
        // The unreceived messages are saved, and are received first after they are restored.
        let saved: Vec<Unreceived> =
            [0, 2, 4].map(|rank| rings.unreceived(Rank(rank)).unwrap()).into();
        let bytes = |all: &Unreceived| all.messages.iter().map(|(_, it)| message_bytes(it.len())).sum();
        let restored = self::rings(&saved.iter().map(bytes).collect::<Vec<_>>());
        for (rank, all) in [0, 2, 4].into_iter().zip(&saved) {
            let messages = all.messages.iter().map(|(from, bytes)| (*from, &bytes[..]));
            restored.fill_past(Rank(rank), messages).unwrap();
        }
        for rank in [0, 2, 4] {
            let (mut end, mut other) = (open(&restored, rank), open(&restored, 4 - rank));
            prop_assert!(other.push(Rank(rank), [b"new", &[]]));
            while let Some((from, bytes)) = take(&mut end) {
                let expected = model.get_mut(&(from.0, rank)).and_then(VecDeque::pop_front);
                prop_assert_eq!(bytes, expected.unwrap_or_else(|| b"new".to_vec()));
            }
        }
        prop_assert!(model.values().all(VecDeque::is_empty));
    }

    #[test]
    fn damaged_rings_are_found_and_never_read_beyond(
        writes in proptest::collection::vec((any::<u16>(), any::<u64>(), any::<bool>()), 1..20),
    ) {
        let rings = rings(&[0, 200]);
        let (mut a, mut b) = (open(&rings, 0), open(&rings, 2));
        let words = rings.layout.bytes() / WORD;
        for (at, value, is_near) in writes {
            let _ = a.push(Rank(2), [b"message", &[]]);
            let value = if is_near { value % 1_024 * 8 } else { value };
            set_word(&rings.memory, usize::from(at) % words * WORD, value);
            for end in [&mut a, &mut b] {
                for _ in 0..100 {
                    let Ok(true) = end.find() else { break };
                    let (_, payload) = end.current().unwrap();
                    prop_assert!(payload.len() <= LONGEST as usize);
                    end.consume();
                }
            }
            let _ = rings.unreceived(Rank(2));
        }
    }

    #[test]
    fn any_layout_is_refused_or_fits_its_memory(
        ranks in proptest::collection::vec(0_u16..9, 0..4), pair_bytes in 0_u32..2_000,
        longest in 0_u32..300, past in proptest::collection::vec(0_u32..300, 0..4),
    ) {
        let words = (ranks, pair_bytes, longest, past);
        let bytes = midplane_simhw::wire::encode(&words).unwrap();
        let layout: Layout = midplane_simhw::wire::decode(&bytes).unwrap();
        if layout.check() {
            for from in layout.ranks() {
                let pairs = layout.ranks().iter().map(|to| layout.pair(*from, *to));
                let pairs = pairs.filter(|_| layout.has_pairs());
                for place in pairs.chain(layout.past(*from)) {
                    prop_assert!(place.byte(place.bytes - 1) < layout.bytes());
                }
            }
        }
    }
}

#[test]
fn too_many_ranks_have_no_rings_but_keep_their_past() {
    let ranks = |past| (0..100).map(move |rank| (Rank(rank), past));
    assert_eq!(Layout::plan(LONGEST, ranks(0), true), None);
    let layout = Layout::plan(LONGEST, ranks(8), true).unwrap();
    assert!(!layout.has_pairs() && layout.past(Rank(99)).is_some());
    assert_eq!(Layout::plan(LONGEST, [(Rank(0), 0)], true), None, "a rank alone needs none");
}

/// Sends numbers to the other rank and receives its numbers; parks whenever it can do neither.
async fn exchange(rings: LocalRings, rank: u16, count: u32) {
    let (mut ends, to) = (open(&rings, rank), Rank(2 - rank));
    let (mut sent, mut received) = (0, 0);
    while sent < count || received < count {
        let is_full = sent < count && !ends.push(to, [&sent.to_le_bytes(), &[7; 90]]);
        sent += u32::from(sent < count && !is_full);
        if let Some((_, bytes)) = take(&mut ends) {
            assert_eq!(bytes[..4], received.to_le_bytes());
            received += 1;
        } else if is_full || sent == count && received < count {
            let until = if is_full { News::Either } else { News::Message };
            let mut was_parked = false;
            poll_fn(|context| {
                if std::mem::replace(&mut was_parked, true) || !ends.park(context, until) {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }
    }
    ends.offer();
}

/// Counts the wake-ups of a task.
struct Count(AtomicUsize);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Regression: a sender cleared the receiver's word before it rang. If it was killed in between, no other sender woke
/// the receiver.
#[test]
fn each_sender_wakes_a_parked_receiver_and_only_once() {
    let rings = rings(&[0, 0, 0]);
    let (mut senders, mut receiver) = ([0, 2].map(|rank| open(&rings, rank)), open(&rings, 4));
    let wakes = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    for parked in 1..=2 {
        assert!(receiver.park(&mut context, News::Message));
        for at in [0, 1, 0, 1] {
            assert!(senders[at].push(Rank(4), [b"message", &[]]));
            // The receiver is not woken, as if the sender were killed before it rings.
            receiver.bell.hears(&mut context);
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2 * parked);
        while take(&mut receiver).is_some() {}
    }
    // The next process of the rank does not park as the former one did.
    assert!(receiver.park(&mut context, News::Message));
    let mut next = open(&rings, 4);
    assert!(next.park(&mut context, News::Message) && senders[0].push(Rank(4), [b"message", &[]]));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 5);
}

/// Regression: the receiver slept for ever, because the next process did not know of the message.
#[test]
fn the_next_process_of_a_killed_rank_wakes_what_it_left_asleep() {
    let rings = rings(&[0, 0]);
    let (mut sender, mut receiver) = (open(&rings, 0), open(&rings, 2));
    let wakes = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    assert!(receiver.park(&mut Context::from_waker(&waker), News::Message));
    // The process is killed before it rings.
    assert!(sender.senders[1].push(&rings.memory, Rank(0), [b"message", &[]]));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    let _next = open(&rings, 0);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert!(take(&mut receiver).is_some());
}

/// Regression: a send to a full ring polled without an end while a message to its own rank was unread.
#[test]
fn a_rank_waits_for_room_although_a_message_is_unread() {
    let rings = rings(&[0, 0]);
    let (mut one, mut other) = (open(&rings, 0), open(&rings, 2));
    while one.push(Rank(2), [&[7; 90], &[]]) {}
    assert!(other.push(Rank(0), [b"message", &[]]));
    assert!(one.has_news(News::Either) && !one.has_news(News::Room));
    assert!(one.park(&mut Context::from_waker(Waker::noop()), News::Room));
    while take(&mut other).is_some() {}
    assert!(one.has_news(News::Room) && one.push(Rank(2), [b"message", &[]]));
}

/// If a wake-up is lost, both sides wait forever.
#[test]
fn no_wake_up_is_lost_between_two_threads() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let rings = rings(&[0, 0]);
    let run = |rings: LocalRings, rank| {
        let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
        let mut task = std::pin::pin!(exchange(rings, rank, 20_000));
        while task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
    };
    let other = rings.clone();
    let thread = std::thread::spawn(move || run(other, 2));
    run(rings, 0);
    thread.join().unwrap();
}
