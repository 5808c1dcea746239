//! Consistency checks: of a single context, and between the two ends of each connection.

use midplane_simhw::frame::MAX_PAYLOAD;
use thiserror::Error;

use super::{
    FlightContext, FlightKind, LinkContext, PortContext, RemoteEnd, SendContext, ViContext,
};
use crate::attributes::{ViAttributes, ViState};
use crate::command::MAX_SEGMENTS;
use crate::firmware::{MAX_FLIGHTS, MAX_RESPONSES};
use crate::outcome::Operation;

/// An inconsistency in one process's context.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("interface {vi}: {what}")]
pub struct Inconsistency {
    /// The process's name of the interface.
    pub vi: u16,
    /// A description of the inconsistency.
    pub what: &'static str,
}

/// Why the contexts of a job's processes are no consistent cut.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// A process's context is inconsistent in itself.
    #[error("rank {rank}, {wrong}")]
    Rank {
        /// The rank of the process.
        rank: u16,
        /// The inconsistency in the process's context.
        wrong: Inconsistency,
    },
    /// An interface is connected with one that does not exist.
    #[error("rank {}, interface {}: its other end, interface {} of rank {}, is not there", .from.rank, .from.vi, .to.vi, .to.rank)]
    NoPeer {
        /// The interface whose other end is missing.
        from: RemoteEnd,
        /// The other end that it names.
        to: RemoteEnd,
    },
    /// An interface is connected with one that is not connected with it.
    #[error("rank {}, interface {}: its other end, interface {} of rank {}, is not connected with it", .from.rank, .from.vi, .to.vi, .to.rank)]
    OneSided {
        /// The interface whose other end is not connected with it.
        from: RemoteEnd,
        /// The other end that it names.
        to: RemoteEnd,
    },
    /// An interface has other attributes for its other end than that end has.
    #[error("rank {}, interface {}: it has other attributes for interface {} of rank {} than that interface has", .from.rank, .from.vi, .to.vi, .to.rank)]
    Attributes {
        /// The interface that has other attributes for its other end.
        from: RemoteEnd,
        /// The other end that it names.
        to: RemoteEnd,
    },
    /// The frame counts of a connection's two ends contradict each other.
    #[error(
        "interface {} of rank {} has sent {to_rank} frames {base} to {next} that are not acknowledged, and interface {} of rank {to_rank} expects frame {expected}",
        .from.vi, .from.rank, .to.vi, to_rank = .to.rank
    )]
    Counts {
        /// The sender's interface.
        from: RemoteEnd,
        /// The receiver's interface.
        to: RemoteEnd,
        /// The sender's first frame that is not acknowledged.
        base: u32,
        /// The number of the sender's next new frame.
        next: u32,
        /// The frame that the receiver accepts next.
        expected: u32,
    },
    /// The sender does not continue a message at the byte that the receiver expects.
    #[error(
        "interface {} of rank {} has {came} bytes of a message, and interface {} of rank {} continues at byte {goes_on}",
        .to.vi, .to.rank, .from.vi, .from.rank
    )]
    HalfArrived {
        /// The sender's interface.
        from: RemoteEnd,
        /// The receiver's interface.
        to: RemoteEnd,
        /// Bytes of the message that the receiver has.
        came: u32,
        /// The byte at which the sender continues.
        goes_on: u32,
    },
}

impl<P> PortContext<P> {
    /// Checks that the numbers of each interface agree with its queues.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        for (vi, next) in self.vis.iter().zip(self.vis.iter().skip(1)) {
            if vi.name >= next.name {
                return Err(Inconsistency {
                    vi: next.name,
                    what: "it is out of order, or present twice",
                });
            }
        }
        let mut cookies: Vec<u64> = self.cookies().collect();
        cookies.sort_unstable();
        let twice = cookies.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        for vi in &self.vis {
            let has = |cookie: u64| {
                vi.sends.iter().any(|work| work.cookie == cookie)
                    || vi.receives.iter().any(|work| work.cookie == cookie)
            };
            if twice.is_some_and(has) {
                return Err(Inconsistency {
                    vi: vi.name,
                    what: "one of its descriptors is present twice",
                });
            }
            vi.validate().map_err(|what| Inconsistency { vi: vi.name, what })?;
        }
        match self.errors.iter().find(|(vi, _)| self.vi(*vi).is_none()) {
            Some((vi, _)) => {
                Err(Inconsistency { vi: *vi, what: "an error names it, and it does not exist" })
            }
            None => Ok(()),
        }
    }
}

