//! NICs over UDP sockets: the firmware runs in this process, the frames cross a real network.
//!
//! A [`UdpNic`] drives firmware with the datagrams of one socket, IPv4 or IPv6, straight between
//! hosts or through a [`SoftSwitch`]. Frames leave at the pace of the
//! NIC's own line ([`UdpConfig::line`]): each is handed to the system at the instant at which its
//! first bit would start on that line; a switch adds the time that it takes on the wire itself.
//!
//! # How long datagrams are
//!
//! No datagram is ever cut by IP: don't-fragment is set on every socket, the switch's too. Datagrams to
//! a peer begin at 1,200 bytes and grow to what its path carries, as probes find out (packetisation-layer
//! path MTU discovery, RFC 8899); on a host's own interface that takes two round trips. A probe is sent
//! when there is a full datagram to send, and so idle paths carry none. While full datagrams are sent, one
//! probe a second confirms that they still pass; if six in a row are lost and shorter ones are not,
//! datagrams shrink. [`UdpConfig::datagram_bytes`] sets a length instead, for networks that the operator vouches for.
//!
//! [`Hardware::mtu_to`](crate::hardware::Hardware::mtu_to) tells the firmware what one datagram to a peer
//! carries now. Firmware that cuts its messages there loses one datagram's worth where a datagram is lost.
//! A frame can be longer nevertheless: it was cut before the path grew shorter, or has a length that it
//! keeps for its life, as a channel's packets have. It leaves in pieces, which the receiving NIC joins. That
//! NIC keeps at most four incomplete frames a peer, 256 KiB; a new one replaces the oldest, which is
//! counted as [`Incomplete`](crate::drops::DropCause::Incomplete).
//!
//! Both are there because neither alone is sound: firmware can't cut again what a peer has half of, and
//! pieces alone would lose 64 KiB with each lost datagram. IP's fragments have the second fault and one of
//! their own: the receiving system keeps halves for 30 s in little memory, and refuses all others meanwhile.
//!
//! # Who is heard
//!
//! A frame whose source address is not that of the peer it claims to be from (or of the switch),
//! or which is malformed, of another version, or for another node, is dropped and counted, never
//! answered.
//!
//! With keys of the nodes' own ([`UdpConfig::identity`]), one of the fabric ([`UdpConfig::key`]), or both,
//! frames are sealed, and what is not sealed or comes twice is dropped and counted: see
//! [`seal`](crate::seal). Without any the NIC says at its start, as a warning of `tracing`, that it
//! trusts its network, and with the fabric's alone that it trusts all who have that.

mod batch;
mod config;
mod desk;
pub mod discovery;
mod driver;
mod engine;
mod host;
mod kernel;
mod line;
mod nic;
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

use crate::drops::Drops;
use crate::hardware::Firmware;
use crate::live::Tasks;
use crate::live::{alarm, clock, looks};
use crate::time::nanos;

pub use config::{
    Coprocessor, DEFAULT_CATCH_UP, DEFAULT_LINE, DEFAULT_SOCKET_BUFFER, DEFAULT_SPIN,
    DEFAULT_TRANSMIT_DEPTH, ResolveError, StartError, UdpConfig, resolve_peers,
};
pub use host::UdpHost;
pub use path::{interface_mtu, path_mtus};
pub use soft_switch::{
    DEFAULT_INGRESS_MEMORY, DEFAULT_SWITCH_LINK, DEFAULT_SWITCH_PROFILE, SoftSwitch, SwitchConfig,
    SwitchCounters,
};

use desk::{Desk, Ending};
use driver::Driver;
use nic::Nic;

/// What went through a NIC.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct UdpCounters {
    /// Datagrams that the system took: frames, pieces of longer ones, probes of paths and handshakes
    /// about keys; not frames to the own node.
    pub frames_sent: u64,
    /// Their bytes, with headers, without the wire's framing.
    pub bytes_sent: u64,
    /// Frames that the firmware was handed; frames from the own node are none of them.
    pub frames_received: u64,
    /// Their bytes, with headers.
    pub bytes_received: u64,
    /// Datagrams that went no further, either way, by cause. What the system dropped in front of
    /// the socket is among them, as [`System`](crate::drops::DropCause::System), on Linux only;
    /// several that one call sent are one to the system.
    pub drops: Drops,
}

/// A NIC over a UDP socket. Dropping it stops it at once; what waits for its line is lost then.
#[derive(Debug)]
pub struct UdpNic {
    host: UdpHost,
    desk: Arc<Desk>,
    address: SocketAddr,
    is_sealed: bool,
    is_identified: bool,
    mtu: usize,
    ended: oneshot::Receiver<()>,
}

