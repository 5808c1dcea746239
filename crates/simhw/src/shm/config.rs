//! The configuration of a NIC over shared memory.

use std::time::Duration;

use super::lane::Shape;
use crate::acceptor::Admitted;
use crate::id::NodeId;
use crate::nic::{NicConfig, StartError, nic_setters};
use crate::segment::LINE;
use crate::time::LineRate;

/// The name of two limits in errors.
const SLOTS: &str = "the number of slots or areas";
/// Default MTU: 16 KiB. It is large enough that all but a tenth of a frame's cost is the copy of its payload. It is
/// small enough that the two copies of a longer message overlap.
pub const DEFAULT_MTU: usize = 16 << 10;
/// Default number of slots a direction: 64 frames in 8 KiB.
const DEFAULT_SLOTS: usize = 64;
/// Default memory for longer frames a direction: 2 MiB. It is more than a core's own cache, so that an area has left
/// the reader's cache before it is written again. A line that is still there must be fetched from that cache: with
/// 256 KiB, frames of 64 KiB take twice as long (Zen 4, 1 MiB a core). With 8 MiB they take longer again.
const DEFAULT_AREA_BYTES: usize = 2 << 20;
/// Default memory for longer frames to all peers together: 16 MiB. With more than eight peers, each has less than
/// [`DEFAULT_AREA_BYTES`].
const DEFAULT_AREA_BYTES_OF_ALL: usize = 16 << 20;
/// Least number of longer frames a direction, unless fewer are configured.
const MIN_AREAS: usize = 16;
/// Default rate: 100 Gb/s, about what one core copies.
const DEFAULT_RATE: LineRate = LineRate::mbps(100_000);
/// Default spin time: 20 us, about the cost of parking and being woken.
const DEFAULT_SPIN: Duration = Duration::from_micros(20);
/// Default time to connect: a minute, enough for processes that a person starts by hand one after the other.
const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Most nodes of one fabric.
pub(crate) const MAX_NODES: u16 = 1_024;
/// Most slots, and most areas, of a direction.
pub(crate) const MAX_SLOTS: usize = 65_536;
/// Most bytes of a fabric's name.
pub(crate) const MAX_NAME: usize = 64;

/// The configuration of a NIC over shared memory, and of the fabric that it belongs to.
///
/// `Lanes` have no faults, because nothing above them repairs a loss.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    pub(super) nic: NicConfig,
    pub(super) nodes: u16,
    pub(super) name: String,
    pub(super) slots: usize,
    pub(super) areas: Option<usize>,
    pub(super) rate: LineRate,
    pub(super) join_timeout: Duration,
    pub(super) admitted: Admitted,
}

impl ShmConfig {
    /// Creates the configuration of `node`, one of `nodes`, in the fabric `name`. Processes of this host (and
    /// of its network namespace) with the same name connect to each other.
    #[must_use]
    pub fn new(name: impl Into<String>, node: NodeId, nodes: u16) -> Self {
        Self {
            nic: NicConfig::new(node, DEFAULT_MTU, DEFAULT_SPIN),
            nodes,
            name: name.into(),
            slots: DEFAULT_SLOTS,
            areas: None,
            rate: DEFAULT_RATE,
            join_timeout: DEFAULT_JOIN_TIMEOUT,
            admitted: Admitted::default(),
        }
    }

    /// Sets the most payload bytes of one frame, from 1 to [`MAX_PAYLOAD`](crate::frame::MAX_PAYLOAD); the same on all
    /// nodes. Default: [`DEFAULT_MTU`].
    #[must_use]
    pub const fn mtu(mut self, bytes: usize) -> Self {
        self.nic.mtu = bytes;
        self
    }

    /// Sets how many frames may be in flight to one peer, from 4 to 65,536, rounded up to a power of
    /// two; the same on all nodes. Memory: 128 bytes each. Default: 64.
    #[must_use]
    pub const fn slots(mut self, frames: usize) -> Self {
        self.slots = frames;
        self
    }

    /// Sets how many frames of more than 64 bytes may be in flight to one peer; the same on all nodes. Range: 4 to
    /// 65,536, rounded up to a power of two. Memory: the MTU each, once it is used. Default: as many as fit
    /// 2 MiB and the peer's share of 16 MiB, but at least 16.
    #[must_use]
    pub const fn areas(mut self, frames: usize) -> Self {
        self.areas = Some(frames);
        self
    }

