//! The report of a run.

use std::path::PathBuf;
use std::time::Duration;

use midplane_simhw::drops::Drops;
use midplane_simhw::fault::FaultCounts;

/// The result of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The virtual time at its end.
    pub time: Duration,
    /// A hash of all events: equal for equal runs.
    pub digest: u64,
    /// Events of the network, and turns of hosts.
    pub events: u64,
    /// Packets that hosts have sent.
    pub sent: u64,
    /// Packets that have arrived at their host, without those that the host dropped.
    pub delivered: u64,
    /// Packets that were dropped, by cause: on the network, at a NIC that had no buffer, at a full socket.
    pub drops: Drops,
    /// Counts the effects of each kind of fault.
    pub faults: FaultCounts,
    /// The hosts whose code has ended, in the order of their ends.
    pub ended: Vec<HostEnd>,
    /// The path of the [trace](super::SimBuilder::trace), if the run was traced and has ended, without the extensions
    /// `.pcapng` and `.perfetto-trace`.
    pub trace: Option<PathBuf>,
}

/// The end of a host's code.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct HostEnd {
    /// The name of the host.
    pub host: String,
    /// The virtual time at which it has ended.
    pub time: Duration,
}
