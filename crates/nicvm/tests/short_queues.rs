//! Operations end although the queues for control messages are full when they send theirs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::collective::{self, COLLECTIVES, Collectives, Operation};
use midplane_nicvm::control::{Control, ControlConfig};
use midplane_nicvm::memory::{self, FETCH_AND_ADD, MEMORY, Memory, READ, WRITE};
use midplane_nicvm::program::{self, Instruction, PROGRAMS, Programs, Range, assemble};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::{Region, RegionRef};
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

use crate::harness::{self, Effect, Harness, Peer};

/// Operations that each host posts before it waits for the first.
const AT_ONCE: usize = 24;
/// First bytes of the messages of broadcasts, all-gathers, and members that hold their group.
const BROADCAST: u8 = 2;
const ALL_GATHER: u8 = 5;
const HOLD: u8 = 6;
/// The message by which a member shows that it is alive.
const PROBE: [u8; 6] = [0; 6];

/// A NIC that queues one control message for each peer.
fn short() -> ControlConfig {
    ControlConfig::default().window(1).queue(0)
}

fn world(nodes: u16, unit: impl Fn(NodeId) -> Unit + Send + 'static) -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(nodes, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    World::new(&topology, NicProfile::MODERN, 1, move |node, _| unit(node))
}

/// Runs `task` on a node for 10 s at most; returns its result, or `None` if it has not ended by then.
fn ended<T: Send + 'static>(
    world: &mut World<Unit>,
    node: u16,
    task: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let result = Arc::new(Mutex::new(None));
    let into = Arc::clone(&result);
    world.spawn(NodeId(node), async move {
        let ended = task.await;
        *into.lock().unwrap() = Some(ended);
    });
    let until = world.now() + Duration::from_secs(10);
    world.run_until(until);
    result.lock().unwrap().take()
}

/// Posts commands at once, and returns the statuses of their completions.
async fn post(port: &mut Port, commands: &[Command]) -> Vec<Status> {
    for command in commands {
        port.submit(command).unwrap();
    }
    let mut statuses = Vec::new();
    for _ in commands {
        statuses.push(port.completion().await.unwrap().status);
    }
    statuses
}

#[test]
fn collectives_send_the_messages_that_a_full_queue_has_refused() {
    let make: [fn(RegionRef) -> Command; 5] = [
        |_| collective::barrier(1),
        |here| collective::broadcast(1, here, 1),
        |here| collective::reduce(2, Operation::Sum, here, 1),
        |here| collective::all_reduce(Operation::Sum, here, 1),
        |here| collective::all_gather(8, here, 1),
    ];
    for (nodes, kind) in
        [4_u16, 5].into_iter().flat_map(|nodes| (0..5).map(move |kind| (nodes, kind)))
    {
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let mut world = world(nodes, move |_| {
            let mut unit = Unit::new(short());
            unit.install(COLLECTIVES, Collectives::new(members.clone())).unwrap();
            unit
        });
        let done = Arc::new(Mutex::new(0));
        for node in (0..nodes).map(NodeId) {
            let (host, done) = (world.host(node), Arc::clone(&done));
            world.spawn(node, async move {
                let mut port = host.open_port().unwrap();
                let length = if kind == 4 { 8 * usize::from(nodes) } else { 8 };
                let region = port.register(length).unwrap();
                let statuses = post(&mut port, &[make[kind](region.whole()); AT_ONCE]).await;
                assert_eq!(statuses, [Status::Done; AT_ONCE]);
                *done.lock().unwrap() += 1;
            });
        }
        let until = world.now() + Duration::from_secs(5);
        world.run_until(until);
        assert_eq!(*done.lock().unwrap(), nodes, "operation {kind} of {nodes} hosts hangs");
    }
}

/// Creates the first member of a group, nodes 1 to `size`, whose NIC queues one control message for each peer.
fn member(size: u16) -> Harness {
    let mut unit = Unit::new(short());
    unit.install(COLLECTIVES, Collectives::new((1..=size).map(NodeId).collect())).unwrap();
    Harness::new(unit)
}

/// Sends the first member messages of `peer` that begin more operations than messages may wait for one member. It
/// forwards each to another member.
fn flood(harness: &mut Harness, peer: &mut Peer, opcode: u8, body: &[u8]) {
    for number in 1..16_500_u32 {
        let message = [&[opcode, 0][..], &number.to_le_bytes(), body].concat();
        peer.send(harness, COLLECTIVES.into(), &message);
    }
}

#[test]
fn operations_wait_while_a_thousand_messages_do() {
    let mut harness = member(3);
    for _ in 0..1_100 {
        harness.post(PortId(0), collective::barrier(1));
    }
    let running =
        |harness: &Harness| harness.unit.extension::<Collectives>(COLLECTIVES).unwrap().running();
    // One message has left. Those of 1,023 operations wait, and the report of the first 1,024.
    assert_eq!((running(&harness), harness.completions().len()), (1 + 1_023, 0));
    // Both peers are lost: all operations end, also those that have waited.
    harness.pass(4_000_000_000);
    let done = harness.completions();
    assert!(done.iter().all(|(_, done)| done.status == Status::PeerLost));
    assert_eq!((running(&harness), done.len()), (0, 1_100));
}

