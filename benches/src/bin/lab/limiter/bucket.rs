//! How often each tenant may ask: the same rule for NICs and for hosts.

use std::collections::BTreeMap;

use midplane::simhw::time::Instant;

/// Buckets of one size, one for each tenant, that fill at one rate (the generic cell rate algorithm: all
/// that a bucket keeps is when it would be full again).
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// Nanoseconds that each request takes to be made up for.
    each_ns: u64,
    /// How far a tenant may be ahead.
    ahead_ns: u64,
    full_at: BTreeMap<u64, Instant>,
}

impl Buckets {
    /// So many requests a second for each, and so many at once.
    pub(crate) fn new(per_second: u64, at_once: u64) -> Self {
        let each_ns = 1_000_000_000 / per_second.max(1);
        let ahead_ns = each_ns * at_once.saturating_sub(1);
        Self { each_ns, ahead_ns, full_at: BTreeMap::new() }
    }

    /// Whether a tenant may ask now; counted if it may.
    pub(crate) fn admit(&mut self, now: Instant, tenant: u64) -> bool {
        let full_at = self.full_at.entry(tenant).or_insert(now);
        let from = (*full_at).max(now);
        if from.nanos_since(now) > self.ahead_ns {
            return false;
        }
        *full_at = from.plus_nanos(self.each_ns);
        true
    }
}
