//! NICs over UDP sockets: the firmware runs in this process, and its frames cross a real network.
//!
//! A [`UdpNic`] runs firmware on the datagrams of one socket, IPv4 or IPv6, either directly between hosts or
//! through a [`SoftSwitch`]. Frames are paced to the NIC's own line ([`UdpConfig::line`]): each is passed to
//! the system when its first bit would start on that line. A switch adds the time that a frame takes on the
//! wire.
//!
//! # How long datagrams are
//!
//! IP never fragments a datagram: don't-fragment is set on every socket, including the switch's. Datagrams to a
//! peer begin at 1,200 bytes and grow to what probes show that the path carries (packetization-layer path MTU
//! discovery, RFC 8899). On a host's own interface that takes two round trips. A probe is sent only when there
//! is a full datagram to send, so that idle paths carry none. While full datagrams are sent, one probe a second
//! confirms that they still pass. If six in a row are lost and shorter ones are not, datagrams shrink.
//! [`UdpConfig::datagram_bytes`] sets a fixed length instead, for networks whose MTU the operator knows.
//!
//! [`Hardware::mtu_to`](crate::hardware::Hardware::mtu_to) tells the firmware how much one datagram to a peer
//! carries now. If firmware cuts its messages there, a lost datagram loses no more than its own bytes. A frame
//! can still be longer: it was cut before the path's MTU shrank, or has a fixed length, such as a channel's
//! packets. It leaves in pieces, which the receiving NIC reassembles. That NIC holds at most four incomplete
//! frames of a peer, 256 KiB. A new one replaces the oldest, which is counted as
//! [`Incomplete`](crate::drops::DropCause::Incomplete).
//!
//! Both are needed. Firmware cannot cut a message again when its peer has received half of it. Pieces alone
//! would lose 64 KiB with each lost datagram. IP fragments would as well, and have another fault: the receiving
//! system holds incomplete ones for 30 s in little memory, and refuses all others meanwhile.
//!
//! # Which frames are accepted
//!
//! A frame is dropped and counted, and never answered, if its source address is not that of the peer it claims
//! to be from (or of the switch). The same holds for a frame that is malformed, of another version, or for
//! another node.
//!
//! With identities of the nodes ([`UdpConfig::identity`]), a key of the fabric ([`UdpConfig::key`]), or both,
//! frames are sealed. A frame that is not sealed, or comes twice, is dropped and counted: see
//! [`seal`](crate::seal). At its start, the NIC emits a warning of `tracing` if it has neither, and so trusts
//! its network. It also warns if it has only the fabric's key, and so trusts all holders of that key.

mod batch;
mod config;
mod core;
#[doc(hidden)]
pub mod discovery;
mod driver;
mod engine;
mod kernel;
mod line;
mod link;
mod observe;
mod path;
mod paths;
mod pieces;
mod soft_switch;
mod watched;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::warn;

use crate::hardware::Firmware;
use crate::live::Tasks;
use crate::live::{adaptive_spin, alarm, clock};
use crate::nic::{LiveHost, NicCounters, NicHandle, StartError};

pub use crate::live::alarm::Alarm;
pub use config::{Coprocessor, ResolveError, UdpConfig, resolve_peers};
pub use path::{interface_mtu, path_mtus};
pub use soft_switch::{DEFAULT_SWITCH_LINK, SoftSwitch, SwitchConfig, SwitchCounters};

pub(crate) use config::resolve_within;

use self::core::Core;
use batch::Socket;
use driver::Driver;
use engine::Engine;

/// A NIC over a UDP socket. Dropping it stops it at once; frames that wait for its line are then lost.
#[derive(Debug)]
pub struct UdpNic {
    host: LiveHost,
    nic: Arc<dyn NicHandle>,
    #[cfg(target_os = "linux")]
    ports: Arc<dyn crate::nicd::Source>,
    address: SocketAddr,
    is_sealed: bool,
    is_identified: bool,
    mtu: usize,
    ended: oneshot::Receiver<()>,
}

