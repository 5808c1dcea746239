//! The part of a live NIC's configuration that does not depend on its fabric.

use std::time::Duration;

use super::hardware::Nic;
use super::injector::FaultInjector;
use super::link::Link;
use super::start_error::StartError;
use crate::frame::MAX_PAYLOAD;
use crate::id::{Incarnation, NodeId};
use crate::live::clock::Clock;
use crate::port;
use crate::time::nanos;

/// The part of the configuration that all live NICs share.
#[derive(Clone, Debug)]
pub(crate) struct NicConfig {
    pub(crate) node: NodeId,
    pub(crate) seed: u64,
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) mtu: usize,
    pub(crate) port_depth: usize,
    pub(crate) spin: Duration,
    pub(crate) faults: Option<FaultInjector>,
}

impl NicConfig {
    pub(crate) const fn new(node: NodeId, mtu: usize, spin: Duration) -> Self {
        let port_depth = port::DEFAULT_DEPTH;
        Self { node, seed: 0, incarnation: None, mtu, port_depth, spin, faults: None }
    }

    /// Checks the node, one of `nodes`, the ports' depth and the MTU.
    pub(crate) fn check(&self, nodes: usize) -> Result<(), StartError> {
        if self.node.index() >= nodes {
            return Err(StartError::Rank { node: self.node, nodes });
        }
        StartError::check("the port depth", self.port_depth, (1, port::MAX_DEPTH))?;
        StartError::check("the MTU", self.mtu, (1, MAX_PAYLOAD))
    }

    /// Creates the NIC on its link.
    pub(crate) fn nic<L: Link>(&self, link: L) -> Nic<L> {
        let incarnation = self.incarnation.unwrap_or_else(Clock::incarnation);
        let mut nic = Nic::new(self.node, incarnation, self.mtu, link);
        nic.set_faults(self.faults.clone());
        nic
    }

    /// Returns the longest time of busy-polling, in nanoseconds.
    pub(crate) fn spin_nanos(&self) -> u32 {
        u32::try_from(nanos(self.spin)).unwrap_or(u32::MAX)
    }
}

/// Setters that the configuration of every live NIC has.
macro_rules! nic_setters {
    () => {
        /// Sets the seed of the host's random streams, which also depend on the node. Default: 0.
        #[must_use]
        pub const fn seed(mut self, seed: u64) -> Self {
            self.nic.seed = seed;
            self
        }

        /// Sets the incarnation of the NIC. Default: the time of day in units of 64 ms, so that it is newer than
        /// that of any earlier process. Setting the clock back breaks that.
        #[must_use]
        pub const fn incarnation(mut self, incarnation: $crate::id::Incarnation) -> Self {
            self.nic.incarnation = Some(incarnation);
            self
        }

        /// Sets how many commands may be in flight on one port, from 1 to [`MAX_DEPTH`](crate::port::MAX_DEPTH). Default:
        /// 256.
        #[must_use]
        pub const fn port_depth(mut self, commands: usize) -> Self {
            self.nic.port_depth = commands;
            self
        }

        /// Injects faults into the links that lead to the NIC: see [`FaultInjector`]. Default: none.
        ///
        /// [`FaultInjector`]: crate::nic::FaultInjector
        #[must_use]
        pub fn faults(mut self, injector: &$crate::nic::FaultInjector) -> Self {
            self.nic.faults = Some(injector.clone());
            self
        }
    };
}
pub(crate) use nic_setters;
