//! Saving of a process's interfaces as data, and their removal from the NIC.

use midplane_nicvm::context::Context;
use midplane_simhw::id::PortId;
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef, Rights};
use midplane_simhw::wire;

use super::Via;
use super::endpoint::{Endpoint, Link, SendWork};
use super::frame::FrameKind;
use super::window::Flight;
use crate::attributes::ViState;
use crate::checkpointer::{NicEnd, Refused, SavedPort};
use crate::command::{FORGET, JOIN, RESTORE, SAVE};
use crate::context::{
    FlightContext, FlightKind, LinkContext, Piece, PortContext, ReceiveContext, ResponseContext,
    SendContext, ViContext,
};
use crate::outcome::Operation;

/// The reason of a refusal, and the interface concerned, by its process's name.
pub(super) type Denied = (Refused, Option<u16>);

impl Via {
    /// Carries out a checkpointer's command.
    pub(super) fn on_order(&mut self, nic: &mut Context<'_>, command: &Command) {
        let done = self.carry_out(nic, command);
        let (status, args) = match done {
            Ok(bytes) => (Status::Done, [bytes as u64, 0, 0, 0]),
            Err((why, vi)) => {
                (Status::Refused, [why as u64, vi.map_or(0, |vi| u64::from(vi) + 1), 0, 0])
            }
        };
        let Command { opcode, cookie, .. } = *command;
        let answer = Completion { status, opcode, cookie, args, ..Completion::default() };
        nic.complete(command.region.port, &answer);
    }

    fn carry_out(&mut self, nic: &mut Context<'_>, command: &Command) -> Result<usize, Denied> {
        if self.config.checkpointer != Some(command.region.port) {
            return Err((Refused::NotCheckpointer, None));
        }
        let port = u16::try_from(command.args[0]).map_err(|_| (Refused::Malformed, None))?;
        let port = PortId(port);
        if !nic.is_suspended(port) {
            return Err((Refused::Running, None));
        }
        match command.opcode {
            SAVE => {
                let saved = self.saved(nic, port)?;
                write_answer(nic, command.region, &saved)
            }
            // The interfaces were restored and not joined: the checkpointer that restored them still has the saved
            // state.
            FORGET if command.args[1] == 1 => {
                let mut its = self.vis.iter().flatten().filter(|endpoint| endpoint.owner == port);
                if its.any(|endpoint| endpoint.link.is_some()) {
                    return Err((Refused::NotRestored, None));
                }
                self.forget(port);
                Ok(0)
            }
            FORGET => {
                let there = nic.read(command.region).map_err(|_| (Refused::Scratch, None))?;
                let there = there.to_vec();
                if self.saved(nic, port)? != there {
                    return Err((Refused::Changed, None));
                }
                self.forget(port);
                Ok(0)
            }
            RESTORE => self.restore(nic, port, command.region),
            JOIN => self.join(nic, port, command.region),
            _ => Err((Refused::Unknown, None)),
        }
    }

    /// Returns a port's interfaces, encoded.
    fn saved(&self, nic: &Context<'_>, port: PortId) -> Result<Vec<u8>, Denied> {
        if self.is_connecting(port) {
            return Err((Refused::Connecting, None));
        }
        let mut own: Vec<&Endpoint> =
            self.vis.iter().flatten().filter(|endpoint| endpoint.owner == port).collect();
        own.sort_by_key(|endpoint| endpoint.name);
        for endpoint in &own {
            let why = endpoint.is_savable().err();
            why.map_or(Ok(()), |why| Err((why, Some(endpoint.name.0))))?;
        }
        let errors = self.errors.get(&port).into_iter().flatten();
        let context = PortContext {
            vis: own.iter().map(|endpoint| endpoint.save()).collect(),
            errors: errors.map(|(vi, error)| (vi.0, *error)).collect(),
        };
        let (node, incarnation) = (nic.node(), nic.incarnation());
        let end = |endpoint: &&Endpoint| NicEnd {
            node,
            incarnation,
            vi: endpoint.number.0,
            connection: endpoint.connection,
        };
        let saved = SavedPort { context, ends: own.iter().map(end).collect() };
        let memory = self.names.memory(port);
        check_pieces(nic, port, &saved.context, |piece| {
            let region = piece.at(port);
            memory.as_ref().map_or(region, |names| names.real(region))
        })?;
        wire::encode_long(&saved).map_err(|_| (Refused::Malformed, None))
    }

    /// Returns whether a connection of a port is being made or requested.
    pub(super) fn is_connecting(&self, port: PortId) -> bool {
        self.pending.iter().any(|pending| pending.owner == port)
            || self.incoming.iter().any(|incoming| incoming.owner == Some(port))
    }

    fn forget(&mut self, port: PortId) {
        for at in 0..self.vis.len() {
            let its = |endpoint: &mut Endpoint| endpoint.owner == port;
            let Some(endpoint) = self.vis[at].take_if(its) else { continue };
            let sends = endpoint.sends.iter().map(|work| work.cookie);
            let receives = endpoint.receives.iter().map(|work| work.cookie);
            self.names.expect(port, sends.chain(receives));
            self.retire(&endpoint);
        }
        self.errors.remove(&port);
    }
}

