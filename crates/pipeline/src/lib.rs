//! Fragmentation planners: cut a message so that it arrives soonest through any chain of
//! store-and-forward stages.
//!
//! Every stage costs an overhead for each fragment and a time for each byte. With small fragments
//! the stages work at the same time; large ones pay fewer overheads. This crate computes the best
//! cut in between. It reads no clock and does no I/O, except in `executor`.
//!
//! - [`stage`] - start here: stages and chains of them, [`mod@unit`] - microseconds
//! - [`plan`] - requests and plans, [`limits`] - constraints on the sizes and the number of
//!   fragments
//! - [`mod@fixed`], [`mod@ramp`], [`mod@ramp_up`], [`mod@ramp_up_down`], [`mod@hierarchical`] - the
//!   algorithms
//! - [`mod@auto`] - the fastest plan of all of them
//! - [`planner`] - the hot path: plans from a cache, [`estimate`] - stages from measurements
//! - [`gantt`] - charts as SVG and as a Chrome trace
//! - `executor` - a plan applied to real I/O (feature `io`)
//! - `optimum` - the linear program, for studies (feature `lp`)
//! - [`timing`], [`compound`] - the exact recurrence, without and with refragmentation
//!
//! Items that this documentation does not show (`#[doc(hidden)]`) are for the crates, tests and measurements of this
//! workspace only. They may change in any version.
//!
//! ```
//! use midplane_pipeline::{Pipeline, Request, Stage, auto, fixed};
//!
//! // A 4 KB message through the four stages of Myrinet GAM: five fragments, 189 us instead of 287.
//! let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
//! let stages = gam.map(|(overhead_us, us_per_kb)| Stage::new(overhead_us, us_per_kb / 1000.0));
//! let gam = Pipeline::new(stages.into_iter().collect::<Result<_, _>>()?)?;
//! let plan = fixed(&gam, &Request::new(4000.0))?;
//! assert_eq!(plan.fragments().len(), 5);
//! assert!(plan.latency().get() < 191.0);
//! let best = auto(&gam, &Request::new(4000.0), None, Default::default())?;
//! assert!(best.latency() <= plan.latency());
//! # Ok::<(), midplane_pipeline::PlanError>(())
//! ```
#![forbid(unsafe_code)]

pub mod auto;
pub mod compound;
pub mod estimate;
#[cfg(feature = "io")]
pub mod executor;
pub mod fixed;
pub mod gantt;
mod grouping;
pub mod hierarchical;
pub mod limits;
#[cfg(feature = "lp")]
pub mod optimum;
pub mod plan;
mod plan_error;
pub mod planner;
mod problem;
pub mod ramp;
pub mod ramp_up;
pub mod ramp_up_down;
pub mod stage;
pub mod timing;
pub mod unit;

pub use auto::{Refragment, auto};
pub use compound::Grouping;
pub use fixed::fixed;
pub use hierarchical::hierarchical;
pub use limits::Limits;
#[cfg(feature = "lp")]
pub use optimum::optimum;
pub use plan::{Family, Level, Plan, PlanError, Request};
pub use planner::Planner;
pub use ramp::ramp;
pub use ramp_up::ramp_up;
pub use ramp_up_down::ramp_up_down;
pub use stage::{Pipeline, Stage};
pub use timing::{Parts, Row};
pub use unit::Micros;
pub use unit::MicrosPerByte;
