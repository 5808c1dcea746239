//! Tests that Warp rejects invalid feedback of a hostile peer.

use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, InitError, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::Packet;
use midplane_nicvm::unit::Unit;
use midplane_simhw::hardware::Source;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Command;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_warp::feedback::{FEEDBACK_BYTES, Feedback};
use midplane_warp::firmware::{CONTROLLER_STATE, WARP, Warp, WarpConfig};

const RATE: LineRate = LineRate::mbps(100);
const HONEST: NodeId = NodeId(0);
const LIAR: NodeId = NodeId(1);
/// The flag of a frame that carries feedback.
const FEEDBACK: u8 = 1;

/// Sends feedback with a warp far above 1 every millisecond, cut to `bytes`.
struct Liar {
    bytes: usize,
    sequence: u32,
}

impl Extension for Liar {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        nic.set_timeout(TimeoutId(0), Service::Exact, Duration::from_millis(1));
        Ok(())
    }

    fn on_command(&mut self, _: &mut Context<'_>, _: Command) {}

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        self.sequence += 1;
        let mut said = [0; FEEDBACK_BYTES];
        said[..4].copy_from_slice(&self.sequence.to_le_bytes());
        said[12..20].copy_from_slice(&9.0_f64.to_bits().to_le_bytes());
        let now = nic.now().as_nanos().to_le_bytes();
        for at in [36, 52] {
            said[at..at + 8].copy_from_slice(&now);
        }
        assert!(Feedback::parse(&said).is_some_and(|feedback| feedback.estimate.warp == 9.0));
        let source = Source::Bytes(Payload::from(&said[..self.bytes]));
        let packet = Packet { flags: FEEDBACK, source, ..Packet::to(HONEST) };
        let _ = nic.send_packet(&packet);
        nic.set_timeout(timeout, Service::Exact, Duration::from_millis(1));
    }
}

/// Returns the warp in the honest node's estimate after 20 ms of such feedback.
fn believed(bytes: usize) -> f64 {
    let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
    let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(32 << 10)));
    let mut world = World::new(&topology, NicProfile::MODERN, 1, move |node, _| {
        let mut unit = Unit::default();
        if node == LIAR {
            unit.install(WARP, Liar { bytes, sequence: 0 }).unwrap();
        } else {
            unit.install(WARP, Warp::new(WarpConfig::new(&[LIAR], RATE, 16 << 10, 1)).0).unwrap();
        }
        unit
    });
    world.run_until(Instant::from_nanos(20_000_000));
    let host = world.host(HONEST);
    let ask = async move {
        let mut port = host.open_port().unwrap();
        let opcode = CONTROLLER_STATE;
        let ask = Command { extension: WARP, opcode, node: LIAR, ..Command::default() };
        port.submit(&ask).unwrap();
        port.completion().await.unwrap().args[1] as f64 / 1e6
    };
    world.block_on(HONEST, ask).expect("Warp completes the command")
}

#[test]
fn feedback_shorter_than_a_feedback_is_not_believed() {
    assert_eq!(believed(FEEDBACK_BYTES), 9.0, "feedback of full length is accepted");
    for bytes in [0, 1, 20, FEEDBACK_BYTES / 2, FEEDBACK_BYTES - 1] {
        assert_eq!(believed(bytes), 1.0, "{bytes} bytes");
    }
}
