//! Senders that share one receiver's port: one node's part in a run, in virtual time or over sockets.

pub mod fabrics;
pub mod run;
pub mod scenario;
pub mod setting;