/// The messages that a member forwards for others are not refused, so their number has a bound of its own.
#[test]
fn a_member_for_which_too_many_messages_wait_counts_as_lost() {
    let mut harness = member(3);
    let mut peer = Peer::new(NodeId(3));
    harness.post(PortId(0), collective::barrier(7));
    flood(&mut harness, &mut peer, ALL_GATHER, &[1; 8]);
    let running =
        |harness: &Harness| harness.unit.extension::<Collectives>(COLLECTIVES).unwrap().running();
    assert_eq!(running(&harness), 16_500);
    harness.pass(2_000_000);
    assert_eq!(running(&harness), 0);
    let done = harness.completions();
    assert_eq!((done.len(), done[0].1.status, done[0].1.args[0]), (1, Status::PeerLost, 1));
}

/// Lets the first member hold its group, and start once all others hold it.
fn starting(size: u16) -> Harness {
    let mut harness = member(size);
    harness.post(PortId(0), collective::hold(0, size, 1));
    assert_eq!(harness.completions()[0].1.status, Status::Done);
    harness.post(PortId(0), collective::start(2));
    harness
}

fn hold(harness: &mut Harness, peer: &mut Peer) -> Vec<Effect> {
    peer.send(harness, COLLECTIVES.into(), &[HOLD, 0, 0, 0, 0, 0])
}

/// Restarts a member, which then holds the group.
fn restart(harness: &mut Harness, node: NodeId) {
    let next = Incarnation(Incarnation::FIRST.0 + 1);
    hold(harness, &mut Peer { control: Control::new(node, next, ControlConfig::default()) });
}

#[test]
fn a_member_that_restarts_does_not_count_as_lost_because_too_many_messages_waited_for_it() {
    let mut harness = starting(3);
    let [mut second, mut third] = [2, 3].map(|node| Peer::new(NodeId(node)));
    second.send(&mut harness, COLLECTIVES.into(), &PROBE);
    flood(&mut harness, &mut third, ALL_GATHER, &[1; 8]);
    restart(&mut harness, NodeId(2));
    harness.pass(2_000_000);
    assert_eq!(harness.completions(), [], "it waits for the third member");
    let effects = hold(&mut harness, &mut third);
    let is_done = |effect: &Effect| matches!(effect, Effect::Completed(_, done) if done.status == Status::Done);
    assert!(effects.iter().any(is_done), "{effects:?}");
}

#[test]
fn each_member_for_which_too_many_messages_wait_counts_as_lost() {
    let mut harness = starting(7);
    let [mut second, mut fourth] = [2, 4].map(|node| Peer::new(NodeId(node)));
    second.send(&mut harness, COLLECTIVES.into(), &PROBE);
    // The fourth member's broadcasts go on to the third member and to the second.
    flood(&mut harness, &mut fourth, BROADCAST, &[3, 0, 1]);
    restart(&mut harness, NodeId(2));
    harness.pass(2_000_000);
    let done = harness.completions();
    let lost: Vec<_> = done.iter().map(|(_, done)| (done.status, done.args[0])).collect();
    assert_eq!(lost, [(Status::PeerLost, 2)]);
}

/// Creates nodes with a part of the distributed address space. The queues of `those` are short.
fn memories(those: fn(NodeId) -> bool) -> World<Unit> {
    world(2, move |node| {
        let config = if those(node) { short() } else { ControlConfig::default() };
        let mut unit = Unit::new(config);
        unit.install(MEMORY, Memory::new()).unwrap();
        unit
    })
}

/// Grants node 0 access to `length` bytes of node 1. Lets it post accesses to all of them at once; returns the
/// completions.
fn access(mut world: World<Unit>, opcode: u8, length: usize) -> Vec<Completion> {
    let (host, given) = (world.host(NodeId(1)), Arc::new(Mutex::new(None)));
    let into = Arc::clone(&given);
    world.spawn(NodeId(1), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(length).unwrap();
        port.submit(&memory::grant(region.whole(), CapabilityRights::ALL, 0)).unwrap();
        *into.lock().unwrap() = Some(memory::granted(&port.completion().await.unwrap()));
        std::future::pending::<()>().await;
    });
    let until = world.now() + Duration::from_millis(1);
    world.run_until(until);
    let capability = given.lock().unwrap().expect("it is granted");
    let host = world.host(NodeId(0));
    let task = async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(length).unwrap();
        region.write(0, &1_u64.to_le_bytes()).unwrap();
        for _ in 0..AT_ONCE {
            port.submit(&memory::access(opcode, &capability, region.whole(), 1)).unwrap();
        }
        let mut done = Vec::new();
        for _ in 0..AT_ONCE {
            done.push(port.completion().await.unwrap());
        }
        done
    };
    ended(&mut world, 0, task).expect("the accesses end")
}

