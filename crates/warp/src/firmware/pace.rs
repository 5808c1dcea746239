//! The admission: paces the frames of other extensions to the allowed rate of their destination.

use std::collections::BTreeMap;

use midplane_nicvm::admission::{Admission, AdmissionUpdate, Verdict};
use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

use super::WARP;

/// Nanoseconds by which a destination may be ahead of its rate: a burst of that size leaves at
/// once.
const BURST_NS: u64 = 200_000;

/// When the next frame to each destination may leave.
#[derive(Debug, Default)]
pub(super) struct Pace(BTreeMap<NodeId, Pacing>);

#[derive(Debug)]
struct Pacing {
    bytes_per_second: u64,
    next: Instant,
}

impl Pace {
    /// Makes the command that sets a new rate, in bytes a second.
    pub(super) const fn update(destination: NodeId, rate: f64) -> AdmissionUpdate {
        AdmissionUpdate { destination, values: [rate as u64, 0] }
    }
}

impl Admission for Pace {
    fn admit(&self, now: Instant, header: &Header) -> Verdict {
        // Warp's own frames were paced before they were stamped.
        if header.extension == WARP {
            return Verdict::Now;
        }
        match self.0.get(&header.destination) {
            Some(pacing) if pacing.next > now.plus_nanos(BURST_NS) => {
                Verdict::At(Instant::from_nanos(pacing.next.as_nanos() - BURST_NS))
            }
            _ => Verdict::Now,
        }
    }

    fn on_sent(&mut self, now: Instant, header: &Header, _: Instant) {
        if let Some(pacing) = self.0.get_mut(&header.destination) {
            let bytes = u64::from(header.length) + HEADER_BYTES as u64;
            let nanos =
                u128::from(bytes) * 1_000_000_000 / u128::from(pacing.bytes_per_second.max(1));
            let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
            let next = pacing.next.max(now).plus_nanos(nanos);
            // Warp's own frames are not admitted here. If all of them counted, probes of a slow
            // path would hold up without end the frames that they probe for.
            let is_own = header.extension == WARP;
            let most = pacing.next.max(now.plus_nanos(BURST_NS));
            pacing.next = if is_own { next.min(most) } else { next };
        }
    }

    fn update(&mut self, now: Instant, update: AdmissionUpdate) {
        let [bytes_per_second, _] = update.values;
        let pacing = self.0.entry(update.destination);
        pacing.or_insert(Pacing { bytes_per_second, next: now }).bytes_per_second =
            bytes_per_second;
    }
}

#[cfg(test)]
mod tests {
    use midplane_simhw::id::ExtensionId;

    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn frame(extension: ExtensionId, length: u16) -> Header {
        Header { extension, destination: NodeId(1), length, ..Header::default() }
    }

    #[test]
    fn frames_of_other_extensions_leave_at_the_rate_whatever_warp_sends() {
        let other = frame(ExtensionId(WARP.0 + 1), 952);
        let mut pace = Pace::default();
        pace.update(at(0), Pace::update(NodeId(1), 1e6));
        let mut left = 0;
        for micros in (0..1_000_000).step_by(10) {
            // The probes alone take four times the rate.
            pace.on_sent(at(micros), &frame(WARP, 0), at(micros));
            if pace.admit(at(micros), &other) == Verdict::Now {
                pace.on_sent(at(micros), &other, at(micros));
                left += 1;
            }
        }
        // One second at 1,000 bytes a millisecond.
        assert!((990..=1_001).contains(&left), "{left}");
    }
}
