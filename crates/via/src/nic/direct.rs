//! The interfaces whose data goes past the NIC, as their host keeps them.

mod exposed;
mod way;

use std::task::Waker;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::region::Rights;

use super::{MAX_SEGMENTS, Nic, NicError, PostFailed, ViId, WorkQueue};
use crate::attributes::{Reliability, ViAttributes, ViState};
use crate::command::{DISCONNECT, Ends, about};
use crate::descriptor::{Descriptor, Transfer};
use crate::direct::{Arrival, Fields, Kind, Lane, Refused};
use crate::memory::Memory;
use crate::outcome::{AsyncError, DescriptorError};
use exposed::Exposed;
use way::{Books, Fault, Way, failed};

/// Looks at the lane for one at the port, where only news of connections can come from there.
const LOOKS_PER_PORT: u32 = 1024;
/// Frames that are taken before a connection is over, more than lanes hold: others may send without end.
const MAX_UNDER_WAY: u32 = 1 << 20;

/// All of them, and what carries their data.
#[derive(Debug)]
pub(super) struct Direct {
    lane: Box<dyn Lane>,
    ways: Vec<Option<Way>>,
    /// Some have sends or a greeting that did not find room.
    are_waiting: bool,
    /// The NIC has to be told of an end.
    owe_ends: bool,
    looks: u32,
    exposed: Exposed,
}

impl Direct {
    pub(super) fn new(lane: Box<dyn Lane>) -> Self {
        Self {
            lane,
            ways: Vec::new(),
            are_waiting: false,
            owe_ends: false,
            looks: 0,
            exposed: Exposed::default(),
        }
    }

    /// Lets the other ends of direct interfaces with its tag write memory.
    pub(super) fn expose(&mut self, memory: &Memory) {
        self.exposed.insert(memory);
    }

    /// Has `waker` woken once there is anything to poll for; `false` if there may be already.
    pub(super) fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        !self.owe_ends && self.lane.arm_wakeup(waker)
    }

    fn way(&mut self, vi: PortId) -> Option<&mut Way> {
        self.ways.get_mut(vi.index())?.as_mut()
    }

    /// Takes what has come next, and sends what waits; how much that was.
    #[inline]
    fn poll(&mut self, books: &mut Books<'_>) -> u64 {
        let mut events = 0;
        match self.lane.poll() {
            None => {}
            Some(Arrival::Left(node)) => {
                events = 1;
                self.on_left(books, node);
            }
            Some(Arrival::Frame { from, words, payload }) => {
                events = 1;
                // Nobody of ours sends anything but what has fields, to what there is.
                if let Some(fields) = Fields::of(words)
                    && let vi = PortId(fields.vi)
                    && let Some(way) = self.ways.get_mut(vi.index()).and_then(Option::as_mut)
                {
                    if let Err(fault) = way.on_frame(books, from, &fields, payload) {
                        self.break_way(books, vi, fault);
                    }
                    self.are_waiting |= matches!(fields.kind, Kind::Greeting | Kind::Ask);
                }
            }
            Some(Arrival::Shown { from, name: [name, asker], memory }) => {
                events = 1;
                if let Some(way) =
                    self.ways.get_mut((asker & 0xffff) as usize).and_then(Option::as_mut)
                {
                    way.on_shown(from, (asker >> 16) as u16, name, memory);
                    self.are_waiting = true;
                }
            }
        }
        if self.are_waiting { events + self.pump_all(books) } else { events }
    }

    /// Sends what found no room before; how many frames that were.
    fn pump_all(&mut self, books: &mut Books<'_>) -> u64 {
        self.are_waiting = false;
        (0..self.ways.len()).map(|at| self.pump(books, PortId(at as u16))).sum()
    }

    /// Sends what an interface has to send, as far as there is room; how many frames that were.
    fn pump(&mut self, books: &mut Books<'_>, vi: PortId) -> u64 {
        let Self { lane, ways, are_waiting, exposed, .. } = self;
        let Some(way) = ways.get_mut(vi.index()).and_then(Option::as_mut) else { return 0 };
        let mut frames = 0;
        match way.pump(&mut **lane, books, exposed, vi, &mut frames) {
            Ok(()) => {}
            Err(Refused::Full) => *are_waiting = true,
            Err(Refused::Gone) => self.break_way(books, vi, None),
        }
        frames
    }

    /// The NIC has connected an interface.
    fn link(&mut self, books: &mut Books<'_>, vi: PortId, ends: Ends) {
        let Some(way) = self.way(vi) else { return };
        way.is_open = way.greetings.get(&ends.node) == Some(&ends.connection);
        way.has_greeted = false;
        way.ends = Some(ends);
        self.pump(books, vi);
    }

    /// A process is gone, and with it all connections to it.
    fn on_left(&mut self, books: &mut Books<'_>, node: NodeId) {
        for at in 0..self.ways.len() {
            let Some(way) = &mut self.ways[at] else { continue };
            way.greetings.remove(&node);
            let ends = way.ends;
            if ends.is_some_and(|ends| ends.node == node) {
                self.break_way(books, PortId(at as u16), None);
            }
        }
    }

    /// A connection is over that nobody has ended: what was posted comes back, and both sides are told.
    fn break_way(&mut self, books: &mut Books<'_>, vi: PortId, fault: Fault) {
        let Some(way) = self.way(vi) else { return };
        if way.flush(books, vi) {
            way.owes_end = true;
            self.owe_ends = true;
            if let Some(id) = books.queues.id(vi) {
                books.queues.set_state(id, ViState::Error);
                let errors = fault.into_iter().chain([AsyncError::ConnectionLost]);
                books.errors.extend(errors.map(|error| (id, error)));
            }
        }
    }
}

