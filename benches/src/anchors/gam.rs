//! Messages in fragments under Generic Active Messages, from one application to another: the pipelines paper's machine.
//!
//! As in section 5.3.1, the receiving card takes one packet at a time: first from the network, then into the host.

use std::sync::{Arc, Mutex};

use midplane::pipeline::Pipeline;
use midplane::pipeline::estimate::{self, BlackBox, Path, instrumented};
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::Command;
use midplane::simhw::profile::{Attachment, DmaCost, Machine};
use midplane::simhw::region::RegionRef;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::time::Instant;

use crate::raw::{RECEIVE, Raw, SEND};

const SENDER: NodeId = NodeId(1);
const RECEIVER: NodeId = NodeId(0);
/// The cost of a copy at either host.
pub const COPY: DmaCost = Machine::GAM_MYRINET.host.copy;
/// Bytes of the longest message, and cookie of the receive command for its acknowledgement.
const LONGEST: usize = 1 << 17;
const ACKNOWLEDGED: u64 = u64::MAX;
/// Most fragments of a message: receive buffers that are posted at any time.
const MOST_FRAGMENTS: usize = 200;
/// When the first message begins, in ns: both ports are open.
const BEGIN: u64 = 1_000_000;
/// Messages of a stream whose intervals are measured, and those of them that fill the stages first.
const STREAM: usize = 32;
const FILLING: usize = 8;
/// Smallest and largest message by which the stages are observed, in bytes.
const OBSERVED: (f64, f64) = (256.0, 4096.0);

/// The times of one fragment, in ns: when its copy began, when it was copied, when the card had gathered it, when it
/// was in the receiver's memory, and when it was copied there.
pub(super) type Passage = [u64; 5];

/// The passages of a message's fragments.
type Message = Arc<Mutex<Vec<Passage>>>;

/// Sends messages one after another: `cut` gets the passages of the message before, and returns the sizes of the next
/// one's fragments in bytes, or `None` to end. `copy` returns the cost of the receiver's copies at an instant.
pub(super) fn carry(
    copy: impl Fn(Instant) -> DmaCost + Send + 'static,
    cut: impl FnMut(&[Passage]) -> Option<Vec<usize>> + Send + 'static,
) {
    let machine = Machine::GAM_MYRINET;
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| Raw::one_at_a_time());
    world.set_hosts(machine.host);
    let message = Message::default();
    world.spawn(RECEIVER, receive(world.host(RECEIVER), Arc::clone(&message), copy));
    let sent = world.block_on(SENDER, send(world.host(SENDER), message, cut));
    sent.expect("every message is acknowledged");
}

/// Builds a command about `region` whose peer is the other host.
fn command(opcode: u8, peer: NodeId, cookie: u64, region: RegionRef) -> Command {
    Command { opcode, node: peer, cookie, region, ..Command::default() }
}

async fn send(
    host: SimHost,
    message: Message,
    mut cut: impl FnMut(&[Passage]) -> Option<Vec<usize>>,
) {
    let mut port = host.open_port().expect("the NIC is up");
    let region = port.register(LONGEST).expect("a region");
    let passages = || message.lock().expect("no task panics");
    host.sleep_until(Instant::from_nanos(BEGIN)).await;
    loop {
        let before = passages().clone();
        let Some(sizes) = cut(&before) else { return };
        *passages() = vec![Passage::default(); sizes.len()];
        // Without a doorbell, as the receiver's: none is needed.
        port.post(&command(RECEIVE, RECEIVER, ACKNOWLEDGED, region.whole()))
            .expect("there is room");
        let mut offset = 0;
        for (index, &bytes) in sizes.iter().enumerate() {
            let began = host.now().as_nanos();
            host.compute(host.profile().copy.nanos(bytes)).await;
            passages()[index][..2].copy_from_slice(&[began, host.now().as_nanos()]);
            let part = region.range(offset, bytes).expect("no message is longer");
            port.submit(&command(SEND, RECEIVER, index as u64, part)).expect("there is room");
            offset += bytes;
        }
        for _ in 0..=sizes.len() {
            let done = port.completion().await.expect("the NIC is up");
            if done.cookie != ACKNOWLEDGED {
                passages()[done.cookie as usize][2] = done.args[0];
            }
        }
    }
}

