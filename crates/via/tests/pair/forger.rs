//! A node that connects as any other, and then sends forged frames of Virtual Interfaces; its victim; and an honest
//! node, which talks with the victim.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::{Firmware, Hardware, Source};
use midplane_simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::PortOptions;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::attributes::{Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::memory::{Memory, MemoryOptions};
use midplane_via::nic::{Nic, ViId, WorkQueue};

use crate::pair::{address, at, name, pattern, pause};

/// A frame as the forger's firmware makes it.
#[derive(Clone, Debug)]
pub(crate) struct Forged {
    pub(crate) destination: u16,
    pub(crate) source: u16,
    pub(crate) port: u16,
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) words: [u64; 2],
    pub(crate) bytes: usize,
}

/// An honest NIC; or one that is honest until it has connected, and forges frames then.
enum Node {
    Honest(Box<Unit>),
    Forger(Box<Unit>, Vec<Forged>),
}

impl Node {
    const fn unit(&mut self) -> &mut Unit {
        match self {
            Self::Honest(unit) | Self::Forger(unit, _) => unit,
        }
    }
}

/// A timer that the unit itself does not use.
const FORGE: TimerId = TimerId(1);

impl Firmware for Node {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        self.unit().on_start(hw);
        if matches!(self, Self::Forger(..)) {
            hw.set_timer(FORGE, hw.now() + Duration::from_millis(20));
            hw.commit();
        }
    }
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        self.unit().on_doorbell(hw, port);
    }
    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        self.unit().on_frame(hw, frame);
    }
    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId) {
        self.unit().on_dma_done(hw, dma);
    }
    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        match self {
            Self::Forger(_, frames) if timer == FORGE => {
                for forged in frames.split_off(frames.len().saturating_sub(4)) {
                    send(hw, &forged);
                }
                if !frames.is_empty() {
                    hw.set_timer(FORGE, hw.now() + Duration::from_micros(50));
                }
                hw.commit();
            }
            _ => self.unit().on_timer(hw, timer),
        }
    }
}

fn send(hw: &mut impl Hardware, forged: &Forged) {
    let bytes = pattern(forged.sequence, forged.bytes);
    let header = Header {
        destination: NodeId(forged.destination),
        source: NodeId(forged.source),
        extension: VIA,
        incarnation: hw.incarnation(),
        destination_incarnation: Incarnation::FIRST,
        port: PortId(forged.port),
        flags: forged.flags,
        sequence: forged.sequence,
        acknowledgement: forged.acknowledgement,
        words: forged.words,
        length: bytes.len() as u16,
        ..Header::default()
    };
    // A busy line loses the frame.
    let _ = hw.transmit(&header, Source::Bytes(Payload::from(&bytes[..])));
}

const OPEN: usize = 4_096;

fn attributes() -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableReception,
        rdma_write: true,
        rdma_read: true,
        ..ViAttributes::default()
    }
}

/// Makes the victim: an interface for the forger, and one for an honest node.
async fn victim(host: SimHost) -> (Nic, [ViId; 2], Memory, Memory) {
    let mut nic = Nic::open(&host, PortOptions::default()).await.unwrap();
    let tag = attributes().tag;
    let open = MemoryOptions { tag, rdma_write: true, rdma_read: true };
    // The memory next to the open memory has the same tag, and is not open.
    let closed = MemoryOptions { tag, ..MemoryOptions::default() };
    let (before, memory) = (nic.register(OPEN, closed).unwrap(), nic.register(OPEN, open).unwrap());
    before.write(0, &pattern(77, OPEN)).unwrap();
    let mut vis = Vec::new();
    for _ in 0..2 {
        let vi = nic.create_vi(attributes()).await.unwrap();
        for slot in 0..4 {
            let segment = memory.segment(slot * 1_000, 1_000).unwrap();
            nic.post_receive(vi, Descriptor::of(segment)).unwrap();
        }
        vis.push(vi);
    }
    for vi in &vis {
        let request = nic.connect_wait(name("service"), None).await.unwrap();
        nic.accept(&request, *vi).await.unwrap();
    }
    (nic, [vis[0], vis[1]], memory, before)
}

