//! One Virtual Interface at its NIC: two queues and a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::region::{Access, RegionRef, Rights};
use midplane_simhw::time::Instant;

use super::fragments::Fragments;
use super::gate::Gate;
use super::message::Message;
use super::names::MemoryNames;
use super::window::{ReceiveWindow, SendWindow};
use crate::attributes::{ViAttributes, ViState};
use crate::command::{Ended, Ends, POST_RECEIVE, POST_SEND};
use crate::context::LinkContext;
use crate::outcome::{AsyncError, DescriptorError, Operation};

/// The memory of a descriptor.
#[derive(Clone, Debug)]
pub(super) enum Segments {
    One(RegionRef),
    Many(Box<[RegionRef]>),
}

impl Segments {
    pub(super) fn as_slice(&self) -> &[RegionRef] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// Returns the length of all segments in bytes; `None` if that exceeds 32 bits.
    pub(super) fn length(&self) -> Option<u32> {
        self.as_slice().iter().try_fold(0_u32, |sum, segment| sum.checked_add(segment.length))
    }

    /// Returns the memory from `offset` on within one segment, at most `most` bytes of it.
    pub(super) fn piece(&self, mut offset: u32, most: u32) -> Option<RegionRef> {
        for segment in self.as_slice() {
            if offset < segment.length {
                return segment.part(offset, most.min(segment.length - offset));
            }
            offset -= segment.length;
        }
        None
    }
}

/// A posted send, write or read.
#[derive(Debug)]
pub(super) struct SendWork {
    pub(super) cookie: u64,
    pub(super) operation: Operation,
    pub(super) segments: Segments,
    pub(super) length: u32,
    pub(super) immediate: Option<u32>,
    pub(super) remote: RegionRef,
    pub(super) fence: bool,
    /// Bytes that were cut into frames; for a read, bytes received.
    pub(super) moved: u32,
    pub(super) done: Option<Result<(), DescriptorError>>,
}

/// A posted receive descriptor.
#[derive(Debug)]
pub(super) struct ReceiveWork {
    pub(super) cookie: u64,
    pub(super) segments: Segments,
    pub(super) room: u32,
}

/// Memory that the other end reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    pub(super) region: RegionRef,
    pub(super) sent: u32,
}

/// A message that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    /// Bytes of the message received so far.
    pub(super) received: u32,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// The other end's numbers of its interface and of the connection.
    pub(super) vi: PortId,
    pub(super) connection: u16,
    pub(super) sending: SendWindow,
    pub(super) receiving: ReceiveWindow,
    /// The time of the last frame or message from the other end.
    pub(super) heard_at: Instant,
    pub(super) arriving: Option<Arriving>,
    pub(super) responses: VecDeque<Response>,
    /// The other end's attributes, which say whether its memory may be read and written.
    pub(super) remote: ViAttributes,
    /// True once the other end's repeated request for this connection was answered.
    pub(super) has_answered: bool,
}

impl Link {
    pub(super) fn new(
        now: Instant,
        node: NodeId,
        incarnation: Incarnation,
        (vi, connection): (PortId, u16),
        remote: ViAttributes,
    ) -> Self {
        Self {
            node,
            incarnation,
            vi,
            connection,
            sending: SendWindow::new(now),
            receiving: ReceiveWindow::default(),
            heard_at: now,
            arriving: None,
            responses: VecDeque::new(),
            remote,
            has_answered: false,
        }
    }
}

/// An event of a connection whose process was suspended: reported when the process resumes.
#[derive(Clone, Copy, Debug)]
pub(super) enum PendingEnd {
    /// The other end has ended the connection: the frame that it expected next, and what was wrong with it.
    Ended { expected: u32, error: u8 },
    /// The other end's node has failed or restarted.
    Lost,
}

/// The NIC's state of one Virtual Interface.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) number: PortId,
    /// The port's name of the interface: its number, unless it was restored under another one.
    pub(super) name: PortId,
    /// The port that owns it.
    pub(super) owner: PortId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    /// This NIC's number of the connection, or of the next one: frames of former connections have another.
    pub(super) connection: u16,
    pub(super) link: Option<Link>,
    pub(super) sends: VecDeque<SendWork>,
    /// Index in `sends` of the first that is not completely cut into frames.
    pub(super) cutting: usize,
    /// The sizes of the frames into which that one is cut.
    pub(super) fragments: Fragments,
    /// Index in `sends` of the first that is not completely acknowledged.
    pub(super) unacknowledged: usize,
    pub(super) receives: VecDeque<ReceiveWork>,
    /// Asynchronous errors to be reported.
    pub(super) errors: VecDeque<AsyncError>,
    /// True while its process is suspended.
    pub(super) is_stopped: bool,
    /// True if it has refused frames of a reliable connection while its process was suspended.
    pub(super) has_refused: bool,
    /// Sends of an unreliable interface that were withdrawn when it was stopped; they count as lost on the way.
    pub(super) withdrawn: u32,
    pub(super) pending_end: Option<PendingEnd>,
    /// Its port's names of memory, where they differ from the NIC's.
    pub(super) memory: Option<Arc<MemoryNames>>,
    /// A restored connection that waits for the address of its other end.
    pub(super) rejoins: Option<Box<LinkContext<()>>>,
    /// The frame that the other end of a restored connection accepts next.
    pub(super) taken: Option<u32>,
    /// The holders of its work queues.
    pub(super) gate: Gate,
}

