//! The admission: lets the frames of other extensions pass as the rate to their destination allows.

use std::collections::BTreeMap;

use midplane_nicvm::admission::{Admission, Steering, Verdict};
use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

use super::WARP;

/// Time that a destination may be ahead of its rate: a burst of so much leaves at once.
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
    /// What tells it of a new rate, in bytes a second.
    pub(super) const fn steering(destination: NodeId, rate: f64) -> Steering {
        Steering { destination, values: [rate as u64, 0] }
    }
}

impl Admission for Pace {
    fn admit(&self, now: Instant, header: &Header) -> Verdict {
        // Warp's own have been paced before they were stamped.
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
            pacing.next = pacing.next.max(now).plus_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
    }

    fn steer(&mut self, now: Instant, steering: Steering) {
        let [bytes_per_second, _] = steering.values;
        let pacing = self.0.entry(steering.destination);
        pacing.or_insert(Pacing { bytes_per_second, next: now }).bytes_per_second =
            bytes_per_second;
    }
}
