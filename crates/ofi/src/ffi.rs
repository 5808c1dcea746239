//! The calls of libfabric: the only module with unsafe code.
//!
//! The library is loaded at run time. Its results are trusted as those of any C library. Outside this module, an object
//! is a safe type: it owns the memory that its provider may access, and closes the provider's objects in the right
//! order.
#![allow(unsafe_code, reason = "calls a C library through its tables of functions")]

mod endpoint;
mod info;
mod library;
mod memory;

use std::ffi::c_int;
use std::fmt;

pub(crate) use endpoint::{Completion, MAX_NAME, RawEndpoint};
pub(crate) use info::{Filter, InfoRef, Infos, OwnedInfo};
pub use library::Unavailable;
pub(crate) use library::library;

/// An error that libfabric returned.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct CallError {
    /// The function that was called.
    call: &'static str,
    /// A positive number from `fi_errno.h`.
    code: c_int,
}

impl CallError {
    /// Returns the number of the error; numbers below 256 are the system's.
    #[must_use]
    pub const fn code(&self) -> i32 {
        self.code
    }

    /// Creates the error of an argument that is refused before the call.
    pub(crate) const fn invalid(call: &'static str) -> Self {
        Self { call, code: libc::EINVAL }
    }

    /// Creates the error of a call that is not made because it would exceed a bound.
    pub(crate) const fn no_space(call: &'static str) -> Self {
        Self { call, code: libc::ENOSPC }
    }

    /// Creates the error of an operation that has taken too long.
    #[cfg(feature = "streams")]
    pub(crate) const fn timed_out(call: &'static str) -> Self {
        Self { call, code: libc::ETIMEDOUT }
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = library().map(|library| library.text(self.code)).unwrap_or_default();
        write!(f, "{}: {text} (error {})", self.call, self.code)
    }
}

impl std::error::Error for CallError {}

/// Converts a negative result of a call into an error.
fn check(call: &'static str, returned: isize) -> Result<usize, CallError> {
    usize::try_from(returned).map_err(|_| CallError {
        call,
        code: c_int::try_from(returned.unsigned_abs()).unwrap_or(c_int::MAX),
    })
}
