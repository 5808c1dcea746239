//! The tables of functions through which a caller reaches the provider's objects.
//!
//! A function that the provider lacks is [`Missing`]. It takes no arguments, which C's calling convention allows for
//! any arguments of the caller, and returns `-FI_ENOSYS`.

use std::ffi::{c_char, c_int, c_void};

use super::{
    AtomicAttr, AvAttr, CntrAttr, CqAttr, CqErrEntry, Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp,
    FidEq, FidFabric, FidMr, Info, Ioc, MrAttr, Msg, MsgAtomic, MsgRma, MsgTagged,
};

pub type Missing = extern "C" fn() -> isize;

/// Refuses the call of a function that the provider lacks.
pub extern "C" fn missing() -> isize {
    -(super::constants::ENOSYS as isize)
}

type Ptr = *mut c_void;
type Bytes = *const c_void;
type Iov = *const libc::iovec;
type Desc = *mut Ptr;
type Type = c_int;
type Op = c_int;

#[repr(C)]
pub struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, Ptr) -> c_int,
    pub ops_open: Missing,
    pub tostr: Missing,
    pub ops_set: Missing,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, Ptr) -> c_int,
    pub passive_ep: Missing,
    pub eq_open: unsafe extern "C" fn(*mut FidFabric, Ptr, *mut *mut FidEq, Ptr) -> c_int,
    pub wait_open: Missing,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    pub domain2: Missing,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, Ptr) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, Ptr) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, Ptr) -> c_int,
    pub scalable_ep: Missing,
    pub cntr_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, Ptr) -> c_int,
    pub poll_open: Missing,
    pub stx_ctx: Missing,
    pub srx_ctx: Missing,
    pub query_atomic: unsafe extern "C" fn(*mut FidDomain, Type, Op, *mut AtomicAttr, u64) -> c_int,
    pub query_collective: Missing,
    pub endpoint2: Missing,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
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
    pub regv: unsafe extern "C" fn(
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
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut FidAv, Bytes, usize, *mut u64, u64, Ptr) -> c_int,
    pub insertsvc: Missing,
    pub insertsym: Missing,
    pub remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut FidAv, u64, Ptr, *mut usize) -> c_int,
    pub straddr: unsafe extern "C" fn(*mut FidAv, Bytes, *mut c_char, *mut usize) -> *const c_char,
    pub av_set: Missing,
    pub insert_auth_key: Missing,
    pub lookup_auth_key: Missing,
    pub set_user_id: Missing,
}

#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: extern "C" fn() -> isize,
    pub readerr: extern "C" fn() -> isize,
    pub write: Missing,
    pub sread: extern "C" fn() -> isize,
    pub strerror: extern "C" fn() -> *const c_char,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCq, Ptr, usize) -> isize,
    pub readfrom: unsafe extern "C" fn(*mut FidCq, Ptr, usize, *mut u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut FidCq, Ptr, usize, Bytes, c_int) -> isize,
    pub sreadfrom: unsafe extern "C" fn(*mut FidCq, Ptr, usize, *mut u64, Bytes, c_int) -> isize,
    pub signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    pub strerror:
        unsafe extern "C" fn(*mut FidCq, c_int, Bytes, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct CntrOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    pub adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
}

#[repr(C)]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, Ptr) -> isize,
    pub getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Ptr, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Bytes, usize) -> c_int,
    pub tx_ctx: Missing,
    pub rx_ctx: Missing,
    pub rx_size_left: Missing,
    pub tx_size_left: Missing,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: Missing,
    pub getname: unsafe extern "C" fn(*mut Fid, Ptr, *mut usize) -> c_int,
    pub getpeer: Missing,
    pub connect: Missing,
    pub listen: Missing,
    pub accept: Missing,
    pub reject: Missing,
    pub shutdown: Missing,
    pub join: Missing,
}

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, Ptr) -> isize,
    pub recvv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, Ptr) -> isize,
    pub recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub send: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, Ptr) -> isize,
    pub sendv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, Ptr) -> isize,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64) -> isize,
    pub senddata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, Ptr) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64) -> isize,
}

#[repr(C)]
pub struct TaggedOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub recvv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub recvmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub send: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, Ptr) -> isize,
    pub sendv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, Ptr) -> isize,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64) -> isize,
    pub senddata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidEp, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub readv: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub write: unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub writev: unsafe extern "C" fn(*mut FidEp, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64) -> isize,
    pub writedata:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, u64, Ptr) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64, u64) -> isize,
}

#[repr(C)]
pub struct AtomicOps {
    pub size: usize,
    pub write:
        unsafe extern "C" fn(*mut FidEp, Bytes, usize, Ptr, u64, u64, u64, Type, Op, Ptr) -> isize,
    pub writev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        Desc,
        usize,
        u64,
        u64,
        u64,
        Type,
        Op,
        Ptr,
    ) -> isize,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Bytes, usize, u64, u64, u64, Type, Op) -> isize,
    pub readwrite: unsafe extern "C" fn(
        *mut FidEp,
        Bytes,
        usize,
        Ptr,
        Ptr,
        Ptr,
        u64,
        u64,
        u64,
        Type,
        Op,
        Ptr,
    ) -> isize,
    pub readwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        Desc,
        usize,
        *mut Ioc,
        Desc,
        usize,
        u64,
        u64,
        u64,
        Type,
        Op,
        Ptr,
    ) -> isize,
    pub readwritemsg:
        unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, *mut Ioc, Desc, usize, u64) -> isize,
    pub compwrite: unsafe extern "C" fn(
        *mut FidEp,
        Bytes,
        usize,
        Ptr,
        Bytes,
        Ptr,
        Ptr,
        Ptr,
        u64,
        u64,
        u64,
        Type,
        Op,
        Ptr,
    ) -> isize,
    pub compwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        Desc,
        usize,
        *const Ioc,
        Desc,
        usize,
        *mut Ioc,
        Desc,
        usize,
        u64,
        u64,
        u64,
        Type,
        Op,
        Ptr,
    ) -> isize,
    pub compwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        *const Ioc,
        Desc,
        usize,
        *mut Ioc,
        Desc,
        usize,
        u64,
    ) -> isize,
    pub writevalid: unsafe extern "C" fn(*mut FidEp, Type, Op, *mut usize) -> c_int,
    pub readwritevalid: unsafe extern "C" fn(*mut FidEp, Type, Op, *mut usize) -> c_int,
    pub compwritevalid: unsafe extern "C" fn(*mut FidEp, Type, Op, *mut usize) -> c_int,
}
