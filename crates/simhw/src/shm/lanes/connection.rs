//! The connection with one process, and those of later processes with its number.

use std::collections::VecDeque;

use super::Shown;
use super::inbox::MAX_SHOWN;
use crate::shm::rendezvous::Link;

/// The connection with one process.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    /// True once the connection has ended; frames published before are still handled.
    pub(super) is_leaving: bool,
    /// Bytes of the payload that was refused last, until there is space for it.
    pub(super) was_full: Option<usize>,
    /// The connections of later processes with the same number, oldest first: each is used once those before it have
    /// left.
    pub(super) successors: VecDeque<Successor>,
}

/// The connection of a process that waits until an earlier process with its number has left.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) link: Box<Link>,
    /// True if this connection has ended as well, or was refused.
    pub(super) has_left: bool,
    /// Memory that the process shares, until this connection is used.
    pub(super) shown: VecDeque<Shown>,
}

/// Most connections that wait for one process to leave. A further one is closed, and its process tries again.
pub(super) const MAX_SUCCESSORS: usize = 16;

impl Connection {
    pub(super) fn new(link: Link) -> Box<Self> {
        Box::new(Self { link, is_leaving: false, was_full: None, successors: VecDeque::new() })
    }

    /// Handles the connection of a later process with the same number: all earlier ones have ended.
    pub(super) fn on_joined(&mut self, link: Box<Link>) {
        self.on_left();
        if self.successors.len() < MAX_SUCCESSORS {
            self.successors.push_back(Successor { link, has_left: false, shown: VecDeque::new() });
        } else {
            link.refuse();
        }
    }

    /// Handles memory that is shared over the newest connection. Returns it if this is that connection; a successor keeps
    /// it. If the successors together share too much, the newest is disconnected.
    pub(super) fn on_shown(&mut self, shown: Shown) -> Option<Shown> {
        let kept: usize = self.successors.iter().map(|successor| successor.shown.len()).sum();
        // If the newest connection has ended, the memory is that of a process that was refused: this one, or a later one.
        let Some(newest) = self.successors.back_mut() else {
            return (!self.is_leaving).then_some(shown);
        };
        if newest.has_left {
            return None;
        }
        if kept < MAX_SHOWN {
            newest.shown.push_back(shown);
        } else {
            newest.link.refuse();
            newest.has_left = true;
        }
        None
    }

    /// Handles the end of the newest connection: this one, or that of the last successor.
    pub(super) fn on_left(&mut self) {
        self.is_leaving = true;
        if let Some(newest) = self.successors.back_mut() {
            newest.has_left = true;
        }
    }
}
