//! An `async fn` as an extension: the events that it awaits arrive, each command ends once, and a failure leaves no
//! effects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness;
use crate::harness::{Effect, Harness, Peer, command, memory, silence_panics};
use futures_util::future::{Either, join, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use midplane_nicvm::control::{Address, Control, ControlConfig};
use midplane_nicvm::extension::{Epoch, FIRST_USER_EXTENSION, PeerEvent};
use midplane_nicvm::heap::{DEFAULT_BYTES, VECTOR_BYTES};
use midplane_nicvm::thread::{Event, Nic, Thread};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::host::Host;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

const MINE: midplane_simhw::id::ExtensionId = FIRST_USER_EXTENSION;
const PORT: PortId = PortId(3);
const TO: Address = Address { extension: MINE, epoch: Epoch::FIRST };

type Log = Arc<Mutex<Vec<String>>>;

fn unit<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(Nic) -> F) -> Unit {
    silence_panics();
    let mut unit = Unit::default();
    unit.install(MINE, Thread::new(body)).unwrap();
    unit
}

fn statuses(harness: &mut Harness) -> Vec<(u64, Status)> {
    harness.completions().into_iter().map(|(_, done)| (done.cookie, done.status)).collect()
}

fn frame(harness: &mut Harness, bytes: &[u8]) {
    let header = Header {
        kind: Kind::Data,
        extension: MINE,
        source: NodeId(2),
        destination: NodeId(1),
        incarnation: Incarnation::FIRST,
        ..Header::default()
    };
    harness.frame(header, bytes);
}

#[test]
fn events_are_received_in_order() {
    let log = Log::default();
    let noted = Arc::clone(&log);
    let mut harness = Harness::new(unit(|nic| async move {
        loop {
            let line = match nic.event().await {
                Event::Command(request) => {
                    let line = format!("command {}", request.opcode);
                    request.reply(7, [1, 2, 3, 4]);
                    line
                }
                Event::Control(message) => {
                    format!("control {:?} of {}", message.bytes, message.from)
                }
                Event::Data(message) => format!("data {:?} of {}", message.bytes, message.from),
                Event::Peer(PeerEvent::Up(node, _)) => format!("{node} is up"),
                Event::Stopped => break,
                other => format!("{other:?}"),
            };
            noted.lock().unwrap().push(line);
        }
        noted.lock().unwrap().push("stopped".into());
    }));
    harness.post(PORT, command(MINE, 5));
    Peer::new(NodeId(2)).send(&mut harness, TO, b"ab");
    frame(&mut harness, b"c");
    harness.turn(|unit, hw| unit.deactivate(hw));
    let expected = ["command 5", "2 is up", "control [97, 98] of 2", "data [99] of 2", "stopped"];
    assert_eq!(*log.lock().unwrap(), expected);
    assert_eq!(harness.unit.counters().traps, 0);
}

#[test]
fn an_answer_carries_its_arguments_and_the_commands_own_words() {
    let mut harness = Harness::new(unit(|nic| async move {
        let request = nic.command().await;
        assert_eq!(request.write(b"more than fits").await, Ok(4));
        request.reply(4, [9, 0, 0, 0]);
        nic.stopped().await;
    }));
    harness.post(PORT, Command { region: memory(PORT, 4), ..command(MINE, 8) });
    let done = harness.take();
    let [Effect::Written(_, bytes), Effect::Completed(PORT, completion)] = &done[..] else {
        panic!("{done:?}");
    };
    assert_eq!(bytes, b"more");
    let said = (completion.opcode, completion.cookie, completion.length, completion.args[0]);
    assert_eq!((said, completion.status), ((8, 8, 4, 9), Status::Done));
}

