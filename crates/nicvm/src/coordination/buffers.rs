//! The receiver's buffers in a token: which sender waits for them, and how many it was granted last.

use midplane_simhw::time::{Instant, nanos};

use super::link::ahead_of;
use super::member::Party;
use super::message::{Body, Epoch};
use super::{BUFFERS, Coordination, send_about};
use crate::context::Context;
use crate::timeout::Service;

/// A sender that waits for the receiver's buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferRequest {
    pub(super) from: Party,
    /// The epoch of the sender's token.
    pub(super) epoch: Epoch,
    /// Messages sent into buffers since the epoch began; wraps around.
    pub(super) consumed: u32,
    /// When the first of equal requests arrived.
    pub(super) since: Instant,
}

impl BufferRequest {
    /// Returns whether `other` repeats this request.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        (self.from, self.epoch, self.consumed) == (other.from, other.epoch, other.consumed)
    }
}

/// A grant of buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promise {
    /// The epoch of the token that carries it.
    pub(super) epoch: Epoch,
    /// Messages that the sender had sent in this epoch.
    pub(super) sent: u32,
    /// Messages that had arrived at the receiver.
    pub(super) arrived: u32,
}

impl Coordination {
    /// Grants buffers to senders that wait for them. Messages under way still need theirs; those that have not arrived
    /// within a sixteenth of a lease count as lost. If `is_due`, the timeout has passed: the buffers of messages of
    /// which no frame has arrived for as long are posted again.
    pub(super) fn grant_buffers(&mut self, nic: &mut Context<'_>, is_due: bool) {
        let arrived = self.receiver.arrived();
        let now = nic.now();
        let lost_after_ns = nanos(self.config.lease) / 16;
        for place in &mut self.places {
            let Some(request) = place.wants_buffers else { continue };
            let BufferRequest { epoch, consumed, .. } = request;
            let mut free = self.receiver.free_buffers();
            let last = place.promised;
            let all_here = epoch == last.epoch
                && consumed.wrapping_sub(last.sent) == arrived.wrapping_sub(last.arrived);
            let lost_by = request.since.plus_nanos(lost_after_ns);
            if (!all_here || free == 0) && now < lost_by {
                nic.set_timeout_at(BUFFERS, Service::Exact, lost_by);
                continue;
            }
            let is_answered =
                epoch < last.epoch || (epoch == last.epoch && ahead_of(consumed, last.sent) == 0);
            if is_due && free == 0 && !is_answered {
                let senders = &place.config.senders;
                let next = self.receiver.release_controlled(now, lost_after_ns, senders);
                if let Some(next) = next {
                    nic.set_timeout_at(BUFFERS, Service::Exact, next);
                }
                free = self.receiver.free_buffers();
            }
            if free == 0 {
                continue;
            }
            place.wants_buffers = None;
            place.promised = Promise { epoch, sent: consumed, arrived };
            let Some(node) = place.node(request.from) else { continue };
            let body = Body::AddBuffers { epoch, limit: consumed.wrapping_add(free) };
            send_about(nic, node, place.config.number, body);
        }
    }
}
