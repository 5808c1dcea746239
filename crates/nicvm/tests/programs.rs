//! Programs: built once, triggered many times, from their own node and from others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::capability::Capability;
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::program::{
    self, CheckError, Condition, DROP, Instruction, MESSAGE, PROGRAMS, Programs, Range, WAIT,
    assemble,
};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Region;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

fn world(loss: f64) -> World<Unit> {
    world_of(NicProfile::MODERN, loss)
}

/// NICs whose frames have as many bytes as an Ethernet packet.
const SMALL_FRAMES: NicProfile = NicProfile { mtu: 1_424, ..NicProfile::MODERN };

fn world_of(profile: NicProfile, loss: f64) -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(3, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let mut world = World::new(&topology, profile, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(PROGRAMS, Programs::new()).unwrap();
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit
    });
    let mut faults = Faults::NONE;
    (faults.loss, faults.duplicate) = (loss, loss);
    world.set_faults(faults);
    world
}

const fn range(offset: u32, length: u32) -> Range {
    Range { offset, length }
}

/// A port with a program over its memory.
struct Side {
    port: Port,
    memory: Region,
}

impl Side {
    fn new(host: &SimHost) -> Self {
        Self::over(host, 128)
    }

    fn over(host: &SimHost, bytes: usize) -> Self {
        let mut port = host.open_port().unwrap();
        let memory = port.register(bytes).unwrap();
        Self { port, memory }
    }

    async fn end(&mut self, command: Command) -> Completion {
        self.port.submit(&command).unwrap();
        self.port.completion().await.unwrap()
    }

    async fn build(&mut self, code: &[Instruction]) -> Completion {
        let bytes = assemble(code);
        let region = self.port.register(bytes.len()).unwrap();
        region.write(0, &bytes).unwrap();
        self.end(program::build(region.whole(), self.memory.whole(), 1)).await
    }

    fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(offset, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn built(done: &Completion) -> Capability {
    assert_eq!(done.status, Status::Done);
    let [first, second, third, _] = done.args;
    Capability::from_words([first, second, third])
}

/// Counts at offset 0; sends the count and the text at 64 to node 1; every third time signals.
const CODE: [Instruction; 9] = [
    Instruction::Add { offset: 0, by: 1 },
    Instruction::Add { offset: 8, by: 1 },
    Instruction::Gather(range(0, 8)),
    Instruction::Gather(range(64, 5)),
    Instruction::Send { node: 1, port: 0 },
    Instruction::Compare { offset: 8, with: 3 },
    Instruction::Branch { condition: Condition::Less, to: 9 },
    Instruction::Copy { from: range(120, 8), to: 8 },
    Instruction::Signal { cookie: 77 },
];

/// Receives `count` messages of [`CODE`].
async fn take(host: SimHost, count: usize, into: Arc<Mutex<Vec<u64>>>) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(64 * 13).unwrap();
    let receive = |slot: usize| program::receive(memory.range(slot * 13, 13).unwrap(), slot as u64);
    for slot in 0..64 {
        port.submit(&receive(slot)).unwrap();
    }
    for _ in 0..count {
        let done = port.completion().await.unwrap();
        assert_eq!((done.status, done.length, done.node), (Status::Done, 13, NodeId(0)));
        let mut bytes = [0; 13];
        memory.read(done.cookie as usize * 13, &mut bytes).unwrap();
        assert_eq!(&bytes[8..], b"hello");
        into.lock().unwrap().push(u64::from(bytes[0]));
        port.submit(&receive(done.cookie as usize)).unwrap();
    }
}

#[test]
fn a_program_is_triggered_many_times_and_its_messages_arrive_in_order() {
    let mut world = world(0.05);
    let host = world.host(NodeId(1));
    let taken = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&taken);
    world.spawn(NodeId(1), take(host, 101, into));
    let host = world.host(NodeId(0));
    let signals = world.block_on(NodeId(0), async move {
        let mut side = Side::new(&host);
        side.memory.write(64, b"hello").unwrap();
        host.sleep_until(host.now().plus_nanos(100_000)).await;
        let program = built(&side.build(&CODE).await);
        let (mut ended, mut signals) = (0, 0);
        for _ in 0..33 {
            side.port.post(&program::wait(6)).unwrap();
        }
        for _ in 0..100 {
            side.port.post(&program::run(&program, 5)).unwrap();
        }
        side.port.ring();
        while ended < 100 || signals < 33 {
            let done = side.port.completion().await.unwrap();
            assert_eq!(done.status, Status::Done);
            if done.opcode == WAIT {
                assert_eq!((done.cookie, done.args[0]), (6, 77));
                signals += 1;
            } else {
                ended += 1;
                assert!((7..=9).contains(&done.args[1]), "{done:?}");
            }
        }
        assert_eq!(side.word(0), 100);
        // No wait is posted for the next signals.
        for expected in [Status::Done, Status::Refused, Status::Refused] {
            let before = side.word(0);
            assert_eq!(side.end(program::run(&program, 5)).await.status, expected);
            assert_eq!(side.word(0) - before, u64::from(expected == Status::Done));
        }
        signals
    });
    assert_eq!(signals, Some(33));
    world.run();
    assert_eq!(*taken.lock().unwrap(), (1..=101).collect::<Vec<u64>>());
}

