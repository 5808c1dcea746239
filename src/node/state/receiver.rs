//! Handles the events of a node's sessions: descriptions of peers, streams, and ends.

use std::sync::Arc;

use midplane_via::session::{self, Ended, Handler, Session, Stream};
use tokio::sync::mpsc;

use super::{Accepted, Shared, strangers};
use crate::member::{Hello, Unreadable};
use crate::node::meter::{Role, Watched, stream_span};

/// Handles the events of a node's sessions.
#[derive(Debug)]
pub(crate) struct Receiver(pub(crate) Arc<Shared>);

/// Closes the node when the driver's task is dropped, also at the end of its runtime, so that no task waits forever.
impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.meter.end();
        self.0.close();
    }
}

impl Handler for Receiver {
    fn on_accepted(&mut self, session: &Arc<Session>) {
        self.0.on_session(session);
    }

    fn on_hello(&mut self, session: &Arc<Session>, hello: &[u8]) {
        let hello = Hello::parse(hello);
        #[cfg(feature = "ofi")]
        let described = hello.as_ref().map(|hello| hello.ofi.clone()).unwrap_or_default();
        self.0.change(|state, now| {
            match hello {
                Ok(hello) => {
                    state.members.handle_transport(session.number(), session.transport());
                    self.0.meter.on_hello(session, &hello.name);
                    let refused = state.members.notice(now).is_some();
                    let proven = session.peer_key();
                    state.members.handle_hello(now, session.number(), hello, proven);
                    if let Some((by, why)) = state.members.notice(now).filter(|_| !refused) {
                        let why = strangers::refused(&state.hello.name, why);
                        tracing::error!("{by} refuses this node: {why}");
                    }
                }
                Err(why) => {
                    let transport = session.transport();
                    if let Unreadable::Version(version) = why {
                        tracing::warn!(?transport, version, "a peer speaks another version");
                    } else {
                        tracing::warn!(?transport, "a peer describes itself as no node does");
                    }
                    state.members.handle_unreadable(session.number(), why);
                }
            }
            state.review_name();
        });
        #[cfg(feature = "ofi")]
        self.0.improve(session, &described);
    }

    fn on_stream(
        &mut self,
        over: &Arc<Session>,
        service: &str,
        mut stream: Stream,
    ) -> Result<(), session::Refusal> {
        let state = self.0.state();
        let offered = state.listeners.get(service).ok_or(session::Refusal::NoService)?;
        let (listener, served) = (offered.listener.clone(), Arc::clone(&offered.served));
        // Refuses streams of unknown nodes, and of nodes whose name belongs to another key.
        let peer = state.members.peer_of(over.number()).ok_or(session::Refusal::NoService)?;
        let (id, name) = (peer.0, peer.1.to_owned());
        drop(state);
        let span = stream_span(&stream, Role::Server, service, &name);
        Watched::start(&mut stream, Arc::clone(&served), span);
        let sent = listener.try_send(Accepted { stream, id, name });
        let counted = if sent.is_ok() { &served.accepted } else { &served.refused };
        counted.add_one();
        sent.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => session::Refusal::TooMany,
            mpsc::error::TrySendError::Closed(_) => session::Refusal::NoService,
        })
    }

    fn on_goodbye(&mut self, session: &Arc<Session>) {
        self.0.change(|state, now| {
            state.members.handle_goodbye(now, session.number());
            state.review_name();
        });
    }

    fn on_ended(&mut self, session: &Arc<Session>, why: Ended) {
        self.0.meter.on_ended(session, why);
        let peer = self.0.change(|state, now| {
            let peer = state.members.peer_of(session.number()).map(|(id, _)| id);
            state.sessions.remove(&session.number());
            if let Some(peer) = state.members.handle_ended(now, session.number()) {
                tracing::debug!(peer, ?why, "a peer is gone");
            }
            state.review_name();
            peer
        });
        #[cfg(feature = "ofi")]
        self.0.on_link_ended(session, peer);
        #[cfg(not(feature = "ofi"))]
        let _ = peer;
    }
}
