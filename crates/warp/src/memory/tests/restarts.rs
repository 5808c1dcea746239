//! Tests slow writes of nodes that restart or fall silent, and the bound of the locations.

use super::*;
use crate::memory::log::MAX_LOCATIONS;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn memory(node: u16, nodes: u16) -> Memory<Value> {
    let names: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    Memory::new(NodeId(node), &names, Duration::from_nanos(LOOP))
}

/// Takes the acknowledgements out of the updates that a memory sends.
fn acks(memory: &mut Memory<Value>) -> Vec<Update<Value>> {
    let sent = std::iter::from_fn(|| memory.poll_send()).map(|(_, update)| update);
    sent.filter(|update| matches!(update, Update::SlowAck { .. })).collect()
}

/// Restarts a node without its memory. The others notice.
fn restart(cluster: &mut Cluster, node: u16) {
    let nodes = cluster.nodes.len() as u16;
    cluster.nodes[usize::from(node)] = Some(memory(node, nodes));
    let now = at(cluster.now);
    for other in cluster.nodes.iter_mut().flatten() {
        other.on_peer_seen(now, NodeId(node), true);
    }
}

#[track_caller]
fn assert_alike(cluster: &Cluster, locations: Location, seed: u64) {
    for location in 0..locations {
        let live = cluster.nodes.iter().flatten();
        let values: Vec<_> = live.map(|memory| memory.read(location)).collect();
        let is_alike = values.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(is_alike, "seed {seed}, location {location}: {values:?}");
    }
}

fn check_restart(seed: u64) {
    const OWN: Location = 9;
    let mut cluster = Cluster::new(4, seed, 0.3);
    cluster.play(200, &[Level::Slow], 4);
    (0..60).for_each(|_| cluster.write(1, Level::Slow, OWN));
    cluster.settle();
    // Its values are later than all that the restarted node writes at first, and it sends them to
    // no node.
    cluster.kill(3);
    cluster.settle();
    restart(&mut cluster, 1);
    cluster.write(1, Level::Slow, OWN);
    cluster.settle();
    for memory in cluster.nodes.iter().flatten() {
        let (_, origin) = memory.read_origin(OWN).expect("it was written");
        assert_eq!(origin.order, 1, "seed {seed}: a value from before the restart");
        let mut awaited = memory.unacknowledged().into_iter();
        // The restarted node has got nothing of node 3.
        assert!(awaited.all(|(node, ..)| node == NodeId(3)), "seed {seed}");
    }
    // It knows the others' clocks now.
    (0..4).for_each(|location| cluster.write(1, Level::Slow, location));
    cluster.settle();
    assert_alike(&cluster, 4, seed);
    let shown = cluster.nodes[0].as_ref().map(|memory| memory.read_origin(0).unwrap().1.writer);
    assert_eq!(shown, Some(NodeId(1)), "seed {seed}: an older value");
    cluster.play(200, &[Level::Slow], 4);
    cluster.settle();
    assert_alike(&cluster, 4, seed);
}

#[test]
fn after_a_restart_all_copies_become_alike_and_show_the_new_values() {
    (0..30).for_each(check_restart);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(15))]
    #[test]
    fn after_a_restart_all_copies_become_alike_from_new_seeds(seed: u64) {
        check_restart(seed);
    }
}

/// The first acknowledgements of a restarted node's write are about its former writes.
#[test]
fn a_write_that_is_not_shown_is_not_acknowledged() {
    let (mut writer, mut reader) = (memory(0, 2), memory(1, 2));
    (0..57).for_each(|value| writer.slow_write(at(1), 7, value));
    let update = writer.poll_slow(at(1), NodeId(1)).expect("it is due");
    reader.handle_update(at(1), NodeId(0), update);
    let mut writer = memory(0, 2);
    drop(acks(&mut reader));
    reader.on_peer_seen(at(2), NodeId(0), true);
    writer.slow_write(at(2), 7, 100);
    let awaited = writer.unacknowledged()[0];
    for _ in 0..2 {
        let update = writer.poll_slow(at(3), NodeId(1)).expect("it is due");
        assert!(!writer.is_acknowledged(awaited) && reader.read(7) == Some(&56));
        reader.handle_update(at(3), NodeId(0), update);
        let ack = acks(&mut reader).remove(0);
        writer.handle_update(at(3), NodeId(1), ack);
        if reader.read(7) == Some(&100) {
            break;
        }
    }
    assert!(writer.is_acknowledged(awaited) && reader.read(7) == Some(&100));
}

