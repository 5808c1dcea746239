//! Nodes that crash and restart at random instants, in virtual time: the new processes exchange messages, and all waits
//! for a former incarnation end.

use std::collections::BTreeSet;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World as SimWorld};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::Failure;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};

type World = Communicator;

/// The time within which a restarted process exchanges messages.
const SOON: Duration = Duration::from_secs(1);

fn cluster(nodes: u16, seed: u64) -> SimWorld<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(4 << 20));
    let topology = Topology::star(nodes, link, switch);
    SimWorld::new(&topology, NicProfile::MODERN, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
        unit
    })
}

async fn join(host: &SimHost, nodes: u16) -> World {
    let all: Vec<_> = (0..nodes).map(NodeId).collect();
    let own = Peer(host.node().0.into());
    let carrier = RdmaCarrier::open(host, own, &all, RdmaConfig::default()).await.unwrap();
    let engine = Engine::new(carrier, Config::default());
    Communicator::world(engine, nodes.into()).unwrap()
}

/// The exchanges of messages: a rank, the other rank, and the time.
type Log = Arc<Mutex<Vec<(u32, u32, Instant)>>>;

/// Has the lower rank send requests and the higher one answer them, again and again.
async fn talk(world: World, host: SimHost, other: u32, log: Log) {
    let own = world.rank().0;
    let peer = Rank(other);
    loop {
        let turn = async {
            if own < other {
                world.send(peer, Tag(1), vec![1; 2_000]).await?;
                world.receive(peer, Tag(2)).await.map(drop)
            } else {
                let received = world.receive(peer, Tag(1)).await?;
                world.send(peer, Tag(2), received.bytes).await
            }
        };
        match turn.await {
            Ok(()) => log.lock().unwrap().push((own, other, host.now())),
            Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {}
            Err(error) => panic!("{own} and {other}: {error}"),
        }
        host.sleep_until(host.now() + Duration::from_millis(8)).await;
    }
}

fn live(host: &SimHost, nodes: u16, log: &Log) -> impl Future<Output = ()> + Send + use<> {
    let (host, log) = (host.clone(), Arc::clone(log));
    async move {
        let world = join(&host, nodes).await;
        for other in (0..u32::from(nodes)).filter(|other| *other != world.rank().0) {
            host.spawn(talk(world.clone(), host.clone(), other, Arc::clone(&log)));
        }
    }
}

/// Checks that each two incarnations have exchanged messages within [`SOON`] of the later start.
#[track_caller]
fn check(log: &Log, seed: u64, began: &[(u32, Instant, Instant)]) {
    let log = log.lock().unwrap();
    for (own, from, end) in began {
        for (other, since, until) in began.iter().filter(|(other, ..)| other != own) {
            let both = *from.max(since);
            if *end.min(until) < both + SOON {
                continue;
            }
            let talked = |(a, b, at): &(u32, u32, Instant)| {
                (a, b) == (own, other) && *at > both && *at <= both + SOON
            };
            assert!(log.iter().any(talked), "seed {seed}: {own} not with {other} after {both}");
        }
    }
}

fn restarts(seed: u64) {
    const NODES: u16 = 3;
    let mut rng = Rng::new(seed, "restarts");
    let mut world = cluster(NODES, seed);
    let log = Log::default();
    let mut began = vec![Instant::ZERO; NODES.into()];
    let begin = |world: &mut SimWorld<Unit>, node: u32| {
        let node = NodeId(node as u16);
        let host = world.host(node);
        world.spawn(node, live(&host, NODES, &log));
    };
    (0..NODES.into()).for_each(|node| begin(&mut world, node));
    let mut incarnations = Vec::new();
    for _ in 0..4 {
        world.run_until(world.now() + Duration::from_micros(rng.below(3_000_000)));
        // One of the nodes crashes, or several at once.
        let gone: BTreeSet<_> =
            (0..=rng.below(2)).map(|_| rng.below(NODES.into()) as u32).collect();
        for node in &gone {
            incarnations.push((*node, began[*node as usize], world.now()));
            world.crash(NodeId(*node as u16));
        }
        for node in &gone {
            let pause = [1, 20_000, 200_000, 700_000, 20_000_000][rng.below(5) as usize];
            world.run_until(world.now() + Duration::from_micros(pause));
            began[*node as usize] = world.now();
            world.restart(NodeId(*node as u16));
            begin(&mut world, *node);
        }
    }
    world.run_until(world.now() + Duration::from_secs(2));
    incarnations.extend((0..).zip(began).map(|(node, since)| (node, since, world.now())));
    check(&log, seed, &incarnations);
    for node in 0..NODES {
        assert_eq!(world.firmware(NodeId(node)).counters().traps, 0, "seed {seed}");
    }
}

