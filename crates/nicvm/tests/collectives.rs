//! Compares collective operations with their expected results, under loss and with late hosts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::collective::host::HostGroup;
use midplane_nicvm::collective::{self, COLLECTIVES, Collectives, Operation};
use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

/// An operation that all members post.
#[derive(Clone, Debug)]
enum Step {
    Barrier,
    Broadcast { root: u16, bytes: usize },
    Reduce { root: u16, operation: Operation, words: usize },
    AllReduce { operation: Operation, words: usize },
    AllGather { bytes: usize },
}

fn world(size: u16, seed: u64) -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(size, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let members: Vec<NodeId> = (0..size).map(NodeId).collect();
    World::new(&topology, NicProfile::MODERN, seed, move |_, _| {
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit.install(COLLECTIVES, Collectives::new(members.clone())).unwrap();
        unit
    })
}

/// Returns the bytes that a member contributes to step `step`; any member can compute them.
fn brings(rank: u16, step: usize, bytes: usize) -> Vec<u8> {
    let start = usize::from(rank) * 37 + step * 11;
    (start..start + bytes).map(|number| (number % 251) as u8).collect()
}

/// Returns the bytes of a member's region after a step; `None` if the region is unchanged.
fn expected(rank: u16, size: u16, at: usize, step: &Step) -> Option<Vec<u8>> {
    let combined = |operation: Operation, words: usize| {
        let mut sum = brings(0, at, words * 8);
        for other in 1..size {
            operation.combine(&mut sum, &brings(other, at, words * 8));
        }
        sum
    };
    match *step {
        Step::Barrier => None,
        Step::Broadcast { root, bytes } => Some(brings(root % size, at, bytes)),
        Step::Reduce { root, operation, words } => {
            (rank == root % size).then(|| combined(operation, words))
        }
        Step::AllReduce { operation, words } => Some(combined(operation, words)),
        Step::AllGather { bytes } => {
            Some((0..size).flat_map(|other| brings(other, at, bytes)).collect())
        }
    }
}

async fn run(
    port: &mut Port,
    rank: u16,
    size: u16,
    at: usize,
    step: &Step,
) -> (Completion, Vec<u8>) {
    let whole = match *step {
        Step::Barrier => brings(rank, at, 1),
        Step::Broadcast { bytes, .. } => brings(rank, at, bytes),
        Step::Reduce { words, .. } | Step::AllReduce { words, .. } => brings(rank, at, words * 8),
        Step::AllGather { bytes } => {
            let mut whole = vec![0; bytes * usize::from(size)];
            let own = usize::from(rank) * bytes;
            whole[own..own + bytes].copy_from_slice(&brings(rank, at, bytes));
            whole
        }
    };
    let region = port.register(whole.len()).unwrap();
    region.write(0, &whole).unwrap();
    let here = region.whole();
    let command = match *step {
        Step::Barrier => collective::barrier(1),
        Step::Broadcast { root, .. } => collective::broadcast(root % size, here, 1),
        Step::Reduce { root, operation, .. } => collective::reduce(root % size, operation, here, 1),
        Step::AllReduce { operation, .. } => collective::all_reduce(operation, here, 1),
        Step::AllGather { bytes } => collective::all_gather(bytes, here, 1),
    };
    port.submit(&command).unwrap();
    let done = port.completion().await.unwrap();
    let mut bytes = vec![0; whole.len()];
    region.read(0, &mut bytes).unwrap();
    (done, bytes)
}

async fn member(host: SimHost, size: u16, steps: Vec<Step>, late: u64, log: Log) {
    let mut port = host.open_port().unwrap();
    let (rank, mut rng) = (host.node().0, host.rng("late"));
    for (at, step) in steps.iter().enumerate() {
        host.sleep_until(host.now().plus_nanos(rng.below(late))).await;
        let begun = host.now();
        let (done, bytes) = run(&mut port, rank, size, at, step).await;
        assert_eq!(done.status, Status::Done, "{rank}: {step:?}");
        if let Some(expected) = expected(rank, size, at, step) {
            assert_eq!(bytes, expected, "{rank}: {at} {step:?}");
        }
        log.lock().unwrap().push((at, begun, host.now()));
    }
}

type Log = Arc<Mutex<Vec<(usize, Instant, Instant)>>>;

fn check(size: u16, steps: &[Step], seed: u64, faults: Faults, late: u64) {
    let mut world = world(size, seed);
    world.set_faults(faults);
    let log = Log::default();
    for node in (0..size).map(NodeId) {
        let (host, steps) = (world.host(node), steps.to_vec());
        world.spawn(node, member(host, size, steps, late, Arc::clone(&log)));
    }
    world.run_until(Instant::ZERO + Duration::from_secs(20));
    let log = log.lock().unwrap();
    assert_eq!(log.len(), steps.len() * usize::from(size), "a member waits for ever");
    for (at, _) in steps.iter().enumerate().filter(|(_, step)| matches!(step, Step::Barrier)) {
        let of = || log.iter().filter(|entry| entry.0 == at);
        let last_in = of().map(|entry| entry.1).max();
        let first_out = of().map(|entry| entry.2).min();
        assert!(first_out >= last_in, "a member left the barrier before all had entered it");
    }
    // No state of ended operations remains, but the last messages of children may still be under way.
    for node in (0..size).map(NodeId) {
        let unit = world.firmware(node);
        let collectives = unit.extension::<Collectives>(COLLECTIVES).unwrap();
        assert_eq!(collectives.running(), 0, "{node}");
        assert_eq!(collectives.counters().malformed, 0, "{node}");
    }
}

