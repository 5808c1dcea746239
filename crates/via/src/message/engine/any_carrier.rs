//! Any carrier under one engine's type.

#[cfg(target_os = "linux")]
use std::any::Any;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::lanes::LaneCarrier;
use crate::memory::{Memory, Segment};
use crate::message::carrier::{Carrier, Event, Posted, Refusal};
use crate::message::envelope::{Envelope, Peer};
use crate::message::transport::InitError;

/// Any carrier. Calls of a [`LaneCarrier`](crate::lanes::LaneCarrier) are not virtual.
pub(super) struct AnyCarrier(Kind);

#[expect(
    clippy::large_enum_variant,
    reason = "an engine has one; boxed lanes would cost an indirection a call"
)]
enum Kind {
    #[cfg(target_os = "linux")]
    Lanes(LaneCarrier),
    Other(Box<dyn Carrier>),
}

impl AnyCarrier {
    pub(super) fn new<C: Carrier + 'static>(carrier: C) -> Self {
        let mut carrier = Some(carrier);
        #[cfg(target_os = "linux")]
        if let Some(lanes) = (&mut carrier as &mut dyn Any).downcast_mut::<Option<LaneCarrier>>() {
            return Self(Kind::Lanes(lanes.take().expect("it was just put there")));
        }
        Self(Kind::Other(Box::new(carrier.take().expect("it was just put there"))))
    }
}

impl fmt::Debug for AnyCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCarrier").field("own", &self.own()).finish_non_exhaustive()
    }
}

/// Calls the same method of either kind.
macro_rules! any {
    ($any:expr, $carrier:ident => $call:expr) => {
        match &$any.0 {
            #[cfg(target_os = "linux")]
            Kind::Lanes($carrier) => $call,
            Kind::Other($carrier) => $call,
        }
    };
    (mut $any:expr, $carrier:ident => $call:expr) => {
        match &mut $any.0 {
            #[cfg(target_os = "linux")]
            Kind::Lanes($carrier) => $call,
            Kind::Other($carrier) => $call,
        }
    };
}

impl Carrier for AnyCarrier {
    fn own(&self) -> Peer {
        any!(self, carrier => carrier.own())
    }

    fn wire_to(&self, peer: Peer) -> Option<&'static str> {
        any!(self, carrier => carrier.wire_to(peer))
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        any!(mut self, carrier => carrier.connect(peers))
    }

    fn latency(&self, to: Peer) -> Duration {
        any!(self, carrier => carrier.latency(to))
    }

    fn room(&self) -> usize {
        any!(self, carrier => carrier.room())
    }

    fn part(&self, to: Peer, receive: u64) -> usize {
        any!(self, carrier => carrier.part(to, receive))
    }

    #[inline]
    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        any!(mut self, carrier => carrier.post(to, envelope, payload))
    }

    fn register(&mut self, peer: Peer, bytes: usize) -> Option<Memory> {
        any!(mut self, carrier => carrier.register(peer, bytes))
    }

    fn lend(&mut self, to: Peer, receive: u64, room: &Segment) {
        any!(mut self, carrier => carrier.lend(to, receive, room));
    }

    fn post_memory(
        &mut self,
        to: Peer,
        envelope: &Envelope,
        payload: &Segment,
        send: u64,
    ) -> Result<Posted, Refusal> {
        any!(mut self, carrier => carrier.post_memory(to, envelope, payload, send))
    }

    #[inline]
    fn poll(&mut self) -> Option<Event<'_>> {
        any!(mut self, carrier => carrier.poll())
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        any!(mut self, carrier => carrier.arm_wakeup(waker))
    }

    fn arm_wakeup_for(&mut self, waker: &Waker, missing: &dyn Fn() -> Option<Peer>) -> bool {
        any!(mut self, carrier => carrier.arm_wakeup_for(waker, missing))
    }

    fn is_flushed(&mut self) -> bool {
        any!(mut self, carrier => carrier.is_flushed())
    }

    fn close(&mut self) {
        any!(mut self, carrier => carrier.close());
    }
}
