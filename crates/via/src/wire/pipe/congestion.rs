//! Bounds the bytes in flight and their rate: the interface of congestion controllers, and the laws to choose from.
//!
//! A law of your own implements [`Controller`]. [`Config::congestion`](super::Config::congestion) takes a factory of it, for
//! the connections of an [`Endpoint`](crate::wire::endpoint::Endpoint). Nodes choose from [`Congestion`] only.
//!
//! ```
//! use std::sync::Arc;
//!
//! use midplane_simhw::time::Instant;
//! use midplane_via::wire::pipe::Config;
//! use midplane_via::wire::pipe::congestion::{Acked, Controller, ControllerFactory, Lost, Start};
//!
//! /// Keeps four datagrams in flight.
//! #[derive(Debug)]
//! struct Four {
//!     mtu: usize,
//! }
//!
//! impl Controller for Four {
//!     fn name(&self) -> &'static str {
//!         "four"
//!     }
//!     fn on_acked(&mut self, _: Instant, _: Acked) {}
//!     fn on_lost(&mut self, _: Instant, _: Lost) {}
//!     fn on_mtu(&mut self, bytes: usize) {
//!         self.mtu = bytes;
//!     }
//!     fn window(&self) -> u64 {
//!         4 * self.mtu as u64
//!     }
//! }
//!
//! let four: ControllerFactory = Arc::new(|start: Start| Box::new(Four { mtu: start.mtu }));
//! let config = Config::default().congestion(four);
//! # drop(config);
//! ```
//!
//! `quinn-proto`'s Cubic and BBR can't be used here: they read an `RttEstimator`, which only that crate can make. BBR
//! is that of `s2n-quic-core`. Cubic is our own, because that crate needs a later Rust than the rest.

#[cfg(feature = "bbr")]
mod bbr;
mod cubic;
mod slow_start;
mod warp;

use std::fmt;
use std::sync::Arc;

use midplane_simhw::time::Instant;

#[cfg(feature = "bbr")]
pub use bbr::Bbr;
pub use cubic::Cubic;
pub use warp::Warp;

/// The parameters of a controller whose connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The time at which the connection begins.
    pub now: Instant,
    /// Bytes of the largest datagram at first.
    pub mtu: usize,
    /// A random number, which differs for each connection.
    pub seed: u64,
}

/// A packet that was sent, as a controller receives it.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The packet's number. Numbers rise, with gaps.
    pub number: u64,
    /// Bytes of its datagram.
    pub bytes: u64,
    /// True if neither window nor rate limits the sender: it has nothing more to send.
    pub is_application_limited: bool,
}

/// An acknowledged packet, as a controller receives it.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// The number of the acknowledged packet.
    pub number: u64,
    /// When the packet was sent.
    pub sent: Instant,
    /// Bytes of its datagram.
    pub bytes: u64,
    /// True if the window limited the sender; otherwise the acknowledgement is no reason to grow.
    pub is_window_limited: bool,
    /// Smoothed round-trip time in nanoseconds.
    pub round_trip: u64,
    /// Round-trip time in nanoseconds that was measured last: that of the newest acknowledged packet.
    pub latest_round_trip: u64,
    /// The nanoseconds of it in which the peer delayed the acknowledgement, as the peer says; at most 25 ms.
    pub waited: u64,
    /// Shortest round-trip time in nanoseconds.
    pub min_round_trip: u64,
}

/// A lost packet, as a controller receives it.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// The number of the lost packet.
    pub number: u64,
    /// When the packet was sent.
    pub sent: Instant,
    /// Bytes of its datagram.
    pub bytes: u64,
    /// True if no packet arrived for several timeouts.
    pub is_persistent: bool,
}

/// A congestion controller: it decides how many bytes may be in flight, and how fast they are sent.
///
/// Each packet that is passed to [`Controller::on_sent`] is later passed to either [`Controller::on_acked`] or
/// [`Controller::on_lost`], once.
pub trait Controller: fmt::Debug + Send {
    /// Returns the law's name, in lower case.
    fn name(&self) -> &'static str;
    /// Handles a packet that was sent; ignored unless overridden.
    fn on_sent(&mut self, _now: Instant, _sending: Sending) {}
    /// Handles the acknowledgement of a packet.
    fn on_acked(&mut self, now: Instant, acked: Acked);
    /// Handles the loss of a packet.
    fn on_lost(&mut self, now: Instant, lost: Lost);
    /// Changes the largest datagram to `bytes`.
    fn on_mtu(&mut self, bytes: usize);
    /// Returns the bytes that may be in flight.
    fn window(&self) -> u64;
    /// Returns the rate at which packets are sent, in bytes a second. `None` unless overridden: a quarter more than the
    /// window in each round trip.
    fn rate(&self) -> Option<u64> {
        None
    }
}

/// Makes the controller of a connection.
pub type ControllerFactory = Arc<dyn Fn(Start) -> Box<dyn Controller> + Send + Sync>;

/// The congestion control of connections over UDP: how fast they send where the network is the limit.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Congestion {
    /// Cubic (RFC 9438), which most TCP senders use: fair to them.
    #[default]
    Cubic,
    /// BBR, version 2: follows the measured rate and the shortest round trip, and tolerates some random loss. Feature
    /// `bbr`.
    #[cfg(feature = "bbr")]
    Bbr,
    /// Warp: follows the delay, and keeps queues short. For networks whose senders all use it: in competition with TCP,
    /// it gets almost no bandwidth.
    Warp,
}

impl Congestion {
    /// Returns the factory of its controllers.
    #[must_use]
    pub fn factory(self) -> ControllerFactory {
        Arc::new(move |start| match self {
            Self::Cubic => Box::new(Cubic::new(start.mtu)),
            #[cfg(feature = "bbr")]
            Self::Bbr => Box::new(Bbr::new(start)),
            Self::Warp => Box::new(Warp::new(start)),
        })
    }
}

#[cfg(test)]
mod tests;
