//! Tests the total order of coherent writes: its sequencer dies, and its log stays short.

use super::*;
use crate::memory::log::{Log, MAX_LOCATIONS, MOST, PART};

fn check_deaths(seed: u64) {
    let mut cluster = Cluster::new(5, seed, 0.0);
    cluster.play(150, &[Level::Coherent], 4);
    cluster.kill(0);
    cluster.play(200, &[Level::Coherent], 4);
    if seed.is_multiple_of(2) {
        cluster.kill(1);
        cluster.play(200, &[Level::Coherent], 4);
    }
    cluster.settle();
    for location in 0..4 {
        for node in 0..5 {
            cluster.read(node, location);
        }
    }
    let dead: Vec<usize> = (0..5).filter(|at| cluster.nodes[*at].is_none()).collect();
    // Writes of dead nodes have no event if no live node received their place. All reads must still
    // fit one order, and never go back.
    let ends: Vec<_> = cluster.nodes.iter().flatten().map(|m| m.coherent.end()).collect();
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    for (at, tickets) in cluster.tickets.iter().enumerate() {
        assert!(dead.contains(&at) || tickets.is_empty(), "seed {seed}: {at} waits");
    }
    for (node, events) in &cluster.history {
        let mut seen = BTreeMap::new();
        for event in events {
            if let Event::Read { location, origin: Some(origin) } = event {
                let (writer, _) = cluster.order[&origin.order];
                assert_eq!(writer, origin.writer, "seed {seed}: node {node} saw another order");
                let last = seen.insert(*location, origin.order).unwrap_or(0);
                assert!(last <= origin.order, "seed {seed}: node {node} went back");
            }
        }
    }
}

#[test]
fn the_sequencer_may_die_and_no_write_that_was_seen_is_lost() {
    (0..60).for_each(check_deaths);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn the_sequencer_may_die_and_no_write_is_lost_from_new_seeds(seed: u64) {
        check_deaths(seed);
    }
}

#[test]
fn a_minority_commits_nothing() {
    let mut cluster = Cluster::new(3, 1, 0.0);
    cluster.kill(0);
    cluster.kill(1);
    cluster.settle();
    cluster.write(2, Level::Coherent, 0);
    cluster.settle();
    assert_eq!(cluster.nodes[2].as_ref().unwrap().read(0), None);
}

/// The sequencer has acknowledged every request, so only a further message can reveal its death.
#[test]
fn a_waiting_writer_calls_the_sequencer_without_effect() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let memory = |node| Memory::<Value>::new(NodeId(node), &names, Duration::from_nanos(LOOP));
    let (mut sequencer, mut writer) = (memory(0), memory(1));
    assert!(!writer.waits_for_place());
    writer.co_write(7, 1);
    let request = writer.poll_send();
    assert!(matches!(request, Some((NodeId(0), Update::Coherent(Coherence::Request(_))))));
    assert!(writer.waits_for_place() && writer.poll_send().is_none());
    writer.call_sequencer();
    let (to, call) = writer.poll_send().expect("a reliable message");
    assert_eq!(to, NodeId(0));
    assert!(call.is_reliable());
    sequencer.handle_update(Instant::from_nanos(1), NodeId(1), call);
    assert!(sequencer.poll_send().is_none() && sequencer.read(7).is_none());
    // After the sequencer's death the writer is the next one, and waits for a majority instead of a
    // place.
    writer.on_peer_lost(Instant::from_nanos(1), NodeId(0));
    assert!(!writer.waits_for_place());
}

