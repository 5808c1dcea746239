//! Restoring of a process's interfaces, saved here or elsewhere.

use midplane_nicvm::context::Context;
use midplane_simhw::frame::HEADER_BYTES;
use midplane_simhw::id::PortId;
use midplane_simhw::region::RegionRef;
use midplane_simhw::wire;

use super::Via;
use super::endpoint::{Arriving, Endpoint, Link, ReceiveWork, Response, Segments, SendWork};
use super::frame::{Fields, FrameKind};
use super::gate::Gate;
use super::save::{Denied, check_pieces, write_answer};
use super::window::{Flight, ReceiveWindow, SendWindow};
use crate::checkpointer::{Joined, NicEnd, Refused, RestoreRequest};
use crate::context::{
    FlightContext, FlightKind, LinkContext, Piece, PortContext, SendContext, ViContext,
};
use crate::outcome::AsyncError;

impl Via {
    /// Restores the interfaces in the region for a port that has none.
    pub(super) fn restore(
        &mut self,
        nic: &mut Context<'_>,
        owner: PortId,
        region: RegionRef,
    ) -> Result<usize, Denied> {
        let bytes = nic.read(region).map_err(|_| (Refused::Scratch, None))?.to_vec();
        let request: RestoreRequest =
            wire::decode_long(&bytes).map_err(|_| (Refused::Malformed, None))?;
        let RestoreRequest { context, memory } = request;
        context.validate().map_err(|wrong| (Refused::Malformed, Some(wrong.vi)))?;
        let is_elsewhere = memory.is_some();
        let memory = self.names.memory_as(owner, memory.as_deref());
        let real = |piece: Piece| {
            let region = piece.at(owner);
            memory.as_ref().map_or(region, |names| names.real(region))
        };
        self.may_restore(nic, owner, &context)?;
        check_pieces(nic, owner, &context, real)?;
        let numbers = self.free_numbers(context.vis.len());
        let ends: Vec<NicEnd> = numbers.iter().map(|number| self.next_end(nic, *number)).collect();
        let answer = wire::encode_long(&ends).map_err(|_| (Refused::Malformed, None))?;
        let length = write_answer(nic, region, &answer)?;
        // From here on, nothing fails.
        for cookie in context.cookies() {
            self.names.found(owner, cookie);
        }
        self.names.set_memory(owner, memory.clone());
        let errors = context.errors.iter().map(|(vi, error)| (PortId(*vi), *error));
        let errors: Vec<(PortId, AsyncError)> = errors.collect();
        self.errors.entry(owner).or_default().extend(errors);
        for (vi, end) in context.vis.into_iter().zip(ends) {
            let mut endpoint = Endpoint::restored(vi, &end, owner, real);
            endpoint.memory.clone_from(&memory);
            if is_elsewhere {
                // The pending commands were those of another port.
                (endpoint.gate.offers, endpoint.gate.recalls) = Default::default();
            }
            let number = endpoint.number;
            self.names.set_number(owner, endpoint.name, number);
            if self.vis.len() <= number.index() {
                self.vis.resize_with(number.index() + 1, || None);
            }
            self.vis[number.index()] = Some(endpoint);
        }
        Ok(length)
    }

    fn may_restore(
        &self,
        nic: &Context<'_>,
        owner: PortId,
        context: &PortContext<()>,
    ) -> Result<(), Denied> {
        let is_its = |endpoint: &Endpoint| endpoint.owner == owner;
        if self.vis.iter().flatten().any(is_its) || self.is_connecting(owner) {
            return Err((Refused::Occupied, None));
        }
        if self.vis.iter().flatten().count() + context.vis.len() > self.config.max_vis {
            return Err((Refused::NoRoom, None));
        }
        let mtu = nic.mtu_bytes() as usize - HEADER_BYTES;
        for vi in &context.vis {
            let awaited = |cookie| self.names.is_awaited(owner, cookie);
            if !vi.sends.iter().all(|work| awaited(work.cookie))
                || !vi.receives.iter().all(|work| awaited(work.cookie))
            {
                return Err((Refused::NotAwaited, Some(vi.name)));
            }
            let flights = vi.link.iter().flat_map(|link| &link.flights);
            let mut sources = flights.filter_map(|flight| flight.source);
            if sources.any(|source| source.length as usize > mtu) {
                return Err((Refused::FrameTooLong, Some(vi.name)));
            }
        }
        Ok(())
    }

    /// Returns unused interface numbers.
    fn free_numbers(&self, count: usize) -> Vec<PortId> {
        let free = |at: &usize| self.vis.get(*at).is_none_or(Option::is_none);
        (0..).filter(free).take(count).map(|at| PortId(at as u16)).collect()
    }

    /// Returns the address that an interface with this number will have.
    fn next_end(&self, nic: &Context<'_>, number: PortId) -> NicEnd {
        NicEnd {
            node: nic.node(),
            incarnation: nic.incarnation(),
            vi: number.0,
            connection: self.names.connection(number),
        }
    }

