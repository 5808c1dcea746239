//! NICs over shared memory: processes of one host, joined by rings; Linux only.
//!
//! A [`ShmNic`] runs its firmware in the process that uses it, where it is used: ringing a port's
//! doorbell and looking for completions give the NIC its turns, and nothing else runs between two
//! processes that both look. Who waits looks for a while ([`ShmConfig::spin`]) and then parks; the
//! NIC is then run by a task of the runtime that its peers wake.
//!
//! Every two NICs share one segment: a file without a name, made by one of them and passed to the
//! other, for the processes of the users that both [admit](ShmConfig::admit). A NIC's peers learn of
//! its end, however it came, as soon as the system has closed its connections; what it had sent
//! whole is handled, what it had half written is never seen, and the memory is the system's again
//! once both sides have let go.
//!
//! A process that looks after its NIC by polling and then stops without waiting for anything leaves
//! it alone for 10 ms at most. A process that is stopped takes its NIC with it: what has to go on
//! then has its NIC in another process.

mod byte_ring;
mod config;
mod core;
mod driver;
mod engine;
mod host;
mod lane;
pub mod lanes;
#[doc(hidden)]
pub mod measure;
mod nic;
mod rendezvous;
mod retry;
pub mod rings;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::drops::Drops;
use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::live::Tasks;
use crate::live::clock::Clock;
use crate::nicd::{PortServer, ServeError, ServerConfig};
use crate::time::nanos;
use crate::wakes::Wakes;

pub use byte_ring::{Corrupt, LEAST_CAPACITY, Record, RingReceiver, RingSender};
pub use config::{
    DEFAULT_AREA_BYTES, DEFAULT_AREA_BYTES_OF_ALL, DEFAULT_JOIN_WITHIN, DEFAULT_MTU, DEFAULT_RATE,
    DEFAULT_SLOTS, DEFAULT_SPIN, MAX_NAME, MAX_NODES, MAX_SLOTS, MIN_AREAS, ShmConfig, StartError,
};
pub use host::ShmHost;

use self::core::{Core, Station};
use driver::Driver;
use engine::Engine;
use nic::Nic;
use rendezvous::Rendezvous;

/// What went through a NIC.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ShmCounters {
    /// Frames that were put into a peer's slots; frames to the own node are none of them.
    pub frames_sent: u64,
    /// Their bytes, with headers.
    pub bytes_sent: u64,
    /// Frames that the firmware was handed; frames from the own node are none of them.
    pub frames_received: u64,
    /// Their bytes, with headers.
    pub bytes_received: u64,
    /// Frames that went no further, either way, by cause; those to a peer that is not there as
    /// [`NicDown`](crate::drops::DropCause::NicDown).
    pub drops: Drops,
}

/// A NIC over shared memory. Dropping it stops it.
#[derive(Debug)]
pub struct ShmNic {
    host: ShmHost,
    station: Arc<dyn Station>,
    nodes: u16,
    ended: Option<oneshot::Receiver<()>>,
    rendezvous: Option<Rendezvous>,
}

impl ShmNic {
    /// Starts a NIC that runs `firmware`, and looks for its peers. Frames to those that it has not
    /// met are dropped and counted; [`ShmNic::meet`] waits for all of them.
    ///
    /// # Errors
    /// [`StartError`] says what to do about it; nothing runs then.
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
        let incarnation = config.incarnation.unwrap_or_else(Clock::incarnation);
        let engine = Engine::new(firmware, Nic::new(&config, incarnation), config.port_depth);
        let spin = u32::try_from(nanos(config.spin)).unwrap_or(u32::MAX);
        let core = Arc::new(Core::new(config.node, engine, Arc::clone(&wakes), spin));
        let driver = Driver::new(wakes).map_err(failed)?;
        let rendezvous = Rendezvous::open(&config, incarnation, Arc::clone(&core) as _)?;
        let (end, ended) = oneshot::channel();
        let driven = Arc::clone(&core);
        runtime.spawn(async move {
            driver.run(driven).await;
            let _ = end.send(());
        });
        let station: Arc<dyn Station> = core;
        let tasks = Tasks::new(config.node, config.seed, runtime);
        let host = ShmHost::new(tasks, Arc::clone(&station));
        let nodes = config.nodes;
        Ok(Self { host, station, nodes, ended: Some(ended), rendezvous: Some(rendezvous) })
    }

    /// The application's side of the NIC.
    #[must_use]
    pub fn host(&self) -> ShmHost {
        self.host.clone()
    }

    /// Gives the NIC a turn: what has arrived is handled, what is due happens. Whether there was
    /// anything.
    pub fn poll(&self) -> bool {
        self.station.poll()
    }

    /// Waits until all other nodes of the fabric are there.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn meet(&self) {
        let others = usize::from(self.nodes) - 1;
        let mut peers = self.peers();
        // The sender lives as long as this.
        let _ = peers.wait_for(|peers| peers.len() == others).await;
    }

    /// The peers that are there, in order: it changes when one comes or goes.
    #[must_use]
    pub fn peers(&self) -> watch::Receiver<Vec<NodeId>> {
        self.station.peers()
    }

    /// Serves this NIC's ports to other processes, until the result is dropped. The processes that
    /// have them run the NIC no more: that does the server, and the runtime's task.
    ///
    /// # Errors
    /// [`ServeError`] says what to do about it.
    pub fn serve_ports(&self, config: ServerConfig) -> Result<PortServer, ServeError> {
        PortServer::open(config, Arc::clone(&self.station) as _)
    }

    /// What has gone through the NIC.
    #[must_use]
    pub fn counters(&self) -> ShmCounters {
        self.station.counters()
    }

    /// Stops the NIC, after its firmware's last turn: its ports are closed, and its place in the
    /// fabric is free when this returns. The result is the last of its counters.
    ///
    /// # Cancel safety
    /// Dropping the future stops the NIC just the same.
    pub async fn shutdown(mut self) -> ShmCounters {
        self.station.end();
        if let Some(ended) = self.ended.take() {
            // An error means that the runtime shuts down, and the driver with it.
            let _ = ended.await;
        }
        self.rendezvous = None;
        self.counters()
    }
}

impl Drop for ShmNic {
    fn drop(&mut self) {
        self.station.end();
    }
}
