//! The transmit scheduler: flows, packets, admissions, and which extension may control them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::harness::{Effect, Harness, at, command, memory, silence_panics};
use midplane_nicvm::admission::{Admission, AdmissionUpdate, Verdict};
use midplane_nicvm::context::{Context, ControlRefused, GateRefused};
use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TransmitEvent};
use midplane_nicvm::transmit::{FlowId, Message, Packet, Sending, Sent};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::hardware::{Source, TransmitRefused};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionError, RegionRef};
use midplane_simhw::time::Instant;

pub(crate) const MINE: ExtensionId = FIRST_USER_EXTENSION;
const OTHER: ExtensionId = ExtensionId(MINE.0 + 1);
pub(crate) const PORT: PortId = PortId(3);
pub(crate) const PEER: NodeId = NodeId(2);

type Script = Box<dyn FnMut(&mut Context<'_>, Command) + Send>;
type Heard = Arc<Mutex<Vec<Sent>>>;

/// An extension whose handlers run the closures of its test.
pub(crate) struct Scripted {
    start: Option<Script>,
    command: Script,
    heard: Heard,
    /// Counts the frames that were reported as held.
    pub(crate) held: Arc<AtomicU32>,
}

impl Scripted {
    pub(crate) fn new(command: impl FnMut(&mut Context<'_>, Command) + Send + 'static) -> Self {
        let (heard, held) = (Heard::default(), Arc::default());
        Self { start: None, command: Box::new(command), heard, held }
    }

    pub(crate) fn starting(
        self,
        start: impl FnMut(&mut Context<'_>, Command) + Send + 'static,
    ) -> Self {
        Self { start: Some(Box::new(start)), ..self }
    }
}

impl Extension for Scripted {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        if let Some(start) = &mut self.start {
            start(nic, Command::default());
        }
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        (self.command)(nic, command);
    }

    fn on_sent(&mut self, _: &mut Context<'_>, sent: Sent) {
        self.heard.lock().unwrap().push(sent);
    }

    fn on_transmit(&mut self, _: &mut Context<'_>, news: TransmitEvent) {
        self.held.fetch_add(matches!(news, TransmitEvent::Held { .. }).into(), Relaxed);
    }
}

pub(crate) fn harness(extensions: impl IntoIterator<Item = (ExtensionId, Scripted)>) -> Harness {
    silence_panics();
    let mut unit = Unit::default();
    for (number, extension) in extensions {
        unit.install(number, extension).unwrap();
    }
    Harness::new(unit)
}

pub(crate) fn packet(flow: u16, sequence: u32) -> Packet<'static> {
    Packet { flow: FlowId(flow), sequence, ..Packet::to(PEER) }
}

pub(crate) fn message(controlled: bool, length: u32, cookie: u64) -> Message {
    Message {
        extension: MINE,
        node: PEER,
        flow: FlowId(0),
        port: PORT,
        source: memory(PORT, length),
        tag: 0,
        controlled,
        first: 0,
        completion: Some((PORT, Completion { cookie, ..Completion::default() })),
    }
}

/// Returns the sequence numbers of the data frames that have left, in order.
fn left(harness: &mut Harness) -> Vec<u32> {
    let sequence = |effect| match effect {
        Effect::Sent(header) if header.kind == Kind::Data => Some(header.sequence),
        _ => None,
    };
    harness.take().into_iter().filter_map(sequence).collect()
}

#[test]
fn a_packet_carries_what_its_extension_wrote() {
    let mut harness = harness([(
        MINE,
        Scripted::new(|nic, _| {
            let bytes = Source::Bytes(Payload::from(&b"four"[..]));
            let sent = nic.send_packet(&Packet {
                incarnation: Incarnation(7),
                port: PortId(9),
                flags: 0x8F,
                sequence: 11,
                acknowledgement: 12,
                words: [13, 14],
                source: bytes,
                ..Packet::to(PEER)
            });
            assert_eq!(sent, Ok(Sending::Now(at(2_000))));
        }),
    )]);
    harness.post(PORT, command(MINE, 1));
    let [Effect::Sent(header)] = harness.take()[..] else { panic!("one frame leaves") };
    let expected = Header {
        extension: MINE,
        source: NodeId(1),
        destination: PEER,
        incarnation: Incarnation::FIRST,
        destination_incarnation: Incarnation(7),
        length: 4,
        port: PortId(9),
        sequence: 11,
        acknowledgement: 12,
        // The highest bit is the gate's.
        flags: 0x0F,
        hop_limit: header.hop_limit,
        words: [13, 14],
        ..Header::default()
    };
    assert_eq!(header, expected);
}

#[test]
fn packets_keep_their_order_within_a_flow_and_flows_take_turns() {
    let mut harness = harness([(
        MINE,
        Scripted::new(|nic, _| {
            for sequence in 0..3 {
                nic.send_packet(&packet(0, sequence)).unwrap();
            }
            nic.send_packet(&packet(1, 10)).unwrap();
            nic.send_packet(&packet(1, 11)).unwrap();
        }),
    )]);
    harness.hw.busy_until = at(5_000);
    harness.post(PORT, command(MINE, 1));
    assert_eq!(left(&mut harness), []);
    harness.pass(10_000);
    assert_eq!(left(&mut harness), [0, 10, 1, 11, 2]);
}

#[test]
fn direct_packets_do_not_overtake_queued_ones_of_their_flow() {
    let mut sequence = 0;
    let mut harness = harness([(
        MINE,
        Scripted::new(move |nic, _| {
            sequence += 1;
            nic.send_packet(&packet(0, sequence)).unwrap();
        }),
    )]);
    harness.hw.busy_until = at(1_500);
    harness.post(PORT, command(MINE, 1));
    // The line is free again, but the unit has not been woken yet.
    harness.hw.now = at(1_600);
    harness.post(PORT, command(MINE, 1));
    assert_eq!(left(&mut harness), [1, 2]);
}

#[test]
fn a_queued_packet_is_reported_once() {
    let scripted = Scripted::new(|nic, command| {
        let source = match command.opcode {
            1 => Source::Bytes(Payload::EMPTY),
            // Withdrawn before its turn.
            _ => Source::Region(RegionRef { generation: 0, ..memory(PORT, 5) }),
        };
        let token = Some(u64::from(command.opcode));
        let sending = nic.send_packet(&Packet { token, source, ..packet(0, 1) });
        assert_eq!(sending, Ok(Sending::Queued));
    });
    let heard = Arc::clone(&scripted.heard);
    let mut harness = harness([(MINE, scripted)]);
    harness.hw.busy_until = at(5_000);
    harness.post(PORT, command(MINE, 1));
    harness.pass(1_000);
    assert_eq!(*heard.lock().unwrap(), []);
    harness.pass(5_000);
    let done = Sent { token: 1, status: Status::Done, leaves: at(6_000) };
    assert_eq!(*heard.lock().unwrap(), [done]);

    harness.hw.busy_until = at(50_000);
    harness.post(PORT, command(MINE, 2));
    harness.pass(100_000);
    let gone = Sent { token: 2, status: Status::Region, leaves: at(50_000) };
    assert_eq!(*heard.lock().unwrap(), [done, gone]);
    assert_eq!(harness.unit.counters().traps, 0);
}

#[test]
fn a_packet_that_can_not_be_sent_returns_the_reason() {
    let mut harness = harness([(
        MINE,
        Scripted::new(|nic, _| {
            let gone = Source::Region(RegionRef { generation: 0, ..memory(PORT, 5) });
            let refused = nic.send_packet(&Packet { source: gone, ..Packet::to(PEER) });
            assert_eq!(refused, Err(TransmitRefused::Region(RegionError::Stale)));
            let long = Source::Region(memory(PORT, 65_536));
            let refused = nic.send_packet(&Packet { source: long, ..Packet::to(PEER) });
            assert!(matches!(refused, Err(TransmitRefused::Length { .. })), "{refused:?}");
        }),
    )]);
    harness.post(PORT, command(MINE, 1));
    assert_eq!(left(&mut harness), []);
    assert_eq!(harness.unit.counters().traps, 0);
}

#[test]
fn packets_of_a_handler_that_panics_are_not_sent() {
    let mut harness = harness([(
        MINE,
        Scripted::new(|nic, _| {
            nic.send_packet(&packet(0, 1)).unwrap();
            nic.send_packet(&packet(1, 2)).unwrap();
            panic!("on purpose");
        }),
    )]);
    harness.post(PORT, command(MINE, 1));
    harness.pass(1_000_000);
    assert_eq!(left(&mut harness), []);
}

/// Holds all frames; each update admits a number of frames.
#[derive(Default)]
struct AdmitSome {
    left: u64,
    traps: bool,
}

impl Admission for AdmitSome {
    fn admit(&self, _: Instant, _: &Header) -> Verdict {
        assert!(!self.traps, "on purpose");
        if self.left > 0 { Verdict::Now } else { Verdict::Hold }
    }

    fn on_sent(&mut self, _: Instant, _: &Header, _: Instant) {
        self.left -= 1;
    }

    fn update(&mut self, _: Instant, update: AdmissionUpdate) {
        self.left = update.values[0];
        self.traps = update.values[1] != 0;
    }
}

/// Opcode 1 sends five packets; other opcodes admit that many frames, and 99 makes the admission panic.
fn with_admission() -> Scripted {
    let update = |nic: &mut Context<'_>, command: Command| {
        let values = [u64::from(command.opcode), u64::from(command.opcode == 99)];
        match command.opcode {
            1 => (0..5).for_each(|n| {
                nic.send_packet(&packet(0, n)).unwrap();
            }),
            _ => nic.update_admission(AdmissionUpdate { destination: PEER, values }),
        }
    };
    Scripted::new(update).starting(|nic, _| {
        nic.install_admission(AdmitSome::default()).unwrap();
        let again = nic.install_admission(AdmitSome::default());
        assert_eq!(again, Err(GateRefused::Installed));
    })
}

