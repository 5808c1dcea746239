//! A socket of a simulated host.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use midplane_simhw::services::{Alarm, Arrival, UdpSocket, VirtualHost};
use midplane_simhw::time::Instant;

use super::{Clock, SENDS_PER_TURN, lock};
use crate::wire::endpoint::{Endpoint, Outgoing};

/// Most datagrams received in one turn, so that other tasks run.
const RECEIVES_PER_TURN: usize = 128;
/// Most datagrams of one train.
const SEGMENTS: usize = 16;

/// A UDP socket of a simulated host, with its timer, which is exact.
#[derive(Debug)]
pub(super) struct Modelled {
    pub(super) io: UdpSocket,
    host: VirtualHost,
    alarm: Option<Alarm>,
    outbox: Vec<u8>,
    /// The train in the outbox, if it has not found space yet.
    pending: Option<Outgoing>,
}

impl Modelled {
    pub(super) const fn new(io: UdpSocket, host: VirtualHost) -> Self {
        Self { io, host, alarm: None, outbox: Vec::new(), pending: None }
    }

    /// Draws a random number from the host's stream of the simulation's seed.
    #[cfg(feature = "session")]
    pub(super) fn random(&self) -> u64 {
        self.host.random()
    }

    /// Passes arrived datagrams to the endpoint; returns whether there were any.
    pub(super) fn receive(
        &self,
        context: &mut Context<'_>,
        clock: Clock,
        endpoint: &Mutex<Endpoint>,
    ) -> bool {
        for count in 0..RECEIVES_PER_TURN {
            match self.io.poll_receive(context) {
                Poll::Ready(Arrival::Datagram(mut datagram)) => {
                    lock(endpoint).handle_datagram(clock.now(), datagram.peer, &mut datagram.bytes);
                }
                Poll::Ready(Arrival::Unreachable(peer)) => {
                    lock(endpoint).handle_unreachable(clock.now(), peer);
                }
                Poll::Pending => return count > 0,
            }
        }
        true
    }

    /// Sends trains; returns whether more can be sent. No time passes meanwhile.
    pub(super) fn transmit(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        endpoint: &Mutex<Endpoint>,
    ) -> bool {
        for _ in 0..SENDS_PER_TURN {
            let outgoing = match self.pending.take() {
                Some(pending) => pending,
                None => {
                    self.outbox.clear();
                    let polled = lock(endpoint).poll_transmit(now, &mut self.outbox, SEGMENTS);
                    let Some(outgoing) = polled else { return false };
                    outgoing
                }
            };
            let (bytes, segment) = (outgoing.transmit.bytes, outgoing.transmit.segment_bytes);
            if self.io.poll_send_ready(context, bytes).is_pending() {
                self.pending = Some(outgoing);
                return false;
            }
            let sending = self.io.try_send(outgoing.to, &self.outbox[..bytes], segment, 0);
            let is_too_long =
                sending.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
            if let (true, Some(id)) = (is_too_long, outgoing.pipe) {
                lock(endpoint).handle_refused(now, id, self.io.max_datagram() + 1);
            }
        }
        true
    }

    /// Waits until `at` of the socket's clock, which shows `now`.
    pub(super) fn poll_alarm(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        at: Instant,
    ) -> Poll<()> {
        let at = self.host.now() + at.since(now);
        match &mut self.alarm {
            Some(alarm) => alarm.reset(at),
            None => self.alarm = Some(self.host.clone().alarm(at)),
        }
        let alarm = self.alarm.as_mut().expect("it was set");
        Pin::new(alarm).poll(context)
    }
}
