//! Gates that open and close at random: each descriptor completes once and in order, and no data passes a closed gate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::admission::{Admission, AdmissionUpdate, Verdict};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::Extension;
use midplane_simhw::fault::Faults;
use midplane_simhw::frame::Header;
use midplane_simhw::host::Host as _;
use midplane_simhw::id::{ExtensionId, PortId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::sim::SimHost;
use midplane_simhw::time::Instant;
use midplane_via::attributes::ViAttributes;
use midplane_via::memory::RemoteMemory;
use midplane_via::nic::WorkQueue;
use proptest::prelude::*;

use super::rings::{rings, rings_that};
use super::{attributes, descriptor, pair};
use pair::{CLIENT, End, SERVER, Setting, pattern, pause, world_with};

pub(super) const MOVER: ExtensionId = ExtensionId(9);
pub(super) const RESUME: u8 = 0;
pub(super) const SUSPEND: u8 = 1;
const ADMIT: u8 = 2;

/// Suspends or resumes the port that a command names, or installs an admission of every frame.
pub(super) struct Mover;

/// Admits every frame; because it is an admission, every frame passes the NIC.
struct All;

impl Admission for All {
    fn admit(&self, _: Instant, _: &Header) -> Verdict {
        Verdict::Now
    }

    fn on_sent(&mut self, _: Instant, _: &Header, _: Instant) {}

    fn update(&mut self, _: Instant, _: AdmissionUpdate) {}
}

impl Extension for Mover {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            RESUME => nic.resume_port(command.port),
            SUSPEND => nic.suspend_port(command.port),
            _ => nic.install_admission(All).expect("it is the first"),
        }
        let Command { opcode, cookie, .. } = command;
        nic.complete(command.region.port, &Completion { opcode, cookie, ..Completion::default() });
    }
}

/// A movement of a gate: a node's port is suspended after a pause, for a time, both in microseconds.
#[derive(Clone, Copy, Debug)]
struct Move {
    node: u16,
    pause: u64,
    time: u64,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..2_u16, 0..400_u64, 0..600_u64);
    proptest::collection::vec(one.prop_map(|(node, pause, time)| Move { node, pause, time }), 0..12)
}

pub(super) async fn order(host: &SimHost, opcode: u8, port: PortId) {
    let mut own = host.open_port().unwrap();
    let command = Command { extension: MOVER, opcode, port, ..Command::default() };
    own.submit(&command).unwrap();
    own.completion().await.unwrap();
}

/// Moves the gate of one node's first port; sets `is_closed` while no data may pass its ring.
async fn move_gate(host: SimHost, moves: Vec<Move>, is_closed: Arc<AtomicBool>) {
    for step in moves.into_iter().filter(|step| step.node == host.node().0) {
        pause(&host, Duration::from_micros(step.pause)).await;
        order(&host, SUSPEND, PortId(0)).await;
        is_closed.store(true, Ordering::Relaxed);
        pause(&host, Duration::from_micros(step.time)).await;
        is_closed.store(false, Ordering::Relaxed);
        order(&host, RESUME, PortId(0)).await;
    }
}

const ROOM: usize = 4_000;
const MESSAGES: usize = 24;

/// The messages of one end: length in bytes, pause before it in microseconds, and whether it is a write with immediate
/// data.
type Plan = Vec<(usize, u64, bool)>;

fn plan() -> impl Strategy<Value = Plan> {
    proptest::collection::vec((0..ROOM, 0..120_u64, any::<bool>()), 0..MESSAGES)
}

/// Sends all messages of one plan, and receives all of the other.
async fn exchange(mut end: End, own: Plan, other: Plan, to: Arc<Mutex<[Option<RemoteMemory>; 2]>>) {
    let (node, most) = (usize::from(end.host.node().0), 900);
    assert_eq!(end.nic.port(), PortId(0));
    // Messages are sent from the first half of the memory, and received in the second; writes go to other memory.
    let landing = end.nic.register(ROOM * MESSAGES, pair_options()).unwrap();
    for number in 0..other.len() {
        let at = (MESSAGES + number) * ROOM;
        end.nic.post_receive(end.vi, descriptor(&end, at, ROOM, most)).unwrap();
    }
    to.lock().unwrap()[node] = Some(landing.remote());
    let landing_there = loop {
        let there = to.lock().unwrap()[1 - node];
        match there {
            Some(memory) => break memory,
            None => pause(&end.host, Duration::from_micros(50)).await,
        }
    };
    let (mut sent, mut received) = (0, 0);
    let mut next = 0;
    let limit = end.host.now() + Duration::from_secs(10);
    while sent < own.len() || received < other.len() {
        assert!(end.host.now() < limit, "sent {sent} of {}, received {received}", own.len());
        if let Some((length, wait, is_write)) = own.get(next).copied() {
            pause(&end.host, Duration::from_micros(wait)).await;
            let at = next * ROOM;
            end.memory.write(at, &pattern(next as u32, length)).unwrap();
            let mut message = descriptor(&end, at, length, most).immediate(next as u32);
            if is_write {
                message = message.write(landing_there.at(at as u32).unwrap());
            }
            end.nic.post_send(end.vi, message).unwrap();
            next += 1;
        } else {
            pause(&end.host, Duration::from_micros(30)).await;
        }
        end.nic.poll();
        while let Some(done) = end.nic.send_done(end.vi).unwrap() {
            assert_eq!((done.outcome, done.length), (Ok(()), own[sent].0), "send {sent}");
            sent += 1;
        }
        while let Some(done) = end.nic.receive_done(end.vi).unwrap() {
            let (length, _, is_write) = other[received];
            assert_eq!((done.outcome, done.length), (Ok(()), length), "receive {received}");
            assert_eq!(done.immediate, Some(received as u32));
            let bytes = match is_write {
                true => landing.view(received * ROOM, length).unwrap().to_vec(),
                false => end.bytes((MESSAGES + received) * ROOM, length),
            };
            assert!(bytes == pattern(received as u32, length), "message {received} is damaged");
            received += 1;
        }
    }
    assert_eq!(end.nic.next_error(), None);
    // The other end may still need this one.
    let until = end.host.now() + Duration::from_millis(100);
    while end.host.now() < until {
        pause(&end.host, Duration::from_micros(100)).await;
        end.nic.poll();
    }
}

