//! Dials: which transports were tried, in which order, and how each attempt ended.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::lock::lock;
use tokio::sync::Notify;

use super::{Session, TransportKind};
use crate::wire::tcp::{Config, Failed, connect};

/// Time for which UDP is tried alone before TCP is tried as well: 300 ms. Three dials over UDP fit into it.
const HEAD_START: Duration = Duration::from_millis(300);

/// An attempt to reach a peer over one transport.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Attempt {
    /// The transport was not tried.
    #[default]
    None,
    /// The peer was dialed, and has not answered.
    UnderWay,
    /// The peer has answered: this transport carries the session.
    Answered,
    /// The peer has another key, or one side has none.
    KeyMismatch,
    /// The peer can't be reached over this transport, for this reason.
    Failed(String),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("not tried"),
            Self::UnderWay => f.write_str("no answer yet"),
            Self::Answered => f.write_str("answered"),
            Self::KeyMismatch => fmt::Display::fmt(&Failed::KeyMismatch, f),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The present state of a dial's attempts; outlives its session.
#[derive(Debug, Default)]
pub struct Attempts {
    state: Mutex<[Attempt; 2]>,
    /// Notified when UDP has answered or failed.
    is_udp_over: Notify,
}

impl Attempts {
    /// Returns the attempt over UDP.
    #[must_use]
    pub fn udp(&self) -> Attempt {
        lock(&self.state)[0].clone()
    }

    /// Returns the attempt over TCP.
    #[must_use]
    pub fn tcp(&self) -> Attempt {
        lock(&self.state)[1].clone()
    }

    pub(super) fn set_udp(&self, attempt: Attempt) {
        let is_over = attempt != Attempt::UnderWay;
        lock(&self.state)[0] = attempt;
        if is_over {
            self.is_udp_over.notify_one();
        }
    }

    fn set_tcp(&self, attempt: Attempt) {
        lock(&self.state)[1] = attempt;
    }
}

/// Connects over TCP: at once if UDP was not tried, otherwise if UDP has not answered within its head start.
pub(super) async fn over_tcp(
    session: Arc<Session>,
    attempts: Arc<Attempts>,
    to: SocketAddr,
    config: Config,
) {
    if attempts.udp() != Attempt::None {
        let _ = tokio::time::timeout(HEAD_START, attempts.is_udp_over.notified()).await;
    }
    if attempts.udp() == Attempt::Answered || session.ended().is_some() {
        return session.on_tcp_failed();
    }
    attempts.set_tcp(Attempt::UnderWay);
    match connect(to, &config).await {
        Ok(connection) => {
            let is_adopted = session.adopt(connection, TransportKind::Tcp(to));
            // If not adopted, UDP has answered meanwhile.
            attempts.set_tcp(if is_adopted { Attempt::Answered } else { Attempt::None });
        }
        Err(error) => {
            attempts.set_tcp(match error {
                Failed::KeyMismatch => Attempt::KeyMismatch,
                error => Attempt::Failed(error.to_string()),
            });
            session.on_tcp_failed();
        }
    }
}
