//! Compares the distributed address space with a plain array, under loss and with revoked rights.

use std::time::Duration;

use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::memory::{
    self, COMPARE_AND_SWAP, FETCH_AND_ADD, MEMORY, Memory, READ, REVOKE, WRITE,
};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Region;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

/// Bytes of the memory that is shared.
const BYTES: u32 = 20_000;
const OWNER: NodeId = NodeId(0);

fn world(nodes: u16, seed: u64, loss: f64) -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(nodes, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let mut world = World::new(&topology, NicProfile::MODERN, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(MEMORY, Memory::new()).unwrap();
        unit
    });
    let mut faults = Faults::NONE;
    (faults.loss, faults.duplicate) = (loss, loss);
    world.set_faults(faults);
    world
}

/// A host's port, and a region of its own for the data of accesses.
struct Side {
    port: Port,
    memory: Region,
}

impl Side {
    fn new(host: &SimHost) -> Self {
        let mut port = host.open_port().unwrap();
        let memory = port.register(BYTES as usize).unwrap();
        Self { port, memory }
    }

    async fn run(&mut self, command: Command) -> Completion {
        self.port.submit(&command).unwrap();
        self.port.completion().await.unwrap()
    }

    /// Runs an access whose `bytes` of local memory first hold `with`. Returns its completion, and what they hold
    /// afterwards.
    async fn access(
        &mut self,
        opcode: u8,
        capability: &Capability,
        with: &[u8],
    ) -> (Completion, Vec<u8>) {
        self.memory.write(0, with).unwrap();
        let region = self.memory.range(0, with.len()).unwrap();
        let done = self.run(memory::access(opcode, capability, region, 5)).await;
        let mut bytes = vec![0; with.len()];
        self.memory.read(0, &mut bytes).unwrap();
        (done, bytes)
    }
}

/// Starts a side. The owner's grants a capability with all rights to a second region.
fn start(world: &mut World<Unit>, node: NodeId) -> (Side, Option<Capability>) {
    let host = world.host(node);
    let started = world.block_on(node, async move {
        let mut side = Side::new(&host);
        if node != OWNER {
            return (side, None);
        }
        let region = side.port.register(BYTES as usize).unwrap();
        let done = side.run(memory::grant(region.whole(), CapabilityRights::ALL, 0)).await;
        assert_eq!(done.status, Status::Done);
        // Registered for as long as the port is open.
        std::mem::forget(region);
        (side, Some(memory::granted(&done)))
    });
    started.unwrap()
}

#[derive(Clone, Debug)]
enum Op {
    Read(u32, u32),
    Write(u32, u32, u8),
    Swap(u32, bool, u64),
    Add(u32, u64),
}