fn pair_options() -> midplane_via::memory::MemoryOptions {
    midplane_via::memory::MemoryOptions { rdma_write: true, rdma_read: true, ..Default::default() }
}

/// Runs both ends, and moves their gates meanwhile.
fn run(
    plans: [Plan; 2],
    (mtu, depth): (usize, usize),
    moves: Vec<Move>,
    faults: Faults,
    seed: u64,
) {
    let closed = [Arc::<AtomicBool>::default(), Arc::default()];
    let both = rings_that(mtu, depth, closed.clone());
    let setting = Setting { faults, seed, ..Setting::default() };
    let mut world = world_with(setting, |_, unit| {
        unit.install(MOVER, Mover).unwrap();
    });
    let to = Arc::new(Mutex::new([None; 2]));
    let done = Arc::new(Mutex::new(0));
    let bytes = 2 * MESSAGES * ROOM;
    for (node, (own, closed)) in [CLIENT, SERVER].into_iter().zip(both.into_iter().zip(closed)) {
        let (host, to, done) = (world.host(node), Arc::clone(&to), Arc::clone(&done));
        let (mut plans, moves) = (plans.clone(), moves.clone());
        if node == SERVER {
            plans.swap(0, 1);
        }
        world.spawn(node, async move {
            let attributes = ViAttributes { rdma_write: true, ..attributes() };
            let mut end = End::over(host.clone(), attributes, bytes, own).await;
            if node == SERVER {
                end.serve().await
            } else {
                end.connect().await
            }
            host.spawn(move_gate(host.clone(), moves, closed));
            let [own, other] = plans;
            exchange(end, own, other, to).await;
            *done.lock().unwrap() += 1;
        });
    }
    let limit = world.now() + Duration::from_secs(20);
    while *done.lock().unwrap() < 2 && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    assert_eq!(*done.lock().unwrap(), 2, "both end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn each_message_arrives_once_and_in_order_while_gates_move(
        there in plan(), back in plan(), shape in (1_usize..3_000, 1_usize..6), moves in moves(),
        seed: u64, loss in prop_oneof![Just(0.0), 0.0..0.05],
    ) {
        run([there, back], shape, moves, Faults { loss, ..Faults::NONE }, seed);
    }
}

#[test]
fn resuming_a_port_while_the_host_has_a_queue_loses_nothing() {
    let moves = vec![Move { node: 0, pause: 5, time: 0 }];
    run([vec![], vec![(0, 0, false); 2]], (1, 1), moves, Faults::NONE, 0);
}

/// The request to map the memory arrives before the receiver's host knows that it has the queue.
#[test]
fn a_write_right_after_the_gate_has_opened_is_done() {
    run([vec![(0, 0, true)], vec![]], (1, 1), vec![], Faults::NONE, 0);
}

/// A host without rings of its own offers no queues: all messages pass the NICs.
#[test]
fn a_process_without_rings_is_served_by_the_nics() {
    let (mut both, _) = rings(1_000, 4);
    both[1] = None;
    let client = |mut end: End| async move {
        pause(&end.host, Duration::from_millis(5)).await;
        end.nic.poll();
        assert!(!end.nic.is_gate_open(end.vi));
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
    };
    let server = |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap().outcome
    };
    let ended = pair::connected_over(Setting::default(), attributes(), 10, both, client, server);
    assert_eq!(ended, (Ok(()), Ok(())));
}

/// Checks that the gate closes even if the host computes and does not poll. Messages posted from then on wait for the
/// NIC.
#[test]
fn an_admission_closes_the_gate_at_once_and_later_messages_pass_the_nic() {
    let (both, _) = rings(1_000, 64);
    let mut world = world_with(Setting::default(), |_, unit| {
        unit.install(MOVER, Mover).unwrap();
    });
    let [client_rings, server_rings] = both;
    let server_host = world.host(SERVER);
    world.spawn(SERVER, async move {
        let mut end = End::over(server_host, attributes(), 1_000, server_rings).await;
        for _ in 0..3 {
            end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        end.serve().await;
        loop {
            end.nic.progress().await.unwrap();
        }
    });
    let host = world.host(CLIENT);
    let ended = world.block_on(CLIENT, async move {
        let mut end = End::over(host.clone(), attributes(), 1_000, client_rings).await;
        end.connect().await;
        end.opens().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        let done = end.nic.taken(end.vi, WorkQueue::Send).unwrap().expect("it bypasses the NIC");
        assert_eq!(done.outcome, Ok(()));
        order(&host, ADMIT, PortId(0)).await;
        assert!(!end.nic.is_gate_open(end.vi), "the host has not polled since");
        for _ in 0..2 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
            assert!(
                end.nic.taken(end.vi, WorkQueue::Send).unwrap().is_none(),
                "the NIC has to send it"
            );
        }
        for _ in 0..2 {
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            assert_eq!(done.outcome, Ok(()));
        }
        pause(&host, Duration::from_millis(5)).await;
        end.nic.poll();
        assert!(!end.nic.is_gate_open(end.vi), "the admission is still installed");
    });
    ended.expect("the client ends");
}
