//! A cluster in which each node runs an installer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{self, INSTALLER, Installer, Policy};
use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::RegionRef;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

use crate::install::tally::{Seen, TALLY, Tally};

pub(crate) struct Cluster {
    pub(crate) world: World<Unit>,
    pub(crate) nodes: u16,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Cluster {
    pub(crate) fn new(nodes: u16, seed: u64, chatty: bool) -> Self {
        let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
        let topology = Topology::star(nodes, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
        Self::on(&topology, NicProfile::MODERN, nodes, seed, chatty)
    }

    pub(crate) fn on(
        topology: &Topology,
        profile: NicProfile,
        nodes: u16,
        seed: u64,
        chatty: bool,
    ) -> Self {
        Self::configured(ControlConfig::default(), topology, profile, nodes, seed, chatty)
    }

    pub(crate) fn configured(
        config: ControlConfig,
        topology: &Topology,
        profile: NicProfile,
        nodes: u16,
        seed: u64,
        chatty: bool,
    ) -> Self {
        silence_panics();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let of_all = Arc::clone(&seen);
        let world = World::new(topology, profile, seed, move |node, _| {
            let seen = Arc::clone(&of_all);
            let loader = move |module: &[u8]| {
                if module.get(1) == Some(&(b'0' + node.0 as u8)) {
                    return Err("not here".to_owned());
                }
                let (seen, label) = (Arc::clone(&seen), module[0]);
                let (sent, handled, held) = (0, 0, Vec::new());
                let tally = Tally { label, nodes, chatty, sent, held, handled, seen };
                Ok(Box::new(tally) as Box<dyn Extension>)
            };
            let members = (0..nodes).map(NodeId).collect();
            let mut unit = Unit::new(config);
            unit.install(INSTALLER, Installer::new(members, loader)).unwrap();
            unit.install(MESSAGES, Messages::new()).unwrap();
            unit
        });
        Self { world, nodes, seen }
    }

    /// Runs a command of a node's installer, with `module` in its region; returns its completion.
    pub(crate) fn order(
        &mut self,
        node: u16,
        module: Vec<u8>,
        make: impl FnOnce(RegionRef) -> Command + Send + 'static,
    ) -> Completion {
        let host = self.world.host(NodeId(node));
        let run = async move {
            let mut port = host.open_port().unwrap();
            let region = port.register(module.len().max(1)).unwrap();
            region.write(0, &module).unwrap();
            port.submit(&make(region.range(0, module.len()).unwrap())).unwrap();
            port.completion().await.unwrap()
        };
        self.world.block_on(NodeId(node), run).expect("the command ends")
    }

    pub(crate) fn install(&mut self, node: u16, module: &[u8], policy: Policy) -> Completion {
        self.order(node, module.to_vec(), move |region| install::install(TALLY, policy, region, 1))
    }

    /// Begins to install a module under a number, and does not wait for the end.
    pub(crate) fn begin(&mut self, node: u16, number: ExtensionId, module: &[u8]) {
        let (host, module) = (self.world.host(NodeId(node)), module.to_vec());
        self.world.spawn(NodeId(node), async move {
            let mut port = host.open_port().unwrap();
            let region = port.register(module.len()).unwrap();
            region.write(0, &module).unwrap();
            port.submit(&install::install(number, Policy::Deactivate, region.whole(), 1)).unwrap();
            std::future::pending::<()>().await;
        });
    }

    pub(crate) fn about(&mut self, node: u16, opcode: u8) -> Completion {
        self.order(node, Vec::new(), move |_| install::about(opcode, TALLY, 1))
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        self.world.run_until(until);
    }

    /// Returns the version that each living node runs.
    pub(crate) fn versions(&self) -> Vec<Option<Epoch>> {
        let nodes = (0..self.nodes).map(NodeId).filter(|node| self.world.is_up(*node));
        nodes.map(|node| self.world.firmware(node).epoch(TALLY)).collect()
    }

    #[track_caller]
    pub(crate) fn assert_all_run(&self, epoch: u16) {
        let versions = self.versions();
        assert!(versions.iter().all(|version| *version == Some(Epoch(epoch))), "{versions:?}");
    }
}

pub(crate) fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"on purpose") {
                usual(info);
            }
        }));
    });
}
