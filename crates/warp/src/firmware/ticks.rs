//! Stamps and feedback on the wire: the lower half of a stamp, which both sides extend to the
//! whole.

use midplane_simhw::frame::Header;
use midplane_simhw::time::Instant;

use crate::feedback::Feedback;
use crate::stamp::Stamp;

/// The unit of a stamp's time on the wire, in nanoseconds. It has 32 bits, so it repeats after 137
/// s.
pub(super) const TICK_NS: u64 = 32;

/// Returns the whole stamp of a frame. The frame carries the lower half; `newest` is the newest
/// whole stamp before it.
pub(super) fn stamp_of(header: &Header, newest: &mut (u64, u64), now: Instant) -> Stamp {
    let (sequence, ticks) = *newest;
    // The first stamp is taken as one of about now; each later one as close to the newest.
    let near = if ticks == 0 { now.as_nanos() / TICK_NS } else { ticks };
    let whole = |last: u64, part: u32| {
        let ahead = part.wrapping_sub(last as u32).cast_signed();
        last.saturating_add_signed(ahead.into())
    };
    let sequence_of_first = u64::from(header.sequence);
    let number = if ticks == 0 { sequence_of_first } else { whole(sequence, header.sequence) };
    let stamp = (number, whole(near, header.acknowledgement));
    if stamp.0 >= sequence {
        *newest = (stamp.0, stamp.1.max(1));
    }
    Stamp { sequence: stamp.0, sent: Instant::from_nanos(stamp.1.saturating_mul(TICK_NS)) }
}

/// Converts feedback back to the sender's own stamps. If the two clocks are far apart, the receiver
/// has extended the lower half of a stamp to a wrong time.
pub(super) fn in_own_time(mut feedback: Feedback, now: Instant) -> Feedback {
    let estimate = &mut feedback.estimate;
    let ticks = now.as_nanos() / TICK_NS;
    let behind = (ticks as u32).wrapping_sub((estimate.newest.as_nanos() / TICK_NS) as u32);
    let own = ticks.saturating_sub(behind.into()) * TICK_NS;
    let shift = estimate.newest.as_nanos().wrapping_sub(own).cast_signed();
    estimate.newest = Instant::from_nanos(own);
    estimate.delay_ns = estimate.delay_ns.wrapping_add(shift);
    estimate.min_delay_ns = estimate.min_delay_ns.wrapping_add(shift);
    feedback
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Arrivals, Estimate};

    #[test]
    fn clocks_that_are_hours_apart_do_not_matter() {
        for offset in [-40_000_000_000_000_i64, -1, 0, 1, 40_000_000_000_000] {
            let sent = 50_000_000_000_000_u64;
            let clock = |at: u64| Instant::from_nanos(at.saturating_add_signed(offset));
            let header = Header { acknowledgement: (sent / TICK_NS) as u32, ..Header::default() };
            let arrived = clock(sent + 300_000);
            let stamp = stamp_of(&header, &mut (0, 0), arrived);
            let delay = arrived.as_nanos().wrapping_sub(stamp.sent.as_nanos()).cast_signed();
            let estimate = Estimate {
                warp: 1.0,
                delay_ns: delay,
                min_delay_ns: delay,
                noise_ns: 0.0,
                newest: stamp.sent,
                span_ns: 0,
                epoch: 0,
            };
            let back = Feedback::new(1, estimate, Arrivals::default(), arrived);
            let now = Instant::from_nanos(sent + 500_000);
            let own = in_own_time(back, now).estimate;
            assert_eq!(own.newest.as_nanos() / TICK_NS, sent / TICK_NS, "{offset}");
            // The delay contains the offset of the two clocks and no more.
            assert!((own.delay_ns - 300_000 - offset).abs() <= TICK_NS as i64, "{offset}");
        }
    }

    #[test]
    fn stamps_are_extended_however_often_their_lower_half_repeats() {
        let mut newest = (0, 0);
        let start = 1_000_000_000_000;
        for i in 0..3_000_u64 {
            let sent = start + i * 100_000_000;
            let header = Header {
                sequence: i as u32,
                acknowledgement: (sent / TICK_NS) as u32,
                ..Header::default()
            };
            let stamp = stamp_of(&header, &mut newest, Instant::from_nanos(sent + 50_000));
            assert_eq!((stamp.sequence, stamp.sent.as_nanos() / TICK_NS), (i, sent / TICK_NS));
        }
    }
}
