//! Searches for unknown nodes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::ANSWER_WITHIN;
#[cfg(feature = "discovery-gossip")]
use super::gossip::Gossip;
use super::places::Places;
use super::state::Shared;
use crate::member::Target;

/// The time that other nodes have to answer once a suitable one has: a nearer one may follow.
const GRACE: Duration = Duration::from_millis(50);
/// The time for which a search continues after the last task waited for it: longer than the period of searches.
const SEEK: Duration = Duration::from_millis(1_500);

/// Searches for the nodes at the places of a node's discoveries; does not keep the node running.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) shared: Arc<Shared>,
    /// The address at which nodes of other hosts reach this one.
    pub(super) address: Option<SocketAddr>,
    pub(super) places: Arc<Places>,
    #[cfg(feature = "discovery-gossip")]
    pub(super) gossip: Option<Arc<Gossip>>,
}

impl Search {
    /// Dials places whose nodes are unknown, and nodes of this host that are known over a network only; of the places
    /// from gossip, only those whose nodes offer the service. Waits until these nodes have described themselves, or a
    /// short time longer than until `is_found` returns `true`. Returns whether it does, or new nodes were found.
    pub(super) async fn run(&self, service: &str, is_found: impl Fn() -> bool) -> bool {
        let shared = &self.shared;
        let local = || shared.network().local().into_iter().map(Target::Local);
        let mut places: BTreeSet<_> = local().collect();
        let reached = self.places.addresses(shared, self.address).await;
        places.extend(reached.addresses.into_iter().map(Target::Address));
        places.extend(self.gossiped(service).into_iter().map(Target::Address));
        let before = shared.known();
        shared.search(&places, reached.keys.clone(), SEEK);
        let mut until = Instant::now() + ANSWER_WITHIN;
        let mut is_repeated = false;
        loop {
            let changed = shared.changed.notified();
            if is_found() {
                until = until.min(Instant::now() + GRACE);
            }
            let is_over = !shared.is_expecting();
            if is_over || timeout_at(until, changed).await.is_err() {
                let (has_new, count) = (!shared.known().is_subset(&before), places.len());
                if has_new && !is_repeated {
                    // The new node may have started on this host after that was listed.
                    places.extend(local());
                }
                if places.len() == count {
                    return is_found() || has_new;
                }
                is_repeated = true;
                shared.search(&places, reached.keys.clone(), SEEK);
                until = Instant::now() + GRACE;
            }
        }
    }

    /// Returns the addresses of nodes that offer a service, from gossip.
    fn gossiped(&self, service: &str) -> BTreeSet<SocketAddr> {
        #[cfg(feature = "discovery-gossip")]
        if let Some(gossip) = &self.gossip {
            return gossip.search(service, SEEK, self.address);
        }
        let _ = service;
        BTreeSet::new()
    }
}
