//! The two timeout services (DVCM paper, section 3): exact, and coarse but cheap.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::id::ExtensionId;
use midplane_simhw::time::Instant;

use crate::extension::TimeoutId;
use crate::planted::{self, Bug};

/// Period of the coarse service's wheel, in nanoseconds: 1 ms.
pub(crate) const COARSE_TICK_NS: u64 = 1_000_000;

/// Slots of the coarse service's wheel: 256 ms a round.
const SLOTS: usize = 256;

/// The service that keeps a timeout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// Expires at the instant: an ordered set, logarithmic in its size.
    Exact,
    /// Expires within 1 ms after the instant: a wheel of 256 slots; setting and cancelling search one slot.
    Coarse,
}

type Key = (ExtensionId, TimeoutId);

/// When a timeout expires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    /// At an instant, by the exact service.
    At(Instant),
    /// With a tick of the coarse service's wheel.
    With(u64),
    /// It has expired, and its extension is not yet called.
    Over,
}

/// The timeouts of one unit's extensions.
#[derive(Debug)]
pub(crate) struct Timeouts {
    due: BTreeMap<Key, Due>,
    exact: BTreeSet<(Instant, Key)>,
    wheel: Vec<Vec<(u64, Key)>>,
    /// Number of coarse timeouts that are set.
    coarse: usize,
    /// Number of the last tick that was processed.
    ticks: u64,
    /// Timeouts that have expired, in order. One that was set anew or cancelled since is no longer [`Due::Over`].
    expired: VecDeque<Key>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            exact: BTreeSet::new(),
            wheel: vec![Vec::new(); SLOTS],
            coarse: 0,
            ticks: 0,
            expired: VecDeque::new(),
        }
    }
}

impl Timeouts {
    pub(crate) fn set(&mut self, now: Instant, key: Key, service: Service, at: Instant) {
        self.cancel(key);
        match service {
            Service::Exact => {
                self.due.insert(key, Due::At(at));
                self.exact.insert((at, key));
            }
            Service::Coarse => {
                if self.coarse == 0 {
                    self.ticks = now.as_nanos() / COARSE_TICK_NS;
                }
                self.coarse += 1;
                let tick = at.as_nanos().div_ceil(COARSE_TICK_NS).max(self.ticks + 1);
                self.due.insert(key, Due::With(tick));
                self.wheel[tick as usize % SLOTS].push((tick, key));
            }
        }
    }

    pub(crate) fn cancel(&mut self, key: Key) {
        match self.due.remove(&key) {
            Some(Due::At(at)) => {
                self.exact.remove(&(at, key));
            }
            Some(Due::With(tick)) => {
                self.coarse -= 1;
                let slot = &mut self.wheel[tick as usize % SLOTS];
                // Most often it was set a short time ago.
                if let Some(at) = slot.iter().rposition(|entry| *entry == (tick, key)) {
                    slot.remove(at);
                }
            }
            Some(Due::Over) | None => {}
        }
    }

    /// Cancels all timeouts of an extension.
    pub(crate) fn cancel_all(&mut self, extension: ExtensionId) {
        let first = (extension, TimeoutId(0));
        let last = (extension, TimeoutId(u32::MAX));
        let keys: Vec<Key> = self.due.range(first..=last).map(|(key, _)| *key).collect();
        for key in keys {
            self.cancel(key);
        }
    }

    /// Returns when to call [`Self::expire`] next.
    pub(crate) fn next(&self) -> Instant {
        let exact = self.exact.first().map_or(Instant::FAR_FUTURE, |(at, _)| *at);
        let coarse = if self.coarse == 0 {
            Instant::FAR_FUTURE
        } else {
            Instant::from_nanos((self.ticks + 1) * COARSE_TICK_NS)
        };
        exact.min(coarse)
    }

