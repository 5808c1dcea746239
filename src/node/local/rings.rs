//! Finds the nodes of one host by names in the abstract namespace of Unix sockets.
//!
//! A node listens at `midplane/node/USER/CLUSTER/ID`, and the system lists such names in `/proc/net/unix`. When a
//! process ends, in any way, its names disappear. Containers find each other if they share the network namespace.
//!
//! Any user can listen at such a name. A name at which another user's process listens is not listed once a dial has
//! found this, so that many of them hide no node.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_simhw::shm::rings::{RingListener, RingPair, RingRequest, connect};
use midplane_via::session::{Session, Sessions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use crate::node::state::Shared;

/// Bytes of each ring between two nodes.
const RING: usize = 512 * 1024;
/// Most connections whose greeting is awaited at once, and the limit of time for each.
const GREETINGS: usize = 64;
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// Pause while connections wait and none can be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// The listener of a node.
pub(in crate::node) type Listening = AsyncFd<RingListener>;

/// The nodes of a cluster on this host.
#[derive(Debug)]
pub(in crate::node) struct Local {
    prefix: String,
    id: u64,
    /// The listed numbers at whose name another user's process listens.
    foreign: Mutex<BTreeSet<u64>>,
}

impl Local {
    pub(in crate::node) fn new(cluster: &str, id: u64) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { prefix: format!("midplane/node/{user}/{cluster}/"), id, foreign: Mutex::default() }
    }

    fn name(&self, id: u64) -> String {
        format!("{}{id:016x}", self.prefix)
    }

    /// Binds the listener that other nodes of this host connect to.
    pub(in crate::node) fn bind(&self, _: Option<SocketAddr>) -> io::Result<Listening> {
        let listener = RingListener::bind(self.name(self.id).as_bytes())?;
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        AsyncFd::with_interest(listener, Interest::READABLE)
    }

    /// Returns the nodes of the cluster that listen on this host now.
    pub(in crate::node) fn list(&self) -> BTreeSet<u64> {
        // Each line ends in the name, with `@` for the leading zero of an abstract name.
        let Ok(names) = std::fs::read_to_string("/proc/net/unix") else { return BTreeSet::new() };
        let ids = names.lines().filter_map(|line| {
            let (_, name) = line.rsplit_once('@')?;
            let id = name.strip_prefix(&self.prefix)?;
            u64::from_str_radix(id, 16).ok().filter(|number| self.name(*number) == name)
        });
        let ids: BTreeSet<u64> = ids.collect();
        let mut foreign = lock(&self.foreign);
        foreign.retain(|id| ids.contains(id));
        &ids - &foreign
    }

    /// Connects to a node.
    pub(in crate::node) fn dial(&self, sessions: &Sessions, id: u64) -> io::Result<Arc<Session>> {
        let pair = connect(self.name(id).as_bytes(), RING, self.id).inspect_err(|error| {
            if error.kind() == io::ErrorKind::PermissionDenied {
                lock(&self.foreign).insert(id);
            }
        })?;
        sessions.over_rings(pair, true)
    }
}

/// Accepts other nodes until `shared` is dropped.
pub(in crate::node) async fn accept(mut listener: Listening, shared: Weak<Shared>) {
    let greetings = Arc::new(Semaphore::new(GREETINGS));
    loop {
        let Ok(mut ready) = listener.readable_mut().await else { return };
        let (requests, is_drained) = ready.get_inner_mut().accept();
        if is_drained {
            ready.clear_ready();
        } else if requests.is_empty() {
            // Readiness is reported once: it must not be cleared while connections wait.
            match listener.get_ref().is_paused() {
                true => tokio::time::sleep(PAUSE).await,
                // All of these connections were refused.
                false => tokio::task::yield_now().await,
            }
        }
        for request in requests {
            let Ok(permit) = Arc::clone(&greetings).acquire_owned().await else { return };
            let shared = shared.clone();
            tokio::spawn(async move {
                let greeted = tokio::time::timeout(GREETING_WITHIN, greet(request)).await;
                drop(permit);
                if let (Ok(Ok(pair)), Some(shared)) = (greeted, shared.upgrade())
                    && let Ok(session) = shared.sessions().over_rings(pair, false)
                {
                    shared.on_session(&session);
                }
            });
        }
    }
}

/// Waits for the greeting of a node that has connected.
async fn greet(request: RingRequest) -> io::Result<RingPair> {
    #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
    let request = AsyncFd::with_interest(request, Interest::READABLE)?;
    loop {
        let mut ready = request.readable().await?;
        match request.get_ref().accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            greeted => return greeted.map(|(pair, _)| pair),
        }
    }
}
