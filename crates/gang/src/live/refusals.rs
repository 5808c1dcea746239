//! Reports daemons that were not admitted, and rights that the system refuses to this daemon.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use midplane_simhw::time::Instant;

/// Least time between two reports.
const REPORT_EACH: Duration = Duration::from_secs(1);
/// Least time between two reports of the same refusal: daemons that are not admitted dial again and again.
const REPEAT_EACH: Duration = Duration::from_secs(60);

/// File that lists the kernel's controllers, each with the hierarchy of version 1 that has it; 0 for none.
const CONTROLLERS: &str = "/proc/cgroups";

/// The cure of keys that do not fit.
const KEYS: &str =
    "the same --key on all hosts, or the public key of each host's --secret-key in --peers";

/// Prints a line of this daemon to standard error. Ignores errors: a full disk behind it ends no job.
pub(super) fn report(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "midplane gang daemon: {text}");
}

/// Reasons why a daemon is not admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// A host with its own key claims to be another host.
    Another {
        /// The host to which the key belongs.
        node: u16,
        /// The host that the daemon claims to be.
        claims: u16,
    },
    /// A daemon of this host is already connected.
    Connected(u16),
    /// A daemon at this address has another key.
    Key(IpAddr),
    /// A daemon at this address sends messages of another version.
    Version(IpAddr),
    /// The daemon of this host was started for a cluster of another shape.
    Cluster(u16),
    /// The daemon of this host does not accept the key of this one.
    Denied(u16),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another { node, claims } => {
                write!(f, "host {node} says that it is host {claims}; it is not admitted")
            }
            Self::Key(address) => {
                write!(f, "a daemon at {address} has another key; it is not admitted. Cure: {KEYS}")
            }
            Self::Version(address) => {
                write!(f, "a daemon at {address} is of another version; it is not admitted")
            }
            Self::Cluster(host) => write!(
                f,
                "the daemon of host {host} is not admitted. Cure: the same --peers and --slots on all hosts"
            ),
            Self::Denied(host) => {
                write!(f, "host {host} does not accept the key of this daemon. Cure: {KEYS}")
            }
            Self::Connected(host) => write!(
                f,
                "a second daemon says that it is host {host}, whose own is connected; it is not admitted while that connection lasts"
            ),
        }
    }
}

/// Rights that make slices exact, and that the system may refuse.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    /// A priority (nice value, real-time class) above that of the ranks.
    Priority,
    /// Control groups for jobs. True if the daemon also serves other users.
    ControlGroups(bool),
    /// The memory controller for jobs' control groups.
    Memory,
}

impl Right {
    /// Reports that the system refuses this right, with the consequence and the cure.
    pub(super) fn report_lack(self, error: &io::Error) {
        let text = match self {
            Self::Priority => {
                "no priority over ranks; slices end late while ranks spin. Cure: start it as root, grant CAP_SYS_NICE, or set \
                 LimitNICE=-20 and LimitRTPRIO=1 in its unit"
            }
            Self::ControlGroups(false) => {
                "no control groups; signals stop the ranks, and processes that these have put into other groups run on. Cure: \
                 systemd-run --user --scope -p Delegate=yes midplane gang daemon, or Delegate=yes in its unit"
            }
            Self::ControlGroups(true) => {
                "no control groups; signals stop the ranks, whose users can resume them out of turn, and leave processes \
                 behind. Cure: mount cgroup2 writable (in a container: a control group namespace of its own), or set \
                 Delegate=yes in its unit"
            }
            Self::Memory if is_in_version_1("memory") => {
                "boot with cgroup_no_v1=memory; control groups of version 1 have the controller"
            }
            Self::Memory => {
                "start it in a control group of its own that has the controller: systemd-run --user --scope -p Delegate=yes \
                 midplane gang daemon, or Delegate=yes in its unit"
            }
        };
        match self {
            Self::Memory => report(format_args!(
                "memory that jobs claim is counted, but not enforced, because {error}. Cure: {text}"
            )),
            _ => report(format_args!("{error}: {text}")),
        }
    }
}

/// Returns whether control groups of version 1 have a controller. Those of version 2 can't have it then.
fn is_in_version_1(controller: &str) -> bool {
    let lists = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some(controller) && words.next().is_some_and(|hierarchy| hierarchy != "0")
    };
    fs::read_to_string(CONTROLLERS).is_ok_and(|text| text.lines().any(lists))
}

/// Reports refusals on standard error, at most one in [`REPORT_EACH`].
#[derive(Debug, Default)]
pub(super) struct Refusals {
    reported: Option<(Refusal, Instant)>,
    unreported: u64,
}

impl Refusals {
    pub(super) fn report(&mut self, now: Instant, refusal: Refusal) {
        if let Some((last, at)) = self.reported
            && now < at + if last == refusal { REPEAT_EACH } else { REPORT_EACH }
        {
            self.unreported += 1;
            return;
        }
        self.reported = Some((refusal, now));
        match std::mem::take(&mut self.unreported) {
            0 => report(format_args!("{refusal}")),
            more => report(format_args!("{refusal}; {more} more were refused before")),
        }
    }
}
