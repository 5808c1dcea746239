//! The functions of `midplane.h`: they check C's arguments, and return numbers. No panic leaves one.
#![allow(unsafe_code, reason = "the functions that C code calls")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::bridge::{self, Failed};

thread_local! {
    /// The text of this thread's last failure.
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Calls a function; keeps the text of its error, and returns `None`, if it fails or panics.
fn guard<T>(call: impl FnOnce() -> Result<T, Failed>) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    let result = result.unwrap_or_else(|_| Err("internal error: Midplane has panicked".into()));
    match result {
        Ok(value) => Some(value),
        Err(text) => {
            let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
            // While the thread ends, its text has no storage any more.
            let _ = ERROR.try_with(|error| *error.borrow_mut() = text);
            None
        }
    }
}

/// Returns 0, or -1 after a failure.
fn code(call: impl FnOnce() -> Result<(), Failed>) -> c_int {
    guard(call).map_or(-1, |()| 0)
}

/// Opens a stream to a service. See `midplane.h`.
///
/// # Safety
/// `service` is null, or points to text that ends with a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn midplane_connect(service: *const c_char) -> c_int {
    let connected = guard(|| {
        if service.is_null() {
            return Err("the service's name is NULL".into());
        }
        // SAFETY: promised by the caller.
        let service = unsafe { CStr::from_ptr(service) };
        bridge::connect(service.to_str().map_err(|_| "the service's name is not UTF-8")?)
    });
    connected.unwrap_or(-1)
}

/// Sends bytes. See `midplane.h`.
///
/// # Safety
/// `bytes` points to `length` bytes, or `length` is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn midplane_send(
    stream: c_int,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        check(bytes, length)?;
        let bytes = match length {
            0 => &[],
            // SAFETY: promised by the caller; null and impossible lengths are refused before.
            _ => unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) },
        };
        bridge::send(stream, bytes)
    })
}

/// Receives bytes. See `midplane.h`.
///
/// # Safety
/// `bytes` points to `length` bytes that nothing else uses during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn midplane_receive(
    stream: c_int,
    bytes: *mut c_void,
    length: usize,
) -> isize {
    let received = guard(|| {
        if length == 0 {
            return Err("there is room for 0 bytes: 0 would mean the end".into());
        }
        check(bytes, length)?;
        // SAFETY: promised by the caller. The bytes may be uninitialised, as the type says.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<MaybeUninit<u8>>(), length) };
        bridge::receive(stream, bytes)
    });
    received.map_or(-1, usize::cast_signed)
}

/// Ends this process's side of a stream. See `midplane.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn midplane_finish(stream: c_int) -> c_int {
    code(|| bridge::finish(stream))
}

/// Closes a stream. See `midplane.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn midplane_close(stream: c_int) -> c_int {
    code(|| bridge::close(stream))
}

/// Returns the text of this thread's last failure. See `midplane.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn midplane_error() -> *const c_char {
    ERROR.try_with(|error| error.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Refuses null and lengths that no memory can have.
fn check(bytes: *const c_void, length: usize) -> Result<(), Failed> {
    if bytes.is_null() && length > 0 {
        return Err("the bytes are NULL".into());
    }
    if isize::try_from(length).is_err() {
        return Err(format!("no memory has {length} bytes"));
    }
    Ok(())
}
