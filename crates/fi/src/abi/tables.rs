//! The tables of functions through which a caller reaches the provider's objects.
//!
//! A function that the provider lacks is [`Missing`]: it takes no arguments, which C's calling convention allows
//! whatever a caller passes, and returns `-FI_ENOSYS`.

use std::ffi::{c_char, c_int, c_void};

use super::{
    AvAttr, CntrAttr, CqAttr, CqErrEntry, Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp, FidEq,
    FidFabric, FidMr, Info, MrAttr, Msg, MsgRma, MsgTagged,
};

pub(crate) type Missing = extern "C" fn() -> isize;

/// Refuses a call of a function that the provider lacks.
pub(crate) extern "C" fn missing() -> isize {
    -(super::constants::ENOSYS as isize)
}

type Ptr = *mut c_void;
type Bytes = *const c_void;
type Iov = *const libc::iovec;
type Desc = *mut Ptr;

#[repr(C)]
pub(crate) struct FidOps {
    pub(crate) size: usize,
    pub(crate) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(crate) control: unsafe extern "C" fn(*mut Fid, c_int, Ptr) -> c_int,
    pub(crate) ops_open: Missing,
    pub(crate) tostr: Missing,
    pub(crate) ops_set: Missing,
}

#[repr(C)]
pub(crate) struct FabricOps {
    pub(crate) size: usize,
    pub(crate) domain:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, Ptr) -> c_int,
    pub(crate) passive_ep: Missing,
    pub(crate) eq_open: unsafe extern "C" fn(*mut FidFabric, Ptr, *mut *mut FidEq, Ptr) -> c_int,
    pub(crate) wait_open: Missing,
    pub(crate) trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    pub(crate) domain2:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, u64, Ptr) -> c_int,
}

#[repr(C)]
pub(crate) struct DomainOps {
    pub(crate) size: usize,
    pub(crate) av_open:
        unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, Ptr) -> c_int,
    pub(crate) cq_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, Ptr) -> c_int,
    pub(crate) endpoint:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, Ptr) -> c_int,
    pub(crate) scalable_ep: Missing,
    pub(crate) cntr_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, Ptr) -> c_int,
    pub(crate) poll_open: Missing,
    pub(crate) stx_ctx: Missing,
    pub(crate) srx_ctx: Missing,
    pub(crate) query_atomic: Missing,
    pub(crate) query_collective: Missing,
    pub(crate) endpoint2:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, u64, Ptr) -> c_int,
}

#[repr(C)]
pub(crate) struct MrOps {
    pub(crate) size: usize,
    pub(crate) reg: unsafe extern "C" fn(
        *mut Fid,
        Bytes,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        Ptr,
    ) -> c_int,
    pub(crate) regv: unsafe extern "C" fn(
        *mut Fid,
        Iov,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        Ptr,
    ) -> c_int,
    pub(crate) regattr:
        unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

#[repr(C)]
pub(crate) struct AvOps {
    pub(crate) size: usize,
    pub(crate) insert: unsafe extern "C" fn(*mut FidAv, Bytes, usize, *mut u64, u64, Ptr) -> c_int,
    pub(crate) insertsvc: Missing,
    pub(crate) insertsym: Missing,
    pub(crate) remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    pub(crate) lookup: unsafe extern "C" fn(*mut FidAv, u64, Ptr, *mut usize) -> c_int,
    pub(crate) straddr:
        unsafe extern "C" fn(*mut FidAv, Bytes, *mut c_char, *mut usize) -> *const c_char,
    pub(crate) av_set: Missing,
    pub(crate) insert_auth_key: Missing,
    pub(crate) lookup_auth_key: Missing,
    pub(crate) set_user_id: Missing,
}

#[repr(C)]
pub(crate) struct EqOps {
    pub(crate) size: usize,
    pub(crate) read: extern "C" fn() -> isize,
    pub(crate) readerr: extern "C" fn() -> isize,
    pub(crate) write: Missing,
    pub(crate) sread: extern "C" fn() -> isize,
    pub(crate) strerror: extern "C" fn() -> *const c_char,
}

#[repr(C)]
pub(crate) struct CqOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidCq, Ptr, usize) -> isize,
    pub(crate) readfrom: unsafe extern "C" fn(*mut FidCq, Ptr, usize, *mut u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub(crate) sread: unsafe extern "C" fn(*mut FidCq, Ptr, usize, Bytes, c_int) -> isize,
    pub(crate) sreadfrom:
        unsafe extern "C" fn(*mut FidCq, Ptr, usize, *mut u64, Bytes, c_int) -> isize,
    pub(crate) signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    pub(crate) strerror:
        unsafe extern "C" fn(*mut FidCq, c_int, Bytes, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub(crate) struct CntrOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub(crate) readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub(crate) add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    pub(crate) adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
}

#[repr(C)]
pub(crate) struct EpOps {
    pub(crate) size: usize,
    pub(crate) cancel: unsafe extern "C" fn(*mut Fid, Ptr) -> isize,
    pub(crate) getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Ptr, *mut usize) -> c_int,
    pub(crate) setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Bytes, usize) -> c_int,
    pub(crate) tx_ctx: Missing,
    pub(crate) rx_ctx: Missing,
    pub(crate) rx_size_left: Missing,
    pub(crate) tx_size_left: Missing,
}

#[repr(C)]
pub(crate) struct CmOps {
    pub(crate) size: usize,
    pub(crate) setname: Missing,
    pub(crate) getname: unsafe extern "C" fn(*mut Fid, Ptr, *mut usize) -> c_int,
    pub(crate) getpeer: Missing,
    pub(crate) connect: Missing,
    pub(crate) listen: Missing,
    pub(crate) accept: Missing,
    pub(crate) reject: Missing,
    pub(crate) shutdown: Missing,
    pub(crate) join: Missing,
}

#[repr(C)]
pub(crate) struct MsgOps {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, Ptr) -> isize,
    pub(crate) recvv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, Ptr) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, Ptr) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, Ptr) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64) -> isize,
    pub(crate) senddata:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, Ptr) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64) -> isize,
}

#[repr(C)]
pub(crate) struct TaggedOps {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub(crate) recvv:
        unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, Ptr) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, Ptr) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64) -> isize,
    pub(crate) senddata:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64) -> isize,
}

#[repr(C)]
pub(crate) struct RmaOps {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub(crate) readv:
        unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub(crate) readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub(crate) write:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub(crate) writev:
        unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub(crate) writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64) -> isize,
    pub(crate) writedata:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, u64, Ptr) -> isize,
    pub(crate) injectdata:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64, u64) -> isize,
}

/// Twelve functions of atomic operations, none of which the provider has.
#[repr(C)]
pub(crate) struct AtomicOps {
    pub(crate) size: usize,
    pub(crate) functions: [Missing; 13],
}
