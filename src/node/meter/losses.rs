//! Counts a node's losses, by cause.

use midplane_via::session::{Ended, Stats};

use super::{Meter, Total, lock};

/// Losses of ended sessions, and of gossip. The end of a peer is not a loss.
#[derive(Debug, Default)]
pub(super) struct Losses {
    violations: Total,
    streams_refused: Total,
    datagrams_lost: Total,
    datagrams_dropped: Total,
    pub(super) gossip_dropped: Total,
    pub(super) gossip_refused: Total,
}

impl Losses {
    /// Adds the losses of an ended session with these last counters.
    pub(super) fn on_ended(&self, last: &Stats, why: Ended) {
        if why == Ended::Violation {
            self.violations.add_one();
        }
        let pipe = last.pipe.unwrap_or_default();
        self.streams_refused.add(last.refused);
        self.datagrams_lost.add(pipe.packets_lost);
        self.datagrams_dropped.add(pipe.dropped);
    }
}

impl Meter {
    /// Returns the node's losses since its start, by cause.
    pub(in crate::node) fn losses(&self) -> Vec<(&'static str, u64)> {
        let live: Vec<_> =
            lock(&self.sessions).values().map(|measured| measured.session.stats()).collect();
        let sum = |of: fn(&Stats) -> u64| live.iter().map(of).sum::<u64>();
        let (mut refused_by_peers, mut failed) = (0, 0);
        self.used.each(|_, streams| refused_by_peers += streams.refused.get());
        self.calls.each(|_, calls| failed += calls.failed.get());
        let Losses { violations, gossip_dropped, gossip_refused, .. } = &self.losses;
        let lost = sum(|stats| stats.pipe.map_or(0, |pipe| pipe.packets_lost));
        let dropped = sum(|stats| stats.pipe.map_or(0, |pipe| pipe.dropped));
        let refused = sum(|stats| stats.refused);
        vec![
            ("datagrams lost on the way", lost + self.losses.datagrams_lost.get()),
            ("datagrams malformed or repeated", dropped + self.losses.datagrams_dropped.get()),
            ("streams refused by this node", refused + self.losses.streams_refused.get()),
            ("streams refused by peers", refused_by_peers),
            ("calls failed", failed),
            ("peers that broke the protocol", violations.get()),
            ("gossip dropped", gossip_dropped.get()),
            ("gossip refused", gossip_refused.get()),
        ]
    }
}