    /// Sets the line rate that the firmware assumes; frames are not paced to it. Default: 100 Gb/s.
    #[must_use]
    pub const fn rate(mut self, rate: LineRate) -> Self {
        self.rate = rate;
        self
    }

    /// Sets how long a waiting task busy-polls for a completion before it parks, at most; it polls for less
    /// time if recent polls found nothing. Zero parks at once. Default: 20 us.
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.nic.spin = time;
        self
    }

    /// Sets how long lanes wait for a process to connect, from the first frame to it or the
    /// call of `Lanes::await_node`. The process then counts as exited. NICs have no
    /// such limit: their extensions set their own. Default: a minute.
    #[must_use]
    pub const fn join_timeout(mut self, time: Duration) -> Self {
        self.join_timeout = time;
        self
    }

    /// Admits processes of this user as well. Default: those of the own user only.
    #[must_use]
    pub fn admit(self, user: u32) -> Self {
        self.admitted.add(user);
        self
    }

    nic_setters!();

    pub(super) const fn shape(&self) -> Shape {
        let areas = match self.areas {
            Some(areas) => areas.next_power_of_two(),
            None => self.usual_areas(),
        };
        Shape { slots: self.slots.next_power_of_two(), areas, mtu: self.nic.mtu }
    }

    const fn usual_areas(&self) -> usize {
        let peers = if self.nodes > 1 { self.nodes as usize - 1 } else { 1 };
        let share = DEFAULT_AREA_BYTES_OF_ALL / peers;
        let bytes = if share < DEFAULT_AREA_BYTES { share } else { DEFAULT_AREA_BYTES };
        let areas = bytes / self.nic.mtu.next_multiple_of(LINE);
        if areas < MIN_AREAS { MIN_AREAS } else { (areas + 1).next_power_of_two() / 2 }
    }

    /// Checks that all values are in range.
    pub(super) fn check(&self) -> Result<(), StartError> {
        let nodes = usize::from(self.nodes);
        StartError::check("the number of nodes", nodes, (0, MAX_NODES.into()))?;
        self.nic.check(nodes)?;
        StartError::check("the length of the fabric's name", self.name.len(), (1, MAX_NAME))?;
        let mut asked = [Some(self.slots), self.areas].into_iter().flatten();
        asked.try_for_each(|count| StartError::check(SLOTS, count, (4, MAX_SLOTS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MAX_PAYLOAD;

    #[test]
    fn a_contradictory_configuration_is_refused() {
        let config = |node| ShmConfig::new("test", NodeId(node), 2);
        let refused = |config: ShmConfig| match config.check() {
            Err(StartError::OutOfRange { value, .. }) => Some(value),
            _ => None,
        };
        assert_eq!(config(1).check(), Ok(()));
        assert_eq!(config(2).check(), Err(StartError::Rank { node: NodeId(2), nodes: 2 }));
        for mtu in [0, 70_000] {
            assert_eq!(refused(config(0).mtu(mtu)), Some(mtu));
        }
        assert_eq!(refused(config(0).slots(3)), Some(3));
        assert_eq!(refused(config(0).areas(65_537)), Some(65_537));
        let crowd = MAX_NODES + 1;
        assert_eq!(refused(ShmConfig::new("test", NodeId(0), crowd)), Some(crowd.into()));
        for length in [0, MAX_NAME + 1] {
            let named = ShmConfig::new("x".repeat(length), NodeId(0), 1);
            assert_eq!(refused(named), Some(length));
        }
    }

    #[test]
    fn areas_exceed_a_cores_own_cache_and_many_peers_share_the_memory() {
        let areas = |nodes, mtu| ShmConfig::new("test", NodeId(0), nodes).mtu(mtu).shape().areas;
        assert_eq!(areas(2, DEFAULT_MTU), 128);
        assert_eq!(areas(9, DEFAULT_MTU), 128);
        assert_eq!(areas(10, DEFAULT_MTU), 64, "a power of two, and no more than there is");
        assert_eq!(areas(MAX_NODES, DEFAULT_MTU), MIN_AREAS);
        assert_eq!(areas(1, MAX_PAYLOAD), 32);
        assert_eq!(areas(2, 1), 32_768);
        assert_eq!(ShmConfig::new("test", NodeId(0), 2).areas(5).shape().areas, 8);
    }
}
