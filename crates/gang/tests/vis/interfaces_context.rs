//! The saved state of one job's Virtual Interfaces, at a consistent cut.

use midplane_simhw::wire;
use midplane_via::context::{PortContext, Violation, check_cut};
use serde::{Deserialize, Serialize};

use midplane_gang::names::JobId;

/// The interfaces of all processes of a job, saved while all were suspended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct InterfacesContext {
    /// The job whose interfaces they are.
    pub(crate) job: JobId,
    /// One port per rank, in order.
    pub(crate) ranks: Vec<PortContext>,
}

impl InterfacesContext {
    /// Checks that this is a consistent cut: each process's numbers agree with its queues, and the two
    /// ends of each connection with each other.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub(crate) fn validate(&self) -> Result<(), Violation> {
        check_cut(&self.ranks)
    }

    /// Encodes the context as bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        wire::encode_long(self).unwrap()
    }

    /// Decodes and checks a context; `None` if it can't be decoded, or is no consistent cut.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let context: Self = wire::decode_long(bytes).ok()?;
        context.validate().ok().map(|()| context)
    }
}
