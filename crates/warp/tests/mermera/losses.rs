//! Tests slow writes and flushes while nodes die, restart or are cut off.

use super::*;

/// Starts a process that makes slow writes of `values`, a millisecond apart, then flushes. Adds the
/// node to `ended` when that is done.
fn write(
    cluster: &mut Cluster,
    node: u16,
    location: Location,
    values: std::ops::Range<u64>,
    ended: &Arc<Mutex<Vec<u16>>>,
) {
    let (host, ended) = (cluster.world.host(NodeId(node)), Arc::clone(ended));
    cluster.world.spawn(NodeId(node), async move {
        let mut memory = MemoryHandle::<u64>::open(&host).unwrap();
        for value in values {
            memory.slow_write(location, &value).await.unwrap();
            pause(&host, Duration::from_millis(1)).await;
        }
        memory.flush().await.unwrap();
        ended.lock().unwrap().push(node);
        pause(&host, Duration::from_secs(100)).await;
    });
}

/// Asserts that these nodes have flushed, in any order.
#[track_caller]
fn assert_ended(ended: &Mutex<Vec<u16>>, nodes: &[u16]) {
    let mut ended = std::mem::take(&mut *ended.lock().unwrap());
    ended.sort_unstable();
    assert_eq!(ended, nodes, "nodes that have flushed");
}

/// Asserts that each live node shows these values.
#[track_caller]
fn assert_shown(cluster: &mut Cluster, values: &[(Location, u64)], what: &str) {
    let locations: Vec<Location> = values.iter().map(|(location, _)| *location).collect();
    for (node, seen) in cluster.read_all::<u64>(&locations) {
        let seen: Vec<_> = seen.into_iter().map(|value| value.map(|(value, _)| value)).collect();
        let wanted: Vec<_> = values.iter().map(|(_, value)| Some(*value)).collect();
        assert_eq!(seen, wanted, "{what}, node {node}");
    }
}

#[test]
fn a_flush_ends_after_a_peer_of_slow_writes_alone_has_died() {
    for delivery in [Delivery::Each, Delivery::All] {
        let mut cluster = Cluster::new(3, delivery, 1);
        let ended = Arc::default();
        (0..3).for_each(|node| write(&mut cluster, node, node.into(), 0..50, &ended));
        cluster.world.run_until(at(100));
        assert_ended(&ended, &[0, 1, 2]);
        cluster.world.crash(NodeId(0));
        (1..3).for_each(|node| write(&mut cluster, node, node.into(), 50..51, &ended));
        cluster.world.run_until(at(2_000));
        assert_ended(&ended, &[1, 2]);
        assert_shown(&mut cluster, &[(0, 49), (1, 50), (2, 50)], "after the death");
    }
}

#[test]
fn a_flush_ends_while_another_handle_of_the_node_writes() {
    let mut cluster = Cluster::new(3, Delivery::Each, 1);
    let host = cluster.world.host(NodeId(0));
    cluster.world.spawn(NodeId(0), async move {
        let mut memory = MemoryHandle::<u64>::open(&host).unwrap();
        for value in 0.. {
            memory.slow_write(value as u32 % 4, &value).await.unwrap();
            pause(&host, Duration::from_micros(100)).await;
        }
    });
    cluster.world.run_until(at(20));
    let ended = Arc::default();
    write(&mut cluster, 0, 9, 0..1, &ended);
    cluster.world.run_until(at(60));
    assert_ended(&ended, &[0]);
}

#[test]
fn a_restarted_node_shows_its_new_values_and_gets_those_of_others() {
    for delivery in [Delivery::Each, Delivery::All] {
        let mut cluster = Cluster::new(4, delivery, 1);
        let ended = Arc::default();
        (0..4).for_each(|node| write(&mut cluster, node, node.into(), 0..60, &ended));
        write(&mut cluster, 3, 7, 0..60, &ended);
        cluster.world.run_until(at(200));
        assert_ended(&ended, &[0, 1, 2, 3, 3]);
        // Node 3 can send its last values to no node any more.
        cluster.world.crash(NodeId(3));
        cluster.world.crash(NodeId(1));
        cluster.world.restart(NodeId(1));
        write(&mut cluster, 1, 1, 100..101, &ended);
        write(&mut cluster, 1, 7, 100..101, &ended);
        cluster.world.run_until(at(2_000));
        let values = [(0, 59), (1, 100), (2, 59), (7, 100)];
        assert_shown(&mut cluster, &values, "after the restart");
    }
}

#[test]
fn a_flush_of_a_restarted_node_ends() {
    let mut cluster = Cluster::new(3, Delivery::Each, 1);
    let ended = Arc::default();
    (0..3).for_each(|node| write(&mut cluster, node, 1, 0..60, &ended));
    cluster.world.run_until(at(200));
    assert_ended(&ended, &[0, 1, 2]);
    cluster.world.crash(NodeId(1));
    cluster.world.restart(NodeId(1));
    write(&mut cluster, 1, 5, 0..10, &ended);
    cluster.world.run_until(at(300));
    assert_ended(&ended, &[1]);
    assert_shown(&mut cluster, &[(5, 9)], "after the restart");
}

