//! The rate limit of tenants: the same rule on NICs and on hosts.

use std::collections::BTreeMap;

use midplane::simhw::time::Instant;

/// Token buckets of one size, one per tenant, filled at one rate (the generic cell rate algorithm: a bucket stores
/// only when it would be full again).
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// Nanoseconds in which a bucket regains one request.
    each_ns: u64,
    /// Nanoseconds that a tenant may be ahead of its rate.
    ahead_ns: u64,
    full_at: BTreeMap<u64, Instant>,
}

impl Buckets {
    /// Creates buckets for `per_second` requests a second and bursts of `at_once`.
    pub(crate) fn new(per_second: u64, at_once: u64) -> Self {
        let each_ns = 1_000_000_000 / per_second.max(1);
        let ahead_ns = each_ns * at_once.saturating_sub(1);
        Self { each_ns, ahead_ns, full_at: BTreeMap::new() }
    }

    /// Returns whether a tenant may make a request now, and counts the request if so.
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
