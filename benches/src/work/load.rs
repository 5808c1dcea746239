//! 16 senders, one switch, one receiver: the load of the bench and of its allocation count.

use std::time::Duration;

use midplane::simhw::frame::{HEADER_BYTES, Header};
use midplane::simhw::hardware::{Firmware, Hardware, Source};
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, TimerId};
use midplane::simhw::link::LinkProfile;
use midplane::simhw::port::{Command, Port, PortOptions};
use midplane::simhw::profile::NicProfile;
use midplane::simhw::region::{Payload, Region};
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;

use crate::raw::{RECEIVE, Raw};

const SENDERS: u16 = 16;
const RECEIVER: NodeId = NodeId(0);
/// Bytes of a whole frame.
const FRAME: usize = 1_000;
const PAYLOAD: usize = FRAME - HEADER_BYTES;
const RATE: LineRate = LineRate::mbps(10_000);
const TICK: TimerId = TimerId(0);

fn topology(propagation: Duration) -> Topology {
    let link = LinkProfile::plain(RATE, propagation);
    Topology::star(SENDERS + 1, link, SwitchProfile::new(Buffer::Bytes(256 << 10)))
}

/// Returns the nanoseconds between two frames of one sender, if all senders together send `percent` of the receiver's
/// link rate.
fn interval(percent: u64, payload: usize) -> u64 {
    RATE.nanos_for((HEADER_BYTES + payload) as u64) * u64::from(SENDERS) * 100 / percent
}

fn header(source: NodeId, payload: usize) -> Header {
    let length = u16::try_from(payload).expect("a frame of at most 1,000 bytes");
    Header { source, destination: RECEIVER, length, ..Header::default() }
}

/// Sends a frame at every tick; as a receiver, does nothing.
#[derive(Debug)]
pub struct Generator {
    interval: u64,
    next: Instant,
    bytes: Vec<u8>,
}

impl Firmware for Generator {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        if hw.node() != RECEIVER {
            self.next = Instant::from_nanos(self.interval * u64::from(hw.node().0) / 16);
            hw.set_timer(TICK, self.next);
            hw.commit();
        }
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        let source = Source::Bytes(Payload::from(&self.bytes[..]));
        if hw.transmit(&header(hw.node(), self.bytes.len()), source).is_ok() {
            self.next = self.next.plus_nanos(self.interval);
        }
        hw.set_timer(TICK, self.next);
        hw.commit();
    }
}

/// Creates a world of links and a switch alone: NICs cost nothing, and the firmware generates frames.
pub fn plain(percent: u64) -> World<Generator> {
    generators(Duration::from_nanos(500), percent, PAYLOAD)
}

/// Creates a world that loads the event engine alone: bare headers, with about `pending` on the wires at any time.
pub fn engine(pending: u64) -> World<Generator> {
    // Each frame crosses two links, at 26 frames a microsecond.
    generators(Duration::from_nanos(pending * 1_000 / 26 / 2), 100, 0)
}

fn generators(propagation: Duration, percent: u64, payload: usize) -> World<Generator> {
    World::new(&topology(propagation), NicProfile::FREE, 1, move |_, _| Generator {
        interval: interval(percent, payload),
        next: Instant::ZERO,
        bytes: vec![7; payload],
    })
}

/// Instructions to process a command or a frame.
pub const HANDLER: u64 = 40;

/// Creates a world with doorbells, DMA, completions, instructions and a task on every host. A sender posts `burst`
/// frames per doorbell.
pub fn full(percent: u64, burst: u64) -> World<Raw> {
    let mut world =
        World::new(&topology(Duration::from_nanos(500)), NicProfile::MODERN, 1, |_, _| {
            Raw::new(HANDLER)
        });
    let receiver = world.host(RECEIVER);
    world.spawn(RECEIVER, receive(receiver));
    for sender in 1..=SENDERS {
        let host = world.host(NodeId(sender));
        world.spawn(NodeId(sender), send(host, interval(percent, PAYLOAD), burst));
    }
    world
}

/// Posts a frame for every interval, and takes completions. The port is no deeper than needed, so that its rings stay
/// in the cache.
async fn send(host: SimHost, interval: u64, burst: u64) {
    let depth = PortOptions::default().depth(32);
    let mut port = host.open_port_with(depth).expect("the NIC is up");
    let region = port.register(PAYLOAD).expect("a small region");
    region.write(0, &[7; PAYLOAD]).expect("as long as the region");
    let command = Command { node: RECEIVER, region: region.whole(), ..Command::default() };
    let mut next = Instant::from_nanos(10_000 + interval * u64::from(host.node().0) / 16);
    loop {
        host.sleep_until(next).await;
        next = next.plus_nanos(interval * burst);
        while port.poll().is_some() {}
        for _ in 0..burst {
            if port.outstanding() == port.depth() {
                port.completion().await.expect("the NIC is up");
            }
            port.post(&command).expect("there is room");
        }
        port.ring();
    }
}

/// Keeps 128 buffers posted: posts each again once it was filled, 16 per doorbell.
async fn receive(host: SimHost) {
    let mut port = host.open_port().expect("the NIC is up");
    let regions: Vec<Region> =
        (0..128).map(|_| port.register(PAYLOAD).expect("a small region")).collect();
    for number in 0..regions.len() {
        post_buffer(&mut port, &regions, number);
    }
    port.ring();
    loop {
        for _ in 0..16 {
            let filled = port.completion().await.expect("the NIC is up");
            assert_eq!(filled.length, PAYLOAD as u64);
            post_buffer(&mut port, &regions, filled.cookie as usize);
        }
        port.ring();
    }
}

fn post_buffer(port: &mut Port, regions: &[Region], number: usize) {
    let command = Command {
        opcode: RECEIVE,
        cookie: number as u64,
        region: regions[number].whole(),
        ..Command::default()
    };
    port.post(&command).expect("fewer buffers than slots");
}
