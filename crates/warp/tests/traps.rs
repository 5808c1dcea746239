//! Tests that no command waits for an extension that has failed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::transmit::Sent;
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Frame;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_warp::firmware::{self, WARP, Warp, WarpConfig};
use midplane_warp::memory::extension::{MERMERA, Mermera, MermeraConfig};
use midplane_warp::memory::{AccessError, MemoryHandle};

/// The opcode of a command that makes the extension panic.
const TRAP: u8 = 99;
const RATE: LineRate = LineRate::mbps(100);

/// An extension that panics on request.
struct Fragile<E>(E);

impl<E: Extension> Extension for Fragile<E> {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.0.init(nic)
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        assert_ne!(command.opcode, TRAP, "a planted failure");
        self.0.on_command(nic, command);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.0.on_control(nic, from, message);
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        self.0.on_data(nic, from, frame);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        self.0.on_timeout(nic, timeout);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        self.0.on_peer(nic, event);
    }

    fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        self.0.on_sent(nic, sent);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        self.0.outstanding_commands()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.0.deactivate(nic);
    }
}

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// Makes a star of three hosts with both extensions.
fn world() -> World<Unit> {
    let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
    let topology = Topology::star(3, link, SwitchProfile::new(Buffer::Bytes(32 << 10)));
    World::new(&topology, NicProfile::MODERN, 1, |node, _| {
        let all = [NodeId(0), NodeId(1), NodeId(2)];
        let others: Vec<NodeId> = all.into_iter().filter(|other| *other != node).collect();
        let warp = Warp::new(WarpConfig::new(&others, RATE, 16 << 10, 2)).0;
        let memory = Mermera::new(MermeraConfig::new(&all, Duration::from_millis(1)));
        let mut unit = Unit::default();
        unit.install(WARP, Fragile(warp)).unwrap();
        unit.install(MERMERA, Fragile(memory)).unwrap();
        unit
    })
}

/// Makes an extension of node 0 panic.
fn trap(world: &mut World<Unit>, extension: ExtensionId) {
    let host = world.host(NodeId(0));
    world.spawn(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        port.submit(&Command { extension, opcode: TRAP, ..Command::default() }).unwrap();
        let _ = port.completion().await;
    });
}

#[test]
fn commands_of_a_memory_that_has_failed_end() {
    let mut world = world();
    let ended: Arc<Mutex<Vec<AccessError>>> = Arc::default();
    // No node answers: a coherent write and a flush wait.
    world.crash(NodeId(1));
    world.crash(NodeId(2));
    for is_coherent in [true, false] {
        let (host, ended) = (world.host(NodeId(0)), Arc::clone(&ended));
        world.spawn(NodeId(0), async move {
            let mut memory = MemoryHandle::<u64>::open(&host).unwrap();
            memory.slow_write(1, &1).await.unwrap();
            let done =
                if is_coherent { memory.co_write(2, &2).await } else { memory.flush().await };
            ended.lock().unwrap().extend(done.err());
        });
    }
    world.run_until(at(50));
    assert_eq!(*ended.lock().unwrap(), []);
    trap(&mut world, MERMERA);
    world.run_until(at(100));
    let down = AccessError::Refused(Status::ExtensionDown);
    assert_eq!(*ended.lock().unwrap(), [down.clone(), down]);
}

#[test]
fn commands_of_warp_end_after_it_has_failed() {
    const SENDS: u64 = 8;
    let mut world = world();
    let ended: Arc<Mutex<Vec<(u64, Status)>>> = Arc::default();
    let (host, ends) = (world.host(NodeId(0)), Arc::clone(&ended));
    world.spawn(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(100_000).unwrap();
        port.submit(&firmware::receive(memory.whole(), SENDS)).unwrap();
        for cookie in 0..SENDS {
            let send = firmware::send(NodeId(1), PortId(0), memory.whole(), cookie);
            port.submit(&send).unwrap();
        }
        loop {
            let done = port.completion().await.unwrap();
            ends.lock().unwrap().push((done.cookie, done.status));
        }
    });
    world.run_until(at(5));
    trap(&mut world, WARP);
    world.run_until(at(100));
    let mut ended = ended.lock().unwrap().clone();
    ended.sort_unstable_by_key(|(cookie, _)| *cookie);
    let cookies: Vec<u64> = ended.iter().map(|(cookie, _)| *cookie).collect();
    assert_eq!(cookies, (0..=SENDS).collect::<Vec<_>>(), "{ended:?}");
    let down = ended.iter().filter(|(_, status)| *status == Status::ExtensionDown).count();
    assert!(down >= 2, "{ended:?}");
}