/// A node that was reported lost and returns has lost its log. If it counted, two nodes of five
/// could discard what three have committed.
#[test]
fn a_node_reported_lost_does_not_count_for_a_majority() {
    let names: Vec<NodeId> = (0..5).map(NodeId).collect();
    let mut next: Memory<Value> = Memory::new(NodeId(1), &names, Duration::from_nanos(LOOP));
    next.on_peer_lost(Instant::from_nanos(1), NodeId(2));
    next.on_peer_lost(Instant::from_nanos(1), NodeId(0));
    let empty = || {
        Update::Coherent(Coherence::Known {
            view: 1,
            of_view: 0,
            committed: 0,
            log: Vec::new(),
            more: false,
        })
    };
    let asked_for_places = |memory: &mut Memory<Value>| {
        std::iter::from_fn(|| memory.poll_send())
            .any(|(_, update)| matches!(update, Update::Coherent(Coherence::View { .. })))
    };
    let now = Instant::from_nanos(1);
    next.handle_update(now, NodeId(3), empty());
    next.handle_update(now, NodeId(2), empty());
    next.handle_update(now, NodeId(9), empty());
    assert!(!asked_for_places(&mut next), "two nodes of five are no majority");
    next.handle_update(now, NodeId(4), empty());
    assert!(asked_for_places(&mut next));
}

/// A member sends parts of a log without end, in rising places.
#[test]
fn a_log_without_end_is_dropped_and_takes_bounded_memory() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let mut next: Memory<Value> = Memory::new(NodeId(1), &names, Duration::from_nanos(LOOP));
    next.on_peer_lost(Instant::from_nanos(1), NodeId(0));
    let part = |at: u64, more| {
        let places = at * PART as u64 + 1..=(at + 1) * PART as u64;
        let entry = |place: u64| Entry {
            writer: NodeId(2),
            ticket: place,
            location: place as u32,
            value: 0,
        };
        let log = places.map(|place| (place, entry(place))).collect();
        Update::Coherent(Coherence::Known { view: 1, of_view: 0, committed: 0, log, more })
    };
    let parts = (MOST / PART) as u64;
    for at in 0..2 * parts {
        next.handle_update(Instant::from_nanos(1), NodeId(2), part(at, true));
        assert!(next.coherent.parts_len() <= MOST, "part {at}");
    }
    // The end of a log that was dropped makes no majority: the parts before it are missing.
    next.handle_update(Instant::from_nanos(1), NodeId(2), part(2 * parts, false));
    let mut sent = std::iter::from_fn(|| next.poll_send());
    assert!(sent.all(|(_, update)| matches!(update, Update::Coherent(Coherence::Ask { .. }))));
    assert_eq!(next.coherent.end(), 0);
}

/// The log takes new locations up to the limit, and beyond it only writes to the locations that it has.
#[test]
fn the_log_takes_a_bounded_number_of_locations() {
    let mut log = Log::new();
    for location in 0..MAX_LOCATIONS as u32 {
        assert!(log.takes(location));
        let ticket = u64::from(location) + 1;
        let place = log.push(Entry { writer: NodeId(0), ticket, location, value: 0 }).unwrap();
        log.commit(place);
        log.poll().unwrap();
    }
    assert!(!log.takes(u32::MAX) && log.takes(0) && log.len() < MOST);
}

/// Tests that the sequencer may die after thousands of writes. Every live node's writes end, and
/// the transfer of the log fits the control messages.
fn check_long(seed: u64) {
    let mut cluster = Cluster::new(5, seed, 0.0);
    cluster.play(10_000, &[Level::Coherent], 4);
    cluster.kill(0);
    cluster.play(200, &[Level::Coherent], 4);
    if seed.is_multiple_of(2) {
        cluster.kill(1);
        cluster.play(200, &[Level::Coherent], 4);
    }
    cluster.settle();
    let done = cluster.order.len();
    assert!(done > 3_000, "seed {seed}: only {done} writes were committed");
    assert!(cluster.longest < 400, "seed {seed}: a log of {} writes", cluster.longest);
    for (at, tickets) in cluster.tickets.iter().enumerate() {
        assert!(cluster.nodes[at].is_none() || tickets.is_empty(), "seed {seed}: {at} waits");
    }
}

#[test]
fn the_sequencer_may_die_after_thousands_of_writes() {
    (0..4).for_each(check_long);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn the_sequencer_may_die_after_thousands_of_writes_from_new_seeds(seed: u64) {
        check_long(seed);
    }
}

