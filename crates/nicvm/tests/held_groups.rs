//! Groups that one port holds at each member: lost members are reported, and all begin at the same operation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::collective::{self, COLLECTIVES, Collectives, Operation};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

fn world(size: u16) -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(size, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let members: Vec<NodeId> = (0..size).map(NodeId).collect();
    let mut world = World::new(&topology, NicProfile::MODERN, 1, move |_, _| {
        let mut unit = Unit::default();
        unit.install(COLLECTIVES, Collectives::new(members.clone())).unwrap();
        unit
    });
    world.set_faults(Faults { loss: 0.03, duplicate: 0.02, ..Faults::NONE });
    world
}

async fn run(port: &mut Port, command: Command) -> Completion {
    port.submit(&command).unwrap();
    port.completion().await.unwrap()
}

/// Takes the group and waits for the others.
async fn begin(port: &mut Port, rank: u16, size: u16) {
    assert_eq!(run(port, collective::hold(rank, size, 0)).await.status, Status::Done);
    assert_eq!(run(port, collective::start(0)).await.status, Status::Done);
}

async fn pause(host: &SimHost, millis: u64) {
    host.sleep_until(host.now() + Duration::from_millis(millis)).await;
}

/// Runs `program` at all members, to their ends.
fn all<F>(size: u16, program: impl Fn(SimHost, u16) -> F) -> World<Unit>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut world = world(size);
    let ended = Arc::new(Mutex::new(0));
    for rank in 0..size {
        let (ended, program) = (Arc::clone(&ended), program(world.host(NodeId(rank)), rank));
        world.spawn(NodeId(rank), async move {
            program.await;
            *ended.lock().unwrap() += 1;
        });
    }
    world.run_until(Instant::ZERO + Duration::from_secs(5));
    assert_eq!(*ended.lock().unwrap(), size, "a member waits for ever");
    world
}

#[test]
fn operations_without_a_closed_hosts_part_end_with_its_rank_and_others_end_as_done() {
    all(4, |host, rank| async move {
        let mut port = host.open_port().unwrap();
        begin(&mut port, rank, 4).await;
        if rank == 2 {
            // It closes its port before its last barrier has ended at the others.
            assert_eq!(run(&mut port, collective::barrier(0)).await.status, Status::Done);
            return;
        }
        if rank == 1 {
            pause(&host, 30).await;
        }
        assert_eq!(run(&mut port, collective::barrier(0)).await.status, Status::Done);
        for _ in 0..2 {
            let done = run(&mut port, collective::barrier(0)).await;
            assert_eq!((done.status, done.args[0]), (Status::PeerLost, 2), "{rank}");
        }
        pause(&host, 100).await;
    });
}

/// The NIC still receives other members' parts, but has no memory left to write them to.
#[test]
fn operations_that_had_not_ended_at_a_closed_host_end_for_all() {
    all(4, |host, rank| async move {
        let mut port = host.open_port().unwrap();
        begin(&mut port, rank, 4).await;
        let region = port.register(32).unwrap();
        let gather = collective::all_gather(8, region.whole(), 0);
        if rank == 2 {
            port.submit(&gather).unwrap();
            pause(&host, 5).await;
            return;
        }
        pause(&host, 20).await;
        let done = run(&mut port, gather).await;
        assert_eq!((done.status, done.args[0]), (Status::PeerLost, 2), "{rank}");
        pause(&host, 100).await;
    });
}

#[test]
fn a_host_that_closes_before_its_first_operation_ends_it_for_the_others() {
    all(4, |host, rank| async move {
        let mut port = host.open_port().unwrap();
        assert_eq!(run(&mut port, collective::hold(rank, 4, 0)).await.status, Status::Done);
        if rank == 2 {
            pause(&host, 10).await;
            return;
        }
        if rank == 1 {
            pause(&host, 20).await;
        }
        assert_eq!(run(&mut port, collective::start(0)).await.status, Status::Done);
        let done = run(&mut port, collective::barrier(0)).await;
        assert_eq!((done.status, done.args[0]), (Status::PeerLost, 2), "{rank}");
        pause(&host, 100).await;
    });
}