#[test]
fn an_admission_is_updated_by_its_extension() {
    let mut harness = harness([(MINE, with_admission())]);
    harness.post(PORT, command(MINE, 1));
    harness.pass(1_000_000);
    assert_eq!(left(&mut harness), []);
    harness.post(PORT, command(MINE, 2));
    assert_eq!(left(&mut harness), [0, 1]);
    harness.post(PORT, command(MINE, 3));
    assert_eq!(left(&mut harness), [2, 3, 4]);
}

#[test]
fn an_admission_that_panics_is_removed_with_its_extension_and_holds_no_other_frames() {
    let other = Scripted::new(|nic, _| {
        nic.send_packet(&packet(0, 77)).unwrap();
    });
    let mut harness = harness([(MINE, with_admission()), (OTHER, other)]);
    harness.post(PORT, command(OTHER, 1));
    assert_eq!(left(&mut harness), []);
    harness.post(PORT, command(MINE, 99));
    harness.pass(1_000_000);
    assert_eq!(left(&mut harness), [77]);
    assert_eq!(harness.unit.counters().traps, 1);
    harness.post(PORT, command(MINE, 1));
    assert_eq!(harness.completions()[0].1.status, Status::ExtensionDown);
}

#[test]
fn the_gate_has_one_controller() {
    let first = Scripted::new(|_, _| {}).starting(|nic, _| nic.control_gate().unwrap());
    let second = Scripted::new(|_, _| {}).starting(|nic, _| {
        assert_eq!(nic.control_gate(), Err(GateRefused::Taken(MINE)));
    });
    let harness = harness([(MINE, first), (OTHER, second)]);
    assert_eq!((harness.unit.failure(), harness.unit.counters().traps), (None, 0));
}