    /// Connects restored interfaces with their other ends.
    pub(super) fn join(
        &mut self,
        nic: &Context<'_>,
        owner: PortId,
        region: RegionRef,
    ) -> Result<usize, Denied> {
        let bytes = nic.read(region).map_err(|_| (Refused::Scratch, None))?.to_vec();
        let mut ends: Vec<Joined> =
            wire::decode_long(&bytes).map_err(|_| (Refused::Malformed, None))?;
        ends.sort_unstable_by_key(|joined| joined.name);
        let mut waiting: Vec<&mut Endpoint> = self
            .vis
            .iter_mut()
            .flatten()
            .filter(|endpoint| endpoint.owner == owner && endpoint.rejoins.is_some())
            .collect();
        waiting.sort_by_key(|endpoint| endpoint.name);
        let names = waiting.iter().map(|endpoint| endpoint.name.0);
        if !names.eq(ends.iter().map(|joined| joined.name)) {
            return Err((Refused::NotRestored, None));
        }
        for (endpoint, joined) in waiting.into_iter().zip(ends) {
            endpoint.rejoin(nic, &joined);
        }
        Ok(0)
    }
}

impl Endpoint {
    /// Restores an interface without its connection; its port is suspended.
    fn restored(
        vi: ViContext<()>,
        end: &NicEnd,
        owner: PortId,
        real: impl Fn(Piece) -> RegionRef,
    ) -> Self {
        let mut own = Self::new((PortId(end.vi), end.connection), owner, vi.attributes);
        own.name = PortId(vi.name);
        own.state = vi.state;
        own.rejoins = vi.link.map(Box::new);
        own.cutting = vi.cut as usize;
        own.unacknowledged = vi.acknowledged as usize;
        own.withdrawn = vi.withdrawn;
        own.gate = Gate::restored(&vi.gate);
        own.is_stopped = true;
        own.sends = vi.sends.into_iter().map(|work| restored_send(work, &real)).collect();
        for work in vi.receives {
            let segments = segments(&work.pieces, &real);
            // The length was checked with the context.
            let room = segments.length().unwrap_or(0);
            own.receives.push_back(ReceiveWork { cookie: work.cookie, segments, room });
        }
        own
    }

    /// Restores the connection, now that the other end's address is known.
    fn rejoin(&mut self, nic: &Context<'_>, Joined { end, taken, .. }: &Joined) {
        let Some(saved) = self.rejoins.take() else { return };
        let LinkContext { remote, base, flights, expected, arriving, responses, .. } = *saved;
        let now = nic.now();
        let ends = (PortId(end.vi), end.connection);
        let mut link = Link::new(now, end.node, end.incarnation, ends, remote);
        let owner = self.owner;
        let flight = |flight: &FlightContext| {
            let source = flight.source.map(|source| self.real(source.at(owner)));
            restored_flight(flight, source, end.connection)
        };
        link.sending = SendWindow::restored(now, base, flights.iter().map(flight).collect());
        link.receiving = ReceiveWindow::restored(expected);
        link.arriving = arriving.map(|received| Arriving { received });
        let responses = responses.iter();
        link.responses = responses
            .map(|it| Response { region: self.real(it.piece.at(owner)), sent: it.sent })
            .collect();
        self.link = Some(link);
        self.taken = Some(*taken);
    }
}

fn segments(pieces: &[Piece], real: impl Fn(Piece) -> RegionRef) -> Segments {
    match pieces {
        [one] => Segments::One(real(*one)),
        many => Segments::Many(many.iter().map(|piece| real(*piece)).collect()),
    }
}

fn restored_send(work: SendContext, real: impl Fn(Piece) -> RegionRef) -> SendWork {
    SendWork {
        cookie: work.cookie,
        operation: work.operation,
        segments: segments(&work.pieces, real),
        length: work.length,
        immediate: work.immediate,
        remote: work.remote.at(PortId(0)),
        fence: work.fence,
        moved: work.moved,
        done: work.done,
    }
}

/// Converts a frame of a former connection into one of the present connection.
fn restored_flight(flight: &FlightContext, source: Option<RegionRef>, connection: u16) -> Flight {
    let kind = match flight.kind {
        FlightKind::Send => FrameKind::Send,
        FlightKind::Write => FrameKind::Write,
        FlightKind::ReadRequest => FrameKind::ReadRequest,
        FlightKind::ReadResponse => FrameKind::ReadResponse,
    };
    let fields = Fields {
        first: flight.first,
        last: flight.last,
        immediate: flight.immediate,
        slot: flight.remote.slot,
        generation: flight.remote.generation,
        offset: flight.offset,
        value: flight.value,
        ..Fields::new(kind, connection)
    };
    Flight { fields, source, ends: flight.ends }
}