impl UdpNic {
    /// Starts a NIC that runs `firmware`. Applications that [`LiveHost::spawn`] starts run on the current
    /// runtime, and so does the firmware if the configuration says so.
    ///
    /// [`LiveHost::spawn`]: crate::host::Host::spawn
    ///
    /// # Errors
    /// [`StartError`] says how to fix it; nothing then runs.
    ///
    /// # Panics
    /// If the coprocessor is a task and the current runtime's I/O or time is not enabled.
    pub fn start<F>(config: UdpConfig, firmware: F) -> Result<Self, StartError>
    where
        F: Firmware + Send + 'static,
    {
        let bind = config.check()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let failed = |error: std::io::Error| StartError::of_address(bind, &error);
        let socket = batch::bind(bind).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let seals = link::seals(&config)?;
        let (is_sealed, is_identified) = (seals.is_some(), config.identity.is_some());
        if !is_sealed {
            warn!(node = config.nic.node.0, %address, "no key: the NIC trusts its network");
        } else if !is_identified {
            warn!(
                node = config.nic.node.0, %address,
                "one key for the fabric: each host that has it can claim to be any other; give each a key of its own"
            );
        }
        let (end, ended) = oneshot::channel();
        let (node, mtu, seed) = (config.nic.node, config.nic.mtu, config.nic.seed);
        let is_inline = config.coprocessor == Coprocessor::Task;
        // A NIC on its own thread does not spin, because its applications need the processor.
        let spin = if is_inline { config.nic.spin_nanos() } else { 0 };
        let start = move || {
            let socket = Socket::new(socket)?;
            let io = socket.watched();
            let engine =
                Engine::new(link::nic(&config, seals, socket), firmware, config.nic.port_depth);
            let core = Core::new(engine, address, is_inline);
            Ok((Driver::new(Arc::clone(&core), io, spin)?, core))
        };
        let core = if is_inline {
            let (driver, core) = start().map_err(failed)?;
            runtime.spawn(async move {
                driver.run().await;
                let _ = end.send(());
            });
            core
        } else {
            let start = || start().map(|(driver, core)| (driver.run(), core));
            run_on_thread(format!("nic {node}"), end, start).map_err(failed)?
        };
        let host = LiveHost::new(Tasks::new(node, seed, runtime), Arc::clone(&core) as _);
        Ok(Self {
            host,
            #[cfg(target_os = "linux")]
            ports: Arc::clone(&core) as _,
            nic: core,
            address,
            is_sealed,
            is_identified,
            mtu,
            ended,
        })
    }

    /// Returns the application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }

    /// Returns the address that the socket is bound to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the most payload bytes of one frame.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns whether frames are sealed. If not, the NIC trusts its network, and has warned of it at its
    /// start.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns whether each frame's source is certain, because nodes have identities. If not, any host that can
    /// send (or has the fabric's key, if there is one) can claim to be any node.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_identified(&self) -> bool {
        self.is_identified
    }

    /// Serves this NIC's ports to other processes of this host, until the returned server is dropped; Linux
    /// only.
    ///
    /// # Errors
    /// [`ServeError`](crate::nicd::ServeError) says how to fix it.
    #[cfg(target_os = "linux")]
    pub fn serve_ports(
        &self,
        config: crate::nicd::ServerConfig,
    ) -> Result<crate::nicd::PortServer, crate::nicd::ServeError> {
        crate::nicd::PortServer::open(config, Arc::clone(&self.ports))
    }

    /// Returns the NIC's counters, as of its last turn. Also reads counters of the system, which takes about
    /// 100 us.
    #[must_use]
    pub fn counters(&self) -> NicCounters {
        self.nic.counters()
    }

    /// Stops the NIC, and returns its last counters. Frames that wait for its line leave first; if the system
    /// accepts none of them for 1 s, they are lost. When this returns, its ports are closed and its address is
    /// free.
    ///
    /// # Cancel safety
    /// Dropping the future stops the NIC at once.
    pub async fn shutdown(mut self) -> NicCounters {
        self.nic.end(true);
        // An error means that the firmware panicked, which ends the driver as well.
        let _ = (&mut self.ended).await;
        self.counters()
    }
}

impl Drop for UdpNic {
    fn drop(&mut self) {
        self.nic.end(false);
    }
}

/// Runs a driver on a new thread with its own runtime; the driver is created inside that runtime. Returns what was
/// created with it.
fn run_on_thread<D, T>(
    name: String,
    end: oneshot::Sender<()>,
    start: impl FnOnce() -> std::io::Result<(D, T)>,
) -> std::io::Result<T>
where
    D: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (driver, created) = {
        let _inside = runtime.enter();
        start()?
    };
    std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(driver);
        drop(runtime);
        let _ = end.send(());
    })?;
    Ok(created)
}