impl Op {
    /// Returns its opcode, offset, length, and the contents of its local memory.
    fn access(&self, model: &[u8]) -> (u8, u32, u32, Vec<u8>) {
        match self {
            Self::Read(at, length) => (READ, *at, *length, vec![0; *length as usize]),
            Self::Write(at, length, with) => {
                let bytes = (0..*length).map(|n| with.wrapping_add(n as u8)).collect();
                (WRITE, *at, *length, bytes)
            }
            Self::Swap(word, hits, new) => {
                let there = &model[*word as usize * 8..][..8];
                let mut with: Vec<u8> = there.to_vec();
                with[0] = with[0].wrapping_add(u8::from(!hits));
                with.extend(new.to_le_bytes());
                (COMPARE_AND_SWAP, word * 8, 8, with)
            }
            Self::Add(word, by) => (FETCH_AND_ADD, word * 8, 8, by.to_le_bytes().to_vec()),
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let range = || {
        let length = prop_oneof![1..=64_u32, 65..9_000_u32];
        (0..BYTES, length).prop_map(|(at, length)| (at.min(BYTES - length), length))
    };
    prop_oneof![
        range().prop_map(|(at, length)| Op::Read(at, length)),
        (range(), any::<u8>()).prop_map(|((at, length), with)| Op::Write(at, length, with)),
        (0..BYTES / 8, any::<bool>(), any::<u64>())
            .prop_map(|(word, hits, new)| Op::Swap(word, hits, new)),
        (0..BYTES / 8, any::<u64>()).prop_map(|(word, by)| Op::Add(word, by)),
    ]
}

/// Carries out operations of three nodes one after the other, and compares each result with that of a plain array.
fn compare_with_an_array(ops: Vec<(u16, Op)>, seed: u64, loss: u32) -> Result<(), TestCaseError> {
    let mut world = world(3, seed, f64::from(loss) / 100.0);
    let mut sides: Vec<Option<Side>> = Vec::new();
    let mut given = None;
    for node in 0..3 {
        let (side, capability) = start(&mut world, NodeId(node));
        sides.push(Some(side));
        given = given.or(capability);
    }
    let whole = given.unwrap();
    let mut model = vec![0_u8; BYTES as usize];
    for (by, op) in ops {
        let (opcode, at, length, with) = op.access(&model);
        let capability = whole.part(at, length).unwrap();
        let mut side = sides[usize::from(by)].take().unwrap();
        let sent = with.clone();
        let (side, (done, bytes)) = world
            .block_on(NodeId(by), async move {
                let ended = side.access(opcode, &capability, &sent).await;
                (side, ended)
            })
            .unwrap();
        sides[usize::from(by)] = Some(side);
        prop_assert_eq!(done.status, Status::Done, "{:?}", op);
        let there = &mut model[at as usize..(at + length) as usize];
        let before = there.to_vec();
        match &op {
            Op::Read(..) => prop_assert_eq!(&bytes[..], &before[..]),
            Op::Write(..) => there.copy_from_slice(&with),
            Op::Swap(_, hits, new) => {
                prop_assert_eq!(&bytes[..8], &before[..]);
                if *hits {
                    there.copy_from_slice(&new.to_le_bytes());
                }
            }
            Op::Add(_, by) => {
                let old = u64::from_le_bytes(before.clone().try_into().unwrap());
                prop_assert_eq!(done.args[0], old);
                there.copy_from_slice(&old.wrapping_add(*by).to_le_bytes());
            }
        }
    }
    for node in 0..3 {
        prop_assert_eq!(
            world.firmware(NodeId(node)).extension::<Memory>(MEMORY).unwrap().pending(),
            0
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn memory_of_another_node_behaves_like_an_array(
        ops in prop::collection::vec((0..3_u16, op()), 1..25),
        seed: u64,
        loss in 0..8_u32,
    ) {
        compare_with_an_array(ops, seed, loss)?;
    }
}

#[test]
fn a_write_over_a_word_that_was_just_changed_is_seen_by_the_next_addition() {
    // The word lies at 11,528: the writes cover it, its beginning, and its end.
    for write in [Op::Write(9_864, 6_737, 32), Op::Write(11_525, 10, 3), Op::Write(11_520, 12, 9)] {
        for by in 0..3 {
            let add = (2, Op::Add(1_441, u64::MAX / 3));
            let ops = vec![add.clone(), (by, write.clone()), add, (1, Op::Read(11_520, 24))];
            compare_with_an_array(ops, 1, 0)
                .unwrap_or_else(|error| panic!("{write:?} by {by}: {error}"));
        }
    }
}

#[test]
fn additions_of_many_nodes_are_all_counted_once() {
    let mut world = world(5, 3, 0.05);
    let (_side, whole) = start(&mut world, OWNER);
    let word = whole.unwrap().part(64, 8).unwrap();
    for node in (1..5).map(NodeId) {
        let host = world.host(node);
        world.spawn(node, async move {
            let mut side = Side::new(&host);
            for _ in 0..100 {
                let (done, _) = side.access(FETCH_AND_ADD, &word, &1_u64.to_le_bytes()).await;
                assert_eq!(done.status, Status::Done);
            }
            // A lock of one word, acquired and released by compare-and-swap.
            let lock = Capability { offset: 128, ..word };
            for _ in 0..20 {
                let (free, mine) = (0_u64.to_le_bytes(), u64::from(node.0).to_le_bytes());
                while side.access(COMPARE_AND_SWAP, &lock, &[free, mine].concat()).await.0.args[0]
                    != 0
                {}
                let (done, _) = side.access(COMPARE_AND_SWAP, &lock, &[mine, free].concat()).await;
                assert_eq!(done.args[0], u64::from(node.0), "another node has the lock");
            }
        });
    }
    world.run();
    let host = world.host(NodeId(1));
    let sum = world
        .block_on(NodeId(1), async move { Side::new(&host).access(READ, &word, &[0; 8]).await.1 });
    assert_eq!(sum.unwrap(), 400_u64.to_le_bytes());
}

#[test]
fn ungranted_accesses_are_refused_and_revoked_capabilities_stay_revoked() {
    let mut world = world(2, 1, 0.0);
    let (mut owner, whole) = start(&mut world, OWNER);
    let whole = whole.unwrap();
    let (owner, read_only) = world
        .block_on(OWNER, async move {
            let part = whole.part(100, 200).unwrap();
            let done = owner.run(memory::delegate(&part, CapabilityRights::READ, 0)).await;
            (owner, memory::granted(&done))
        })
        .unwrap();
    let (other, _) = start(&mut world, NodeId(1));
    let check = |world: &mut World<Unit>, mut side: Side, capability: Capability, opcode, bytes| {
        world
            .block_on(NodeId(1), async move {
                let (done, _) = side.access(opcode, &capability, &vec![0; bytes]).await;
                (side, done.status)
            })
            .unwrap()
    };
    let forged = Capability { key: read_only.key ^ 1, ..read_only };
    let wider = Capability { length: 201, ..read_only };
    let cases = [
        (read_only, READ, 200, Status::Done),
        (read_only, READ, 8, Status::Done),
        (read_only, WRITE, 8, Status::Region),
        (read_only, WRITE, 200, Status::Region),
        (read_only.part(0, 8).unwrap(), FETCH_AND_ADD, 8, Status::Region),
        (Capability { rights: CapabilityRights::ALL, ..read_only }, WRITE, 8, Status::Region),
        (wider, READ, 201, Status::Region),
        (forged, READ, 8, Status::Region),
        (whole.part(0, 8).unwrap(), COMPARE_AND_SWAP, 8, Status::Invalid),
        (Capability { node: NodeId(1), ..read_only }, READ, 8, Status::Region),
    ];
    let mut side = other;
    for (capability, opcode, bytes, expected) in cases {
        let (back, status) = check(&mut world, side, capability, opcode, bytes);
        side = back;
        assert_eq!(status, expected, "{capability:?} {opcode} {bytes}");
    }
    // Revoking the parent capability also revokes those delegated from it.
    let mut owner = owner;
    let status = world.block_on(OWNER, async move {
        let command = memory::access(REVOKE, &whole, owner.memory.whole(), 0);
        let done = owner.run(command).await;
        (owner, done.status)
    });
    let (_owner, status) = status.unwrap();
    assert_eq!(status, Status::Done);
    for bytes in [8, 200] {
        let (back, status) = check(&mut world, side, read_only, READ, bytes);
        side = back;
        assert_eq!(status, Status::Region);
    }
}

#[test]
fn an_access_to_a_dead_node_ends() {
    let mut world = world(2, 1, 0.0);
    let (owner, whole) = start(&mut world, OWNER);
    let (mut side, _) = start(&mut world, NodeId(1));
    world.crash(OWNER);
    drop(owner);
    for bytes in [8, 5_000] {
        let ended = world.block_on(NodeId(1), async move {
            let ended = side.access(READ, &whole.unwrap(), &vec![0; bytes]).await.0.status;
            (side, ended)
        });
        let (back, status) = ended.expect("it does not wait for ever");
        side = back;
        assert_eq!(status, Status::PeerLost);
    }
}

/// Bytes that take 34 ms on the line.
const LONG: usize = 4 << 20;

/// Reads [`LONG`] bytes; returns the status and the bytes.
async fn read_long(host: SimHost, from: Capability) -> (Status, Vec<u8>) {
    let mut port = host.open_port().unwrap();
    let region = port.register(LONG).unwrap();
    port.submit(&memory::access(READ, &from, region.whole(), 1)).unwrap();
    let status = port.completion().await.unwrap().status;
    let mut bytes = vec![0; LONG];
    region.read(0, &mut bytes).unwrap();
    (status, bytes)
}

/// The accesses of each incarnation have the same numbers.
#[test]
fn a_read_gets_no_frames_of_a_read_of_a_former_incarnation() {
    let mut world = world(2, 1, 0.0);
    let (owner, reader) = (world.host(OWNER), NodeId(1));
    let granted = world.block_on(OWNER, async move {
        let mut port = owner.open_port().unwrap();
        let region = port.register(2 * LONG).unwrap();
        region.write(LONG, &vec![9; LONG]).unwrap();
        port.submit(&memory::grant(region.whole(), CapabilityRights::ALL, 0)).unwrap();
        let capability = memory::granted(&port.completion().await.unwrap());
        (port, region, capability)
    });
    let (_port, _region, whole) = granted.unwrap();
    let [first, second] = [0, LONG as u32].map(|at| whole.part(at, LONG as u32).unwrap());
    let host = world.host(reader);
    world.spawn(reader, async move {
        read_long(host, first).await;
    });
    world.run_until(world.now() + Duration::from_millis(5));
    world.crash(reader);
    world.run_until(world.now() + Duration::from_millis(1));
    world.restart(reader);
    let host = world.host(reader);
    let (status, bytes) = world.block_on(reader, read_long(host, second)).unwrap();
    assert_eq!(status, Status::Done);
    assert_eq!(bytes.iter().position(|byte| *byte != 9), None);
}