#[test]
fn a_capability_runs_a_program_on_another_node() {
    let mut world = world(0.05);
    let host = world.host(NodeId(0));
    let code = [Instruction::Add { offset: 16, by: 2 }, Instruction::Count(9)];
    let (mut owner, program) = world
        .block_on(NodeId(0), async move {
            let mut side = Side::new(&host);
            let program = built(&side.build(&code).await);
            (side, program)
        })
        .unwrap();
    for node in [1, 2, 0].map(NodeId) {
        let host = world.host(node);
        let done = world.block_on(node, async move {
            let mut side = Side::new(&host);
            let mut last = Completion::default();
            for _ in 0..20 {
                last = side.end(program::run(&program, 3)).await;
                assert_eq!(last.status, Status::Done);
            }
            let forged = Capability { key: program.key ^ 1, ..program };
            assert_eq!(side.end(program::run(&forged, 3)).await.status, Status::Region);
            last
        });
        assert_eq!(done.unwrap().args[..2], [9, 2]);
    }
    assert_eq!(owner.word(16), 120);
    let owner = world.block_on(NodeId(0), async move {
        let gone = Command { opcode: DROP, ..program::run(&program, 3) };
        assert_eq!(owner.end(gone).await.status, Status::Done);
        owner
    });
    let host = world.host(NodeId(2));
    let refused = world.block_on(NodeId(2), async move {
        Side::new(&host).end(program::run(&program, 3)).await.status
    });
    assert_eq!(refused, Some(Status::Region));
    drop(owner);
}

#[test]
fn a_program_that_loops_for_ever_fails_without_effects() {
    let mut world = world(0.0);
    let host = world.host(NodeId(0));
    let code = [
        Instruction::Add { offset: 0, by: 1 },
        Instruction::Branch { condition: Condition::Always, to: 0 },
    ];
    let ended = world.block_on(NodeId(0), async move {
        let mut side = Side::new(&host);
        let program = built(&side.build(&code).await);
        let status = side.end(program::run(&program, 3)).await.status;
        (status, side.word(0))
    });
    assert_eq!(ended, Some((Status::Cancelled, 0)));
}

#[test]
fn runs_over_memory_that_is_not_registered_any_more_count_as_failed() {
    let mut world = world(0.0);
    let host = world.host(NodeId(0));
    let code = [Instruction::Add { offset: 0, by: 1 }];
    let ended = world.block_on(NodeId(0), async move {
        let mut side = Side::new(&host);
        let program = built(&side.build(&code).await);
        let first = side.end(program::run(&program, 3)).await.status;
        side.memory = side.port.register(8).unwrap();
        (first, side.end(program::run(&program, 3)).await.status)
    });
    assert_eq!(ended, Some((Status::Done, Status::Region)));
    let counters = world.firmware(NodeId(0)).extension::<Programs>(PROGRAMS).unwrap().counters();
    assert_eq!((counters.runs, counters.failed), (1, 1));
}

#[test]
fn a_failed_check_names_the_instruction_and_the_reason() {
    let mut world = world(0.0);
    let host = world.host(NodeId(0));
    let code = [Instruction::Count(1), Instruction::Gather(range(100, 29))];
    let done = world.block_on(NodeId(0), async move { Side::new(&host).build(&code).await });
    let done = done.unwrap();
    let expected = (Status::Invalid, [1, CheckError::Range as u64]);
    assert_eq!((done.status, [done.args[0], done.args[1]]), expected);
}