impl UdpNic {
    /// Starts a NIC that runs `firmware`. Applications that [`UdpHost::spawn`] starts run on the
    /// current runtime, and the firmware too if the configuration says so.
    ///
    /// [`UdpHost::spawn`]: crate::host::Host::spawn
    ///
    /// # Errors
    /// [`StartError`] says what to do about it; nothing runs then.
    ///
    /// # Panics
    /// If the current runtime's I/O or time is not enabled and the coprocessor is a task of it.
    pub fn start<F>(config: UdpConfig, firmware: F) -> Result<Self, StartError>
    where
        F: Firmware + Send + 'static,
    {
        let bind = config.check()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let failed = |error: std::io::Error| StartError::from_io(bind, &error);
        let socket = batch::bind(bind, config.socket_buffer).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let desk = Desk::new(config.node, config.port_depth);
        let seals = nic::seals(&config)?;
        let (is_sealed, is_identified) = (seals.is_some(), config.identity.is_some());
        if !is_sealed {
            warn!(node = config.node.0, %address, "no key: the network is trusted");
        } else if !is_identified {
            warn!(
                node = config.node.0, %address,
                "one key for the fabric: each host that has it can claim to be any other; give each a key of its own"
            );
        }
        let (end, ended) = oneshot::channel();
        let (node, mtu, coprocessor) = (config.node, config.mtu, config.coprocessor);
        let tasks = Tasks::new(config.node, config.seed, runtime.clone());
        let spin = u32::try_from(nanos(config.spin)).unwrap_or(u32::MAX);
        let nic = move |socket| Nic::new(&config, seals, socket);
        match coprocessor {
            Coprocessor::Task => {
                let driver = Driver::new(nic, socket, firmware, Arc::clone(&desk));
                let mut driver = driver.map_err(failed)?;
                driver.serve_inline(spin);
                runtime.spawn(async move {
                    driver.run().await;
                    let _ = end.send(());
                });
            }
            Coprocessor::Thread => {
                let desk = Arc::clone(&desk);
                let driver = || Ok(Driver::new(nic, socket, firmware, desk)?.run());
                run_on_thread(format!("nic {node}"), end, driver).map_err(failed)?;
            }
        }
        let host = UdpHost::new(tasks, Arc::clone(&desk));
        Ok(Self { host, desk, address, is_sealed, is_identified, mtu, ended })
    }

    /// The application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> UdpHost {
        self.host.clone()
    }

    /// The address that the socket is bound to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Most payload bytes of one frame.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether frames are sealed; if not, the NIC trusts its network, and has said so at its start.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Whether each frame's source is certain: nodes have keys of their own. If not, whoever can send at all (holds
    /// the fabric's key, where there is one) can claim to be any node.
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        self.is_identified
    }

    /// Serves this NIC's ports to other processes of this host, until the result is dropped; Linux
    /// only.
    ///
    /// # Errors
    /// [`ServeError`](crate::nicd::ServeError) says what to do about it.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub fn serve_ports(
        &self,
        config: crate::nicd::ServerConfig,
    ) -> Result<crate::nicd::PortServer, crate::nicd::ServeError> {
        crate::nicd::PortServer::open(config, Arc::clone(&self.desk) as _)
    }

    /// What has gone through the NIC, as of its last turn. Asks the system, too: some 100 us.
    #[must_use]
    pub fn counters(&self) -> UdpCounters {
        self.desk.counters(self.address)
    }

    /// Stops the NIC: what waits for its line leaves first, for a second at most where the system
    /// takes nothing. Its ports are closed and its address is free when this returns. The result
    /// is the last of its counters.
    ///
    /// # Cancel safety
    /// Dropping the future stops the NIC at once.
    pub async fn shutdown(mut self) -> UdpCounters {
        self.desk.end(Ending::Flush);
        // An error means that the firmware panicked: the driver has ended just the same.
        let _ = (&mut self.ended).await;
        self.counters()
    }
}

impl Drop for UdpNic {
    fn drop(&mut self) {
        self.desk.end(Ending::Now);
    }
}

/// Runs a driver on a thread and a runtime of its own; it is made inside of that runtime.
fn run_on_thread<D>(
    name: String,
    end: oneshot::Sender<()>,
    driver: impl FnOnce() -> std::io::Result<D>,
) -> std::io::Result<()>
where
    D: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let driver = {
        let _inside = runtime.enter();
        driver()?
    };
    std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(driver);
        drop(runtime);
        let _ = end.send(());
    })?;
    Ok(())
}
