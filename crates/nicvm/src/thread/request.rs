//! A command that a thread's body holds.

use std::ops::Deref;

use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionError};

use super::nic::Nic;

/// A command that the body has to complete; dereferences to [`Command`]. A request that is dropped completes with
/// [`Status::Cancelled`], so every command completes once.
#[derive(Debug)]
#[must_use = "dropped it ends as cancelled"]
pub struct Request {
    command: Command,
    ticket: u64,
    nic: Nic,
}

impl Request {
    pub(super) const fn new(command: Command, ticket: u64, nic: Nic) -> Self {
        Self { command, ticket, nic }
    }

    /// Completes the command as done, with a length and four words.
    pub fn reply(self, length: u64, args: [u64; 4]) {
        let done = Completion { length, args, ..Completion::of(&self.command, Status::Done) };
        self.end(done);
    }

    /// Completes the command with another status.
    pub fn refuse(self, status: Status) {
        let refused = Completion::of(&self.command, status);
        self.end(refused);
    }

    /// Reads the command's memory, as it is now.
    ///
    /// # Errors
    /// [`RegionError`] if it may not be read.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: read again.
    pub async fn read(&self) -> Result<Vec<u8>, RegionError> {
        let region = self.command.region;
        self.nic.with(move |nic| nic.read(region).map(|bytes| bytes.to_vec())).await
    }

    /// Writes to the beginning of the command's memory, as many bytes as fit, and returns how many.
    ///
    /// # Errors
    /// [`RegionError`] if it may not be written.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the write still takes effect.
    pub async fn write(&self, bytes: &[u8]) -> Result<usize, RegionError> {
        let length = bytes.len().min(self.command.region.length as usize);
        let to = self.command.region.part(0, length as u32).expect("no longer than it");
        let bytes = bytes[..length].to_vec();
        self.nic.with(move |nic| nic.write(to, Payload::from(&bytes[..]))).await.map(|()| length)
    }

    fn end(&self, completion: Completion) {
        let mut shared = self.nic.shared();
        // If the port is closed, the command is no longer held and gets no completion.
        if let Some(command) = shared.held.remove(&self.ticket) {
            shared.ending.push(command);
            let port = command.region.port;
            shared.jobs.push_back(Box::new(move |nic| nic.complete(port, &completion)));
        }
    }
}

impl Deref for Request {
    type Target = Command;

    fn deref(&self) -> &Command {
        &self.command
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end(Completion::of(&self.command, Status::Cancelled));
    }
}