#[test]
fn a_program_posts_commands_to_other_extensions() {
    let mut world = world(0.0);
    let host = world.host(NodeId(0));
    let call = Instruction::Call {
        extension: MESSAGES.0,
        opcode: messages::RECEIVE,
        cookie: 40,
        range: range(32, 16),
    };
    let posted = world.block_on(NodeId(0), async move {
        let mut side = Side::new(&host);
        let program = built(&side.build(&[call]).await);
        assert_eq!(side.end(program::run(&program, 3)).await.status, Status::Refused);
        side.port.submit(&program::wait(9)).unwrap();
        assert_eq!(side.end(program::run(&program, 3)).await.status, Status::Done);
        // The program has posted a buffer to the message service.
        side
    });
    let mut side = posted.unwrap();
    let host = world.host(NodeId(1));
    world.spawn(NodeId(1), async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(5).unwrap();
        memory.write(0, b"words").unwrap();
        port.submit(&messages::send(NodeId(0), PortId(0), memory.whole(), 1)).unwrap();
        port.completion().await.unwrap();
    });
    let received = world.block_on(NodeId(0), async move {
        let done = side.port.completion().await.unwrap();
        let mut bytes = [0; 5];
        side.memory.read(32, &mut bytes).unwrap();
        (done.cookie, bytes)
    });
    assert_eq!(received, Some((40, *b"words")));
}

#[test]
fn copied_bytes_count_as_steps_and_program_memory_is_bounded() {
    use midplane_nicvm::program::{MAX_MEMORY, check};
    let endless = [
        Instruction::Copy { from: range(0, MAX_MEMORY as u32), to: 0 },
        Instruction::Branch { condition: Condition::Always, to: 0 },
    ];
    assert_eq!(check(&endless, MAX_MEMORY as u32), Ok(()));
    assert_eq!(check(&endless, MAX_MEMORY as u32 + 1), Err((0, CheckError::Memory)));
    let mut world = world(0.0);
    let host = world.host(NodeId(0));
    let ended = world.block_on(NodeId(0), async move {
        let mut side = Side::new(&host);
        side.memory = side.port.register(MAX_MEMORY).unwrap();
        let twice = [endless[0], endless[0], Instruction::Count(5)];
        let program = built(&side.build(&twice).await);
        let fits = side.end(program::run(&program, 1)).await;
        let program = built(&side.build(&endless).await);
        (fits, side.end(program::run(&program, 1)).await.status)
    });
    let (fits, stopped) = ended.unwrap();
    // Three instructions, and 4,096 for each copy of a mebibyte.
    assert_eq!((fits.status, fits.args[0], fits.args[1]), (Status::Done, 5, 3 + 2 * 4_096));
    assert_eq!(stopped, Status::Cancelled);
}

/// Returns the content of long messages, which differs at every offset below 64 KiB.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8) as u8).collect()
}

/// Assembles a message of `length` bytes from two parts of memory, the second one first, and sends it to each node.
fn swapped(length: u32, nodes: &[u16]) -> Vec<Instruction> {
    let first = length / 3;
    let send = |&node: &u16| {
        [
            Instruction::Gather(range(first, length - first)),
            Instruction::Gather(range(0, first)),
            Instruction::Send { node, port: 0 },
        ]
    };
    nodes.iter().flat_map(send).collect()
}

/// Receives messages into one buffer of 64 KiB at a time, until `count` have arrived.
async fn receive_each(host: SimHost, count: usize, into: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(MESSAGE).unwrap();
    for _ in 0..count {
        port.submit(&program::receive(memory.whole(), 0)).unwrap();
        let done = port.completion().await.unwrap();
        assert_eq!((done.status, done.node), (Status::Done, NodeId(0)));
        let mut bytes = vec![0; done.length as usize];
        memory.read(0, &mut bytes).unwrap();
        into.lock().unwrap().push(bytes);
    }
}

fn counters(world: &World<Unit>, node: u16) -> program::ProgramCounters {
    world.firmware(NodeId(node)).extension::<Programs>(PROGRAMS).unwrap().counters()
}

