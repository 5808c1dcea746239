//! The two units of all costs: microseconds, and microseconds per byte.

use std::fmt;

/// A time in microseconds: finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Micros(f64);

impl Micros {
    /// Zero microseconds.
    pub const ZERO: Self = Self(0.0);

    /// Wraps a time computed from checked costs, which is finite and not negative.
    pub(crate) const fn of(us: f64) -> Self {
        Self(us)
    }

    /// Returns the number of microseconds.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} us", self.0)
    }
}

/// An inverse bandwidth in microseconds per byte: finite and not negative. 0.001 is 1 GB/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct MicrosPerByte(f64);

impl MicrosPerByte {
    pub(crate) const fn of(us_per_byte: f64) -> Self {
        Self(us_per_byte)
    }

    /// Returns the number of microseconds that one byte takes.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for MicrosPerByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} us/B", self.0)
    }
}
