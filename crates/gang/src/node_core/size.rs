//! Formats sizes of memory.

use std::fmt;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// A number of bytes. Displayed in the largest unit that is not larger, with one decimal place.
#[derive(Clone, Copy, Debug)]
pub struct Size(
    /// The number of bytes.
    pub u64,
);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = (0..UNITS.len()).rev().find(|unit| self.0 >> (10 * unit) > 0).unwrap_or(0);
        let shown = format!("{:.1}", self.0 as f64 / (1_u64 << (10 * unit)) as f64);
        write!(f, "{} {}", shown.trim_end_matches(".0"), UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_unit_is_chosen() {
        let shown = [0, 1_000, 1 << 10, 3 << 29, 16 << 30, 5 << 40].map(|it| Size(it).to_string());
        assert_eq!(shown, ["0 B", "1000 B", "1 KiB", "1.5 GiB", "16 GiB", "5 TiB"]);
        assert_eq!(Size(u64::MAX).to_string(), "16777216 TiB");
    }
}
