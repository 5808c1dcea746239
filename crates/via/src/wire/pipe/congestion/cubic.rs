//! Cubic (RFC 9438), with the slow start of HyStart++ (RFC 9406), as the kernel's TCP.

use midplane_simhw::time::Instant;

use super::slow_start::SlowStart;
use super::{Acked, Controller, Lost, Sending};

/// The fraction of the window that remains after a loss.
const BETA: f64 = 0.7;
/// Growth of the cubic function, in packets per second cubed.
const C: f64 = 0.4;
/// Growth of the window that a Reno sender of the same average would have, in packets a round trip.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Packets of the first window (RFC 9002, section 7.2).
const FIRST_PACKETS: f64 = 10.0;
/// Packets of the least window.
const MIN_PACKETS: f64 = 2.0;
/// Most bytes of a window: 1 TB.
const MAX_WINDOW: f64 = (1_u64 << 40) as f64;

/// Cubic, the congestion control of most TCP senders.
#[derive(Clone, Debug)]
pub struct Cubic {
    mtu: f64,
    window: f64,
    slow_start: SlowStart,
    slow_start_until: f64,
    /// The window before the last loss.
    before_loss: f64,
    /// The window that a Reno sender would have.
    reno: f64,
    /// When growth began after the last loss, and the seconds from then until the window before it is reached
    /// again.
    epoch: Option<(Instant, f64)>,
    /// Losses of packets sent before this time count as one with the last loss.
    recovery: Option<Instant>,
}

impl Cubic {
    /// Makes the controller for datagrams of up to `mtu` bytes.
    #[must_use]
    pub fn new(mtu: usize) -> Self {
        let mtu = mtu as f64;
        let window = FIRST_PACKETS * mtu;
        Self {
            mtu,
            window,
            slow_start: SlowStart::new(),
            slow_start_until: f64::INFINITY,
            before_loss: 0.0,
            reno: window,
            epoch: None,
            recovery: None,
        }
    }

    fn least(&self) -> f64 {
        MIN_PACKETS * self.mtu
    }

    fn begin_epoch(&mut self, now: Instant) -> (Instant, f64) {
        self.before_loss = self.before_loss.max(self.window);
        self.reno = self.window;
        let gap = (self.before_loss - self.window) / self.mtu;
        *self.epoch.insert((now, (gap / C).cbrt()))
    }

    fn grow(&mut self, now: Instant, acked: Acked) {
        let (began, reach) = self.epoch.unwrap_or_else(|| self.begin_epoch(now));
        let seconds = (now.nanos_since(began) + acked.round_trip) as f64 / 1e9;
        let target = C * (seconds - reach).powi(3) * self.mtu + self.before_loss;
        let target = target.clamp(self.window, 1.5 * self.window);
        let share = acked.bytes as f64 / self.window;
        let alpha = if self.reno < self.before_loss { ALPHA } else { 1.0 };
        self.reno += alpha * share * self.mtu;
        self.window = (self.window + (target - self.window) * share).max(self.reno);
    }
}

impl Controller for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn on_sent(&mut self, _now: Instant, sending: Sending) {
        self.slow_start.on_sent(sending.number);
    }

    fn on_acked(&mut self, now: Instant, acked: Acked) {
        if self.recovery.is_some_and(|since| acked.sent <= since) {
            return;
        }
        if !acked.is_window_limited {
            // Time in which the window was not used is no reason to grow.
            self.epoch = None;
            return;
        }
        if self.window < self.slow_start_until {
            match self.slow_start.growth(acked.number, acked.latest_round_trip) {
                Some(part) => self.window += part * acked.bytes as f64,
                None => self.slow_start_until = self.window,
            }
        } else {
            self.grow(now, acked);
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    fn on_lost(&mut self, now: Instant, lost: Lost) {
        if lost.is_persistent {
            self.window = self.least();
            self.slow_start = SlowStart::new();
            self.recovery = None;
            self.epoch = None;
            return;
        }
        if self.recovery.is_some_and(|since| lost.sent <= since) {
            return;
        }
        self.recovery = Some(now);
        // Fast convergence: a window below its last peak yields to other connections.
        let yields = self.window < self.before_loss;
        self.before_loss = self.window * if yields { f64::midpoint(1.0, BETA) } else { 1.0 };
        self.window = (self.window * BETA).max(self.least());
        self.slow_start_until = self.window;
        self.epoch = None;
    }

    fn on_mtu(&mut self, bytes: usize) {
        self.mtu = bytes as f64;
        self.window = self.window.max(self.least());
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn acked(sent: Instant) -> Acked {
        Acked {
            number: 0,
            sent,
            bytes: 1_200,
            is_window_limited: true,
            round_trip: 20 * MS,
            latest_round_trip: 20 * MS,
            waited: 0,
            min_round_trip: 20 * MS,
        }
    }

    fn lost(sent: Instant) -> Lost {
        Lost { number: 0, sent, bytes: 1_200, is_persistent: false }
    }

    #[test]
    fn the_window_doubles_in_a_round_trip_until_a_loss_and_shrinks_once_for_a_burst() {
        let mut law = Cubic::new(1_200);
        for _ in 0..10 {
            law.on_acked(Instant::from_nanos(20 * MS), acked(Instant::ZERO));
        }
        assert_eq!(law.window(), 24_000);
        for sent in [1, 2, 3] {
            law.on_lost(Instant::from_nanos(30 * MS), lost(Instant::from_nanos(sent * MS)));
        }
        assert_eq!(law.window(), 16_800);
    }

    #[test]
    fn the_window_reaches_its_last_peak_at_the_time_of_the_cubic_function() {
        let mut law = Cubic::new(1_200);
        law.window = 1_200_000.0;
        law.on_lost(Instant::ZERO, lost(Instant::ZERO));
        let reach = (300.0_f64 / C).cbrt();
        let mut now = Instant::ZERO;
        while (now.as_nanos() as f64) < reach * 1e9 {
            now = now.plus_nanos(20 * MS);
            for _ in 0..law.window() / 1_200 {
                law.on_acked(now, acked(now));
            }
        }
        let share = law.window / 1_200_000.0;
        assert!((0.97..1.03).contains(&share), "{share}");
    }

    #[test]
    fn a_sender_that_the_window_does_not_limit_does_not_grow_it() {
        let mut law = Cubic::new(1_200);
        let idle = Acked { is_window_limited: false, ..acked(Instant::ZERO) };
        law.on_acked(Instant::from_nanos(MS), idle);
        assert_eq!(law.window(), 12_000);
    }
}
