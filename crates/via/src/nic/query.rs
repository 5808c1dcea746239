//! Queries of a NIC's resources and of an interface's state.

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{MAX_REGIONS, Status};
use midplane_simhw::region::MAX_REGION;

use super::{MAX_SEGMENTS, Nic, NicError, ViId};
use crate::attributes::{MAX_DISCRIMINATOR, ViAttributes, ViState};
use crate::command::{QUERY_NIC, about};

/// Resources of a NIC, and how much of each a program may use at once (Virtual Interface Architecture 1.0, NIC
/// attributes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NicAttributes {
    /// The node that it is on; with a discriminator, its address.
    pub node: NodeId,
    /// Most bytes of a discriminator.
    pub max_discriminator: usize,
    /// Most interfaces of the NIC, shared by all processes that have opened it.
    pub max_vis: usize,
    /// Interfaces that exist now.
    pub vis: usize,
    /// Most descriptors, connection requests and queries that this process may have under way. If interfaces can
    /// bypass the NIC, two places of the port for each of them are subtracted, and two more.
    pub max_posted: usize,
    /// Most data segments of a descriptor.
    pub max_segments: usize,
    /// Most bytes of one registered region.
    pub max_region: usize,
    /// Most regions of this process.
    pub max_regions: usize,
    /// Most bytes of a message in one frame.
    pub mtu: usize,
}

impl Nic {
    /// Returns the state of an interface, as its NIC reports it now.
    ///
    /// # Errors
    /// [`NicError::NoSuchVi`] if it was destroyed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn query_vi(&mut self, vi: ViId) -> Result<(ViState, ViAttributes), NicError> {
        let attributes = self.queues.of(vi)?.attributes;
        if self.is_broken(vi.number) {
            return Ok((ViState::Error, attributes));
        }
        let answer = self.call(about(vi.number, crate::command::QUERY, 0)).await?;
        let states = [ViState::Idle, ViState::Connected, ViState::ConnectPending, ViState::Error];
        let state = states.get(answer.args[3] as usize).copied().ok_or(NicError::NoSuchVi)?;
        Ok((state, attributes))
    }

    /// Returns the NIC's resources, as it reports them now.
    ///
    /// # Errors
    /// [`NicError::NoExtension`] if the extension was removed from it, [`NicError::Closed`],
    /// [`NicError::QueueFull`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn query(&mut self) -> Result<NicAttributes, NicError> {
        let answer = self.call(about(PortId(0), QUERY_NIC, 0)).await?;
        if answer.status != Status::Done {
            return Err(NicError::NoExtension);
        }
        let [max_vis, vis, mtu, _] = answer.args.map(|word| word as usize);
        Ok(NicAttributes {
            node: self.node,
            max_discriminator: MAX_DISCRIMINATOR,
            max_vis,
            vis,
            max_posted: self.most_posted(),
            max_segments: MAX_SEGMENTS,
            max_region: MAX_REGION,
            max_regions: MAX_REGIONS,
            mtu,
        })
    }
}