/// Whether an interface may be direct.
pub(super) const fn check(attributes: &ViAttributes) -> Result<(), NicError> {
    match attributes.reliability {
        Reliability::ReliableDelivery if !attributes.rdma_read => Ok(()),
        _ => Err(NicError::NotDirect),
    }
}

impl Nic {
    fn books(&mut self) -> Option<(&mut Direct, Books<'_>)> {
        let Self { queues, errors, direct, .. } = self;
        Some((direct.as_mut()?, Books { queues, errors }))
    }

    pub(super) fn is_direct(&mut self, vi: ViId) -> bool {
        self.direct.is_some() && self.queues.of(vi).is_ok_and(|queues| queues.attributes.direct)
    }

    /// Takes what has come next past the NIC; whether that was anything.
    #[inline]
    pub(super) fn poll_direct(&mut self) -> bool {
        let Some((direct, mut books)) = self.books() else { return false };
        let events = direct.poll(&mut books);
        let owe_ends = std::mem::take(&mut direct.owe_ends);
        self.handled += events;
        if owe_ends {
            self.say_ends();
        }
        events > 0
    }

    /// Whether it is the port's turn, where only news of connections can come from there: one command,
    /// which asks for the next error, is always under way.
    pub(super) fn is_port_due(&mut self) -> bool {
        let Some(direct) = &mut self.direct else { return true };
        direct.looks = direct.looks.wrapping_add(1);
        direct.looks.is_multiple_of(LOOKS_PER_PORT) || self.port.outstanding() > 1
    }

    /// Tells the NIC which connections are over. One that it could not be told of is told of later.
    fn say_ends(&mut self) {
        let Some(direct) = &self.direct else { return };
        for at in 0..direct.ways.len() {
            let way = self.direct.as_mut().and_then(|direct| direct.ways[at].as_mut());
            let Some(way) = way.filter(|way| way.owes_end) else { continue };
            way.owes_end = false;
            let command = about(PortId(at as u16), DISCONNECT, 0);
            if self.start_unwatched(command).is_err()
                && let Some(direct) = &mut self.direct
                && let Some(way) = direct.ways[at].as_mut()
            {
                (way.owes_end, direct.owe_ends) = (true, true);
            }
        }
    }

    /// An interface was made, and is direct.
    pub(super) fn add_direct(&mut self, vi: ViId, attributes: ViAttributes) {
        let Some(direct) = &mut self.direct else { return };
        let at = vi.number.index();
        if at >= direct.ways.len() {
            direct.ways.resize_with(at + 1, || None);
        }
        direct.ways[at] = Some(Way::new(attributes));
    }

