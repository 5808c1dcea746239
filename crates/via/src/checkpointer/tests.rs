//! Refusals of a checkpointer's commands. The checkpointer's port also stops other ports: both kinds of commands are in
//! one ring, so that the NIC does nothing between two of them.

use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::Extension;
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::ExtensionId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::RegionRef;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

use super::*;
use crate::VIA;
use crate::attributes::{Address, Discriminator, Reliability, ViAttributes};
use crate::descriptor::Descriptor;
use crate::firmware::{Via, ViaConfig};
use crate::memory::MemoryOptions;
use crate::nic::{Nic, ViId};

const STOPPER: ExtensionId = ExtensionId(9);
const CHECKPOINTER: PortId = PortId(1_100);

/// Stops the port that a command names, or resumes it.
struct Stopper;

impl Extension for Stopper {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            0 => nic.resume_port(command.port),
            _ => nic.suspend_port(command.port),
        }
        let Command { opcode, cookie, .. } = command;
        let done = Completion { opcode, cookie, ..Completion::default() };
        nic.complete(command.region.port, &done);
    }
}

fn stopper(opcode: u8, port: PortId) -> Command {
    Command { extension: STOPPER, opcode, port, ..Command::default() }
}

/// Two processes on two NICs, connected, and the checkpointer of the first one's NIC.
struct Scene {
    nics: [Nic; 2],
    vis: [ViId; 2],
    checkpointer: Checkpointer,
}

impl Scene {
    async fn new(hosts: &[SimHost], reliability: Reliability) -> Self {
        let attributes = ViAttributes { reliability, ..ViAttributes::default() };
        let mut nics = Vec::new();
        for host in hosts {
            nics.push(Nic::open(host, PortOptions::default()).await.unwrap());
        }
        let mut nics: [Nic; 2] = nics.try_into().unwrap();
        let (mut vis, mut tickets) = (Vec::new(), Vec::new());
        let name = |at: usize| Discriminator::new(&[at as u8]).unwrap();
        for (at, nic) in nics.iter_mut().enumerate() {
            let vi = nic.create_vi(attributes).await.unwrap();
            let to = Address { node: NodeId(1 - at as u16), discriminator: name(1 - at) };
            tickets.push(nic.connect_peer(vi, to, name(at), None).unwrap());
            vis.push(vi);
        }
        for (nic, ticket) in nics.iter_mut().zip(&tickets) {
            nic.finish(ticket).await.unwrap();
        }
        let checkpointer = Checkpointer::open(&hosts[0], CHECKPOINTER).unwrap();
        Self { nics, vis: [vis[0], vis[1]], checkpointer }
    }

    fn port(&self) -> PortId {
        self.nics[0].port()
    }

    async fn stop(&mut self) {
        self.checkpointer.port.submit(&stopper(1, self.port())).unwrap();
        self.checkpointer.port.completion().await.unwrap();
    }

    async fn resume(&mut self) {
        self.checkpointer.port.submit(&stopper(0, self.port())).unwrap();
        self.checkpointer.port.completion().await.unwrap();
    }

    /// Returns the NIC's refusal of a command with that memory.
    async fn refused(&mut self, command: Command, region: RegionRef) -> Refused {
        self.checkpointer.port.submit(&Command { region, ..command }).unwrap();
        let answer = self.checkpointer.port.completion().await.unwrap();
        assert_eq!(answer.status, Status::Refused);
        Refused::of(answer.args[0])
    }
}

fn play<F: Future<Output = ()> + Send + 'static>(
    reliability: Reliability,
    scene: impl FnOnce(Scene) -> F + Send + 'static,
) {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let star = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(1 << 20)));
    let mut world = World::new(&star, NicProfile { mtu: 600, ..NicProfile::MODERN }, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(VIA, Via::new(ViaConfig::default().checkpointer(CHECKPOINTER))).unwrap();
        unit.install(STOPPER, Stopper).unwrap();
        unit
    });
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let done = world.block_on(NodeId(0), async move {
        let scene_of = Scene::new(&hosts, reliability).await;
        scene(scene_of).await;
    });
    done.expect("nothing waits for ever");
}

fn why<T: std::fmt::Debug>(result: Result<T, CheckpointerError>) -> (Refused, Option<u16>) {
    match result.unwrap_err() {
        CheckpointerError::Refused { why, vi, .. } => (why, vi),
        other => panic!("{other}"),
    }
}

/// The stop withdraws frames that have left the queue but not the NIC; the NIC counts them right after it.
#[test]
fn saving_is_retried_until_withdrawn_frames_are_counted() {
    play(Reliability::Unreliable, |mut scene| async move {
        let port = scene.port();
        let memory = scene.nics[0].register(40_000, MemoryOptions::default()).unwrap();
        for _ in 0..4 {
            let descriptor = Descriptor::of(memory.segment(0, 40_000).unwrap());
            scene.nics[0].post_send(scene.vis[0], descriptor).unwrap();
        }
        // Its frames are on their way, and most have not been sent.
        let first = scene.checkpointer.call("wait", order(SAVE, port), 0).await;
        assert_eq!(why(first), (Refused::Running, None));
        scene.checkpointer.port.post(&stopper(1, port)).unwrap();
        let save = Command { region: scene.checkpointer.scratch.whole(), ..order(SAVE, port) };
        scene.checkpointer.port.submit(&save).unwrap();
        scene.checkpointer.port.completion().await.unwrap();
        let answer = scene.checkpointer.port.completion().await.unwrap();
        assert_eq!(answer.status, Status::Refused);
        assert_eq!(Refused::of(answer.args[0]), Refused::Unsteady);
        let saved = scene.checkpointer.save(port).await.unwrap();
        assert!(saved.context.vis[0].withdrawn > 0);
        assert_eq!(saved.context.vis[0].sends.len(), 4);
    });
}

