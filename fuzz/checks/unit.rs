//! Any frames from a hostile NIC in a simulated cluster with all extensions: nothing panics.

use std::time::Duration;

use midplane_nicvm::coordination::{COORDINATION, Coordination, CoordinationConfig};
use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::{Firmware, Hardware, Source};
use midplane_simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

enum Node {
    Honest(Box<Unit>),
    Hostile(Vec<Vec<u8>>),
}

impl Node {
    fn send(frames: &mut Vec<Vec<u8>>, hw: &mut impl Hardware) {
        while let Some(frame) = frames.pop() {
            let Ok((header, body)) = Header::parse(&frame) else { continue };
            // Of whichever life, from whomever it says.
            let header = Header { destination: NodeId(header.destination.0 % 3), ..header };
            if hw.transmit(&header, Source::Bytes(Payload::from(body))).is_err() {
                break;
            }
        }
        hw.set_timer(TimerId(0), hw.now() + Duration::from_millis(3));
        hw.commit();
    }
}

impl Firmware for Node {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        match self {
            Self::Honest(unit) => unit.on_start(hw),
            Self::Hostile(frames) => Self::send(frames, hw),
        }
    }
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        if let Self::Honest(unit) = self {
            unit.on_doorbell(hw, port);
        }
    }
    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        if let Self::Honest(unit) = self {
            unit.on_frame(hw, frame);
        }
    }
    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId) {
        if let Self::Honest(unit) = self {
            unit.on_dma_done(hw, dma);
        }
    }
    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        match self {
            Self::Honest(unit) => unit.on_timer(hw, timer),
            Self::Hostile(frames) => Self::send(frames, hw),
        }
    }
}

/// Frames of 16 to 148 bytes, made whole where they are nearly so.
fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let whole = |chunk: &[u8]| {
        let mut frame = chunk.to_vec();
        if frame.len() >= 48 {
            frame[..2].copy_from_slice(&[midplane_simhw::frame::MAGIC, 1]);
            frame[2] %= 5;
            frame[3] %= 3;
            let length = (frame.len() - 48) as u16;
            frame[16..18].copy_from_slice(&length.to_le_bytes());
            frame[30..32].fill(0);
        }
        frame
    };
    bytes.chunks(100).map(whole).collect()
}

pub(crate) fn run(bytes: &[u8]) {
    let link = LinkProfile::ethernet(LineRate::mbps(1000), Duration::from_micros(1));
    let topology = Topology::star(3, link, SwitchProfile::new(Buffer::Bytes(1 << 16)));
    let bytes = bytes.to_vec();
    let mut world = World::new(&topology, NicProfile::FREE, 1, move |node: NodeId, _: Incarnation| {
        if node == NodeId(2) {
            return Node::Hostile(frames(&bytes));
        }
        let config = CoordinationConfig::star(&[NodeId(0)], &[NodeId(1), NodeId(2)]).genesis(true);
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).expect("the first");
        let coordination = Coordination::new(config).expect("a star");
        unit.install(COORDINATION, coordination).expect("the second");
        Node::Honest(Box::new(unit))
    });
    world.run_until(Instant::ZERO + Duration::from_millis(100));
    for node in [NodeId(0), NodeId(1)] {
        let Node::Honest(unit) = world.firmware(node) else { unreachable!("only the third is hostile") };
        assert_eq!(unit.counters().traps, 0, "an extension of node {} panicked", node.0);
    }
}