impl<P> ViContext<P> {
    fn validate(&self) -> Result<(), &'static str> {
        if self.gate.lent[0] && !self.sends.is_empty()
            || self.gate.lent[1] && !self.receives.is_empty()
        {
            return Err("its process has a queue of which the NIC has descriptors");
        }
        if self.state == ViState::ConnectPending {
            return Err("a connection is being made");
        }
        if self.link.is_some() != (self.state == ViState::Connected) {
            return Err("its state and its connection contradict each other");
        }
        if self.link.is_none() && !self.sends.is_empty() {
            return Err("it has sends and no connection");
        }
        if !self.sends.iter().all(|work| work.is_sound()) {
            return Err("a send's bytes are not those of its memory");
        }
        let many = |pieces: &[super::Piece]| pieces.len() > MAX_SEGMENTS;
        if self.receives.iter().any(|work| many(&work.pieces) || length(&work.pieces).is_none()) {
            return Err("a receive has more memory than a descriptor may have");
        }
        match &self.link {
            Some(link) if self.attributes.reliability.is_reliable() => self.check_reliable(link),
            Some(link) => self.check_unreliable(link),
            None if self.cut | self.acknowledged | self.withdrawn != 0 => {
                Err("it counts sends that it does not have")
            }
            None => Ok(()),
        }
    }

    fn check_reliable(&self, link: &LinkContext<P>) -> Result<(), &'static str> {
        let ended = link.flights.iter().filter(|flight| flight.ends).count();
        let (cut, acknowledged) = (self.cut as usize, self.acknowledged as usize);
        // A send that could not start is done, and may be among those that were cut.
        if cut > self.sends.len() || acknowledged > cut || self.withdrawn != 0 {
            return Err("it counts sends that it does not have");
        }
        let begun = self.sends[acknowledged..cut].iter().filter(|work| !work.never_begins());
        if begun.count() != ended {
            return Err("its frames on the way are not those of its sends");
        }
        if link.flights.len() > MAX_FLIGHTS || link.responses.len() > MAX_RESPONSES {
            return Err("it has more frames or reads under way than allowed");
        }
        if !link.flights.iter().all(FlightContext::is_sound) {
            return Err("a frame on the way contradicts its kind");
        }
        if link.responses.iter().any(|response| response.sent > response.piece.length) {
            return Err("more bytes were sent for a read than it requests");
        }
        Ok(())
    }

    fn check_unreliable(&self, link: &LinkContext<P>) -> Result<(), &'static str> {
        let cut = self.cut as usize;
        let undone = self.sends.iter().take(cut).filter(|work| work.done.is_none()).count();
        let counts = undone == self.withdrawn as usize && self.acknowledged == 0;
        if cut > self.sends.len() || !counts {
            return Err("it counts sends that it does not have");
        }
        if !link.flights.is_empty() || !link.responses.is_empty() {
            return Err("it is unreliable and has frames that may be sent again, or reads");
        }
        Ok(())
    }
}

impl SendContext {
    fn is_sound(&self) -> bool {
        let whole = self.never_begins() || length(&self.pieces) == Some(self.length);
        whole
            && self.pieces.len() <= MAX_SEGMENTS
            && self.moved <= self.length
            && !matches!(self.operation, Operation::Receive | Operation::RemoteRdmaWrite)
    }