#[test]
fn messages_of_any_length_arrive_as_they_were_assembled_here_and_elsewhere() {
    let lengths = [0, 1, 97, 98, 1_424, 1_425, 9_000, 10_240, 65_535, MESSAGE as u32];
    let assembled = |&length: &u32| {
        let text = text(length as usize);
        let (first, second) = text.split_at(length as usize / 3);
        [second, first].concat()
    };
    let expected: Vec<Vec<u8>> = lengths.iter().map(assembled).collect();
    for profile in [SMALL_FRAMES, NicProfile::MODERN] {
        let mut world = world_of(profile, 0.0);
        let received = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        for (node, into) in (0..).map(NodeId).zip(&received) {
            let receiver = receive_each(world.host(node), lengths.len(), Arc::clone(into));
            world.spawn(node, receiver);
        }
        let host = world.host(NodeId(0));
        world.block_on(NodeId(0), async move {
            let mut side = Side::over(&host, MESSAGE);
            side.memory.write(0, &text(MESSAGE)).unwrap();
            for length in lengths {
                let program = built(&side.build(&swapped(length, &[0, 1])).await);
                assert_eq!(side.end(program::run(&program, 1)).await.status, Status::Done);
                host.sleep_until(host.now().plus_nanos(2_000_000)).await;
            }
        });
        world.run();
        assert!(received.iter().all(|received| *received.lock().unwrap() == expected));
    }
}

#[test]
fn a_long_message_arrives_whole_or_not_at_all_and_each_loss_is_counted() {
    let mut world = world_of(SMALL_FRAMES, 0.01);
    let received = Arc::new(Mutex::new(Vec::new()));
    let host = world.host(NodeId(1));
    world.spawn(NodeId(1), receive_each(host, 200, Arc::clone(&received)));
    let host = world.host(NodeId(0));
    world.block_on(NodeId(0), async move {
        let mut side = Side::over(&host, 20_000);
        side.memory.write(0, &text(20_000)).unwrap();
        let mut code = swapped(20_000, &[1]);
        code.insert(0, Instruction::Add { offset: 0, by: 1 });
        let program = built(&side.build(&code).await);
        for _ in 0..100 {
            assert_eq!(side.end(program::run(&program, 1)).await.status, Status::Done);
            host.sleep_until(host.now().plus_nanos(500_000)).await;
        }
    });
    world.run();
    let received = received.lock().unwrap();
    let expected = text(20_000);
    for bytes in &*received {
        let (second, first) = bytes.split_at(20_000 - 6_666);
        assert!(second == &expected[6_666..] && first[8..] == expected[8..6_666]);
    }
    let lost = counters(&world, 1).incomplete;
    // Each has 15 frames, of which one in a hundred is lost.
    assert!((70..100).contains(&received.len()), "{} came", received.len());
    assert_eq!(received.len() as u64 + lost, 100);
}

#[test]
fn runs_are_refused_while_the_line_is_behind_and_what_is_sent_arrives() {
    let mut world = world_of(SMALL_FRAMES, 0.0);
    let received = Arc::new(Mutex::new(Vec::new()));
    let host = world.host(NodeId(1));
    world.spawn(NodeId(1), receive_each(host, 1_000, Arc::clone(&received)));
    let host = world.host(NodeId(0));
    let done = world.block_on(NodeId(0), async move {
        let mut side = Side::over(&host, MESSAGE);
        let program = built(&side.build(&swapped(MESSAGE as u32, &[1])).await);
        let five = built(&side.build(&swapped(MESSAGE as u32, &[1; 5])).await);
        assert_eq!(side.end(program::run(&five, 1)).await.status, Status::Refused);
        let mut done = 0;
        for burst in 0..2 {
            for _ in 0..20 {
                side.port.post(&program::run(&program, 1)).unwrap();
            }
            side.port.ring();
            let before = done;
            for _ in 0..20 {
                done += usize::from(side.port.completion().await.unwrap().status == Status::Done);
            }
            // Four messages wait at most, and the line takes a few frames at once.
            assert!((4..8).contains(&(done - before)), "{} of burst {burst}", done - before);
            host.sleep_until(host.now().plus_nanos(20_000_000)).await;
        }
        done
    });
    world.run();
    let received = received.lock().unwrap().len() as u64;
    let lost = counters(&world, 1);
    // A message that arrives while the process posts its next buffer is dropped.
    assert_eq!(received + lost.without_buffer, done.unwrap() as u64);
    assert_eq!(lost.incomplete, 0);
}
