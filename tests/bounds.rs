//! Checks that types that services move between tasks are `Send`, and so are the futures that they make.

use bytes::Bytes;
use midplane::gang::channel::Channel;
use midplane::nicvm::unit::Unit;
use midplane::pipeline::Planner;
use midplane::simhw::host::Host;
use midplane::simhw::nic::LiveHost;
use midplane::simhw::port::Port;
use midplane::simhw::region::Region;
use midplane::simhw::sim::SimHost;
use midplane::simhw::udp::UdpNic;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::envelope::Tag;
use midplane::via::message::group::Rank;
use midplane::via::nic::Nic;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};
use midplane::warp::gate::{Gate, GateKeeper};
use midplane::warp::memory::MemoryHandle;

const fn send<T: Send>() {}
const fn shared<T: Send + Sync>() {}

#[test]
fn types_that_services_keep_can_move_between_threads() {
    const {
        send::<Port>();
        send::<Unit>();
        send::<Nic>();
        send::<Channel>();
        send::<Planner>();
        send::<GateKeeper>();
        send::<MemoryHandle<u64>>();
        send::<UdpNic>();
        shared::<Region>();
        shared::<Gate>();
        shared::<LiveHost>();
        shared::<SimHost>();
        shared::<Communicator>();
    }
}

/// Checks types only: a multi-threaded runtime can run each of these futures.
#[expect(dead_code, reason = "it is compiled, never run")]
fn futures_of_services_can(
    host: impl Host,
    mut port: Port,
    world: Communicator,
    mut memory: MemoryHandle<u64>,
    mut channel: Channel,
) {
    fn spawned<F: Future + Send>(_: F) {}
    let nodes = [host.node()];
    spawned(RdmaCarrier::open(
        &host,
        midplane::via::message::envelope::Peer(0),
        &nodes,
        RdmaConfig::default(),
    ));
    spawned(port.completion());
    spawned(world.send(Rank(0), Tag(0), Bytes::new()));
    spawned(world.receive(None, None));
    spawned(world.barrier());
    spawned(world.finalize());
    spawned(memory.co_write(0, &1));
    spawned(channel.receive());
}