#[test]
fn a_flush_waits_for_the_writes_before_it_alone() {
    let (mut writer, mut reader) = (memory(0, 2), memory(1, 2));
    writer.slow_write(at(1), 7, 1);
    let awaited = writer.unacknowledged();
    let update = writer.poll_slow(at(1), NodeId(1)).expect("it is due");
    writer.slow_write(at(2), 7, 2);
    writer.slow_write(at(2), 8, 3);
    reader.handle_update(at(2), NodeId(0), update);
    assert!(!writer.is_acknowledged(awaited[0]));
    let ack = acks(&mut reader).remove(0);
    writer.handle_update(at(3), NodeId(1), ack);
    assert!(writer.is_acknowledged(awaited[0]) && awaited.len() == 1);
    assert_eq!(writer.unacknowledged().len(), 2, "the later writes");
    writer.on_peer_lost(at(4), NodeId(1));
    assert!(writer.unacknowledged().is_empty(), "a lost node acknowledges nothing");
}

#[test]
fn a_known_node_that_acknowledges_nothing_is_called() {
    let (mut writer, mut reader) = (memory(0, 3), memory(1, 3));
    let called = |writer: &mut Memory<Value>| {
        writer.call_silent(|node| node != NodeId(2));
        let sent: Vec<_> = std::iter::from_fn(|| writer.poll_send()).collect();
        assert!(sent.iter().all(|(to, update)| *to == NodeId(1) && update.is_reliable()));
        sent.into_iter().map(|(_, update)| update).collect::<Vec<_>>()
    };
    assert!(called(&mut writer).is_empty());
    writer.slow_write(at(1), 7, 1);
    let call = called(&mut writer).remove(0);
    reader.handle_update(at(2), NodeId(0), call);
    assert!(reader.poll_send().is_none(), "a call has no effect");
    let update = writer.poll_slow(at(2), NodeId(1)).expect("it is due");
    reader.handle_update(at(2), NodeId(0), update);
    let ack = acks(&mut reader).remove(0);
    writer.slow_write(at(3), 7, 2);
    writer.handle_update(at(3), NodeId(1), ack);
    assert!(called(&mut writer).is_empty(), "it has just answered");
    assert_eq!(called(&mut writer).len(), 1);
}

#[test]
fn writes_of_peers_add_a_bounded_number_of_locations() {
    let mut filled = memory(0, 2);
    let slow = |location| Update::Slow { location, order: 1, number: 0, clock: 1, value: 5 };
    let refused = |acks: &[Update<Value>]| {
        let is_refused =
            |ack: &&Update<Value>| matches!(ack, Update::SlowAck { fate: Fate::Refused, .. });
        acks.iter().filter(is_refused).count()
    };
    for location in 0..MAX_LOCATIONS as Location {
        filled.handle_update(at(1), NodeId(1), slow(location));
    }
    assert_eq!((refused(&acks(&mut filled)), filled.dropped()), (0, 0));
    let beyond = MAX_LOCATIONS as Location;
    filled.handle_update(at(1), NodeId(1), slow(beyond));
    let pram = Update::Pram { location: beyond, order: 1, clock: 2, value: 5 };
    filled.handle_update(at(1), NodeId(1), pram);
    let answers = acks(&mut filled);
    assert_eq!((refused(&answers), filled.dropped()), (2, 2));
    // The writer of both counts them.
    let mut writer = memory(1, 2);
    writer.slow_write(at(1), beyond, 5);
    answers.into_iter().for_each(|ack| writer.handle_update(at(2), NodeId(0), ack));
    assert_eq!(writer.refused(), 2);
    assert!(!filled.takes(beyond) && filled.takes(0) && filled.read(beyond).is_none());
}

/// A write that another's causally later write has replaced must not come back, even if this node
/// does not know the later one yet.
#[test]
fn without_a_restart_a_later_write_of_another_node_stays() {
    let (mut first, mut second, mut reader) = (memory(0, 3), memory(1, 3), memory(2, 3));
    let deliver = |from: &mut Memory<Value>, to: &mut Memory<Value>, now| {
        let update = from.poll_slow(at(now), to.me).expect("it is due");
        to.handle_update(at(now), from.me, update);
        acks(to).remove(0)
    };
    first.slow_write(at(1), 7, 1);
    drop(deliver(&mut first, &mut second, 1));
    second.slow_write(at(2), 7, 2);
    drop(deliver(&mut second, &mut reader, 2));
    let ack = deliver(&mut first, &mut reader, 3);
    first.handle_update(at(4), NodeId(2), ack);
    drop(deliver(&mut second, &mut first, 5));
    for memory in [first, second, reader] {
        assert_eq!(memory.read(7), Some(&2), "node {}", memory.me);
    }
}

