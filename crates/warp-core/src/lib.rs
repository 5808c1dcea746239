//! Decides how fast to send: the rate law of Warp congestion control, and the measurements that it needs.
//!
//! Each part is a state machine that takes the time as an argument. This crate reads no clock and does no I/O.
//!
//! - [`control`]: start here: the recommended rate law
//! - [`stamp`], [`estimate`], [`feedback`]: the measurements that a law needs, and their wire formats
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
#![forbid(unsafe_code)]
//!
//! A sender of your own stamps each message, and sends at the controller's rate. Its receiver returns an estimate now
//! and then. Here the link is a model of 1 MB/s, in virtual time:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::time::Duration;
//!
//! use midplane_simhw::time::Instant;
//! use midplane_warp_core::control::{ControlConfig, Controller};
//! use midplane_warp_core::estimate::{Estimator, Grouping};
//! use midplane_warp_core::feedback::Feedback;
//! use midplane_warp_core::stamp::{Encoder, Stamp};
//!
//! const BYTES: usize = 1_000;
//!
//! let mut now = Instant::ZERO;
//! let delay = Duration::from_millis(5);
//! // 10 messages in the queue, from 20 kB/s to 10 MB/s; an eighth of the feedback delay a group.
//! let config = ControlConfig::new(10_000.0, 20_000.0, 10e6).first_delay(2 * delay);
//! let (mut controller, mut encoder) = (Controller::new(config, now), Encoder::default());
//! let mut estimator = Estimator::new(Grouping::new(1_250_000, 4));
//! let (mut arrivals, mut feedbacks) = (VecDeque::new(), VecDeque::new());
//! let (mut next_send, mut link_free, mut sequence) = (now, now, 0);
//! while now < Instant::from_nanos(5_000_000_000) {
//!     now += Duration::from_micros(100);
//!     controller.handle_timeout(now); // does nothing before its time, `poll_timeout`
//!     if next_send <= now {
//!         controller.on_sent(now, BYTES);
//!         link_free = link_free.max(now) + Duration::from_millis(1);
//!         arrivals.push_back((link_free + delay, encoder.stamp(now).emit()));
//!         next_send = now + Duration::from_secs_f64(BYTES as f64 / controller.rate(now));
//!     }
//!     while arrivals.front().is_some_and(|(at, _)| *at <= now) {
//!         let (at, bytes) = arrivals.pop_front().expect("there is one");
//!         let stamp = Stamp::parse(&bytes).expect("it is long enough");
//!         if let Some(estimate) = estimator.handle_arrival(stamp, at) {
//!             sequence += 1;
//!             let feedback = Feedback::new(sequence, estimate, estimator.arrivals(), at);
//!             feedbacks.push_back((at + delay, feedback.emit()));
//!         }
//!     }
//!     while feedbacks.front().is_some_and(|(at, _)| *at <= now) {
//!         let (_, bytes) = feedbacks.pop_front().expect("there is one");
//!         controller.handle_feedback(now, &Feedback::parse(&bytes).expect("it is valid"));
//!     }
//! }
//! let state = controller.state(now);
//! assert!((0.9e6..1.1e6).contains(&state.rate), "the link is full: {state:?}");
//! assert!(state.queue_delay < Duration::from_millis(20), "about 10 messages wait: {state:?}");
//! ```

pub mod control;
pub mod estimate;
pub mod feedback;
#[doc(hidden)]
pub mod round_trip;
pub mod stamp;