/// A member may request a place for its own writes only.
#[test]
fn a_member_places_no_write_of_another() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let mut sequencer: Memory<Value> = Memory::new(NodeId(0), &names, Duration::from_nanos(LOOP));
    let now = Instant::from_nanos(1);
    let entry = |writer| Entry { writer: NodeId(writer), ticket: 1, location: 7, value: 5 };
    let request = |writer| Update::Coherent(Coherence::Request(entry(writer)));
    sequencer.handle_update(now, NodeId(2), request(1));
    sequencer.handle_update(now, NodeId(2), request(0));
    assert!(sequencer.poll_send().is_none(), "a write of another node has a place");
    sequencer.handle_update(now, NodeId(1), request(1));
    assert!(sequencer.poll_send().is_some());
}

/// Exchanges all messages among memories.
fn exchange(memories: &mut [Memory<Value>]) {
    loop {
        let mut sent = Vec::new();
        for memory in memories.iter_mut() {
            let from = memory.me;
            sent.extend(std::iter::from_fn(|| memory.poll_send()).map(|(to, it)| (from, to, it)));
        }
        if sent.is_empty() {
            return;
        }
        for (from, to, update) in sent {
            let now = Instant::from_nanos(1);
            memories[usize::from(to.0)].handle_update(now, from, update);
        }
    }
}

/// A node that the others have reported dead learns that they ignore its coherent writes, whether it was the sequencer or not.
#[test]
fn a_node_that_was_reported_dead_learns_it() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    for returned in 0..3 {
        let memory =
            |node: u16| Memory::<Value>::new(NodeId(node), &names, Duration::from_nanos(LOOP));
        let mut memories: Vec<_> = (0..3).map(memory).collect();
        for memory in memories.iter_mut().filter(|memory| memory.me != NodeId(returned)) {
            memory.on_peer_lost(Instant::from_nanos(1), NodeId(returned));
        }
        exchange(&mut memories);
        let tickets: Vec<_> = memories.iter_mut().map(|memory| memory.co_write(1, 5)).collect();
        exchange(&mut memories);
        for (memory, ticket) in memories.iter().zip(tickets) {
            let is_returned = memory.me == NodeId(returned);
            assert_eq!(memory.is_excluded(), is_returned, "{returned}: {}", memory.me);
            assert_eq!(memory.is_done(ticket), !is_returned, "{returned}: {}", memory.me);
        }
    }
}

/// The sequencer that a restarted node knows is dead, so that it requests no place of the present one.
#[test]
fn a_restarted_node_learns_it_from_a_sequencer_of_a_later_view() {
    let names: Vec<NodeId> = (0..5).map(NodeId).collect();
    let memory = |node: u16| Memory::<Value>::new(NodeId(node), &names, Duration::from_nanos(LOOP));
    let mut memories: Vec<_> = (0..5).map(memory).collect();
    let now = Instant::from_nanos(1);
    for memory in &mut memories {
        let lost = if memory.me == NodeId(2) { &[0][..] } else { &[0, 2] };
        lost.iter().for_each(|node| memory.on_peer_lost(now, NodeId(*node)));
        // The dead node gets nothing.
        std::iter::from_fn(|| memory.poll_send()).for_each(drop);
    }
    memories[2].co_write(1, 5);
    memories[2].call_sequencer();
    exchange(&mut memories);
    assert!(memories[2].is_excluded());
    memories[2].give_up_coherent();
    assert!(!memories[2].waits_for_place());
}

