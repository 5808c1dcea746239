//! Finds and reaches other nodes: those of this host, and those at addresses of the system's network.

#[cfg(any(not(target_os = "linux"), test))]
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "its tests alone run on Linux"))]
mod files;
#[cfg(target_os = "linux")]
mod rings;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use midplane_via::session::{Session, Sessions};

use super::host;
use super::network::{Network, Resolving};
use crate::member::Target;

#[cfg(not(target_os = "linux"))]
pub(super) use files::{Listening, Local, accept};
#[cfg(target_os = "linux")]
pub(super) use rings::{Listening, Local, accept};

/// The processes of this host, and the system's network.
#[derive(Debug)]
pub(super) struct System {
    pub(super) sessions: Sessions,
    pub(super) local: Option<Local>,
}

impl Network for System {
    fn local(&self) -> BTreeSet<u64> {
        self.local.as_ref().map(Local::list).unwrap_or_default()
    }

    fn dial(&self, target: Target) -> io::Result<Arc<Session>> {
        let unreachable = || io::Error::from(io::ErrorKind::Unsupported);
        match target {
            Target::Local(id) => {
                self.local.as_ref().ok_or_else(unreachable)?.dial(&self.sessions, id)
            }
            Target::Address(address) => self.sessions.dial(address).ok_or_else(unreachable),
        }
    }

    fn resolve<'a>(&'a self, place: &'a str) -> Resolving<'a> {
        Box::pin(host::resolve(place))
    }
}
