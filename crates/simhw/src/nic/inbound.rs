//! Applies the faults of a live NIC's links to received frames.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::hardware::Nic;
use super::injector::{Arrival, Fate, FaultInjector};
use super::link::Link;
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::time::Instant;

/// Most bytes of frames that faults delay at one NIC: 16 MiB. Further ones are dropped, as
/// [`NicMemory`](DropCause::NicMemory).
const MAX_DELAYED_BYTES: usize = 16 << 20;

/// A delayed frame: when it arrives, its order at that instant, its sender and its bytes.
type Delayed = (Instant, u64, NodeId, Vec<u8>);

/// The faults of the links that lead to a NIC, and the frames that they delay.
#[derive(Debug)]
pub(super) struct Inbound {
    injector: FaultInjector,
    delayed: BinaryHeap<Reverse<Delayed>>,
    bytes: usize,
    sequence: u64,
}

impl Inbound {
    pub(super) fn new(injector: FaultInjector) -> Self {
        Self { injector, delayed: BinaryHeap::new(), bytes: 0, sequence: 0 }
    }

    /// Returns when the next delayed frame arrives; far in the future if there is none.
    pub(super) fn next_arrival(&self) -> Instant {
        self.delayed.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, ..))| *at)
    }

    /// Keeps a frame until `at`.
    ///
    /// # Errors
    /// [`DropCause::NicMemory`] if the delayed frames would exceed `MAX_DELAYED_BYTES`.
    fn delay(&mut self, at: Instant, from: NodeId, bytes: Vec<u8>) -> Result<(), DropCause> {
        if self.bytes + bytes.len() > MAX_DELAYED_BYTES {
            return Err(DropCause::NicMemory);
        }
        self.bytes += bytes.len();
        self.delayed.push(Reverse((at, self.sequence, from, bytes)));
        self.sequence += 1;
        Ok(())
    }
}

impl<L: Link> Nic<L> {
    /// Injects the faults of the links that lead to this NIC.
    pub(crate) fn set_faults(&mut self, injector: Option<FaultInjector>) {
        self.faults = injector.map(|injector| Box::new(Inbound::new(injector)));
    }

    /// Returns whether faults are injected.
    #[inline]
    pub(crate) const fn has_faults(&self) -> bool {
        self.faults.is_some()
    }

    /// Returns whether a frame of `from` is handled now. If a fault delays it or copies it, keeps its `bytes` for
    /// [`Nic::delayed_frame`].
    #[cold]
    pub(crate) fn passes_faults(&mut self, from: NodeId, bytes: impl Fn() -> Vec<u8>) -> bool {
        let (now, node) = (self.time.read(), self.node);
        let Some(faults) = &mut self.faults else { return true };
        let Fate { frame, copy } = faults.injector.judge(now, from, node);
        let mut arrive = |arrival: Arrival, is_copy: bool| match arrival {
            // A frame that is due and still delayed comes first.
            Ok(at) if at <= now && !is_copy && faults.next_arrival() > now => Ok(true),
            Ok(at) => faults.delay(at, from, bytes()).map(|()| false),
            Err(cause) => Err(cause),
        };
        let arrivals = [Some(arrive(frame, false)), copy.map(|copy| arrive(copy, true))];
        let mut passes = false;
        for arrival in arrivals.into_iter().flatten() {
            match arrival {
                Ok(is_now) => passes |= is_now,
                Err(cause) => self.counters.drops.add(cause),
            }
        }
        self.find_next_alarm();
        passes
    }

    /// Takes a frame that faults had delayed until now: its sender and its bytes.
    pub(crate) fn delayed_frame(&mut self) -> Option<(NodeId, Vec<u8>)> {
        let now = self.time.get();
        let faults = self.faults.as_mut().filter(|faults| faults.next_arrival() <= now)?;
        let Reverse((_, _, from, bytes)) = faults.delayed.pop()?;
        faults.bytes -= bytes.len();
        self.find_next_alarm();
        Some((from, bytes))
    }
}
