//! The shared media of the network: their stations and events.

use super::event_queue::{Event, EventQueue, Scheduled};
use super::network::Network;
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::medium::{Medium, MediumProfile, MediumStats, Outcome};
use crate::switch::Piece;
use crate::time::{Instant, nanos};
use crate::topology::{End, MediumId, Topology};

/// The shared media of a topology.
#[derive(Debug)]
pub(super) struct SharedMedia {
    media: Vec<Cable>,
    /// For each node, its medium and its station there.
    stations: Vec<Option<(MediumId, usize)>>,
}

#[derive(Debug)]
struct Cable {
    medium: Medium,
    /// The event of the medium's next change, and its instant (`due`).
    scheduled: Scheduled,
    due: Instant,
}

impl SharedMedia {
    pub(super) fn new(topology: &Topology, seed: u64) -> Self {
        let mut sizes = vec![0; topology.media.len()];
        let mut station = |medium: MediumId| {
            let size: &mut usize = &mut sizes[usize::from(medium.0)];
            *size += 1;
            (medium, *size - 1)
        };
        let hosts = topology.hosts.iter().map(|(up, _)| topology.links[up.0 as usize].to);
        let stations = hosts
            .map(|end| match end {
                End::Medium(medium) => Some(station(medium)),
                End::Nic(_) | End::Switch(_) => None,
            })
            .collect();
        let cable = |(number, profile): (usize, &MediumProfile)| Cable {
            medium: Medium::new(*profile, sizes[number], seed, &format!("medium {number}")),
            scheduled: Scheduled::NEVER,
            due: Instant::FAR_FUTURE,
        };
        Self { media: topology.media.iter().enumerate().map(cable).collect(), stations }
    }

    /// Returns whether the node is on `medium`.
    pub(super) fn is_on(&self, node: NodeId, medium: MediumId) -> bool {
        self.stations[node.index()].is_some_and(|(of, _)| of == medium)
    }

    /// Returns whether the node sends over a shared medium.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.stations[node.index()].is_some()
    }

    /// Returns `at`, or the next event of the node's medium if that is later: no frame leaves before it.
    pub(super) fn not_before(&self, node: NodeId, at: Instant) -> Instant {
        let Some((medium, _)) = self.stations[node.index()] else { return at };
        let cable = &self.media[usize::from(medium.0)];
        cable.medium.next_due().map_or(at, |due| due.max(at))
    }

    pub(super) fn stats(&self, medium: MediumId) -> Option<&MediumStats> {
        Some(self.media.get(usize::from(medium.0))?.medium.stats())
    }

    fn reschedule(&mut self, queue: &mut EventQueue, medium: MediumId) {
        let cable = &mut self.media[usize::from(medium.0)];
        let due = cable.medium.next_due().unwrap_or(Instant::FAR_FUTURE);
        if due != cable.due {
            queue.cancel(cable.scheduled);
            cable.due = due;
            cable.scheduled = queue.schedule(due, Event::Medium { medium });
        }
    }
}

impl Network {
    /// Submits all pieces of a frame to the station of its NIC.
    pub(super) fn share(&mut self, queue: &mut EventQueue, key: u32) {
        let frame = self.frames.at(key);
        let (medium, station) =
            self.shared.stations[frame.origin.index()].expect("the sender is on a medium");
        let (now, ready, pieces) = (queue.now(), frame.sent, frame.pieces);
        let (urgent, bytes) = (frame.header.is_urgent(), frame.header.frame_bytes() as u32);
        let cable = &mut self.shared.media[usize::from(medium.0)].medium;
        for index in 0..pieces {
            let bytes = self.framing.piece_bytes(bytes, u32::from(index));
            let piece = Piece { frame: key, index, last: index + 1 == pieces, bytes };
            cable.submit(now, station, ready, piece, urgent);
        }
        self.shared.reschedule(queue, medium);
    }

    /// Removes the reservation of a frame that is lost before it reaches its station.
    pub(super) fn leave_line(&mut self, now: Instant, key: u32) {
        let frame = self.frames.at(key);
        let (origin, reserved) = (frame.origin, frame.reserved);
        if reserved && self.shared.has(origin) {
            self.uplinks[origin.index()].depart(now);
        }
    }

    /// Handles the events of a shared medium that are due.
    pub(super) fn on_medium(&mut self, queue: &mut EventQueue, now: Instant, medium: MediumId) {
        let cable = usize::from(medium.0);
        self.shared.media[cable].due = Instant::FAR_FUTURE;
        while let Some(outcome) = self.shared.media[cable].medium.poll(now) {
            let (piece, arrives) = match outcome {
                Outcome::Passed { piece, arrives, .. } => (piece, Some(arrives)),
                Outcome::GivenUp { piece, .. } => (piece, None),
            };
            let frame = self.frames.at(piece.frame);
            if piece.last && frame.reserved {
                self.uplinks[frame.origin.index()].depart(now);
            }
            match arrives {
                Some(at) => self.pass(queue, piece, medium, at),
                None => self.drop_piece(piece.frame, DropCause::Collisions),
            }
        }
        self.shared.reschedule(queue, medium);
    }

    /// Forwards a piece that has crossed the medium, if its destination is on it.
    fn pass(&mut self, queue: &mut EventQueue, piece: Piece, medium: MediumId, at: Instant) {
        let frame = self.frames.at(piece.frame);
        if frame.header.destination == NodeId::BROADCAST {
            return self.copy_on_medium(queue, piece, medium, at);
        }
        let (destination, delay) = (frame.header.destination.index(), frame.delay);
        let there = self.shared.stations.get(destination).copied().flatten();
        if there.is_none_or(|(of, _)| of != medium) {
            self.drop_piece(piece.frame, DropCause::NoRoute);
            return;
        }
        let link = self.hosts[destination].1;
        let late = self.rng.between(0, nanos(self.faults.jitter));
        let at = at.plus_nanos(delay).plus_nanos(late);
        queue.schedule(at, Event::Piece { link, frame: piece.frame, index: piece.index });
    }
}
