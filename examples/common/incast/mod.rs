//! Senders that share one receiver's port: one node's part in a run, in virtual time or over sockets.

pub(crate) mod fabrics;
pub(crate) mod mailbox;
pub(crate) mod run;
pub(crate) mod scenario;
pub(crate) mod setting;
