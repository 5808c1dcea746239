//! The services that a node offers.

use std::collections::BTreeMap;
#[cfg(feature = "discovery-gossip")]
use std::collections::BTreeSet;
use std::sync::Arc;

use midplane_via::session::Stream;
use tokio::sync::mpsc;

use super::Shared;
use crate::error::{Error, ErrorKind};
use crate::member::MAX_SERVICES;
use crate::node::links::shown;
use crate::node::meter::{Role, Streams};

/// A stream that waits to be accepted.
#[derive(Debug)]
pub(in crate::node) struct Accepted {
    pub(in crate::node) stream: Stream,
    pub(in crate::node) id: u64,
    pub(in crate::node) name: String,
}

/// A service that this node offers.
#[derive(Debug)]
pub(super) struct Offered {
    /// The value of `generation` when it was offered.
    pub(super) number: u64,
    pub(super) listener: mpsc::Sender<Accepted>,
    pub(super) served: Arc<Streams>,
}

impl Shared {
    /// Offers a service from now on; its streams go to `listener`. Returns the number by which to withdraw it. Fails if
    /// the node offers it already, offers too many, or was shut down.
    pub(in crate::node) fn offer(
        &self,
        service: &str,
        listener: mpsc::Sender<Accepted>,
    ) -> Result<u64, Error> {
        let mut state = self.state();
        if state.is_closed {
            return Err(crate::node::closed());
        }
        if state.listeners.contains_key(service) {
            let service = shown(service);
            let text =
                format!("this node offers {service:?} already: use that one, or drop it first");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        if state.hello.services.len() >= MAX_SERVICES {
            let text = format!("this node offers {MAX_SERVICES} services, the most: start another");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        let served = self.meter.streams(Role::Server, service);
        let number = state.generation;
        state.listeners.insert(service.to_owned(), Offered { number, listener, served });
        state.hello.services.push(service.to_owned());
        self.describe_to_all(state);
        Ok(number)
    }

    /// Withdraws a service, unless it was withdrawn before.
    pub(in crate::node) fn withdraw(&self, service: &str, number: u64) {
        let mut state = self.state();
        if state.listeners.get(service).is_none_or(|offered| offered.number != number) {
            return;
        }
        state.listeners.remove(service);
        state.hello.services.retain(|offered| offered != service);
        self.describe_to_all(state);
    }

    /// Returns the number of streams of each service that wait to be accepted.
    pub(in crate::node) fn waiting(&self) -> BTreeMap<String, usize> {
        let state = self.state();
        let waiting = state.listeners.iter().map(|(service, Offered { listener, .. })| {
            (service.clone(), listener.max_capacity() - listener.capacity())
        });
        waiting.collect()
    }

    /// Returns the services that this node offers.
    #[cfg(feature = "discovery-gossip")]
    pub(in crate::node) fn offered(&self) -> BTreeSet<String> {
        self.state().hello.services.iter().cloned().collect()
    }
}
