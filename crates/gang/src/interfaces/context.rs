//! Everything that the NICs know of one job's Virtual Interfaces at one consistent cut.
//!
//! Ranks only, as a [`NetworkContext`](crate::context::NetworkContext): no node and no port stands in it.
//! As bytes it begins with `MPVI`, and goes on as that does.

use midplane_simhw::wire::{self, WireError};
use midplane_via::context::{PortContext, Violation, check_cut};
use serde::{Deserialize, Serialize};

use crate::context::{ReadError, seal, unseal};
use crate::names::JobId;

const MAGIC: [u8; 4] = *b"MPVI";

/// The interfaces of all processes of a job, saved after all stood still.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct InterfacesContext {
    /// Which job it was.
    pub job: JobId,
    /// One of each rank, in order.
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

    /// As bytes, to be kept.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond a gigabyte.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(seal(MAGIC, &wire::encode_long(self)?))
    }

    /// Reads what [`InterfacesContext::to_bytes`] wrote, and checks it.
    ///
    /// # Errors
    /// [`ReadError`] says what is wrong, and where.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let body = unseal(MAGIC, bytes)?;
        let context: Self = wire::decode_long(body).map_err(ReadError::Body)?;
        context.validate()?;
        Ok(context)
    }

    /// As JSON, to be read.
    ///
    /// # Panics
    /// Never: everything in a context has a form in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("everything in a context has a form in JSON")
    }

    /// Reads what [`InterfacesContext::to_json`] wrote, and checks it.
    ///
    /// # Errors
    /// [`ReadError`] says what is wrong, and where.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let context: Self = serde_json::from_str(text)?;
        context.validate()?;
        Ok(context)
    }
}