/// A restarted node has lost its log. A peer that knows the restart from data frames alone must not
/// take its empty log for one that misses nothing.
#[test]
fn a_restarted_node_does_not_count_for_a_new_sequencer() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let memory = |node: u16| Memory::<Value>::new(NodeId(node), &names, Duration::from_nanos(LOOP));
    let mut memories: Vec<_> = (0..3).map(memory).collect();
    let now = Instant::from_nanos(1);
    // Nodes 0 and 1 commit a write. Nothing of it reaches node 2.
    let committed = memories[0].co_write(1, 5);
    for (from, to) in [(0_u16, 1_u16), (1, 0), (0, 1)] {
        let sent: Vec<_> = std::iter::from_fn(|| memories[usize::from(from)].poll_send()).collect();
        for (_, update) in sent.into_iter().filter(|(node, _)| *node == NodeId(to)) {
            memories[usize::from(to)].handle_update(now, NodeId(from), update);
        }
    }
    assert!(memories[0].is_done(committed) && memories[1].read(1) == Some(&5));
    memories[1] = memory(1);
    memories[2].on_peer_seen(now, NodeId(1), true);
    for memory in &mut memories[1..] {
        memory.on_peer_lost(now, NodeId(0));
    }
    exchange(&mut memories);
    for node in 1..3 {
        let ticket = memories[node].co_write(1, 6);
        exchange(&mut memories);
        assert!(!memories[node].is_done(ticket), "node {node} commits over the write of node 0");
    }
}

/// A faulty member requests places for ever new locations, and its requests are not committed.
#[test]
fn requests_of_a_member_keep_the_log_bounded() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let mut sequencer: Memory<Value> = Memory::new(NodeId(0), &names, Duration::from_nanos(LOOP));
    let now = Instant::from_nanos(1);
    for location in 0..MOST as Location + 1_000 {
        let ticket = u64::from(location) + 1;
        let entry = Entry { writer: NodeId(1), ticket, location, value: 5 };
        sequencer.handle_update(now, NodeId(1), Update::Coherent(Coherence::Request(entry)));
        std::iter::from_fn(|| sequencer.poll_send()).for_each(drop);
    }
    assert!(sequencer.coherent.log_len() < MOST, "{} writes", sequencer.coherent.log_len());
}

/// The log is full, and location 0 has a committed write, so that it takes more.
#[test]
fn no_request_passes_a_refused_one_of_its_writer() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let mut sequencer: Memory<Value> = Memory::new(NodeId(0), &names, Duration::from_nanos(LOOP));
    let mut request = |writer, ticket, location| {
        let entry = Entry { writer: NodeId(writer), ticket, location, value: 5 };
        let now = Instant::from_nanos(1);
        let request = Update::Coherent(Coherence::Request(entry));
        sequencer.handle_update(now, NodeId(writer), request);
        let have = Coherence::Have { view: 0, place: 1 };
        sequencer.handle_update(now, NodeId(writer), Update::Coherent(have));
        std::iter::from_fn(|| sequencer.poll_send()).for_each(drop);
        sequencer.coherent.log_len()
    };
    let mut full = 0;
    for location in 0..MOST as Location {
        full = request(1, u64::from(location) + 1, location);
    }
    assert_eq!(request(1, MOST as u64 + 1, 0), full, "a write passes one that has no place");
    assert_eq!(request(2, 1, 0), full + 1, "another writer has no place");
}

/// Only the sequencer of a view makes and commits its order.
#[test]
fn a_place_of_another_than_the_sequencer_is_ignored() {
    let names: Vec<NodeId> = (0..3).map(NodeId).collect();
    let mut follower: Memory<Value> = Memory::new(NodeId(1), &names, Duration::from_nanos(LOOP));
    let now = Instant::from_nanos(1);
    let place = |committed| {
        let entry = Entry { writer: NodeId(2), ticket: 1, location: 7, value: 5 };
        Update::Coherent(Coherence::Place { view: 0, place: 1, entry, committed })
    };
    let commit = || Update::Coherent(Coherence::Committed { view: 0, place: 1 });
    follower.handle_update(now, NodeId(2), place(1));
    assert_eq!((follower.coherent.end(), follower.read(7)), (0, None));
    follower.handle_update(now, NodeId(0), place(0));
    follower.handle_update(now, NodeId(2), commit());
    assert_eq!((follower.coherent.end(), follower.read(7)), (1, None));
    follower.handle_update(now, NodeId(0), commit());
    assert_eq!(follower.read(7), Some(&5));
}