#[test]
fn slow_writes_resume_after_nodes_were_cut_off_and_reported_dead() {
    for delivery in [Delivery::Each, Delivery::All] {
        let mut cluster = Cluster::new(3, delivery, 1);
        let ended = Arc::default();
        (0..3).for_each(|node| write(&mut cluster, node, node.into(), 0..20, &ended));
        cluster.world.run_until(at(100));
        assert_ended(&ended, &[0, 1, 2]);
        cluster.world.cut(NodeId(0), NodeId(1));
        cluster.world.cut(NodeId(0), NodeId(2));
        (0..3).for_each(|node| write(&mut cluster, node, node.into(), 20..40, &ended));
        cluster.world.run_until(at(3_000));
        // Each side has given up the other.
        assert_ended(&ended, &[0, 1, 2]);
        (1..3).for_each(|node| cluster.world.heal(NodeId(0), NodeId(node)));
        cluster.world.run_until(at(3_500));
        assert_shown(&mut cluster, &[(0, 39), (1, 39), (2, 39)], "after the cut");
        (0..3).for_each(|node| write(&mut cluster, node, node.into(), 40..60, &ended));
        cluster.world.run_until(at(3_700));
        assert_ended(&ended, &[0, 1, 2]);
        assert_shown(&mut cluster, &[(0, 59), (1, 59), (2, 59)], "later");
    }
}

#[test]
fn a_coherent_write_of_a_restarted_node_fails_with_the_reason() {
    let mut cluster = Cluster::new(3, Delivery::Each, 1);
    let co_write = |cluster: &mut Cluster| {
        let host = cluster.world.host(NodeId(2));
        let work = async move {
            let mut memory = MemoryHandle::<u64>::open(&host).unwrap();
            memory.co_write(3, &1).await
        };
        cluster.world.block_on(NodeId(2), work).expect("it ends")
    };
    assert_eq!(co_write(&mut cluster), Ok(()));
    cluster.world.crash(NodeId(2));
    cluster.world.restart(NodeId(2));
    let error = co_write(&mut cluster).unwrap_err().to_string();
    assert!(error.contains("it has restarted or was reported dead"), "{error}");
}

#[test]
fn a_flush_does_not_wait_for_ever_for_a_node_that_has_never_answered() {
    let mut cluster = Cluster::new(3, Delivery::Each, 1);
    cluster.world.crash(NodeId(2));
    let ended = Arc::default();
    write(&mut cluster, 0, 1, 0..5, &ended);
    cluster.world.run_until(at(10) + DELAY * 900);
    assert_ended(&ended, &[]);
    cluster.world.run_until(at(100) + DELAY * 1_100);
    assert_ended(&ended, &[0]);
}

#[test]
fn a_restarted_node_that_only_reads_gets_the_values_of_others() {
    for delivery in [Delivery::Each, Delivery::All] {
        let mut cluster = Cluster::new(3, delivery, 1);
        let ended = Arc::default();
        (0..3).for_each(|node| write(&mut cluster, node, node.into(), 0..5, &ended));
        cluster.world.run_until(at(100));
        assert_ended(&ended, &[0, 1, 2]);
        cluster.world.crash(NodeId(2));
        (0..2).for_each(|node| write(&mut cluster, node, node.into(), 5..9, &ended));
        cluster.world.run_until(at(2_000));
        // The others have reported it dead.
        assert_ended(&ended, &[0, 1]);
        cluster.world.restart(NodeId(2));
        cluster.world.run_until(at(3_000));
        assert_shown(&mut cluster, &[(0, 8), (1, 8)], "after the restart");
    }
}

#[test]
fn a_coherent_write_of_a_node_that_was_cut_off_fails() {
    let mut cluster = Cluster::new(3, Delivery::Each, 1);
    let ended = Arc::default();
    (0..2).for_each(|node| cluster.world.cut(NodeId(2), NodeId(node)));
    (0..3).for_each(|node| write(&mut cluster, node, node.into(), 0..5, &ended));
    let co_write = |cluster: &mut Cluster, node: u16| {
        let host = cluster.world.host(NodeId(node));
        let work = async move {
            let mut memory = MemoryHandle::<u64>::open(&host).unwrap();
            memory.co_write(3, &1).await
        };
        cluster.world.block_on(NodeId(node), work).expect("it ends")
    };
    assert!(co_write(&mut cluster, 2).is_err());
    assert_eq!(co_write(&mut cluster, 0), Ok(()));
    (0..2).for_each(|node| cluster.world.heal(NodeId(2), NodeId(node)));
    cluster.world.run_until(at(5_000));
    assert!(co_write(&mut cluster, 2).is_err());
    assert_eq!(co_write(&mut cluster, 1), Ok(()));
}
