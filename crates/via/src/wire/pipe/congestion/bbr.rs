//! BBR, version 2: that of `s2n-quic-core`.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use num_rational::Ratio;
use s2n_quic_core::event::builder::{BbrState, SlowStartExitCause};
use s2n_quic_core::packet::number::PacketNumberSpace;
use s2n_quic_core::random::Generator;
use s2n_quic_core::recovery::bandwidth::{Bandwidth, PacketInfo, RateSample};
use s2n_quic_core::recovery::bbr::BbrCongestionController;
use s2n_quic_core::recovery::congestion_controller::Publisher;
use s2n_quic_core::recovery::{CongestionController, RttEstimator};
use s2n_quic_core::time::{Clock, NoopClock, Timestamp};

use super::{Acked, Controller, Lost, Sending, Start};

/// The round trip that is assumed before the first measurement (RFC 9002, section 6.2.2).
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(333);
/// Bytes of the largest datagram that the controller computes with: four of them must fit 16 bits. Longer datagrams
/// count as this long.
const MAX_MTU: usize = 16_383;
/// Most nanoseconds of a round trip, and between two events: 60 s. With longer ones, the controller's products of rates
/// and times would not fit 64 bits.
const MAX_STEP: u64 = 60_000_000_000;
/// Datagrams of the least window.
const MIN_PACKETS: u64 = 4;
/// Most bytes in flight: the controller counts them in 32 bits.
const MAX_IN_FLIGHT: u64 = 1 << 31;

/// BBR, version 2, which follows the measured rate and the shortest round trip.
#[derive(Debug)]
pub struct Bbr {
    law: BbrCongestionController,
    round_trips: RttEstimator,
    random: Random,
    /// The packets in flight, by their numbers: when each was sent, by the controller's clock.
    packets: BTreeMap<u64, (Timestamp, PacketInfo)>,
    /// The latest time that was passed, and the nanoseconds of the controller's clock, which never goes back.
    now: Instant,
    elapsed: u64,
    /// Bytes of the largest datagram.
    mtu: usize,
    /// Number of the packet that was lost last: the next one continues its burst.
    last_lost: Option<u64>,
}

impl Bbr {
    /// Makes the controller of a connection.
    #[must_use]
    pub fn new(start: Start) -> Self {
        Self {
            law: BbrCongestionController::new(mtu(start.mtu), Default::default()),
            round_trips: RttEstimator::new(FIRST_ROUND_TRIP),
            random: Random(Rng::new(start.seed, "bbr")),
            packets: BTreeMap::new(),
            now: start.now,
            elapsed: 0,
            mtu: start.mtu,
            last_lost: None,
        }
    }

    fn pass_to(&mut self, now: Instant) -> Timestamp {
        self.elapsed += now.nanos_since(self.now).min(MAX_STEP);
        self.now = self.now.max(now);
        NoopClock.get_time() + Duration::from_nanos(self.elapsed)
    }
}

impl Controller for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn on_sent(&mut self, now: Instant, sending: Sending) {
        let now = self.pass_to(now);
        let in_flight = u64::from(self.law.bytes_in_flight());
        // Packets that are not counted here are ignored when they are acknowledged or lost.
        if sending.bytes == 0 || in_flight.saturating_add(sending.bytes) > MAX_IN_FLIGHT {
            return;
        }
        let limited = Some(sending.is_application_limited);
        let bytes = sending.bytes as usize;
        let info =
            self.law.on_packet_sent(now, bytes, limited, &self.round_trips, &mut IgnoredEvents);
        self.packets.insert(sending.number, (now, info));
    }

    fn on_acked(&mut self, now: Instant, acked: Acked) {
        let Some((sent, info)) = self.packets.remove(&acked.number) else { return };
        let now = self.pass_to(now);
        let sample = Duration::from_nanos(acked.latest_round_trip.min(MAX_STEP));
        let space = PacketNumberSpace::ApplicationData;
        self.round_trips.update_rtt(Duration::ZERO, sample, now, true, space);
        self.law.on_rtt_update(sent, now, &self.round_trips, &mut IgnoredEvents);
        let bytes = acked.bytes as usize;
        self.law.on_ack(
            sent,
            bytes,
            info,
            &self.round_trips,
            &mut self.random,
            now,
            &mut IgnoredEvents,
        );
    }

    fn on_lost(&mut self, now: Instant, lost: Lost) {
        let Some((_, info)) = self.packets.remove(&lost.number) else { return };
        let now = self.pass_to(now);
        let begins = self.last_lost.is_none_or(|last| last + 1 != lost.number);
        self.last_lost = Some(lost.number);
        let bytes = lost.bytes as u32;
        let random = &mut self.random;
        self.law.on_packet_lost(
            bytes,
            info,
            lost.is_persistent,
            begins,
            random,
            now,
            &mut IgnoredEvents,
        );
    }

    fn on_mtu(&mut self, bytes: usize) {
        self.mtu = bytes;
        self.law.on_mtu_update(mtu(bytes), &mut IgnoredEvents);
    }

    fn window(&self) -> u64 {
        u64::from(self.law.congestion_window()).max(MIN_PACKETS * self.mtu as u64)
    }

    fn rate(&self) -> Option<u64> {
        // At least a datagram a second, whatever round trip was measured.
        Some(self.law.pacing_rate().as_bytes_per_second().max(self.mtu as u64))
    }
}

fn mtu(bytes: usize) -> u16 {
    bytes.clamp(1, MAX_MTU) as u16
}

/// Random numbers that repeat with the seed.
#[derive(Debug)]
struct Random(Rng);

impl Generator for Random {
    fn public_random_fill(&mut self, dest: &mut [u8]) {
        dest.fill_with(|| self.0.below(256) as u8);
    }

    fn private_random_fill(&mut self, dest: &mut [u8]) {
        self.public_random_fill(dest);
    }
}

/// Ignores the events of the controller.
struct IgnoredEvents;

impl Publisher for IgnoredEvents {
    fn on_slow_start_exited(&mut self, _: SlowStartExitCause, _: u32) {}
    fn on_delivery_rate_sampled(&mut self, _: RateSample) {}
    fn on_pacing_rate_updated(&mut self, _: Bandwidth, _: u32, _: Ratio<u64>) {}
    fn on_bbr_state_changed(&mut self, _: BbrState) {}
}
