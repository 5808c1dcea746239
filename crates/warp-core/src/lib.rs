//! Decides how fast to send: the rate law of Warp congestion control, and the measurements that it needs.
//!
//! Each part is a state machine that takes the time as an argument. This crate reads no clock and does no I/O.
//!
//! - [`control`]: start here: the recommended rate law
//! - [`round_trip`]: the law for a sender that knows only when each packet was acknowledged
//! - [`stamp`], [`estimate`], [`feedback`]: the measurements that a law needs, and their wire formats
#![forbid(unsafe_code)]

pub mod control;
pub mod estimate;
pub mod feedback;
pub mod round_trip;
pub mod stamp;
