//! Reports a world's records to its observer.

use super::frames::InFlight;
use crate::drops::DropCause;
use crate::time::Instant;
use crate::topology::LinkId;
use crate::trace::{Engine, Observer, Record};

/// The observer, if there is one, and the time.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) now: Instant,
    pub(super) observer: Option<Observer>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) const fn is_on(&self) -> bool {
        self.observer.is_some()
    }

    pub(super) fn show(&mut self, record: &Record<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(record);
        }
    }

    pub(super) fn sent(&mut self, frame: &InFlight) {
        if self.is_on() {
            let (at, node, frame) = (self.now, frame.origin, frame.sighting());
            self.show(&Record::Sent { at, node, frame });
        }
    }

    pub(super) fn passed(&mut self, link: LinkId, frame: &mut InFlight) {
        if self.is_on() {
            frame.link = Some(link);
            self.show(&Record::Passed { at: self.now, link, frame: frame.sighting() });
        }
    }

    pub(super) fn delivered(&mut self, frame: &InFlight) {
        if self.is_on() {
            let node = frame.header.destination;
            self.show(&Record::Delivered { at: self.now, node, frame: frame.sighting() });
        }
    }

    pub(super) fn dropped(&mut self, cause: DropCause, frame: &InFlight) {
        if self.is_on() {
            let (at, link, frame) = (self.now, frame.link, frame.sighting());
            self.show(&Record::Dropped { at, cause, link, frame });
        }
    }

    pub(super) fn busy(
        &mut self,
        engine: Engine,
        begins: Instant,
        ends: Instant,
        what: &'static str,
        frame: Option<u64>,
    ) {
        self.show(&Record::Busy { engine, begins, ends, what, frame });
    }

    pub(super) fn queue(&mut self, link: LinkId, used: u32) {
        self.show(&Record::Queue { at: self.now, link, used });
    }
}