#[test]
fn memory_that_the_checkpointer_does_not_have_is_refused() {
    play(Reliability::ReliableDelivery, |mut scene| async move {
        let port = scene.port();
        scene.stop().await;
        let saved = scene.checkpointer.save(port).await.unwrap();
        let whole = scene.checkpointer.scratch.whole();
        let unregistered = RegionRef { generation: whole.generation ^ 1, ..whole };
        for opcode in [SAVE, FORGET, RESTORE, JOIN] {
            assert_eq!(scene.refused(order(opcode, port), unregistered).await, Refused::Scratch);
        }
        assert_eq!(scene.checkpointer.save(port).await.unwrap(), saved);
    });
}

/// A process is stopped in the middle of its exit: it has deregistered the memory of a receive, and the NIC has not
/// handled the doorbell. The interfaces can't be saved, instead of being saved and then refused to be removed.
#[test]
fn an_interface_with_deregistered_memory_is_not_saved() {
    play(Reliability::ReliableDelivery, |scene| async move {
        let Scene { nics: [mut leaving, _peer], vis, mut checkpointer } = scene;
        let memory = leaving.register(64, MemoryOptions::default()).unwrap();
        leaving.post_receive(vis[0], Descriptor::of(memory.whole())).unwrap();
        drop(memory);
        leaving.query().await.unwrap();
        let port = leaving.port();
        checkpointer.port.post(&stopper(1, port)).unwrap();
        let save = Command { region: checkpointer.scratch.whole(), ..order(SAVE, port) };
        checkpointer.port.submit(&save).unwrap();
        drop(leaving);
        checkpointer.port.completion().await.unwrap();
        let answer = checkpointer.port.completion().await.unwrap();
        assert_eq!(answer.status, Status::Refused);
        assert_eq!(Refused::of(answer.args[0]), Refused::Memory);
    });
}

#[test]
fn malformed_commands_are_refused() {
    play(Reliability::ReliableDelivery, |mut scene| async move {
        let port = scene.port();
        scene.stop().await;
        let saved = scene.checkpointer.save(port).await.unwrap();
        let nowhere = Command { args: [1 << 16, 0, 0], ..order(SAVE, port) };
        let whole = scene.checkpointer.scratch.whole();
        assert_eq!(scene.refused(nowhere, whole).await, Refused::Malformed);
        scene.checkpointer.put(&[0xff; 64]).unwrap();
        let noise = scene.checkpointer.scratch.range(0, 64).unwrap();
        for opcode in [RESTORE, JOIN] {
            assert_eq!(scene.refused(order(opcode, port), noise).await, Refused::Malformed);
        }
        // A context that the checkpointer's own checks would reject.
        scene.checkpointer.forget(port, &saved).await.unwrap();
        let mut wrong = saved.context.clone().with_peers(|_, _| Ok::<_, ()>(())).unwrap();
        wrong.vis[0].cut = 7;
        let none: Option<Vec<MappedMemory>> = None;
        let bytes = wire::encode_long(&(wrong, none)).unwrap();
        scene.checkpointer.put(&bytes).unwrap();
        let region = scene.checkpointer.scratch.range(0, bytes.len()).unwrap();
        assert_eq!(scene.refused(order(RESTORE, port), region).await, Refused::Malformed);
        assert_eq!(scene.checkpointer.save(port).await.unwrap().context.vis, []);
        let ends = scene.checkpointer.restore(port, &saved.context, None).await.unwrap();
        assert_eq!(ends.len(), 1);
    });
}

#[test]
fn only_restored_interfaces_are_joined_or_discarded() {
    play(Reliability::ReliableDelivery, |mut scene| async move {
        let port = scene.port();
        scene.stop().await;
        let saved = scene.checkpointer.save(port).await.unwrap();
        let vi = saved.context.vis[0].name;
        let end = saved.context.vis[0].link.as_ref().unwrap().peer;
        let joined = [Joined { name: vi, end, taken: 0 }];
        assert_eq!(why(scene.checkpointer.join(port, &joined).await), (Refused::NotRestored, None));
        assert_eq!(
            why(scene.checkpointer.discard_restored(port).await),
            (Refused::NotRestored, None)
        );
        assert_eq!(scene.checkpointer.save(port).await.unwrap(), saved);

        scene.checkpointer.forget(port, &saved).await.unwrap();
        scene.checkpointer.restore(port, &saved.context, None).await.unwrap();
        assert_eq!(why(scene.checkpointer.save(port).await), (Refused::NotRestored, Some(vi)));
        let another = [Joined { name: vi + 1, ..joined[0] }];
        for wrong in [&another[..], &[]] {
            assert_eq!(
                why(scene.checkpointer.join(port, wrong).await),
                (Refused::NotRestored, None)
            );
        }
        scene.checkpointer.join(port, &joined).await.unwrap();
        assert_eq!(why(scene.checkpointer.join(port, &joined).await), (Refused::NotRestored, None));
        scene.resume().await;
    });
}