impl Endpoint {
    fn is_savable(&self) -> Result<(), Refused> {
        if self.state == ViState::ConnectPending {
            return Err(Refused::Connecting);
        }
        if self.pending_end.is_some() {
            return Err(Refused::Ended);
        }
        if self.rejoins.is_some() {
            return Err(Refused::NotRestored);
        }
        if !self.gate.is_settled() {
            return Err(Refused::Unsteady);
        }
        let undone = self.sends.iter().take(self.cutting).filter(|work| work.done.is_none());
        if !self.is_reliable() && undone.count() != self.withdrawn as usize {
            return Err(Refused::Unsteady);
        }
        Ok(())
    }

    /// Translates the NIC's name of memory into the one that its process and peers use.
    fn piece(&self, region: RegionRef) -> Piece {
        self.memory.as_ref().map_or_else(|| region.into(), |names| names.name(region))
    }

    fn save(&self) -> ViContext<NicEnd> {
        let pieces = |regions: &[RegionRef]| regions.iter().map(|it| self.piece(*it)).collect();
        let receive =
            |cookie, regions: &[RegionRef]| ReceiveContext { cookie, pieces: pieces(regions) };
        ViContext {
            name: self.name.0,
            attributes: self.attributes,
            state: self.state,
            link: self.link.as_ref().map(|link| self.save_link(link)),
            sends: self.sends.iter().map(|work| self.save_send(work)).collect(),
            cut: self.cutting as u32,
            acknowledged: self.unacknowledged as u32,
            withdrawn: self.withdrawn,
            gate: self.gate.save(),
            receives: self
                .receives
                .iter()
                .map(|work| receive(work.cookie, work.segments.as_slice()))
                .collect(),
        }
    }

    fn save_send(&self, work: &SendWork) -> SendContext {
        SendContext {
            cookie: work.cookie,
            operation: work.operation,
            pieces: work.segments.as_slice().iter().map(|region| self.piece(*region)).collect(),
            length: work.length,
            immediate: work.immediate,
            // Memory of the other end, by that process's own name, which stays valid.
            remote: work.remote.into(),
            fence: work.fence,
            moved: work.moved,
            done: work.done,
        }
    }

    fn save_link(&self, link: &Link) -> LinkContext<NicEnd> {
        let end = NicEnd {
            node: link.node,
            incarnation: link.incarnation,
            vi: link.vi.0,
            connection: link.connection,
        };
        let response = |region, sent| ResponseContext { piece: self.piece(region), sent };
        LinkContext {
            peer: end,
            remote: link.remote,
            base: link.sending.base(),
            flights: link.sending.flights().iter().map(|it| self.save_flight(it)).collect(),
            expected: link.receiving.expected(),
            arriving: link.arriving.map(|arriving| arriving.received),
            responses: link.responses.iter().map(|it| response(it.region, it.sent)).collect(),
        }
    }

    fn save_flight(&self, flight: &Flight) -> FlightContext {
        let fields = &flight.fields;
        FlightContext {
            kind: match fields.kind {
                FrameKind::Write => FlightKind::Write,
                FrameKind::ReadRequest => FlightKind::ReadRequest,
                FrameKind::ReadResponse => FlightKind::ReadResponse,
                // An acknowledgement takes no number, so it is never a flight.
                FrameKind::Send | FrameKind::Acknowledge => FlightKind::Send,
            },
            first: fields.first,
            last: fields.last,
            immediate: fields.immediate,
            remote: crate::context::MemoryName { slot: fields.slot, generation: fields.generation },
            offset: fields.offset,
            value: fields.value,
            source: flight.source.map(|source| self.piece(source)),
            ends: flight.ends,
        }
    }
}

/// Checks that all memory that a context names permits its uses; `real` translates into the NIC's names.
pub(super) fn check_pieces<P>(
    nic: &Context<'_>,
    owner: PortId,
    context: &PortContext<P>,
    real: impl Fn(Piece) -> RegionRef,
) -> Result<(), Denied> {
    for vi in &context.vis {
        let may = |piece: &Piece, rights| {
            let access = midplane_simhw::region::Access {
                owner: Some(owner),
                tag: Some(vi.attributes.tag),
                rights,
            };
            piece.length == 0 || nic.check(real(*piece), access).is_ok()
        };
        let sends = vi.sends.iter().all(|work| {
            let reads = work.operation == Operation::RdmaRead;
            let rights = if reads { Rights::LOCAL_WRITE } else { Rights::LOCAL_READ };
            work.pieces.iter().all(|piece| may(piece, rights))
        });
        let writable =
            |work: &ReceiveContext| work.pieces.iter().all(|piece| may(piece, Rights::LOCAL_WRITE));
        let link = vi.link.iter().all(|link| {
            let flights = link.flights.iter().all(|flight| {
                let answers = flight.kind == FlightKind::ReadResponse;
                let rights = if answers { Rights::REMOTE_READ } else { Rights::LOCAL_READ };
                flight.source.is_none_or(|source| may(&source, rights))
            });
            let responses = &link.responses;
            flights && responses.iter().all(|it| may(&it.piece, Rights::REMOTE_READ))
        });
        if !(sends && vi.receives.iter().all(writable) && link) {
            return Err((Refused::Memory, Some(vi.name)));
        }
    }
    Ok(())
}

/// Writes an answer into the region if it fits; returns its length in bytes.
pub(super) fn write_answer(
    nic: &mut Context<'_>,
    to: RegionRef,
    bytes: &[u8],
) -> Result<usize, Denied> {
    if let Some(to) = to.part(0, bytes.len() as u32) {
        nic.write(to, Payload::from(bytes)).map_err(|_| (Refused::Scratch, None))?;
    }
    Ok(bytes.len())
}