#[test]
fn messages_at_a_gate_without_a_controller_end() {
    let mut harness = harness([(MINE, Scripted::new(|nic, _| nic.send(message(true, 10, 5))))]);
    harness.post(PORT, command(MINE, 1));
    let [(PORT, completion)] = harness.completions()[..] else { panic!("one completion") };
    assert_eq!((completion.status, completion.cookie), (Status::ExtensionDown, 5));
}

#[test]
fn cancelling_ends_ones_own_messages_and_no_others() {
    let send = |cookie| {
        Scripted::new(move |nic, command| match command.opcode {
            1 => nic.send(Message { extension: nic.extension(), ..message(false, 10, cookie) }),
            _ => nic.cancel_sends(PEER, Status::Cancelled),
        })
    };
    let mut harness = harness([(MINE, send(5)), (OTHER, send(6))]);
    harness.hw.busy_until = at(50_000);
    harness.post(PORT, command(MINE, 1));
    harness.post(PORT, command(OTHER, 1));
    harness.post(PORT, command(MINE, 2));
    let ended = harness.completions();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!((ended[0].1.cookie, ended[0].1.status), (5, Status::Cancelled));
    harness.pass(100_000);
    let ended = harness.completions();
    assert_eq!((ended[0].1.cookie, ended[0].1.status), (6, Status::Done));
}

#[test]
fn a_full_control_queue_refuses_and_loses_no_queued_message() {
    let (queue, window) = (100, 32);
    let scripted = (
        MINE,
        Scripted::new(move |nic, _| {
            let took = (0..200).take_while(|_| nic.send_control(PEER, b"x").is_ok()).count();
            let full = nic.send_control(PEER, b"x");
            assert_eq!(full, Err(ControlRefused::QueueFull { to: PEER, waiting: took }));
            assert_eq!(took, queue + window);
        }),
    );
    let mut unit = Unit::new(ControlConfig::default().queue(queue));
    unit.install(scripted.0, scripted.1).unwrap();
    let mut harness = Harness::new(unit);
    harness.post(PORT, command(MINE, 1));
    assert_eq!(harness.unit.counters().traps, 0);
    assert_eq!(harness.unit.counters().control_refused, 2);
}

