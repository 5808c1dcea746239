//! The errors of searches that found no node.

use super::{Node, PeerInfo, links};
use crate::error::{Error, ErrorKind};

impl Node {
    /// Returns the error of a search that found no node. `was_refused` is true if a peer that offers the service has
    /// not accepted.
    pub(super) fn no_node_offers(&self, service: &str, was_refused: bool) -> Error {
        let peers = self.peers();
        // A refused node may have restarted, and its new refusal may not have arrived yet.
        let notice = self.0.shared.notice().map(|text| format!("; {text}")).unwrap_or_default();
        let is_busy = was_refused && notice.is_empty();
        if let Some(error) = refused_by(service, &peers).filter(|_| is_busy) {
            return error;
        }
        let asked = self.asked(&peers);
        let (service, hint) = (links::shown(service), links::hint(service, &peers));
        let (shared, is_alone) = (&self.0.shared, peers.is_empty());
        let kind = if !notice.is_empty() || (is_alone && shared.has_other_keys()) {
            ErrorKind::Key
        } else if is_alone && shared.has_other_versions() {
            ErrorKind::Version
        } else {
            ErrorKind::NoService
        };
        let cure = match kind == ErrorKind::NoService && !is_alone && hint.is_empty() {
            true => "; check the name, or start a node that offers it",
            false => "",
        };
        Error::new(kind, format!("no node offers {service:?}; {asked}{hint}{notice}{cure}"))
    }

    /// Lists the nodes that were asked without success, and those that could not be asked.
    fn asked(&self, peers: &[PeerInfo]) -> String {
        let asked: Vec<_> = peers
            .iter()
            .map(|peer| format!("{} (offers {})", peer.name, listed(&peer.services)))
            .collect();
        let unanswered = self.unanswered().into_iter();
        let unanswered: Vec<_> =
            unanswered.map(|one| format!("{} ({})", one.place, one.error)).collect();
        let asked = format!("asked {}", asked.join(", "));
        let failed = format!("could not ask {}", unanswered.join(", "));
        match (peers.is_empty(), unanswered.is_empty()) {
            (true, true) if !self.0.allowed.shm() => format!(
                "no node was found to ask: name a place of another node (`NodeBuilder::discover`); without the \
                 transport `shm` (allowed: {}), a node finds none of its host by itself",
                self.0.allowed
            ),
            (true, true) => {
                let cluster = self.0.shared.cluster();
                format!(
                    "no node was found to ask: start one on this host, as this user, in the cluster {cluster:?}, or \
                     name a place of another host's (`NodeBuilder::discover`)"
                )
            }
            (true, false) => format!("{failed}, and no other node was found"),
            (false, true) => asked,
            (false, false) => format!("{asked}; {failed}"),
        }
    }

    /// Returns the error of a search for a node by its name, or for its service of messages.
    pub(crate) fn not_found(&self, name: &str, error: &Error) -> Error {
        let is_busy = error.kind() == ErrorKind::Busy;
        if error.kind() != ErrorKind::NoService && !is_busy {
            return Error::new(error.kind(), error.to_string());
        }
        let peers = self.peers();
        let text = match peers.iter().any(|peer| peer.name == name) {
            true if is_busy => format!(
                "node {name:?} takes no messages now: it does not answer in time, or too many streams wait there; try \
                 again later"
            ),
            true => format!("node {name:?} does not receive messages: call `receive` there"),
            false => format!("no node is called {name:?}; {}", self.asked(&peers)),
        };
        Error::new(ErrorKind::NoService, text)
    }
}

fn listed(services: &[String]) -> String {
    let shown: Vec<_> = services.iter().map(|service| links::shown(service)).collect();
    if shown.is_empty() { "nothing".into() } else { shown.join(", ") }
}

/// Returns the error for a service that peers offer without accepting a stream; `None` if no peer offers it.
fn refused_by(service: &str, peers: &[PeerInfo]) -> Option<Error> {
    let offers = |peer: &&PeerInfo| peer.services.iter().any(|offered| offered == service);
    let names: Vec<_> = peers.iter().filter(offers).map(|peer| peer.name.as_str()).collect();
    let (shown, names) = (links::shown(service), (!names.is_empty()).then(|| names.join(", "))?);
    let text = format!(
        "{names} offers {shown:?} and has not accepted: too many streams wait there, or it does not answer in time; \
         try again later, or start another one"
    );
    Some(Error::new(ErrorKind::Busy, text))
}
