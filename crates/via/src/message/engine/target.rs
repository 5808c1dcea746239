//! The receive for which the caller of a poll waits.

use crate::message::request::Request;

/// The request that the caller waits for, and the caller's memory for its message. Bytes are written there while the
/// caller polls; between polls, the engine stores them.
#[derive(Debug, Default)]
pub(in crate::message) struct Target<'a> {
    pub(in crate::message) request: Option<Request>,
    memory: Option<&'a mut [u8]>,
}

impl<'a> Target<'a> {
    pub(in crate::message) const fn new(request: Request, memory: Option<&'a mut [u8]>) -> Self {
        Self { request: Some(request), memory }
    }

    /// Returns the memory, if it is for this request.
    pub(super) fn memory_of(&mut self, request: Request) -> Option<&mut [u8]> {
        self.memory.as_deref_mut().filter(|_| self.request == Some(request))
    }
}