#[test]
fn one_port_holds_a_group_and_later_holders_start_at_the_same_operation() {
    let world = all(3, |host, rank| async move {
        let mut first = host.open_port().unwrap();
        let mut other = host.open_port().unwrap();
        assert_eq!(run(&mut first, collective::hold(rank, 4, 0)).await.status, Status::Invalid);
        assert_eq!(
            run(&mut first, collective::hold((rank + 1) % 3, 3, 0)).await.status,
            Status::Invalid
        );
        assert_eq!(run(&mut first, collective::start(0)).await.status, Status::Invalid);
        begin(&mut first, rank, 3).await;
        assert_eq!(run(&mut other, collective::hold(rank, 3, 0)).await.status, Status::Refused);
        assert_eq!(run(&mut other, collective::barrier(0)).await.status, Status::Refused);
        // One member leaves with fewer operations than the others have begun.
        assert_eq!(run(&mut first, collective::barrier(0)).await.status, Status::Done);
        if rank > 0 {
            assert_eq!(run(&mut first, collective::barrier(0)).await.status, Status::PeerLost);
        }
        drop(first);
        pause(&host, 50).await;
        begin(&mut other, rank, 3).await;
        let region = other.register(8).unwrap();
        region.write(0, &u64::from(rank + 1).to_le_bytes()).unwrap();
        let sum = collective::all_reduce(Operation::Sum, region.whole(), 0);
        assert_eq!(run(&mut other, sum).await.status, Status::Done);
        let mut bytes = [0; 8];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 6);
    });
    for node in (0..3).map(NodeId) {
        let unit = world.firmware(node);
        assert_eq!(unit.extension::<Collectives>(COLLECTIVES).unwrap().counters().malformed, 0);
    }
}

/// The first operation of a held group lies anywhere between two reports of the members' progress.
#[test]
fn members_of_a_held_group_wait_for_the_slowest_and_receive_all() {
    all(3, |host, rank| async move {
        let mut port = host.open_port().unwrap();
        begin(&mut port, rank, 3).await;
        let region = port.register(8).unwrap();
        pause(&host, 50 * u64::from(rank)).await;
        for number in 0..4_000_u64 {
            if rank == 0 {
                region.write(0, &number.to_le_bytes()).unwrap();
            }
            let done = run(&mut port, collective::broadcast(0, region.whole(), 0)).await;
            assert_eq!(done.status, Status::Done, "{rank}");
            let mut bytes = [0; 8];
            region.read(0, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), number, "{rank}");
        }
        pause(&host, 100).await;
    });
}

#[test]
fn a_member_that_dies_between_operations_ends_all_later_ones() {
    let mut world = world(3);
    let ends = Arc::new(Mutex::new(Vec::new()));
    for rank in 0..3 {
        let (host, ends) = (world.host(NodeId(rank)), Arc::clone(&ends));
        world.spawn(NodeId(rank), async move {
            let mut port = host.open_port().unwrap();
            begin(&mut port, rank, 3).await;
            host.sleep_until(Instant::ZERO + Duration::from_millis(200)).await;
            let done = run(&mut port, collective::barrier(0)).await;
            ends.lock().unwrap().push((rank, done.status, done.args[0]));
            pause(&host, 4_000).await;
        });
    }
    world.run_until(Instant::ZERO + Duration::from_millis(100));
    world.crash(NodeId(2));
    world.restart(NodeId(2));
    world.run_until(Instant::ZERO + Duration::from_secs(5));
    let mut ends = ends.lock().unwrap().clone();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [(0, Status::PeerLost, 2), (1, Status::PeerLost, 2)]);
}

/// The member has acknowledged the others' messages. So it owes them nothing but the hold that they wait for.
#[test]
fn a_member_that_dies_before_it_holds_the_group_ends_the_start_at_the_others() {
    let mut world = world(3);
    let ends = Arc::new(Mutex::new(Vec::new()));
    for rank in 0..2 {
        let (host, ends) = (world.host(NodeId(rank)), Arc::clone(&ends));
        world.spawn(NodeId(rank), async move {
            let mut port = host.open_port().unwrap();
            assert_eq!(run(&mut port, collective::hold(rank, 3, 0)).await.status, Status::Done);
            let done = run(&mut port, collective::start(0)).await;
            ends.lock().unwrap().push((done.status, done.args[0]));
            pause(&host, 4_000).await;
        });
    }
    world.run_until(Instant::ZERO + Duration::from_millis(150));
    world.crash(NodeId(2));
    world.run_until(Instant::ZERO + Duration::from_secs(5));
    assert_eq!(*ends.lock().unwrap(), [(Status::PeerLost, 2), (Status::PeerLost, 2)]);
}

#[test]
fn differing_lengths_are_reported_to_all_members_that_receive_the_result() {
    for size in [2, 3, 4, 7] {
        for odd in 0..size {
            all(size, |host, rank| async move {
                let mut port = host.open_port().unwrap();
                let words = if rank == odd { 3 } else { 2 };
                let region = port.register(words * 8).unwrap();
                let all = collective::all_reduce(Operation::Sum, region.whole(), 0);
                let done = run(&mut port, all).await;
                assert_eq!((done.status, done.length), (Status::Truncated, 8 * (5 - words as u64)));
                let reduce = collective::reduce(1, Operation::Sum, region.whole(), 0);
                let done = run(&mut port, reduce).await;
                assert_eq!(done.status == Status::Done, rank != 1);
            });
        }
    }
}
