//! Users of the system, as owners of jobs.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::message::ClientId;

/// A user of the system. All hosts that run jobs of this user have the same name and number for the user.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The name; the number in decimal digits if the user has no name.
    pub name: String,
    /// The user ID.
    pub uid: u32,
}

impl User {
    /// Most bytes of a name: Linux's `LOGIN_NAME_MAX`.
    pub(crate) const MOST_BYTES: usize = 256;

    /// Returns whether this user may end, signal, save and attach to a job of `owner`.
    pub(crate) fn may_control(&self, owner: &Self) -> bool {
        self.uid == 0 || self == owner
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A client's connection, and the user whose process has opened it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) user: User,
}