#[test]
fn large_writes_end_although_a_full_queue_has_refused_their_messages() {
    let done = access(memories(|node| node == NodeId(0)), WRITE, 10_000);
    assert!(done.iter().all(|done| done.status == Status::Done), "{done:?}");
}

#[test]
fn accesses_are_refused_while_a_thousand_messages_wait() {
    let mut unit = Unit::new(short());
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut harness = Harness::new(unit);
    let theirs = Capability { node: NodeId(2), length: 8, ..Capability::default() };
    for _ in 0..1_100 {
        let region = harness::memory(PortId(0), 8);
        harness.post(PortId(0), memory::access(READ, &theirs, region, 1));
    }
    let refused = harness.completions();
    assert!(refused.iter().all(|(_, done)| done.status == Status::Refused));
    assert_eq!(refused.len(), 1_100 - 1 - 1_024);
    // The peer is lost: the others end, and their messages are forgotten.
    harness.pass(1_000_000_000);
    assert_eq!(harness.completions().len(), 1 + 1_024);
    assert_eq!(harness.unit.pending(NodeId(2)), 0);
}

/// A host that repeats an addition which it takes for lost adds twice.
#[test]
fn the_answer_to_an_access_waits_for_room_in_a_full_queue() {
    let done = access(memories(|node| node == NodeId(1)), FETCH_AND_ADD, 8);
    let words: Vec<_> = done.iter().map(|done| (done.status, done.args[0])).collect();
    let expected: Vec<_> = (0..AT_ONCE as u64).map(|before| (Status::Done, before)).collect();
    assert_eq!(words, expected);
}

/// Builds a program of `code` over `memory`, and returns a capability to run it.
async fn build(port: &mut Port, memory: &Region, code: &[Instruction]) -> Capability {
    let bytes = assemble(code);
    let region = port.register(bytes.len()).unwrap();
    region.write(0, &bytes).unwrap();
    port.submit(&program::build(region.whole(), memory.whole(), 1)).unwrap();
    let done: Completion = port.completion().await.unwrap();
    assert_eq!(done.status, Status::Done);
    let [first, second, third, _] = done.args;
    Capability::from_words([first, second, third])
}

/// Builds a program on a node, whose port then stays open.
fn built(world: &mut World<Unit>, node: u16, code: Vec<Instruction>) -> Capability {
    let (host, result) = (world.host(NodeId(node)), Arc::new(Mutex::new(None)));
    let into = Arc::clone(&result);
    world.spawn(NodeId(node), async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(8).unwrap();
        let capability = build(&mut port, &memory, &code).await;
        *into.lock().unwrap() = Some(capability);
        std::future::pending::<()>().await;
    });
    let until = world.now() + Duration::from_millis(1);
    world.run_until(until);
    result.lock().unwrap().expect("the program is built")
}

async fn run(host: SimHost, program: Capability, times: usize) -> Vec<Status> {
    let mut port = host.open_port().unwrap();
    post(&mut port, &vec![program::run(&program, 1); times]).await
}

#[test]
fn results_of_programs_wait_for_room_in_a_full_queue() {
    let mut world = world(2, |node| {
        let config = if node == NodeId(1) { short() } else { ControlConfig::default() };
        let mut unit = Unit::new(config);
        unit.install(PROGRAMS, Programs::new()).unwrap();
        unit
    });
    let program = built(&mut world, 1, vec![Instruction::Add { offset: 0, by: 1 }]);
    let task = run(world.host(NodeId(0)), program, AT_ONCE);
    assert_eq!(ended(&mut world, 0, task), Some(vec![Status::Done; AT_ONCE]));
}

#[test]
fn a_program_whose_messages_find_no_room_is_refused_and_sends_none() {
    let mut world = world(2, |_| {
        let mut unit = Unit::new(short());
        unit.install(PROGRAMS, Programs::new()).unwrap();
        unit
    });
    let send = |times| {
        let gather = Instruction::Gather(Range { offset: 0, length: 8 });
        [gather, Instruction::Send { node: 1, port: 0 }].repeat(times)
    };
    for (times, expected) in [(1, Status::Done), (2, Status::Refused)] {
        let program = built(&mut world, 0, send(times));
        let task = run(world.host(NodeId(0)), program, 1);
        assert_eq!(ended(&mut world, 0, task), Some(vec![expected]), "{times} messages");
    }
    let programs = world.firmware(NodeId(1)).extension::<Programs>(PROGRAMS).unwrap();
    assert_eq!(programs.counters().without_buffer, 1, "one message has arrived");
}

#[test]
fn a_run_on_a_node_without_programs_ends() {
    let mut world = world(2, |node| {
        let mut unit = Unit::default();
        if node == NodeId(0) {
            unit.install(PROGRAMS, Programs::new()).unwrap();
        }
        unit
    });
    let program = Capability { node: NodeId(1), ..Capability::default() };
    let task = run(world.host(NodeId(0)), program, 2);
    assert_eq!(ended(&mut world, 0, task), Some(vec![Status::PeerLost; 2]));
}
