//! NICs over shared memory: processes of one host, connected by rings; Linux only.
//!
//! A [`ShmNic`] runs its firmware in the process that uses it, on the thread that uses it. Ringing a port's
//! doorbell and polling for completions give the NIC its turns; nothing else runs between two processes that
//! both poll. A waiting task busy-polls for a while ([`ShmConfig::spin`]) and then parks. A task of the
//! runtime, woken by the NIC's peers, then runs the NIC.
//!
//! Every two NICs share one segment: an unnamed file, made by one of them and passed to the other, between
//! processes of users that both [admit](ShmConfig::admit). When a NIC's process exits, in whatever way, its
//! peers notice as soon as the system has closed its connections. Frames that it had sent whole are handled,
//! and half-written ones are never seen. The memory is freed once both sides have released it.
//!
//! If an application polls its NIC and then stops polling without parking, the runtime's task takes over within
//! 10 ms. A process that is stopped stops its NIC too: a NIC that must continue belongs in another process.

mod byte_ring;
mod config;
mod core;
mod driver;
mod engine;
mod lane;
#[doc(hidden)]
pub mod lanes;
mod link;
#[doc(hidden)]
#[cfg(feature = "unstable")]
pub mod measure;
mod rendezvous;
mod retry;
#[doc(hidden)]
pub mod rings;
mod rx_links;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::live::Tasks;
use crate::nic::{LiveHost, NicCounters, NicHandle, StartError};
use crate::nicd::{PortServer, ServeError, ServerConfig, Source};
use crate::wakes::Wakes;

pub use byte_ring::{Corrupt, Record, RingReceiver, RingSender};
pub use config::{DEFAULT_MTU, ShmConfig};

use self::core::Core;
use driver::Driver;
use engine::Engine;
use link::ShmLink;
use rendezvous::Rendezvous;

/// A NIC over shared memory. Dropping it stops it.
#[derive(Debug)]
pub struct ShmNic {
    host: LiveHost,
    nic: Arc<dyn NicHandle>,
    ports: Arc<dyn Source>,
    peers: watch::Receiver<Vec<NodeId>>,
    nodes: u16,
    ended: Option<oneshot::Receiver<()>>,
    rendezvous: Option<Rendezvous>,
}

impl ShmNic {
    /// Starts a NIC that runs `firmware`, and connects to its peers. Frames to peers that are not yet connected
    /// are dropped and counted; [`ShmNic::meet`] waits for all peers.
    ///
    /// # Errors
    /// [`StartError`] says how to fix it; nothing then runs.
    ///
    /// # Panics
    /// If the current runtime's I/O or time is not enabled.
    pub fn start<F>(config: ShmConfig, firmware: F) -> Result<Self, StartError>
    where
        F: Firmware + Send + 'static,
    {
        config.check()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let failed = |error: std::io::Error| StartError::System(error.kind());
        let wakes = Wakes::new().map_err(failed)?;
        let nic = config.nic.nic(ShmLink::new(&config));
        let incarnation = nic.incarnation;
        let engine = Engine::new(firmware, nic, config.nic.port_depth);
        let spin = config.nic.spin_nanos();
        let core = Arc::new(Core::new(config.nic.node, engine, Arc::clone(&wakes), spin));
        let driver = Driver::new(wakes).map_err(failed)?;
        let rendezvous = Rendezvous::open(&config, incarnation, Arc::clone(&core) as _)?;
        let (end, ended) = oneshot::channel();
        let driven = Arc::clone(&core);
        runtime.spawn(async move {
            driver.run(driven).await;
            let _ = end.send(());
        });
        let tasks = Tasks::new(config.nic.node, config.nic.seed, runtime);
        let host = LiveHost::new(tasks, Arc::clone(&core) as _);
        // Rings would bypass the faults.
        let host = match config.nic.faults {
            None => host.with_rings(config.clone()),
            Some(_) => host,
        };
        Ok(Self {
            host,
            ports: Arc::clone(&core) as _,
            peers: core.peers(),
            nic: core,
            nodes: config.nodes,
            ended: Some(ended),
            rendezvous: Some(rendezvous),
        })
    }

    /// Returns the application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }

    /// Gives the NIC a turn: it handles arrived frames and due alarms. Returns whether there were any.
    pub fn poll(&self) -> bool {
        self.ports.poll()
    }

    /// Waits until all other nodes of the fabric are connected.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn meet(&self) {
        let others = usize::from(self.nodes) - 1;
        let mut peers = self.peers();
        // The sender lives as long as the NIC.
        let _ = peers.wait_for(|peers| peers.len() == others).await;
    }

    /// Returns the connected peers, sorted; the value changes when a peer connects or disconnects.
    #[must_use]
    pub fn peers(&self) -> watch::Receiver<Vec<NodeId>> {
        let mut peers = self.peers.clone();
        peers.mark_unchanged();
        peers
    }

    /// Serves this NIC's ports to other processes, until the returned server is dropped. Those processes do not
    /// run the NIC: the server and the runtime's task do.
    ///
    /// # Errors
    /// [`ServeError`] says how to fix it.
    pub fn serve_ports(&self, config: ServerConfig) -> Result<PortServer, ServeError> {
        PortServer::open(config, Arc::clone(&self.ports))
    }

    /// Returns the NIC's counters.
    #[must_use]
    pub fn counters(&self) -> NicCounters {
        self.nic.counters()
    }

    /// Stops the NIC after its firmware's last turn, and returns its last counters. When this returns, its
    /// ports are closed and its node number is free.
    ///
    /// # Cancel safety
    /// Dropping the future stops the NIC nevertheless.
    pub async fn shutdown(mut self) -> NicCounters {
        self.nic.end(true);
        if let Some(ended) = self.ended.take() {
            // An error means that the runtime shuts down, and with it the driver.
            let _ = ended.await;
        }
        self.rendezvous = None;
        self.counters()
    }
}

impl Drop for ShmNic {
    fn drop(&mut self) {
        self.nic.end(true);
    }
}