fn step() -> impl Strategy<Value = Step> {
    let operation = || {
        use Operation::{And, Max, Min, Or, Sum};
        prop::sample::select(vec![Sum, Min, Max, And, Or])
    };
    let bytes = prop_oneof![1..=88_usize, 89..40_000_usize];
    prop_oneof![
        Just(Step::Barrier),
        (any::<u16>(), bytes).prop_map(|(root, bytes)| Step::Broadcast { root, bytes }),
        (any::<u16>(), operation(), 1..=11_usize)
            .prop_map(|(root, operation, words)| Step::Reduce { root, operation, words }),
        (operation(), 1..=11_usize)
            .prop_map(|(operation, words)| Step::AllReduce { operation, words }),
        (1..=88_usize).prop_map(|bytes| Step::AllGather { bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_member_gets_the_expected_result_under_loss(
        size in 1..20_u16,
        steps in prop::collection::vec(step(), 1..8),
        seed: u64,
        loss in 0..8_u32,
        late in 1..300_000_u64,
    ) {
        let mut faults = Faults::NONE;
        faults.loss = f64::from(loss) / 100.0;
        faults.duplicate = faults.loss / 2.0;
        check(size, &steps, seed, faults, late);
    }
}

#[test]
fn a_member_that_dies_ends_the_operation_for_all() {
    let mut world = world(4, 1);
    let ended = Arc::new(Mutex::new(Vec::new()));
    for node in (0..3).map(NodeId) {
        let (host, ended) = (world.host(node), Arc::clone(&ended));
        world.spawn(node, async move {
            let mut port = host.open_port().unwrap();
            for _ in 0..2 {
                port.submit(&collective::barrier(0)).unwrap();
                let status = port.completion().await.unwrap().status;
                ended.lock().unwrap().push(status);
            }
        });
    }
    let host = world.host(NodeId(3));
    world.spawn(NodeId(3), async move {
        let mut port = host.open_port().unwrap();
        port.submit(&collective::barrier(0)).unwrap();
        port.completion().await.unwrap();
        std::future::pending::<()>().await;
    });
    world.run_until(Instant::ZERO + Duration::from_millis(50));
    world.crash(NodeId(3));
    world.run_until(Instant::ZERO + Duration::from_secs(5));
    let ended = ended.lock().unwrap();
    assert_eq!(ended.iter().filter(|status| **status == Status::Done).count(), 3);
    assert_eq!(ended.iter().filter(|status| **status == Status::PeerLost).count(), 3);
}

/// Each broadcast is done for the root at once, and stored by the other member's NIC.
#[test]
fn a_member_whose_host_is_late_stores_few_broadcasts_and_receives_all() {
    const BROADCASTS: u64 = 20_000;
    let mut world = world(2, 1);
    let finished = Arc::new(Mutex::new(0));
    for node in (0..2).map(NodeId) {
        let (host, finished) = (world.host(node), Arc::clone(&finished));
        world.spawn(node, async move {
            let mut port = host.open_port().unwrap();
            let region = port.register(8).unwrap();
            if node == NodeId(1) {
                host.sleep_until(Instant::ZERO + Duration::from_secs(1)).await;
            }
            for number in 0..BROADCASTS {
                if node == NodeId(0) {
                    region.write(0, &number.to_le_bytes()).unwrap();
                }
                port.submit(&collective::broadcast(0, region.whole(), number)).unwrap();
                let done = port.completion().await.unwrap();
                assert_eq!((done.status, done.cookie), (Status::Done, number));
                let mut bytes = [0; 8];
                region.read(0, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), number, "{node}");
            }
            *finished.lock().unwrap() += 1;
        });
    }
    let state = |world: &World<Unit>| {
        let unit = world.firmware(NodeId(1));
        let collectives = unit.extension::<Collectives>(COLLECTIVES).unwrap();
        (collectives.running(), collectives.counters().malformed)
    };
    world.run_until(Instant::ZERO + Duration::from_millis(900));
    assert_eq!(state(&world), (2_047, 0));
    world.run_until(Instant::ZERO + Duration::from_secs(20));
    assert_eq!(*finished.lock().unwrap(), 2);
    assert_eq!(state(&world), (0, 0));
}

/// A host that waits for a slow member has no operation under way by which the member's death would show.
#[test]
fn an_operation_that_waits_for_a_slow_member_ends_when_the_member_dies() {
    let mut world = world(2, 1);
    let ended = Arc::new(Mutex::new(None));
    let (host, into) = (world.host(NodeId(0)), Arc::clone(&ended));
    world.spawn(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(8).unwrap();
        let mut done = 0;
        let status = loop {
            port.submit(&collective::broadcast(0, region.whole(), 0)).unwrap();
            match port.completion().await.unwrap().status {
                Status::Done => done += 1,
                status => break status,
            }
        };
        *into.lock().unwrap() = Some((done, status));
    });
    world.run_until(Instant::ZERO + Duration::from_millis(950));
    assert_eq!(*ended.lock().unwrap(), None);
    world.crash(NodeId(1));
    world.run_until(Instant::ZERO + Duration::from_secs(3));
    assert_eq!(*ended.lock().unwrap(), Some((2_047, Status::PeerLost)));
}

#[test]
fn hosts_run_the_same_operations() {
    for size in [1, 2, 5, 8] {
        let mut world = world(size, 1);
        let members: Vec<NodeId> = (0..size).map(NodeId).collect();
        let finished = Arc::new(Mutex::new(0));
        for node in members.clone() {
            let (host, members, finished) =
                (world.host(node), members.clone(), Arc::clone(&finished));
            world.spawn(node, async move {
                let mut group = HostGroup::new(&host, members, 4_096).unwrap();
                let rank = host.node().0;
                host.sleep_until(Instant::from_nanos(100_000)).await;
                group.barrier().await.unwrap();
                let step = Step::Broadcast { root: 1, bytes: 3_000 };
                let mut bytes = brings(rank, 1, 3_000);
                group.broadcast(1 % size, &mut bytes).await.unwrap();
                assert_eq!(Some(bytes), expected(rank, size, 1, &step));
                let operation = Operation::Sum;
                let step = Step::AllReduce { operation, words: 4 };
                let mut words = brings(rank, 2, 32);
                group.all_reduce(operation, &mut words).await.unwrap();
                assert_eq!(Some(words), expected(rank, size, 2, &step));
                let parts = group.all_gather(&brings(rank, 3, 20)).await.unwrap();
                assert_eq!(
                    Some(parts.concat()),
                    expected(rank, size, 3, &Step::AllGather { bytes: 20 })
                );
                *finished.lock().unwrap() += 1;
            });
        }
        world.run_until(Instant::ZERO + Duration::from_secs(5));
        assert_eq!(*finished.lock().unwrap(), size);
    }
}

#[test]
fn hosts_receive_empty_messages_as_empty() {
    let mut world = world(2, 1);
    let members: Vec<NodeId> = (0..2).map(NodeId).collect();
    let finished = Arc::new(Mutex::new(0));
    for node in members.clone() {
        let (host, members, finished) = (world.host(node), members.clone(), Arc::clone(&finished));
        world.spawn(node, async move {
            let mut group = HostGroup::new(&host, members, 64).unwrap();
            host.sleep_until(Instant::from_nanos(100_000)).await;
            for sent in [vec![7], Vec::new()] {
                let mut bytes = if node == NodeId(0) { sent.clone() } else { vec![9] };
                group.broadcast(0, &mut bytes).await.unwrap();
                assert_eq!(bytes, sent, "{node}");
            }
            let own = if node == NodeId(0) { vec![8] } else { Vec::new() };
            let parts = group.all_gather(&own).await.unwrap();
            assert_eq!(parts, [vec![8_u8], Vec::new()], "{node}");
            group.flush().await.unwrap();
            *finished.lock().unwrap() += 1;
        });
    }
    world.run_until(Instant::ZERO + Duration::from_secs(5));
    assert_eq!(*finished.lock().unwrap(), 2);
}

#[test]
fn a_broadcast_that_takes_the_line_long_sends_every_frame_once() {
    let size = 8;
    let mut world = world(size, 1);
    let finished = Arc::new(Mutex::new(Vec::new()));
    for node in (0..size).map(NodeId) {
        let (host, finished) = (world.host(node), Arc::clone(&finished));
        world.spawn(node, async move {
            let mut port = host.open_port().unwrap();
            for at in 0..3 {
                let step = Step::Broadcast { root: 0, bytes: collective::MAX_BROADCAST };
                let (done, bytes) = run(&mut port, node.0, size, at, &step).await;
                assert_eq!(done.status, Status::Done);
                assert!(Some(bytes) == expected(node.0, size, at, &step), "{node}: {at}");
            }
            finished.lock().unwrap().push(host.now());
        });
    }
    world.run_until(Instant::ZERO + Duration::from_secs(20));
    let again = |node| {
        let unit = world.firmware(node);
        unit.extension::<Collectives>(COLLECTIVES).unwrap().counters().retransmitted
    };
    let retransmitted: Vec<u64> = (0..size).map(|node| again(NodeId(node))).collect();
    let finished = finished.lock().unwrap();
    assert_eq!(finished.len(), usize::from(size));
    assert_eq!(retransmitted, [0; 8], "{:?}", finished.iter().max());
}
