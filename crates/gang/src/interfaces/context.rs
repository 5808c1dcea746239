//! The saved state of one job's Virtual Interfaces, at a consistent cut.
//!
//! Like a [`NetworkContext`](crate::context::NetworkContext), it names ranks only, no nodes or ports. Its bytes begin
//! with `MPVI`; the rest of the format is the same.

use midplane_simhw::wire::{self, WireError};
use midplane_via::context::{PortContext, Violation, check_cut};
use serde::{Deserialize, Serialize};

use crate::context::{ReadError, seal, unseal};
use crate::names::JobId;

const MAGIC: [u8; 4] = *b"MPVI";

/// The interfaces of all processes of a job, saved while all were suspended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct InterfacesContext {
    /// The job.
    pub job: JobId,
    /// One port per rank, in order.
    pub ranks: Vec<PortContext>,
}

impl InterfacesContext {
    /// Checks that this is a consistent cut: each process's numbers agree with its queues, and the two
    /// ends of each connection with each other.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn validate(&self) -> Result<(), Violation> {
        check_cut(&self.ranks)
    }

    /// Encodes the context as bytes.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond a gigabyte.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(seal(MAGIC, &wire::encode_long(self)?))
    }

    /// Reads the bytes of [`InterfacesContext::to_bytes`], and checks the context.
    ///
    /// # Errors
    /// [`ReadError`], with the position of the problem.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let body = unseal(MAGIC, bytes)?;
        let context: Self = wire::decode_long(body).map_err(ReadError::Body)?;
        context.validate()?;
        Ok(context)
    }

    /// Encodes the context as JSON, to be read by people.
    ///
    /// # Panics
    /// Never: every context can be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every context can be written as JSON")
    }

    /// Reads the text of [`InterfacesContext::to_json`], and checks the context.
    ///
    /// # Errors
    /// [`ReadError`], with the position of the problem.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let context: Self = serde_json::from_str(text)?;
        context.validate()?;
        Ok(context)
    }
}