#[test]
fn restarted_processes_exchange_messages_within_a_second() {
    (0..4).for_each(restarts);
    for _ in 0..3 {
        restarts(RandomState::new().hash_one(0));
    }
}

/// Runs one of the operations that processes carry out together.
async fn collective_step(world: &World, which: u64) -> Result<(), MessageError> {
    match which {
        0 => world.duplicate().await.map(drop),
        1 => world.split(Some(0), 0).await.map(drop),
        2 => {
            let some = world.handle().group().include(&[Rank(0), Rank(2), Rank(3)])?;
            world.create(&some).await.map(drop)
        }
        3 => world.barrier().await,
        4 => world.all_gather(vec![1; 30_000]).await.map(drop),
        5 => world.all_reduce(&[1_u8], Operation::Sum).await.map(drop),
        6 => world.broadcast(Rank(2), vec![1; 30_000]).await.map(drop),
        _ => world.scan(&[1_u8], Operation::Sum).await.map(drop),
    }
}

/// Crashes a node while all processes carry out one operation after the other. At all others, the operation must end.
fn crash_during(seed: u64, which: u64) {
    const NODES: u16 = 5;
    let mut rng = Rng::new(seed, "bereaved");
    let mut world = cluster(NODES, seed);
    let ended = Arc::new(Mutex::new(BTreeSet::new()));
    let victim = rng.below(NODES.into()) as u16;
    for node in 0..NODES {
        let (host, ended) = (world.host(NodeId(node)), Arc::clone(&ended));
        world.spawn(NodeId(node), async move {
            let world = join(&host, NODES).await;
            let error = loop {
                if let Err(error) = collective_step(&world, which).await {
                    break error;
                }
            };
            let lost = [Failure::PeerLost(Peer(victim.into())), Failure::Abandoned];
            assert!(lost.map(MessageError::Failed).contains(&error), "seed {seed}: {error}");
            assert!(world.barrier().await.is_err(), "nor does it begin again");
            // Messages to the others still arrive.
            let others: Vec<_> = (0..u32::from(NODES)).filter(|it| *it != victim.into()).collect();
            let at =
                others.iter().position(|it| *it == world.rank().0).expect("this rank is alive");
            let next = Rank(others[(at + 1) % others.len()]);
            let previous = Rank(others[(at + others.len() - 1) % others.len()]);
            world.send(next, Tag(5), vec![1]).await.unwrap();
            world.receive(previous, Tag(5)).await.unwrap();
            let rest = world.shrink().await.unwrap();
            let sums = rest.all_reduce(&[1_u32; 5_000], Operation::Sum).await.unwrap();
            assert_eq!(sums, [u32::from(NODES) - 1; 5_000]);
            ended.lock().unwrap().insert(node);
            let _ = world.probe(next, Tag(6)).await;
        });
    }
    world.run_until(Instant::ZERO + Duration::from_micros(5_000 + rng.below(10_000)));
    assert!(ended.lock().unwrap().is_empty());
    world.crash(NodeId(victim));
    // A node that is silent for two seconds counts as dead.
    world.run_until(world.now() + Duration::from_secs(3));
    let ended = ended.lock().unwrap();
    assert_eq!(ended.len(), usize::from(NODES) - 1, "seed {seed}, operation {which}: {ended:?}");
}

/// A process leaves an operation while another one's message waits for its window. The send must fail with the
/// operation, and not as one that its owner has cancelled.
#[test]
fn a_message_that_waits_for_a_window_ends_with_the_operation() {
    crash_during(10_215_123_218_146_729_250, 7);
}

#[test]
fn collective_operations_end_at_all_others_once_one_process_is_lost() {
    for which in 0..8 {
        (0..2).for_each(|seed| crash_during(seed, which));
        crash_during(RandomState::new().hash_one(which), which);
    }
}
