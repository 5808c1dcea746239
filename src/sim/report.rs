//! The report of a run.

use std::time::Duration;

use midplane_simhw::drops::Drops;
use midplane_simhw::fault::FaultKind;

/// What a run has come to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The virtual time at its end.
    pub time: Duration,
    /// A number of all that has happened: the same for the same run.
    pub digest: u64,
    /// Events of the network, and turns of hosts.
    pub events: u64,
    /// Packets that hosts have sent.
    pub sent: u64,
    /// Packets that have arrived.
    pub delivered: u64,
    /// Packets that were dropped, by cause.
    pub drops: Drops,
    /// How often each kind of fault has had an effect.
    pub faults: Vec<(FaultKind, u64)>,
    /// The hosts whose code has ended, in that order.
    pub ended: Vec<HostEnd>,
}

/// The end of a host's code.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct HostEnd {
    /// The host's name.
    pub host: String,
    /// The virtual time.
    pub time: Duration,
}
