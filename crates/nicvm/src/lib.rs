//! The firmware that hosts event-handler extensions.
#![forbid(unsafe_code)]

pub mod control;
