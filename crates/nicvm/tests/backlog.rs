//! Many control messages that wait for room leave together.

use midplane_nicvm::backlog::Backlog;
use midplane_nicvm::context::Context;
use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, TimeoutId};
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Command;

use crate::harness::{Harness, command};

const PEERS: u16 = 32;
/// Messages that a queue holds: with all others, so many that counting them for each one would take minutes.
const EACH: usize = 8_000;

/// Sends each peer twice as many messages as its queue holds.
struct Flood(Backlog);

impl Extension for Flood {
    fn on_command(&mut self, nic: &mut Context<'_>, _: Command) {
        for to in (2..2 + PEERS).map(NodeId) {
            for _ in 0..2 * EACH {
                assert!(self.0.send(nic, to, &[0; 8]));
            }
        }
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, _: TimeoutId) {
        self.0.retry(nic);
    }
}

/// The time that a handler takes grows with its messages, not with their square.
#[test]
fn half_a_million_messages_leave_in_one_handler() {
    let mut unit = Unit::new(ControlConfig::default().window(1).queue(EACH - 1));
    unit.install(FIRST_USER_EXTENSION, Flood(Backlog::new(TimeoutId(0)))).unwrap();
    let mut harness = Harness::new(unit);
    let pending = |harness: &Harness| {
        let peers = (2..2 + PEERS).map(NodeId);
        peers.map(|peer| harness.unit.pending(peer)).collect::<Vec<_>>()
    };
    harness.post(PortId(0), command(FIRST_USER_EXTENSION, 1));
    assert_eq!(pending(&harness), [EACH; PEERS as usize]);
    // All peers are down, so their queues are empty until the next attempt.
    harness.pass(600_000_000);
    assert_eq!(pending(&harness), [EACH; PEERS as usize]);
    harness.pass(600_000_000);
    assert_eq!(pending(&harness), [0; PEERS as usize]);
}