    /// Returns whether it was invalid when posted, and only waits for those before it to complete.
    const fn never_begins(&self) -> bool {
        matches!(self.done, Some(Err(_))) && self.moved == 0
    }
}

impl FlightContext {
    fn is_sound(&self) -> bool {
        let has_bytes = self.source.is_some_and(|source| source.length > 0);
        let fits = self.source.is_none_or(|source| source.length as usize <= MAX_PAYLOAD);
        fits && match self.kind {
            FlightKind::ReadRequest => !has_bytes,
            FlightKind::ReadResponse => !self.ends,
            FlightKind::Send | FlightKind::Write => self.ends == self.last,
        }
    }
}

fn length(pieces: &[super::Piece]) -> Option<u32> {
    pieces.iter().try_fold(0_u32, |sum, piece| {
        piece.offset.checked_add(piece.length)?;
        sum.checked_add(piece.length)
    })
}

/// Checks that the contexts of a job's processes, by rank, are a consistent cut. Each must be consistent in
/// itself, and the two ends of each connection with each other, so that no message is lost or received twice.
///
/// # Errors
/// The first [`Violation`].
pub fn check_cut(ranks: &[PortContext]) -> Result<(), Violation> {
    for (rank, context) in (0..).zip(ranks) {
        context.validate().map_err(|wrong| Violation::Rank { rank, wrong })?;
    }
    for (rank, context) in (0..).zip(ranks) {
        for vi in &context.vis {
            let Some(link) = &vi.link else { continue };
            let (from, to) = (RemoteEnd { rank, vi: vi.name }, link.peer);
            let far = ranks.get(usize::from(to.rank)).and_then(|context| context.vi(to.vi));
            let far = far.ok_or(Violation::NoPeer { from, to })?;
            let back = far.link.as_ref().filter(|back| back.peer == from);
            let back = back.ok_or(Violation::OneSided { from, to })?;
            if link.remote != far.attributes || !agree(&vi.attributes, &far.attributes) {
                return Err(Violation::Attributes { from, to });
            }
            // Only the process's own half says what it has received over its rings.
            if !far.gate.lent[1] {
                check_progress(vi, link, back.expected, back.arriving, (from, to))?;
            }
        }
    }
    Ok(())
}

fn agree(one: &ViAttributes, other: &ViAttributes) -> bool {
    one.reliability == other.reliability && one.max_transfer == other.max_transfer
}

/// Checks that the sender continues at the frame and the byte that the receiver expects.
fn check_progress(
    vi: &ViContext,
    link: &LinkContext,
    expected: u32,
    arriving: Option<u32>,
    (from, to): (RemoteEnd, RemoteEnd),
) -> Result<(), Violation> {
    let (base, next) = (link.base, link.next());
    if !vi.attributes.reliability.is_reliable() {
        // Frames may be lost; but none can have arrived before it was sent.
        let ahead = expected.wrapping_sub(next);
        let is_past = ahead == 0 || ahead >= 1 << 31;
        return if is_past {
            Ok(())
        } else {
            Err(Violation::Counts { from, to, base, next, expected })
        };
    }
    let taken = expected.wrapping_sub(base) as usize;
    if taken > link.flights.len() {
        return Err(Violation::Counts { from, to, base, next, expected });
    }
    let of_message =
        |flight: &&FlightContext| matches!(flight.kind, FlightKind::Send | FlightKind::Write);
    let goes_on = match link.flights[taken..].iter().find(of_message) {
        // Only the first frame of a write has its offset in the message.
        Some(flight) if flight.first => 0,
        Some(flight) if flight.kind == FlightKind::Write => arriving.unwrap_or(0),
        Some(flight) => flight.offset,
        None => match vi.sends.get(vi.cut as usize) {
            Some(work) if work.operation != Operation::RdmaRead => work.moved,
            _ => vi.gate.begun,
        },
    };
    let came = arriving.unwrap_or(0);
    if came != goes_on { Err(Violation::HalfArrived { from, to, came, goes_on }) } else { Ok(()) }
}
