//! Connections between daemons. They deliver messages in order and without gaps, until they break or go silent.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use crate::node_core::message::{Down, Up};

/// An end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Child,
    Parent,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    /// The connection is open. This is the first message to the parent.
    Hello,
    Up(Up),
    Down(Down),
    /// The other end has closed the connection.
    Closed,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) child: u16,
    pub(super) parent: u16,
    /// For each end, true if it is open.
    open: [bool; 2],
    /// True if messages are lost without notification.
    pub(super) is_silent: bool,
    /// When the last message arrives at each end.
    last: [Instant; 2],
}

#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) connections: BTreeMap<u64, Connection>,
    next: u64,
    pub(super) lost: u64,
}

impl Network {
    pub(super) fn open(&mut self, now: Instant, child: u16, parent: u16) -> u64 {
        self.next += 1;
        let connection =
            Connection { child, parent, open: [true; 2], is_silent: false, last: [now; 2] };
        self.connections.insert(self.next, connection);
        self.next
    }

    /// Returns when a message that is sent now arrives at an end; `None` if it is lost.
    pub(super) fn send(
        &mut self,
        now: Instant,
        number: u64,
        to: End,
        dice: &mut Rng,
    ) -> Option<Instant> {
        let connection = self.connections.get_mut(&number)?;
        if connection.is_silent {
            self.lost += 1;
            return None;
        }
        let last = &mut connection.last[to as usize];
        let at = (now + Duration::from_micros(dice.between(20, 2_000))).max(*last);
        *last = at;
        Some(at)
    }

    /// Returns whether an end receives a message that arrives there.
    pub(super) fn receives(&mut self, number: u64, end: End) -> bool {
        let is_open = |it: &Connection| it.open[end as usize] && !it.is_silent;
        let receives = self.connections.get(&number).is_some_and(is_open);
        self.lost += u64::from(!receives);
        receives
    }

    /// Closes one end. Returns whether it was open.
    pub(super) fn close(&mut self, number: u64, end: End) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return false };
        let was_open = std::mem::replace(&mut connection.open[end as usize], false);
        if connection.open == [false; 2] {
            self.connections.remove(&number);
        }
        was_open
    }

    /// Returns the connection that a host has opened to its parent, if its end is open.
    pub(super) fn above(&self, host: u16) -> Option<u64> {
        let is_its = |it: &Connection| it.child == host && it.open[End::Child as usize];
        self.connections.iter().find(|(_, it)| is_its(it)).map(|(number, _)| *number)
    }

    /// Returns the open ends at a host.
    pub(super) fn ends_of(&self, host: u16) -> Vec<(u64, End)> {
        let mut ends = Vec::new();
        for (number, it) in &self.connections {
            for (at, end) in [(it.child, End::Child), (it.parent, End::Parent)] {
                if at == host && it.open[end as usize] {
                    ends.push((*number, end));
                }
            }
        }
        ends
    }
}
