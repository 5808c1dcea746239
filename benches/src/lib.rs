//! Scenes shared by `lab` and the examples; not published. `lab QUESTION` measures.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    unnameable_types,
    unreachable_pub,
    reason = "not published: callers stand in this workspace"
)]

#[cfg(feature = "lab")]
pub mod anchors;
#[cfg(feature = "lab")]
pub mod callgrind;
#[cfg(feature = "lab")]
pub mod chains;
pub mod counts;
#[cfg(target_os = "linux")]
pub mod daemons;
pub mod folder;
pub mod incast;
#[cfg(feature = "lab")]
pub mod kernel_tcp;
pub mod live_nic;
pub mod meeting;
#[cfg(all(feature = "lab", target_os = "linux"))]
pub mod nas_rank;
pub mod nodes;
#[cfg(feature = "lab")]
pub mod plot;
#[cfg(feature = "lab")]
pub mod promises;
#[cfg(feature = "lab")]
pub mod raw;
#[cfg(feature = "lab")]
pub mod solver;
pub mod transfer;
#[cfg(feature = "lab")]
pub mod work;
