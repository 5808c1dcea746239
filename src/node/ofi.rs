//! Sessions over libfabric: nodes that are connected over UDP or TCP switch to a NIC.
//!
//! A node sends the name of its endpoint to its peers. Of two nodes with the same provider, the one with the lower
//! number dials; new streams then use that session. Its handshake and seals are those of TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use midplane_ofi::provider::{Choice, OpenError, providers};
use midplane_ofi::streams::{Stream, Streams};
use midplane_simhw::lock::lock;
use midplane_via::wire::tcp;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::builder::NodeBuilder;
use super::host;
use super::state::Shared;
use super::transports::Transports;
use crate::error::{Error, ErrorKind};

/// The environment variable that chooses the provider.
const VARIABLE: &str = "MIDPLANE_OFI";
/// Prefixes of the names of hardware NICs' providers. The other providers are no better than UDP and shared memory.
const HARDWARE: [&str; 8] = ["cxi", "efa", "verbs", "opx", "psm3", "psm2", "usnic", "ucx"];
/// Limit of the time for which new streams wait for the session over libfabric with a new peer.
const AWAIT: Duration = Duration::from_millis(300);
/// Most peers whose endpoints are kept.
const MOST_KNOWN: usize = 4_096;
/// Pause before a peer is dialed again; it doubles up to the longest.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most concurrent handshakes with peers that have connected.
const MOST_GREETINGS: usize = 64;

/// A node's endpoint.
#[derive(Debug)]
pub(super) struct Ofi {
    streams: Streams,
    config: tcp::Config,
    /// Peers that are being dialed.
    dialing: Mutex<BTreeSet<u64>>,
    /// Peers with the same provider.
    known: Mutex<BTreeMap<u64, Known>>,
}

/// A peer with the same provider.
#[derive(Debug)]
struct Known {
    /// The name of the peer's endpoint.
    name: Vec<u8>,
    /// The end of the wait of new streams for the first session over libfabric.
    awaited_until: Instant,
}

impl Ofi {
    /// Opens a node's endpoint; `None` if the node may not use libfabric, or has no NIC for it.
    pub(super) async fn of(
        builder: &NodeBuilder,
        allowed: Transports,
    ) -> Result<Option<Arc<Self>>, Error> {
        if !allowed.ofi() || host::is_simulated() {
            return Ok(None);
        }
        if !allowed.udp() && !allowed.tcp() {
            let text =
                "nodes meet over `udp` or `tcp` before they use `ofi`: list one of them as well";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let own = builder.own.as_ref().map(|(own, _)| own.clone());
        let config = tcp::Config::default().key(builder.key.clone()).own_key(own);
        Self::open(builder.libfabric.as_deref(), config).await
    }

    /// Opens an endpoint of the chosen provider, or else of a hardware NIC; `None` if neither exists.
    async fn open(chosen: Option<&str>, config: tcp::Config) -> Result<Option<Arc<Self>>, Error> {
        let variable = std::env::var(VARIABLE).ok();
        let chosen = chosen.or(variable.as_deref()).map(str::parse::<Choice>).transpose();
        let invalid = |error| Error::new(ErrorKind::Config, format!("{VARIABLE}: {error}"));
        let chosen = chosen.map_err(invalid)?;
        let is_chosen = chosen.is_some();
        if !is_chosen && !has_devices() {
            return Ok(None);
        }
        // libfabric queries the system and its devices, which takes up to a second.
        let opening = spawn_blocking(move || match chosen {
            Some(choice) => Streams::open(&choice).map(Some),
            None => hardware()?.map(|choice| Streams::open(&choice)).transpose(),
        });
        let opened = match opening.await {
            Ok(opened) => opened,
            // The runtime is shutting down.
            Err(_) => Ok(None),
        };
        match opened {
            Ok(Some(streams)) => {
                let (dialing, known) = (Mutex::default(), Mutex::default());
                Ok(Some(Arc::new(Self { streams, config, dialing, known })))
            }
            Err(error) if is_chosen => Err(Error::new(ErrorKind::Config, error.to_string())),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::debug!(%error, "libfabric is not used");
                Ok(None)
            }
        }
    }

    /// Describes the endpoint for peers: the provider's name, a zero, the endpoint's name.
    pub(super) fn describe(&self) -> Vec<u8> {
        [self.streams.provider().as_bytes(), &[0], self.streams.name()].concat()
    }

