//! The hardware.
