//! Fabrics, and event queues, which never have an event: all operations that could report one complete at once.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null;

use super::{domain, fid, fid_ops, guard, hand_out, no_bind, no_control, queue, take_back};
use crate::abi::constants::{CLASS_CQ, CLASS_EQ, CLASS_FABRIC, EAGAIN, EOTHER};
use crate::abi::tables::{EqOps, FabricOps, FidOps, missing};
use crate::abi::{FabricAttr, Fid, FidEq, FidFabric};

static FID: FidOps = fid_ops(close, no_bind, no_control);
static OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: domain::open,
    passive_ep: missing,
    eq_open,
    wait_open: missing,
    trywait,
    domain2: missing,
};
static EQ_FID: FidOps = fid_ops(close_eq, no_bind, no_control);
static EQ: EqOps = EqOps {
    size: size_of::<EqOps>(),
    read: no_event,
    readerr: no_event,
    write: missing,
    sread: no_event,
    strerror: no_text,
};

pub(crate) unsafe extern "C" fn open(
    attr: *mut FabricAttr,
    out: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    guard(-EOTHER, || {
        // SAFETY: libfabric passes valid attributes.
        let api_version = unsafe { (*attr).api_version };
        let fabric = FidFabric { fid: fid(CLASS_FABRIC, context, &FID), ops: &OPS, api_version };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(fabric, out) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: it was handed out by `open`, and the caller does not use it any more.
    guard(-EOTHER, || unsafe {
        drop(take_back::<FidFabric>(fid));
        0
    })
}

unsafe extern "C" fn eq_open(
    _: *mut FidFabric,
    _: *mut c_void,
    out: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    guard(-EOTHER, || {
        let eq = FidEq { fid: fid(CLASS_EQ, context, &EQ_FID), ops: &EQ };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(eq, out) };
        0
    })
}

unsafe extern "C" fn close_eq(fid: *mut Fid) -> c_int {
    // SAFETY: it was handed out by `eq_open`, and the caller does not use it any more.
    guard(-EOTHER, || unsafe {
        drop(take_back::<FidEq>(fid));
        0
    })
}

/// Returns no event. It takes no arguments, like [`missing`].
extern "C" fn no_event() -> isize {
    -(EAGAIN as isize)
}

extern "C" fn no_text() -> *const c_char {
    null()
}

/// Returns whether a caller may wait for the descriptors of all objects; `-FI_EAGAIN` if one of them has entries.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    guard(-EOTHER, || {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the caller passes this many objects of this provider.
            let (fid, class) = unsafe { (*fids.add(at), (**fids.add(at)).class) };
            // SAFETY: the class says what it is.
            if class == CLASS_CQ && !unsafe { queue::may_wait(fid.cast()) } {
                return -EAGAIN;
            }
        }
        // What the check of one queue has received may be another's.
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: as above.
            let (fid, class) = unsafe { (*fids.add(at), (**fids.add(at)).class) };
            // SAFETY: as above.
            if class == CLASS_CQ && unsafe { queue::has_entries(fid.cast()) } {
                return -EAGAIN;
            }
        }
        0
    })
}