    /// Ends the timeouts that are due: exact ones in order of their instants, then coarse ones in order of their
    /// ticks. Call [`Self::next_expired`] until it returns `None`.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.exact.first()
            && at <= now
        {
            self.exact.pop_first();
            self.due.insert(key, Due::Over);
            self.expired.push_back(key);
        }
        self.turn_wheel(now);
    }

    /// Takes the next timeout that has expired, and that the handlers before it have neither set anew nor cancelled.
    pub(crate) fn next_expired(&mut self) -> Option<Key> {
        loop {
            let key = self.expired.pop_front()?;
            if self.due.get(&key) == Some(&Due::Over) {
                self.due.remove(&key);
                return Some(key);
            }
        }
    }

    fn turn_wheel(&mut self, now: Instant) {
        let until = now.as_nanos() / COARSE_TICK_NS;
        while self.ticks < until && self.coarse > 0 {
            self.ticks += 1;
            let tick = self.ticks;
            let mut slot = std::mem::take(&mut self.wheel[tick as usize % SLOTS]);
            slot.retain(|&(due, key)| {
                if due > tick && !planted::is(Bug::LongTimeoutLost) {
                    return true;
                }
                if due <= tick {
                    self.due.insert(key, Due::Over);
                    self.coarse -= 1;
                    self.expired.push_back(key);
                }
                false
            });
            self.wheel[tick as usize % SLOTS] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32, bool, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0_u32..6, any::<bool>(), 0_u64..400_000_000)
                .prop_map(|(id, exact, at)| Op::Set(id, exact, at)),
            (0_u32..6).prop_map(Op::Cancel),
            (0_u64..300_000_000).prop_map(Op::Advance),
        ]
    }

    proptest! {
        #[test]
        fn every_timeout_expires_once_and_in_time(ops in proptest::collection::vec(any_op(), 1..80)) {
            let mut timeouts = Timeouts::default();
            let mut model: BTreeMap<u32, (Instant, u64)> = BTreeMap::new();
            let mut now = Instant::from_nanos(5);
            for op in ops {
                match op {
                    Op::Set(id, exact, after) => {
                        let at = now.plus_nanos(after);
                        let service = if exact { Service::Exact } else { Service::Coarse };
                        timeouts.set(now, (ExtensionId(1), TimeoutId(id)), service, at);
                        model.insert(id, (at, if exact { 0 } else { 2 * COARSE_TICK_NS }));
                    }
                    Op::Cancel(id) => {
                        timeouts.cancel((ExtensionId(1), TimeoutId(id)));
                        model.remove(&id);
                    }
                    Op::Advance(by) => {
                        now = now.plus_nanos(by);
                        timeouts.expire(now);
                        while let Some((_, TimeoutId(id))) = timeouts.next_expired() {
                            let (at, _) = model.remove(&id).expect("passes once");
                            prop_assert!(at <= now, "never early");
                        }
                        for (id, (at, slack)) in &model {
                            prop_assert!(at.plus_nanos(*slack) > now, "{} is late", id);
                        }
                        prop_assert_eq!(timeouts.next() == Instant::FAR_FUTURE, model.is_empty());
                        prop_assert!(timeouts.next() > now);
                    }
                }
            }
        }
    }

    /// A module of a guest may set a timeout of the far future for ever.
    #[test]
    fn a_timeout_that_is_set_anew_takes_no_more_memory() {
        let mut timeouts = Timeouts::default();
        let key = (ExtensionId(1), TimeoutId(1));
        let held = |timeouts: &Timeouts| timeouts.wheel.iter().map(Vec::len).sum::<usize>();
        for _ in 0..1_000 {
            timeouts.set(Instant::ZERO, key, Service::Coarse, Instant::FAR_FUTURE);
        }
        assert_eq!(held(&timeouts), 1);
        timeouts.cancel(key);
        assert_eq!(held(&timeouts), 0);
    }

    #[test]
    fn removing_an_extension_cancels_its_timeouts() {
        let mut timeouts = Timeouts::default();
        let at = Instant::from_nanos(10);
        for extension in [1, 2] {
            for service in [Service::Exact, Service::Coarse] {
                let id = TimeoutId(service as u32);
                timeouts.set(Instant::ZERO, (ExtensionId(extension), id), service, at);
            }
        }
        timeouts.cancel_all(ExtensionId(1));
        timeouts.expire(Instant::from_nanos(10 * COARSE_TICK_NS));
        let expired: Vec<Key> = std::iter::from_fn(|| timeouts.next_expired()).collect();
        assert!(expired.len() == 2 && expired.iter().all(|(id, _)| *id == ExtensionId(2)));
    }

    #[test]
    fn a_timeout_that_is_cancelled_or_set_anew_beside_an_expired_one_does_not_expire() {
        let mut timeouts = Timeouts::default();
        let key = |id| (ExtensionId(1), TimeoutId(id));
        let at = Instant::from_nanos;
        for (id, service) in [(1, Service::Exact), (2, Service::Exact), (3, Service::Coarse)] {
            timeouts.set(Instant::ZERO, key(id), service, at(id.into()));
        }
        timeouts.expire(at(COARSE_TICK_NS));
        assert_eq!(timeouts.next_expired(), Some(key(1)));
        timeouts.cancel(key(2));
        timeouts.set(at(COARSE_TICK_NS), key(3), Service::Exact, at(2 * COARSE_TICK_NS));
        assert_eq!(timeouts.next_expired(), None);
        timeouts.expire(at(2 * COARSE_TICK_NS));
        assert_eq!(timeouts.next_expired(), Some(key(3)));
        assert_eq!((timeouts.next_expired(), timeouts.next()), (None, Instant::FAR_FUTURE));
    }
}
