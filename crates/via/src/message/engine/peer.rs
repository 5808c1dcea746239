//! An engine's state for another process.

use std::collections::{BTreeSet, VecDeque};

use super::flows::{Class, Flows, UnreportedCredit};
use super::hinted::Hinted;
use super::seeks::Seeks;
use crate::message::envelope::{Context, Envelope};
use crate::message::request::Request;

/// A rendezvous message whose bytes are being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) send: Request,
    /// The handle of the receiver's request.
    pub(super) receive: u64,
    pub(super) sent: usize,
    pub(super) wanted: usize,
}

/// Both directions between this process and another.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) known: bool,
    pub(super) lost: bool,
    /// True if the carrier refused a packet because the process was lost, and has not reported the loss yet.
    pub(super) refused: bool,
    /// The count of all losses when this process was last lost; 0 if it never was.
    pub(super) lost_at: u32,
    /// True if the process is in the list of those for which packets wait to be sent.
    pub(super) listed: bool,
    /// Number of the next matched packet to the process, and from it.
    pub(super) next_out: u32,
    pub(super) next_in: u32,
    /// True once the process has reported how much of its window this one may use.
    pub(super) open: bool,
    /// Bytes of the process's window that messages of this one have used in all; that they may use; and by class.
    pub(super) charged: u64,
    pub(super) limit: u64,
    pub(super) flows: Flows,
    /// Bytes of this process's window that the other's unexpected messages may use; `greeted`: this was reported.
    pub(super) window: u64,
    pub(super) greeted: bool,
    /// Bytes of this process's window that the other's messages have used in all; how many of them are free again;
    /// and how many of those were reported.
    pub(super) arrived: u64,
    pub(super) freed: u64,
    pub(super) reported: u64,
    pub(super) unreported: UnreportedCredit,
    /// Number of withdrawals that wait for their answer, and the withdrawals queued behind them.
    pub(super) withdrawing: usize,
    pub(super) withdrawals: VecDeque<Request>,
    /// Number of answers to the process's questions among `answers`, and to its notices.
    pub(super) owed: usize,
    pub(super) noticed: usize,
    /// Answers are sent first, then messages in their order, then data packets of rendezvous messages.
    pub(super) answers: VecDeque<Envelope>,
    pub(super) sends: VecDeque<Request>,
    pub(super) streams: VecDeque<Stream>,
    /// Messages to the process that wait here, and questions for messages that wait there.
    pub(super) hinted: Hinted,
    pub(super) seeks: Seeks,
    /// Contexts of collective operations that the process has left. For this process itself: contexts of recovery of
    /// the revoked communicators.
    pub(super) left: BTreeSet<Context>,
}

impl Link {
    /// Returns whether the process's window has room for `charge` more bytes.
    #[inline]
    pub(super) fn has_window(&self, class: Class, charge: usize) -> bool {
        self.charged.saturating_add(charge as u64) <= self.limit
            && self.flows.has_room(class, charge)
    }

    /// Returns the bytes of this process's window that the other's messages may use in all.
    pub(super) const fn granted(&self) -> u64 {
        self.window + self.reported
    }

    /// Returns whether a credit packet to the process is due.
    pub(super) fn owes_credit(&self) -> bool {
        self.known && !self.lost && (!self.greeted || self.unreported.due)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.answers.is_empty()
            && !self.owes_credit()
            && self.sends.is_empty()
            && self.streams.is_empty()
    }
}