    /// An interface was unmade.
    pub(super) fn remove_direct(&mut self, vi: ViId) {
        if let Some(way) = self.direct.as_mut().and_then(|it| it.ways.get_mut(vi.number.index())) {
            *way = None;
        }
    }

    /// The NIC has connected an interface.
    pub(super) fn link_direct(&mut self, vi: PortId, ends: Ends) {
        if let Some((direct, mut books)) = self.books() {
            direct.link(&mut books, vi, ends);
        }
    }

    /// The host ends a connection, or the NIC tells that it is over: what was sent before that is in
    /// reach, and still comes. Whether there was one.
    pub(super) fn unlink_direct(&mut self, vi: PortId) -> bool {
        let mut looks = 0;
        while looks < MAX_UNDER_WAY && self.poll_direct() {
            looks += 1;
        }
        let Some((direct, mut books)) = self.books() else { return false };
        direct.way(vi).is_some_and(|way| way.flush(&mut books, vi))
    }

    pub(super) fn post_direct(
        &mut self,
        vi: ViId,
        queue: WorkQueue,
        descriptor: Descriptor,
    ) -> Result<(), PostFailed> {
        let (depth, owner) = (self.port.depth(), self.port.id());
        let waits = |direct: &mut Direct| direct.way(vi.number).is_some_and(|way| !way.is_open);
        if queue == WorkQueue::Send && self.direct.as_mut().is_some_and(waits) {
            // The greeting may be there.
            self.poll_direct();
        }
        let Some((direct, mut books)) = self.books() else {
            return Err(PostFailed { error: NicError::NoLane, descriptor });
        };
        let queues = match books.queues.of(vi) {
            Ok(queues) => queues,
            Err(error) => return Err(PostFailed { error, descriptor }),
        };
        let segments = descriptor.segments.len();
        if segments > MAX_SEGMENTS {
            let error = NicError::TooManySegments(segments);
            return Err(PostFailed { error, descriptor });
        }
        if queues.posted[queue as usize].len() >= depth {
            return Err(PostFailed { error: NicError::QueueFull, descriptor });
        }
        let wrong = refusal(&descriptor, queue, owner, &queues.attributes, queues.state);
        let posted = &mut queues.posted[queue as usize];
        let at = posted.next_number();
        posted.push(descriptor, None);
        let number = vi.number;
        if let Some(error) = wrong {
            books.queues.end(number, queue, at, failed(queue, error));
            // What was posted before comes back before.
            if queue == WorkQueue::Send && direct.way(number).is_some_and(|way| way.ends.is_some())
            {
                direct.break_way(&mut books, number, None);
            }
        } else if queue == WorkQueue::Send {
            direct.pump(&mut books, number);
        }
        Ok(())
    }
}

/// What is wrong with a descriptor, if anything is.
fn refusal(
    descriptor: &Descriptor,
    queue: WorkQueue,
    owner: PortId,
    attributes: &ViAttributes,
    state: ViState,
) -> Option<DescriptorError> {
    let is_posted_too_early = match queue {
        WorkQueue::Send => state != ViState::Connected,
        WorkQueue::Receive => state == ViState::Error,
    };
    if is_posted_too_early {
        return Some(DescriptorError::Flushed);
    }
    if queue == WorkQueue::Send && matches!(descriptor.transfer, Transfer::RdmaRead(_)) {
        return Some(DescriptorError::Format);
    }
    let rights = if queue == WorkQueue::Send { Rights::LOCAL_READ } else { Rights::LOCAL_WRITE };
    let may_touch =
        |segment: &crate::memory::Segment| segment.memory().is_of(owner, attributes.tag, rights);
    if !descriptor.segments.iter().all(may_touch) {
        return Some(DescriptorError::Protection);
    }
    let is_long = queue == WorkQueue::Send && descriptor.bytes() > attributes.max_transfer as usize;
    is_long.then_some(DescriptorError::Length)
}