#[test]
fn data_for_a_former_incarnation_is_dropped_and_its_sender_learns_of_the_present_one() {
    let mut unit = Unit::default();
    unit.install(MINE, Scripted::new(|_, _| {})).unwrap();
    let mut harness = Harness::in_incarnation(unit, Incarnation(5));
    let header = Header {
        extension: MINE,
        source: PEER,
        destination: NodeId(1),
        incarnation: Incarnation(3),
        destination_incarnation: Incarnation(4),
        ..Header::default()
    };
    harness.frame(header, b"late");
    let counters = harness.unit.counters();
    assert_eq!((counters.stale_frames, counters.data_frames), (1, 0));
    let [Effect::Sent(answer)] = harness.take()[..] else { panic!("one answer") };
    assert_eq!((answer.kind, answer.incarnation), (Kind::Hello, Incarnation(5)));
    // A hello does not answer every frame.
    harness.frame(header, b"late");
    assert_eq!(harness.take(), []);
    // Nor a frame for an incarnation that has not begun, or one that names no incarnation.
    harness.frame(Header { destination_incarnation: Incarnation(6), ..header }, b"early");
    harness.pass(1_000_000_000);
    assert_eq!(harness.take(), []);
    harness.frame(Header { destination_incarnation: Incarnation::UNKNOWN, ..header }, b"any");
    assert_eq!(harness.unit.counters().data_frames, 1);
}

/// Sends `count` packets of a page for each command, to the node that the command names.
fn flooding(count: u32, token: Option<u64>) -> Scripted {
    let mut sequence = 0;
    Scripted::new(move |nic, command| {
        for _ in 0..count {
            let page = Source::Bytes(Payload::from(&[7; 4096][..]));
            let node = command.node;
            let packet = Packet { sequence, source: page, token, ..Packet::to(node) };
            nic.send_packet(&packet).unwrap();
            sequence += 1;
        }
    })
}

fn flood(harness: &mut Harness, extension: ExtensionId, node: u16, times: usize) {
    for _ in 0..times {
        harness.post(PORT, Command { node: NodeId(node), ..command(extension, 1) });
    }
}

#[test]
fn packets_to_a_node_that_stops_reading_take_bounded_memory_and_the_oldest_of_them_leave() {
    let mut harness = harness([(MINE, flooding(100, None)), (OTHER, flooding(1, None))]);
    harness.hw.busy_until = at(1_000_000_000);
    flood(&mut harness, MINE, PEER.0, 100);
    let waiting = harness.unit.pending(PEER);
    let bytes = waiting * 4096;
    assert!((7 << 20..8 << 20).contains(&bytes), "{bytes} bytes wait");
    assert_eq!(harness.unit.counters().packets_dropped, 10_000 - waiting as u64);
    // Other extensions and other nodes are not affected.
    flood(&mut harness, OTHER, PEER.0, 1);
    flood(&mut harness, MINE, PEER.0 + 1, 1);
    assert_eq!(harness.unit.pending(PEER), waiting + 1);
    assert_eq!(harness.unit.pending(NodeId(PEER.0 + 1)), 100);
    // Once the line takes frames, the waiting ones leave, and there is room for new ones.
    harness.take();
    harness.pass(1_100_000_000);
    assert_eq!(harness.unit.pending(PEER), 0);
    let sent = left(&mut harness);
    assert_eq!(sent.len(), waiting + 101);
    harness.hw.busy_until = at(3_000_000_000);
    flood(&mut harness, MINE, PEER.0, 1);
    assert_eq!(harness.unit.pending(PEER), 100);
}

#[test]
fn packets_that_are_held_for_all_nodes_take_bounded_memory() {
    let mut harness = harness([(MINE, flooding(1_000, None))]);
    harness.hw.busy_until = at(1_000_000_000);
    let nodes = 10..30;
    for node in nodes.clone() {
        flood(&mut harness, MINE, node, 2);
    }
    let waiting: usize = nodes.map(|node| harness.unit.pending(NodeId(node))).sum();
    let bytes = waiting * 4096;
    assert!((60 << 20..64 << 20).contains(&bytes), "{bytes} bytes wait");
}

#[test]
fn packets_with_tokens_are_not_dropped() {
    let mut harness = harness([(MINE, flooding(1_000, Some(1)))]);
    harness.hw.busy_until = at(1_000_000_000);
    flood(&mut harness, MINE, PEER.0, 3);
    assert_eq!((harness.unit.pending(PEER), harness.unit.counters().packets_dropped), (3_000, 0));
}
