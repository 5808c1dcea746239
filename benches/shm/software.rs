//! What a message costs where nothing crosses between cores: two NICs on one thread.

use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages, receive, send};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};

use crate::side::{ROUNDS, Side, median, nanos_of};

/// Messages of one round.
const MESSAGES_A_ROUND: usize = 200;

pub(crate) fn run(side: &mut Side) {
    let name = side.next_name();
    if !side.is_first {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let nics: Vec<ShmNic> = runtime.block_on(async {
        let start = |node| {
            let mut unit = Unit::default();
            unit.install(MESSAGES, Messages::new()).expect("the unit is empty");
            let config = ShmConfig::new(&name, NodeId(node), 2).spin(Duration::ZERO);
            ShmNic::start(config, unit).expect("the fabric is new")
        };
        let nics: Vec<_> = (0..2).map(start).collect();
        for nic in &nics {
            nic.meet().await;
        }
        nics
    });
    let mut ports: Vec<_> = nics.iter().map(|nic| nic.host().open_port().expect("runs")).collect();
    let buffers: Vec<_> = ports.iter_mut().map(|port| port.register(64).expect("room")).collect();
    let rounds = (0..ROUNDS).map(|_| {
        nanos_of(|| {
            let to = ports[1].id();
            for _ in 0..MESSAGES_A_ROUND {
                ports[1].submit(&receive(buffers[1].whole(), 1)).expect("room");
                ports[0].submit(&send(NodeId(1), to, buffers[0].whole(), 2)).expect("room");
                while ports[1].poll().is_none() {}
                while ports[0].poll().is_none() {}
            }
        }) / MESSAGES_A_ROUND as f64
    });
    let ns = median(rounds.collect());
    side.say(&format!("one thread, a message of 64 bytes from port to port: {ns:.0} ns"));
}