/// A restarted node makes the same number of writes as before: their clocks are equal.
#[test]
fn the_first_write_of_each_incarnation_is_shown() {
    let (mut writer, mut reader) = (memory(0, 2), memory(1, 2));
    for value in 1..4 {
        reader.on_peer_seen(at(value), NodeId(0), value > 1);
        writer.slow_write(at(value), 7, value as Value);
        while let Some(update) = writer.poll_slow(at(value), NodeId(1)) {
            reader.handle_update(at(value), NodeId(0), update);
            let ack = acks(&mut reader).remove(0);
            writer.handle_update(at(value), NodeId(1), ack);
        }
        assert!(writer.unacknowledged().is_empty());
        assert_eq!(reader.read(7), Some(&(value as Value)));
        writer = memory(0, 2);
    }
}

/// Restarts node 0 of three, without its memory: node 2 knows clocks of its former writes, node 1 none. Node 2 ignores its
/// first write, and the memory and the acknowledgement are returned.
fn repeated(after: impl FnOnce(&mut Memory<Value>, &mut Memory<Value>)) -> Memory<Value> {
    let (mut former, mut other, mut knows) = (memory(0, 3), memory(1, 3), memory(2, 3));
    (0..60).for_each(|value| former.slow_write(at(1), 7, value));
    let update = former.poll_slow(at(1), NodeId(2)).expect("it is due");
    knows.handle_update(at(1), NodeId(0), update);
    drop(acks(&mut knows));
    knows.on_peer_seen(at(2), NodeId(0), true);
    let mut writer = memory(0, 3);
    writer.slow_write(at(2), 7, 100);
    let update = writer.poll_slow(at(2), NodeId(2)).expect("it is due");
    knows.handle_update(at(2), NodeId(0), update);
    after(&mut writer, &mut other);
    writer.handle_update(at(3), NodeId(2), acks(&mut knows).remove(0));
    writer
}

#[test]
fn an_ignored_write_does_not_replace_a_later_one_of_its_writer() {
    let writer = repeated(|writer, _| writer.pram_write(7, 101));
    assert_eq!(writer.read(7), Some(&101));
    assert!(writer.is_acknowledged(writer.slow_version(NodeId(2), 7)));
}

#[test]
fn an_ignored_write_does_not_replace_one_that_another_node_has_made_after_it() {
    let writer = repeated(|writer, other| {
        let update = writer.poll_slow(at(2), NodeId(1)).expect("it is due");
        other.handle_update(at(2), NodeId(0), update);
        writer.handle_update(at(2), NodeId(1), acks(other).remove(0));
        other.slow_write(at(2), 7, 102);
        let update = other.poll_slow(at(2), NodeId(0)).expect("it is due");
        writer.handle_update(at(2), NodeId(1), update);
    });
    assert_eq!(writer.read(7), Some(&102));
    assert!(writer.is_acknowledged(writer.slow_version(NodeId(2), 7)));
}

#[test]
fn only_the_ignored_write_gets_a_later_clock() {
    let writer = repeated(|writer, _| writer.slow_write(at(2), 8, 103));
    let versions = [7, 8].map(|location| writer.slow_version(NodeId(2), location).2);
    assert!(versions[0] > versions[1], "{versions:?}");
    assert_eq!(writer.read(7), Some(&100));
}

/// A restarted node's write meets an older value of another node at the same location, which arrives with the
/// acknowledgement. The write was made later, so all nodes show it.
#[test]
fn a_write_after_a_restart_is_acknowledged_although_another_node_has_written_there() {
    let (mut first, mut other) = (memory(0, 2), memory(1, 2));
    (0..60).for_each(|value| first.slow_write(at(1), 7, value));
    let update = first.poll_slow(at(1), NodeId(1)).expect("it is due");
    other.handle_update(at(1), NodeId(0), update);
    other.slow_write(at(2), 7, 200);
    drop(acks(&mut other));
    let mut first = memory(0, 2);
    other.on_peer_seen(at(3), NodeId(0), true);
    first.slow_write(at(3), 7, 300);
    for now in 3..9 {
        if let Some(update) = first.poll_slow(at(now), NodeId(1)) {
            other.handle_update(at(now), NodeId(0), update);
        }
        // Its values leave before its acknowledgements.
        if let Some(update) = other.poll_slow(at(now), NodeId(0)) {
            first.handle_update(at(now), NodeId(1), update);
        }
        for ack in acks(&mut other) {
            first.handle_update(at(now), NodeId(1), ack);
        }
        for ack in acks(&mut first) {
            other.handle_update(at(now), NodeId(0), ack);
        }
    }
    assert!(first.unacknowledged().is_empty() && other.unacknowledged().is_empty());
    assert_eq!((first.read(7), other.read(7)), (Some(&300), Some(&300)));
}
