//! The functions that callers call through tables, one file for each kind of object.
//!
//! Each is called with pointers that are valid by libfabric's documentation. No panic leaves a function.
#![allow(unsafe_code, reason = "the functions that C code calls")]

pub(crate) mod address_vector;
pub(crate) mod atomic;
pub(crate) mod counter;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod fabric;
pub(crate) mod queue;
pub(crate) mod region;
pub(crate) mod rma;
pub(crate) mod transfer;

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::abi::Fid;
use crate::abi::constants::{ENOSYS, EOTHER};
use crate::abi::tables::{FidOps, missing};

/// Calls a function; returns `otherwise` if the function panics.
#[inline]
pub(crate) fn guard<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Calls a function; returns 0, or the function's error negated.
#[inline]
fn code(call: impl FnOnce() -> Result<(), c_int>) -> c_int {
    guard(-EOTHER, || call().map_or_else(|error| -error, |()| 0))
}

/// Does the same as [`code`], with the return type of transfer functions.
#[inline]
fn size_code(call: impl FnOnce() -> Result<(), c_int>) -> isize {
    code(call) as isize
}

/// Creates the first member of an object.
const fn fid(class: usize, context: *mut c_void, ops: &'static FidOps) -> Fid {
    Fid { class, context, ops }
}

/// Creates the table of the functions that all objects have.
const fn fid_ops(
    close: unsafe extern "C" fn(*mut Fid) -> c_int,
    bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
) -> FidOps {
    let size = size_of::<FidOps>();
    FidOps { size, close, bind, control, ops_open: missing, tostr: missing, ops_set: missing }
}

/// Refuses a bind, for objects that can't be bound to others.
unsafe extern "C" fn no_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    -ENOSYS
}

/// Refuses every command.
unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    -ENOSYS
}

/// Moves an object to the heap; its caller owns it until it closes the object.
///
/// # Safety
/// `out` is the caller's, for one pointer to the object's first member `F`.
unsafe fn hand_out<F, T>(object: T, out: *mut *mut F) {
    // SAFETY: promised by the caller.
    unsafe { *out = Box::into_raw(Box::new(object)).cast() };
}

/// Takes back the ownership of an object.
///
/// # Safety
/// `fid` was handed out as a `T`, and is not used any more.
unsafe fn take_back<T>(fid: *mut Fid) -> Box<T> {
    // SAFETY: promised by the caller.
    unsafe { Box::from_raw(fid.cast()) }
}

/// Converts milliseconds to a time; `None`, which means forever, if negative.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
