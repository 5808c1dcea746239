//! Starts nodes that share a memory over a live fabric, all in this process.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nic::{LiveHost, StartError};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig, UdpNic};
use midplane_warp::firmware::{WARP, Warp, WarpConfig};
use midplane_warp::memory::extension::{MERMERA, Mermera, MermeraConfig};

/// Rate of a switch port: low, so that queues form.
const RATE: LineRate = LineRate::mbps(10);
/// The feedback delay that is assumed at first.
const DELAY: Duration = Duration::from_millis(5);

/// The pacing of slow writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sending {
    /// Sends a write when Warp's gate is open.
    Gated,
    /// Sends all writes at once.
    Unpaced,
}

/// The connections between nodes, and the silence after which a peer counts as dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) nodes: u16,
    pub(crate) sending: Sending,
    /// Buffer of a switch port in bytes.
    pub(crate) port_bytes: u32,
    pub(crate) dead_after: Duration,
}

impl Setting {
    fn unit(self, node: u16) -> Unit {
        let all: Vec<NodeId> = (0..self.nodes).map(NodeId).collect();
        let others: Vec<NodeId> = all.iter().copied().filter(|other| other.0 != node).collect();
        let mut config = WarpConfig::new(&others, RATE, self.port_bytes / 4, self.nodes - 1);
        config = config.paces_others(self.sending == Sending::Gated);
        let (warp, gates) = Warp::new(config);
        let mut memory = MermeraConfig::new(&all, DELAY);
        let mut control = ControlConfig::default();
        control = control.dead_after(self.dead_after);
        let mut unit = Unit::new(control);
        if self.sending == Sending::Gated {
            unit.install(WARP, warp).unwrap();
            memory = memory.gates(gates);
        }
        unit.install(MERMERA, Mermera::new(memory)).unwrap();
        unit
    }
}

fn live<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(run)
}

/// Runs `work` on nodes connected by UDP sockets through a software switch. Returns the number of
/// frames that the switch dropped. `work` receives a closure that shuts down the first node's NIC.
pub(crate) fn udp(
    setting: Setting,
    work: impl AsyncFnOnce(Vec<LiveHost>, Box<dyn FnOnce() -> End>),
) -> u64 {
    live(async {
        let (switch, mut nics) = start(setting);
        let hosts = nics.iter().map(UdpNic::host).collect();
        let first = nics.remove(0);
        let end = || -> End {
            Box::pin(async {
                let _ = first.shutdown().await;
            })
        };
        work(hosts, Box::new(end)).await;
        for nic in nics {
            nic.shutdown().await;
        }
        switch.shutdown().await.piece_drops.total()
    })
}

/// The future that shuts down a node's NIC.
pub(crate) type End = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn start(setting: Setting) -> (SoftSwitch, Vec<UdpNic>) {
    loop {
        let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sockets: Vec<UdpSocket> = (0..=setting.nodes).map(bind).collect();
        let mut peers: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        drop(sockets);
        let at = peers.remove(0);
        let config = SwitchConfig::new(at, peers.clone())
            .link(LinkProfile::ethernet(RATE, Duration::from_micros(1)))
            .rate_in(LineRate::mbps(100))
            .profile(SwitchProfile::new(Buffer::Bytes(setting.port_bytes)));
        let line = LinkProfile::ethernet(LineRate::mbps(100), Duration::from_micros(1));
        let nic = |node| {
            let config = UdpConfig::new(NodeId(node), peers.clone()).via(at).line(line);
            UdpNic::start(config, setting.unit(node))
        };
        // Another process may have taken one of the addresses since they were free.
        let started = SoftSwitch::start(config).and_then(|switch| {
            Ok((switch, (0..setting.nodes).map(nic).collect::<Result<_, _>>()?))
        });
        match started {
            Ok(started) => return started,
            Err(StartError::PortInUse(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Runs `work` on nodes connected by shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn shm(
    setting: Setting,
    work: impl AsyncFnOnce(Vec<midplane_simhw::nic::LiveHost>, Box<dyn FnOnce() -> End>),
) {
    use midplane_simhw::shm::{ShmConfig, ShmNic};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static FABRICS: AtomicUsize = AtomicUsize::new(0);
    let number = FABRICS.fetch_add(1, Ordering::Relaxed);
    let name = format!("midplane-memory-{}-{number}", std::process::id());
    live(async {
        let nic = |node| {
            let config = ShmConfig::new(&name, NodeId(node), setting.nodes);
            ShmNic::start(config, setting.unit(node)).unwrap()
        };
        let mut nics: Vec<ShmNic> = (0..setting.nodes).map(nic).collect();
        for nic in &nics {
            nic.meet().await;
        }
        let hosts = nics.iter().map(ShmNic::host).collect();
        let first = nics.remove(0);
        let end = || -> End {
            Box::pin(async {
                let _ = first.shutdown().await;
            })
        };
        work(hosts, Box::new(end)).await;
        for nic in nics {
            nic.shutdown().await;
        }
    });
}