#[test]
fn a_body_that_panics_loses_its_effects_since_its_last_await() {
    let mut harness = Harness::new(unit(|nic| async move {
        let first = nic.command().await;
        let second = nic.command().await;
        nic.send_control(NodeId(2), b"x").await.unwrap();
        second.reply(0, [0; 4]);
        let third = nic.command().await;
        first.reply(0, [0; 4]);
        nic.send_control(NodeId(2), b"y").await.unwrap();
        drop(third);
        panic!("on purpose");
    }));
    for opcode in [1, 2] {
        harness.post(PORT, command(MINE, opcode));
    }
    let (sent, done): (Vec<_>, Vec<_>) =
        harness.take().into_iter().partition(|effect| matches!(effect, Effect::Sent(_)));
    assert_eq!((sent.len(), done.len()), (1, 1), "the second's answer and its message");
    harness.post(PORT, command(MINE, 3));
    let mut ended = statuses(&mut harness);
    ended.sort_unstable_by_key(|(cookie, _)| *cookie);
    assert_eq!(ended, [(1, Status::ExtensionDown), (3, Status::ExtensionDown)]);
    harness.post(PORT, command(MINE, 4));
    assert_eq!(statuses(&mut harness), [(4, Status::ExtensionDown)]);
}

#[test]
fn a_body_that_returns_takes_its_extension_down() {
    let mut harness = Harness::new(unit(|nic| async move {
        let held = nic.command().await;
        nic.command().await.reply(0, [0; 4]);
        drop(held);
    }));
    for opcode in [1, 2, 3] {
        harness.post(PORT, command(MINE, opcode));
    }
    let ended = statuses(&mut harness);
    let expected = [(2, Status::Done), (1, Status::Cancelled), (3, Status::ExtensionDown)];
    assert_eq!(ended, expected);
}

#[test]
fn sleeps_end_after_their_time_and_those_that_are_dropped_do_not_disturb() {
    let log = Log::default();
    let noted = Arc::clone(&log);
    let mut harness = Harness::new(unit(|nic| async move {
        let exact = nic.sleep(Service::Exact, Duration::from_micros(5));
        let coarse = nic.sleep(Service::Coarse, Duration::from_micros(5));
        let note = |what: &str| noted.lock().unwrap().push(format!("{what} {}", nic.now()));
        let late = nic.sleep(Service::Exact, Duration::from_secs(5));
        match select(exact, late).await {
            Either::Left((_, late)) => drop(late),
            Either::Right(_) => note("late"),
        }
        note("exact");
        coarse.await;
        note("coarse");
        nic.stopped().await;
    }));
    harness.pass(10_000_000_000);
    // Begun at 1 us. The coarse timeout is set at its first poll, when its instant has passed.
    let expected =
        [format!("exact {}", harness::at(6_000)), format!("coarse {}", harness::at(1_000_000))];
    assert_eq!(*log.lock().unwrap(), expected);
    let fired = harness.unit.extension_counters(MINE).unwrap().timeouts;
    assert_eq!(fired, 2, "the one that was dropped is taken back");
}

#[test]
fn futures_of_other_crates_are_woken_one_by_one() {
    let mut harness = Harness::new(unit(|nic| async move {
        // Answers when the commands' times have come, not in the order of the commands.
        let mut answers = FuturesUnordered::new();
        loop {
            if answers.is_empty() {
                answers.push(wait(nic.clone(), nic.command().await));
                continue;
            }
            let next = Box::pin(nic.command());
            match select(next, answers.next()).await {
                Either::Left((request, _)) => answers.push(wait(nic.clone(), request)),
                Either::Right(_) => {}
            }
        }
    }));
    async fn wait(nic: Nic, request: midplane_nicvm::thread::Request) {
        nic.sleep(Service::Exact, Duration::from_micros(request.opcode.into())).await;
        request.reply(0, [0; 4]);
    }
    for opcode in [30, 10, 20] {
        harness.post(PORT, command(MINE, opcode));
    }
    harness.pass(100_000);
    let order: Vec<u64> = statuses(&mut harness).into_iter().map(|(cookie, _)| cookie).collect();
    assert_eq!(order, [10, 20, 30]);
}

#[test]
fn a_body_that_never_awaits_an_event_lets_others_run() {
    let mut harness = Harness::new(unit(|nic| async move {
        loop {
            nic.with(|_| ()).await;
        }
    }));
    harness.post(PORT, command(MINE, 1));
    // The harness bounds the turns at one instant; each turn ends.
    for _ in 0..10 {
        harness.hw.now = harness.hw.now.plus_nanos(1);
        harness.turn(|unit, hw| {
            midplane_simhw::hardware::Firmware::on_timer(unit, hw, midplane_simhw::id::TimerId(0));
        });
    }
    assert_eq!(harness.unit.counters().traps, 0);
    assert!(harness.unit.extension_counters(MINE).unwrap().timeouts >= 9);
}