    /// Returns the name of a peer's endpoint, if it has the same provider.
    fn name_of<'a>(&self, described: &'a [u8]) -> Option<&'a [u8]> {
        described.strip_prefix(self.streams.provider().as_bytes())?.strip_prefix(&[0])
    }

    /// Records that there is a session over libfabric with a peer.
    pub(super) fn on_session(&self, peer: u64) {
        if let Some(known) = lock(&self.known).get_mut(&peer) {
            known.awaited_until = Instant::now();
        }
    }

    /// Forgets a peer that has ended.
    pub(super) fn forget(&self, peer: u64) {
        lock(&self.known).remove(&peer);
    }

    /// Returns until when new streams to a peer wait for its session over libfabric.
    pub(super) fn awaits(&self, peer: u64) -> Option<Instant> {
        let until = lock(&self.known).get(&peer).map(|known| known.awaited_until);
        until.filter(|until| *until > Instant::now())
    }

    /// Handles the description of a peer without a session over libfabric. Dials the peer if this node is the dialer.
    pub(super) fn on_peer(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        peer: u64,
        described: &[u8],
        is_dialer: bool,
    ) {
        let Some(name) = self.name_of(described).map(<[u8]>::to_vec) else { return };
        let mut known = lock(&self.known);
        if known.len() >= MOST_KNOWN && !known.contains_key(&peer) {
            known.pop_first();
        }
        known.entry(peer).or_insert_with(|| Known { name, awaited_until: Instant::now() + AWAIT });
        drop(known);
        if is_dialer {
            self.dial(shared, peer, Duration::ZERO);
        }
    }

    /// Dials a peer after a pause, unless that is in progress, until it has a session over libfabric or has ended.
    pub(super) fn dial(self: &Arc<Self>, shared: &Arc<Shared>, peer: u64, pause: Duration) {
        if !lock(&self.dialing).insert(peer) {
            return;
        }
        let (this, shared, mut pause) = (Arc::downgrade(self), Arc::downgrade(shared), pause);
        tokio::spawn(async move {
            let mut has_begun = false;
            loop {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).clamp(PAUSE, LONGEST_PAUSE);
                let Some(this) = this.upgrade() else { return };
                let Some(name) = this.next_dial(&shared, peer) else { return };
                let stream = this.streams.connect(&name);
                match stream {
                    Ok(stream) => {
                        // After the first session, soon finds out whether it is still there.
                        if this.begin(stream, &shared, true).await
                            && !std::mem::replace(&mut has_begun, true)
                        {
                            pause = PAUSE;
                        }
                    }
                    Err(error) => tracing::debug!(peer, %error, "libfabric can't reach a peer"),
                }
            }
        });
    }

    /// Returns the endpoint of a peer to be dialed. `None` ends the dialing: the peer has a session, or one of the nodes
    /// has ended.
    fn next_dial(&self, shared: &Weak<Shared>, peer: u64) -> Option<Vec<u8>> {
        // Held while the sessions are read: the end of one either precedes that, or begins a new dialing.
        let mut dialing = lock(&self.dialing);
        let is_due = shared.upgrade().is_some_and(|shared| shared.lacks_libfabric(peer));
        let name = lock(&self.known).get(&peer).filter(|_| is_due).map(|known| known.name.clone());
        if name.is_none() {
            dialing.remove(&peer);
        }
        name
    }

    /// Creates a session over a stream, after its handshake.
    async fn begin(&self, stream: Stream, shared: &Weak<Shared>, is_first: bool) -> bool {
        let Some(sessions) = shared.upgrade().map(|shared| shared.sessions().clone()) else {
            return false;
        };
        let begun = sessions.over_stream(stream, &self.config, is_first).await;
        match &begun {
            Ok(session) => match shared.upgrade() {
                Some(shared) => shared.on_session(session),
                None => session.end(),
            },
            Err(error) => tracing::debug!(%error, "a handshake over libfabric has failed"),
        }
        begun.is_ok()
    }

    /// Accepts other nodes until the node ends.
    pub(super) async fn accept(self: Arc<Self>, shared: Weak<Shared>) {
        let greetings = Arc::new(tokio::sync::Semaphore::new(MOST_GREETINGS));
        while let Some(stream) = self.streams.accept().await {
            let Ok(permit) = Arc::clone(&greetings).acquire_owned().await else { return };
            let (this, shared) = (Arc::clone(&self), shared.clone());
            tokio::spawn(async move {
                this.begin(stream, &shared, false).await;
                drop(permit);
            });
        }
    }
}

/// Returns whether the system has a device of a hardware NIC; without one, libfabric is not even loaded.
fn has_devices() -> bool {
    let has_entries =
        |folder: &&str| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    ["/sys/class/infiniband", "/sys/class/cxi"].iter().any(has_entries)
}

/// Chooses the provider of a hardware NIC, if there is one.
fn hardware() -> Result<Option<Choice>, OpenError> {
    let is_hardware = |name: &str| HARDWARE.iter().any(|hardware| name.starts_with(hardware));
    let all = providers(&Choice::any())?;
    let first = all.into_iter().find(|provider| is_hardware(&provider.name));
    Ok(first.map(|provider| Choice::any().provider(provider.name).domain(provider.domain)))
}