impl Endpoint {
    pub(super) fn new(
        (number, connection): (PortId, u16),
        owner: PortId,
        attributes: ViAttributes,
    ) -> Self {
        Self {
            number,
            name: number,
            owner,
            attributes,
            state: ViState::Idle,
            connection,
            link: None,
            sends: VecDeque::new(),
            cutting: 0,
            fragments: Fragments::default(),
            unacknowledged: 0,
            receives: VecDeque::new(),
            errors: VecDeque::new(),
            is_stopped: false,
            has_refused: false,
            withdrawn: 0,
            pending_end: None,
            memory: None,
            rejoins: None,
            taken: None,
            gate: Gate::default(),
        }
    }

    /// Suspends the interface: no frame is accepted or sent; probes are answered with the number of the expected frame.
    pub(super) const fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Resumes the interface after a `pause`: the other end's silence meanwhile does not count.
    pub(super) fn resume(&mut self, nic: &mut Context<'_>, pause: Duration) {
        self.is_stopped = false;
        let taken = self.taken.take();
        if let Some(link) = &mut self.link {
            let now = nic.now();
            link.heard_at = (link.heard_at + pause).min(now);
            let next = taken.unwrap_or_else(|| link.sending.base());
            let arrived = link.sending.on_acknowledgement(now, next);
            link.sending.on_pause(now);
            self.on_arrived(nic, arrived.map_or(0, |arrived| arrived.ended));
        }
        // Reports the gap at once, so that the other end need not wait for its timeout.
        if std::mem::take(&mut self.has_refused)
            && let Some(link) = &mut self.link
        {
            link.receiving.report_gap();
            self.acknowledge(nic, false);
        }
        for _ in 0..std::mem::take(&mut self.withdrawn) {
            self.on_sent(nic, Ok(()));
        }
    }

    pub(super) const fn is_reliable(&self) -> bool {
        self.attributes.reliability.is_reliable()
    }

    /// Returns the access that descriptors of both ends have to this interface's memory.
    pub(super) const fn access(&self, rights: Rights) -> Access {
        Access { owner: Some(self.owner), tag: Some(self.attributes.tag), rights }
    }

    /// Translates a frame's name of memory into the NIC's.
    pub(super) fn real(&self, region: RegionRef) -> RegionRef {
        self.memory.as_ref().map_or(region, |names| names.real(region))
    }

    /// Connects the interface: descriptors posted before are sent now.
    pub(super) fn connect(&mut self, link: Link) {
        self.state = ViState::Connected;
        self.link = Some(link);
    }

    /// Returns both ends of its connection, if it has one, and the other end's attributes.
    pub(super) fn ends(&self) -> Option<(Ends, ViAttributes)> {
        let link = self.link.as_ref()?;
        let ends = Ends {
            connection: self.connection,
            node: link.node,
            remote_vi: link.vi,
            remote_connection: link.connection,
        };
        Some((ends, link.remote))
    }

    /// Returns the message that notifies the other end of the connection's end, if there is a connection. `error` is the
    /// error in the frame that is expected next.
    pub(super) fn end(&self, error: u8) -> Option<(NodeId, Message)> {
        let link = self.link.as_ref()?;
        let expected = link.receiving.settled();
        let (vi, connection) = (link.vi.0, link.connection);
        Some((link.node, Message::End { vi, connection, expected, error }))
    }

    /// Ends the connection: all posted descriptors complete, the first send with `first`.
    pub(super) fn flush(&mut self, nic: &mut Context<'_>, first: DescriptorError, state: ViState) {
        self.reset_gate(nic);
        self.link = None;
        self.rejoins = None;
        self.pending_end = None;
        self.taken = None;
        self.withdrawn = 0;
        self.connection = self.connection.wrapping_add(1);
        self.state = state;
        let mut error = first;
        for mut work in std::mem::take(&mut self.sends) {
            let outcome = work.done.take().unwrap_or(Err(error));
            if outcome.is_err() {
                error = DescriptorError::Flushed;
            }
            complete_send(nic, self.name, self.owner, &work, outcome);
        }
        self.cutting = 0;
        self.unacknowledged = 0;
        while let Some(work) = self.receives.pop_front() {
            let flushed = Err(DescriptorError::Flushed);
            self.complete_receive(nic, &work, Operation::Receive, flushed, 0, None);
        }
    }

    /// Completes the sends that are done, in order.
    pub(super) fn reap_sends(&mut self, nic: &mut Context<'_>) {
        while let Some(outcome) = self.sends.front().and_then(|work| work.done) {
            let Some(work) = self.sends.pop_front() else { return };
            self.cutting = self.cutting.saturating_sub(1);
            match (self.unacknowledged.checked_sub(1), &mut self.link) {
                (Some(rest), _) => self.unacknowledged = rest,
                // All data of a read may arrive before its request is acknowledged: frames before the request may still
                // be on their way into the other end's memory.
                (None, Some(link)) => link.sending.forget_end(),
                (None, None) => {}
            }
            complete_send(nic, self.name, self.owner, &work, outcome);
        }
    }

    pub(super) fn complete_receive(
        &self,
        nic: &mut Context<'_>,
        work: &ReceiveWork,
        operation: Operation,
        outcome: Result<(), DescriptorError>,
        length: u32,
        immediate: Option<u32>,
    ) {
        let ended = Ended {
            opcode: POST_RECEIVE,
            vi: self.name,
            cookie: work.cookie,
            operation,
            outcome,
            length,
            immediate,
        };
        nic.complete(self.owner, &ended.completion());
    }
}

fn complete_send(
    nic: &mut Context<'_>,
    vi: PortId,
    owner: PortId,
    work: &SendWork,
    outcome: Result<(), DescriptorError>,
) {
    let ended = Ended {
        opcode: POST_SEND,
        vi,
        cookie: work.cookie,
        operation: work.operation,
        outcome,
        length: if outcome.is_ok() { work.length } else { 0 },
        immediate: None,
    };
    nic.complete(owner, &ended.completion());
}
