//! Tests of whole services in virtual time: a [`Sim`] runs the code of many hosts on a modelled network, from one seed.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! midplane::Sim::builder().port_buffer(32 * 1024).loss(0.01).check(|sim| {
//!     sim.host("orders", |node| async move {
//!         let mut listener = node.listen("orders").await?;
//!         loop {
//!             let (mut stream, _) = listener.accept().await?;
//!             tokio::spawn(async move { stream.write_all(b"ok").await });
//!         }
//!     });
//!     sim.client(|node| async move {
//!         let mut stream = node.connect("orders").await?;
//!         let mut answer = String::new();
//!         stream.read_to_string(&mut answer).await?;
//!         assert_eq!(answer, "ok");
//!         Ok(())
//!     });
//! })?;
//! # Ok::<_, midplane::sim::SimError>(())
//! ```
//!
//! The code of a host is plain tokio: it spawns tasks, sleeps, selects, and uses its [`Node`] as a live service does.
//! Each host has a runtime of its own, on one thread. Time advances only while all hosts wait: an idle hour costs no
//! real time. Tokio's timers fire at whole milliseconds, [`time::sleep`](crate::time::sleep) at its nanosecond. If
//! tasks of a host run for 20 s of real time without waiting, the run ends with an error.
//!
//! The same seed gives the same run, if everything that differs between runs comes from tokio, the host's node or
//! [`Sim`]'s seed. `tokio::net`, `tokio::fs` and blocking threads are not simulated: using them is an error or a panic.
//!
//! The following are not simulated either, and [`SimBuilder::check`] reports a different digest if they change what is
//! sent or when: the branch that `tokio::select!` polls first (write `biased;`, or build with `--cfg tokio_unstable`),
//! and the monotonic clock (`std::time::Instant`). Without the feature `deterministic`, so do the order of a `HashMap`,
//! the wall clock, and random numbers of the system. With it, on Linux, [`SimBuilder::check`] and [`SimBuilder::swarm`]
//! make these repeat.
//!
//! A run can be [traced](SimBuilder::trace): its packets for Wireshark; its packets, queues, faults, and the spans and
//! logs of the code for Perfetto. [`SimBuilder::check`] and [`SimBuilder::swarm`] run a failing seed once more, and
//! write its trace.

mod alone;
mod builder;
mod cluster;
mod error;
mod report;
mod script;
mod swarm;
mod trace;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::Node;
pub use builder::{DEFAULT_LIMIT, SimBuilder};
use cluster::Cluster;
pub use error::SimError;
pub use midplane_simhw::services::BoxError;
pub use report::{HostEnd, Report};
pub use script::At;
use script::{Action, Step};

/// The result of the code of a host.
pub type Result<T = ()> = std::result::Result<T, BoxError>;

/// The code of a host, which runs anew at each restart.
type Code = Arc<dyn Fn(Node) -> Pin<Box<dyn Future<Output = Result> + Send>> + Send + Sync>;

/// A host of a simulation.
#[derive(Clone)]
struct Spec {
    name: String,
    /// True for a client: the run ends when all clients have ended.
    is_client: bool,
    code: Code,
}

/// A simulated cluster. Add hosts and clients, write a script of faults, and [run](Sim::run) it.
pub struct Sim {
    config: SimBuilder,
    seed: u64,
    specs: Vec<Spec>,
    script: Vec<Step>,
    /// The trace to be written, if any.
    trace: Option<trace::Plan>,
    cluster: Option<Cluster>,
    /// Number of hosts, and of steps of the script, with which the cluster was started.
    started: (usize, usize),
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.specs.iter().map(|spec| &spec.name).collect();
        f.debug_struct("Sim")
            .field("seed", &self.seed)
            .field("hosts", &names)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// Returns the builder of a simulation. By default, the hosts are at one switch, with links of 1 Gb/s and 10 us.
    pub fn builder() -> SimBuilder {
        SimBuilder::default()
    }

    /// Returns the seed of this run, for the test's own random draws.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a host. Its code gets a [`Node`] of the host's name, and runs anew at each restart.
    ///
    /// If the code returns an error or panics, the run ends with that error.
    pub fn host<F, C>(&mut self, name: impl Into<String>, code: F) -> &mut Self
    where
        F: Fn(Node) -> C + Send + Sync + 'static,
        C: Future<Output = Result> + Send + 'static,
    {
        self.add(name.into(), false, code)
    }

    /// Adds a client, on a host `client-1`, `client-2`, and so on. The run ends when the code of all clients has ended.
    pub fn client<F, C>(&mut self, code: F) -> &mut Self
    where
        F: Fn(Node) -> C + Send + Sync + 'static,
        C: Future<Output = Result> + Send + 'static,
    {
        let number = self.specs.iter().filter(|spec| spec.is_client).count() + 1;
        self.add(format!("client-{number}"), true, code)
    }

    fn add<F, C>(&mut self, name: String, is_client: bool, code: F) -> &mut Self
    where
        F: Fn(Node) -> C + Send + Sync + 'static,
        C: Future<Output = Result> + Send + 'static,
    {
        let code: Code = Arc::new(move |node| Box::pin(code(node)));
        self.specs.push(Spec { name, is_client, code });
        self
    }

    /// Begins an entry of the script: the actions at this time of the run.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let mut sim = midplane::Sim::builder().build();
    /// sim.at(Duration::from_millis(20)).crash("kv-1").partition("kv-2", "kv-3");
    /// sim.at(Duration::from_millis(90)).restart("kv-1").heal("kv-2", "kv-3");
    /// ```
    pub fn at(&mut self, time: Duration) -> At<'_> {
        At::new(&mut self.script, time)
    }

    /// Runs until the code of all clients has ended; without a client, until the [limit](SimBuilder::limit). A client
    /// that the script [crashes](At::crash) has ended, unless the script restarts it later.
    ///
    /// # Errors
    /// [`SimError`] if a host's code fails, a client has not ended within the [limit](SimBuilder::limit), or the trace
    /// can't be written.
    pub fn run(&mut self) -> std::result::Result<Report, SimError> {
        let limit = self.config.limit;
        let has_clients = self.specs.iter().any(|spec| spec.is_client);
        let cluster = self.cluster()?;
        let is_over = cluster.run(limit)?;
        if !is_over && has_clients {
            return Err(cluster.time_is_over(limit));
        }
        cluster.report(true)
    }

    /// Runs for this time from the end of the last run, or until the code of all clients has ended.
    ///
    /// # Errors
    /// [`SimError`] if a host's code fails, or the trace can't be written.
    pub fn run_for(&mut self, time: Duration) -> std::result::Result<Report, SimError> {
        let cluster = self.cluster()?;
        let is_over = cluster.run(cluster.elapsed().saturating_add(time))?;
        cluster.report(is_over)
    }

    fn cluster(&mut self) -> std::result::Result<&mut Cluster, SimError> {
        let added = (self.specs.len(), self.script.len());
        if self.cluster.is_none() {
            let plan = self.trace.take();
            let cluster = Cluster::start(&self.config, self.seed, &self.specs, &self.script, plan)?;
            (self.cluster, self.started) = (Some(cluster), added);
        }
        if self.started != added {
            let text = "hosts, clients and the script are added before the first run";
            return Err(SimError::SetUp(text.into()));
        }
        Ok(self.cluster.as_mut().expect("it was started"))
    }
}