#[test]
fn untaken_events_are_bounded_by_the_heap() {
    let mut unit = unit(|nic| async move { nic.stopped().await });
    unit.set_heap(MINE, 10 * VECTOR_BYTES);
    let mut harness = Harness::new(unit);
    for opcode in 0..12 {
        harness.post(PORT, command(MINE, opcode));
    }
    // Two commands were too many. If there is no room, a frame is lost; a control message must not be lost, so the
    // extension ends.
    assert_eq!(statuses(&mut harness), [(10, Status::Refused), (11, Status::Refused)]);
    frame(&mut harness, b"lost");
    assert_eq!(harness.unit.heap(MINE).unwrap().used(), 10 * VECTOR_BYTES);
    Peer::new(NodeId(2)).send(&mut harness, TO, b"ab");
    assert_eq!(harness.unit.counters().traps, 1);
}

#[test]
fn frames_that_the_body_does_not_await_leave_room_for_other_events() {
    let mut harness = Harness::new(unit(|nic| async move {
        loop {
            nic.command().await.reply(0, [0; 4]);
        }
    }));
    // 256 of them would fill the heap.
    for _ in 0..300 {
        frame(&mut harness, &[0; 256 - VECTOR_BYTES]);
    }
    assert_eq!(harness.unit.heap(MINE).unwrap().used(), DEFAULT_BYTES / 2);
    Peer::new(NodeId(2)).send(&mut harness, TO, b"ab");
    harness.post(PORT, command(MINE, 1));
    assert_eq!(statuses(&mut harness), [(1, Status::Done)]);
    assert_eq!(harness.unit.counters().traps, 0);
}

#[test]
fn of_a_peers_events_that_the_body_does_not_await_the_newest_is_kept() {
    let log = Log::default();
    let noted = Arc::clone(&log);
    let unit = unit(|nic| async move {
        for _ in 0..20 {
            nic.control().await;
        }
        loop {
            let line = match nic.event().await {
                Event::Peer(PeerEvent::Restarted(_, incarnation)) => incarnation.0.to_string(),
                other => format!("{other:?}"),
            };
            noted.lock().unwrap().push(line);
        }
    });
    let mut harness = Harness::new(unit);
    for incarnation in (1..=20).map(Incarnation) {
        let control = Control::new(NodeId(2), incarnation, ControlConfig::default());
        let mut peer = Peer { control };
        peer.send(&mut harness, TO, b"ab");
    }
    assert_eq!(harness.unit.extension_counters(MINE).unwrap().controls, 20);
    assert_eq!(*log.lock().unwrap(), ["20"]);
    assert_eq!(harness.unit.counters().traps, 0);
}

#[test]
fn the_events_of_many_peers_that_the_body_does_not_await_fill_no_heap() {
    let mut harness = Harness::new(unit(|nic| async move {
        loop {
            nic.control().await;
        }
    }));
    let peers = 2..3 + (DEFAULT_BYTES / VECTOR_BYTES) as u16;
    for node in peers.clone() {
        Peer::new(NodeId(node)).send(&mut harness, TO, b"ab");
    }
    assert_eq!(harness.unit.counters().traps, 0);
    let controls = harness.unit.extension_counters(MINE).unwrap().controls;
    assert_eq!(controls, peers.len() as u64);
    assert_eq!(harness.unit.heap(MINE).unwrap().used(), 0);
}

#[derive(Clone, Debug)]
enum Op {
    Post(u8),
    Pass(u64),
    Frame,
    Close,
    Withdraw,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..6_u8).prop_map(Op::Post),
        6 => (0..60_000_u64).prop_map(Op::Pass),
        3 => Just(Op::Frame),
        1 => Just(Op::Close),
        1 => Just(Op::Withdraw),
    ]
}