async fn receive(host: SimHost, message: Message, copy: impl Fn(Instant) -> DmaCost) {
    let mut port = host.open_port().expect("the NIC is up");
    let region = port.register(LONGEST).expect("a region");
    let buffer = command(RECEIVE, SENDER, 0, region.whole());
    for _ in 0..MOST_FRAGMENTS {
        port.post(&buffer).expect("there is room");
    }
    let mut index = 0;
    loop {
        let done = port.completion().await.expect("the NIC is up");
        if done.cookie == ACKNOWLEDGED {
            continue;
        }
        host.compute(copy(host.now()).nanos(done.length as usize)).await;
        port.post(&buffer).expect("there is room");
        let fragments = {
            let mut passages = message.lock().expect("no task panics");
            passages[index][3..].copy_from_slice(&[done.args[0], host.now().as_nanos()]);
            passages.len()
        };
        index += 1;
        if index == fragments {
            index = 0;
            let nothing = region.range(0, 0).expect("a part");
            port.submit(&command(SEND, SENDER, ACKNOWLEDGED, nothing)).expect("there is room");
        }
    }
}

/// Returns the passages of one message.
fn passages(copy: DmaCost, sizes: Vec<usize>) -> Vec<Passage> {
    let seen = Message::default();
    let (mut next, last) = (Some(sizes), Arc::clone(&seen));
    carry(
        move |_| copy,
        move |before| {
            *last.lock().expect("no task panics") = before.to_vec();
            next.take()
        },
    );
    std::mem::take(&mut *seen.lock().expect("no task panics"))
}

/// Returns the time of a message's fragments from application to application, in microseconds.
pub(super) fn latency_us(passages: &[Passage]) -> f64 {
    let [first, last] = [passages.first(), passages.last()].map(|it| it.expect("a fragment"));
    (last[4] - first[0]) as f64 / 1e3
}

/// Returns the latency of one message in fragments of these sizes, in microseconds, if copies at the receiver cost `copy`.
pub fn message_us(copy: DmaCost, sizes: Vec<usize>) -> f64 {
    latency_us(&passages(copy, sizes))
}

/// Cuts a message into `count` fragments whose sizes differ by one byte at most.
pub fn equal(bytes: usize, count: usize) -> Vec<usize> {
    (0..count).map(|index| bytes * (index + 1) / count - bytes * index / count).collect()
}

/// Returns the stages of one packet, in microseconds: copy, DMA into the card, network and DMA out of the card, copy.
/// The code of each card is instrumented, so the time in cables and switch belongs to no stage.
fn stages_us(copy: DmaCost, bytes: usize) -> [f64; 4] {
    let at = passages(copy, vec![bytes])[0];
    let mut stages = [0, 1, 2, 3].map(|stage| at[stage + 1] - at[stage]);
    stages[2] -= transit_ns();
    stages.map(|ns| ns as f64 / 1e3)
}

/// Returns the time of a bit from card to card, in ns.
fn transit_ns() -> u64 {
    let Attachment::Switched(link, switch) = Machine::GAM_MYRINET.attachment else {
        unreachable!("its hosts have a switch")
    };
    (link.propagation * 2 + switch.latency).as_nanos() as u64
}

/// Returns the stages as instrumented packets show them (section 5.3.1), if copies at the receiver cost `copy`.
pub fn clear_box(copy: DmaCost) -> Pipeline {
    let sizes = (1..=16).map(|number| number * 256);
    let packets: Vec<(f64, [f64; 4])> =
        sizes.map(|bytes| (bytes as f64, stages_us(copy, bytes))).collect();
    let stage = |stage| packets.iter().map(|(bytes, us)| (*bytes, us[stage])).collect::<Vec<_>>();
    instrumented(&[0, 1, 2, 3].map(stage)).expect("sixteen sizes")
}

/// Returns the stages as estimated from outside (section 5.3.2).
pub fn black_box() -> BlackBox {
    let (low, high) = OBSERVED;
    estimate::observe(&mut Outside, low, high).expect("the sizes span a range")
}

/// The path of the machine, of which only times from application to application are known.
struct Outside;

impl Path for Outside {
    fn latency(&mut self, bytes: f64) -> f64 {
        message_us(COPY, vec![bytes.round() as usize])
    }

    fn interval(&mut self, bytes: f64) -> f64 {
        let stream = passages(COPY, vec![bytes.round() as usize; STREAM]);
        let [first, last] = [FILLING, STREAM - 1].map(|index| stream[index][4]);
        (last - first) as f64 / 1e3 / (STREAM - 1 - FILLING) as f64
    }
}
