//! Reports of daemons that were not admitted.

use std::fmt;
use std::time::Duration;

use midplane_simhw::time::Instant;

/// Least time between two reports.
const REPORT_EACH: Duration = Duration::from_secs(1);

/// Reasons why a daemon is not admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// A host with a key of its own claims to be another.
    Another {
        /// The host that the key belongs to.
        node: u16,
        /// The host that the daemon claims to be.
        claims: u16,
    },
    /// The host is connected already.
    Connected(u16),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another { node, claims } => {
                write!(f, "host {node} says that it is host {claims}; it is not admitted")
            }
            Self::Connected(host) => write!(
                f,
                "a second daemon says that it is host {host}, whose own is connected; it is not admitted while that lives"
            ),
        }
    }
}

/// Reports refusals on standard error.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    reported_at: Option<Instant>,
    unreported: u64,
}

impl Refusals {
    pub(super) fn report(&mut self, now: Instant, refusal: Refusal) {
        if self.reported_at.is_some_and(|at| now < at + REPORT_EACH) {
            self.unreported += 1;
            return;
        }
        self.reported_at = Some(now);
        match std::mem::take(&mut self.unreported) {
            0 => eprintln!("midplane gang daemon: {refusal}"),
            more => eprintln!("midplane gang daemon: {refusal}; {more} more were refused before"),
        }
    }
}