/// Answers commands at once, later, when a frame arrives, or never; or panics.
async fn body(nic: Nic) {
    let serve = async {
        let mut forgotten = Vec::new();
        let mut later = FuturesUnordered::new();
        loop {
            let next = Box::pin(nic.command());
            let request = match select(next, later.next()).await {
                Either::Left((request, _)) => request,
                Either::Right((Some(()), _)) => continue,
                Either::Right((None, next)) => next.await,
            };
            match request.opcode {
                0 => request.reply(0, [0; 4]),
                1 => drop(request),
                2 => forgotten.push(request),
                3 | 4 => {
                    let sleep = nic.sleep(Service::Exact, Duration::from_micros(20));
                    later.push(async move {
                        sleep.await;
                        request.reply(0, [0; 4]);
                    });
                }
                _ => {
                    forgotten.truncate(1);
                    if forgotten.len() == 1 {
                        panic!("on purpose");
                    }
                }
            }
        }
    };
    let listen = async {
        loop {
            nic.data().await;
        }
    };
    let ((), ()) = join(serve, listen).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_command_of_an_open_port_ends_once(ops in prop::collection::vec(op(), 1..60)) {
        let mut harness = Harness::new(unit(body));
        let (mut posted, mut ended) = (0_u64, Vec::new());
        let mut closed = 0;
        for op in ops {
            match op {
                Op::Post(opcode) => {
                    harness.post(PORT, Command { cookie: posted, ..command(MINE, opcode) });
                    posted += 1;
                }
                Op::Pass(nanos) => harness.pass(nanos),
                Op::Frame => frame(&mut harness, b"x"),
                Op::Close => {
                    ended.extend(statuses(&mut harness).into_iter().map(|(cookie, _)| cookie));
                    harness.turn(|unit, hw| {
                        midplane_simhw::hardware::Firmware::on_port_closed(unit, hw, PORT);
                    });
                    harness.take();
                    closed = posted;
                }
                Op::Withdraw => harness.turn(|unit, hw| unit.deactivate(hw)),
            }
        }
        harness.turn(|unit, hw| unit.deactivate(hw));
        ended.extend(statuses(&mut harness).into_iter().map(|(cookie, _)| cookie));
        ended.sort_unstable();
        let before = ended.len();
        ended.dedup();
        prop_assert_eq!(before, ended.len(), "some ended twice: {:?}", ended);
        let missing: Vec<u64> =
            (closed..posted).filter(|cookie| ended.binary_search(cookie).is_err()).collect();
        prop_assert!(missing.is_empty(), "never ended: {:?}", missing);
        let unit = &harness.unit;
        prop_assert!(unit.counters().traps <= 1);
    }
}

/// Counts at each node: a command asks all other nodes, and ends when most have answered.
async fn majority(nic: Nic) {
    let mut asked: Option<(midplane_nicvm::thread::Request, u64)> = None;
    loop {
        match nic.event().await {
            Event::Command(request) => {
                for node in (0..5).map(NodeId).filter(|node| *node != nic.node()) {
                    nic.send_control(node, b"?").await.expect("a short queue");
                }
                asked = Some((request, 1));
            }
            Event::Control(message) if *message.bytes == *b"?" => {
                nic.send_control(message.from, b"!").await.expect("a short queue");
            }
            Event::Control(_) => {
                asked = asked.take().and_then(|(request, count)| {
                    if count + 1 < 3 {
                        return Some((request, count + 1));
                    }
                    request.reply(0, [count + 1, 0, 0, 0]);
                    None
                });
            }
            _ => {}
        }
    }
}

#[test]
fn threads_of_many_nodes_work_together_under_loss() {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(5, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let mut world = World::new(&topology, NicProfile::MODERN, 3, |_, _| unit(majority));
    let mut faults = midplane_simhw::fault::Faults::NONE;
    (faults.loss, faults.duplicate) = (0.1, 0.1);
    world.set_faults(faults);
    for node in (0..5).map(NodeId) {
        let host = world.host(node);
        world.spawn(node, async move {
            let mut port = host.open_port().unwrap();
            for cookie in 0..100 {
                port.submit(&Command { cookie, ..command(MINE, 1) }).unwrap();
                let done = port.completion().await.unwrap();
                assert_eq!((done.status, done.args[0]), (Status::Done, 3));
            }
        });
    }
    world.run();
    for node in (0..5).map(NodeId) {
        assert_eq!(world.firmware(node).extension_counters(MINE).unwrap().commands, 100);
    }
}