async fn connect(host: &SimHost) -> (Nic, ViId, Memory) {
    let mut nic = Nic::open(host, PortOptions::default()).await.unwrap();
    let memory = nic.register(OPEN, MemoryOptions::default()).unwrap();
    let vi = nic.create_vi(attributes()).await.unwrap();
    loop {
        let to = address(NodeId(0), "service");
        if nic.connect(vi, to, Some(Duration::from_millis(200))).await.is_ok() {
            return (nic, vi, memory);
        }
        pause(host, Duration::from_millis(1)).await;
    }
}

fn cluster(frames: Vec<Forged>) -> World<Node> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let star = Topology::star(3, link, SwitchProfile::new(Buffer::Bytes(4 << 20)));
    World::new(&star, NicProfile::MODERN, 1, move |node: NodeId, _: Incarnation| {
        let mut unit = Unit::default();
        let config = ViaConfig::default().dead_after(Duration::from_millis(500));
        unit.install(VIA, Via::new(config)).unwrap();
        match node {
            NodeId(2) => Node::Forger(Box::new(unit), frames.clone()),
            _ => Node::Honest(Box::new(unit)),
        }
    })
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// Messages of the honest node that were echoed, of [`ECHOES`].
    pub(crate) echoed: u32,
    /// True if the victim's memory that is not open is unchanged.
    pub(crate) untouched: bool,
    /// Handlers that panicked in the two honest nodes.
    pub(crate) traps: u64,
}

/// Number of messages that the honest node sends.
pub(crate) const ECHOES: u32 = 20;

/// Has node 2 send `frames`, the last ones first, while node 1 talks with node 0.
pub(crate) fn run(frames: Vec<Forged>) -> Verdict {
    let mut world = cluster(frames);
    let echoed = Arc::new(Mutex::new(0));
    let host = world.host(NodeId(0));
    let closed = Arc::new(Mutex::new(None));
    let place = Arc::clone(&closed);
    world.spawn(NodeId(0), async move {
        let (mut nic, vis, memory, before) = victim(host.clone()).await;
        *place.lock().unwrap() = Some(before);
        loop {
            for vi in vis {
                while let Ok(Some(done)) = nic.receive_done(vi) {
                    if done.outcome.is_ok() {
                        let _ = nic.post_receive(vi, done.descriptor);
                        let segment = memory.segment(0, 8).unwrap();
                        let _ = nic.post_send(vi, Descriptor::of(segment));
                    }
                }
                while let Ok(Some(_)) = nic.send_done(vi) {}
            }
            if nic.progress().await.is_err() {
                return;
            }
        }
    });
    for (node, after) in [(1, 0), (2, 2)] {
        let (host, echoed) = (world.host(NodeId(node)), Arc::clone(&echoed));
        world.spawn(NodeId(node), async move {
            pause(&host, Duration::from_millis(after)).await;
            let (mut nic, vi, memory) = connect(&host).await;
            pause(&host, Duration::from_millis(15)).await;
            for _ in 0..ECHOES {
                let receive = memory.segment(0, 64).unwrap();
                let send = memory.segment(64, 64).unwrap();
                if nic.post_receive(vi, Descriptor::of(receive)).is_err()
                    || nic.post_send(vi, Descriptor::of(send)).is_err()
                {
                    return;
                }
                let done = nic.wait(vi, WorkQueue::Receive).await;
                if !done.is_ok_and(|done| done.outcome.is_ok()) {
                    return;
                }
                *echoed.lock().unwrap() += u32::from(node == 1);
                pause(&host, Duration::from_millis(1)).await;
            }
        });
    }
    world.run_until(at(200_000_000));
    let mut bytes = vec![0; OPEN];
    closed.lock().unwrap().as_ref().expect("it is up").read(0, &mut bytes).unwrap();
    let traps = [0, 1].map(|node| match world.firmware(NodeId(node)) {
        Node::Honest(unit) | Node::Forger(unit, _) => unit.counters().traps,
    });
    let echoed = *echoed.lock().unwrap();
    Verdict { echoed, untouched: bytes == pattern(77, OPEN), traps: traps.iter().sum() }
}
