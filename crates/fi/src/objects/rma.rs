//! Reads and writes of remote memory.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr::null_mut;

use super::transfer::{INJECTED, start};
use crate::abi::constants::{EINVAL, REMOTE_CQ_DATA};
use crate::abi::tables::RmaOps;
use crate::abi::{FidEp, MsgRma};
use crate::endpoint::Transfer;
use crate::memory::Buffer;

pub(super) static OPS: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

type Ptr = *mut c_void;
type Bytes = *const c_void;
type Iov = *const libc::iovec;
type Desc = *mut Ptr;

// SAFETY of all functions below: they are called as libfabric documents them. The endpoint, and what it is given, is valid,
// and buffers stay so until the operation's completion.

unsafe extern "C" fn read(
    ep: *mut FidEp,
    bytes: Ptr,
    length: usize,
    _: Ptr,
    from: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Some(Buffer::new(bytes as usize, length));
        start(ep, (from, Transfer::Read { key, address }), buffer, None, (context, None))
    }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: Iov,
    _: Desc,
    count: usize,
    from: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Buffer::of_vectors(iov, count);
        start(ep, (from, Transfer::Read { key, address }), buffer, None, (context, None))
    }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as above.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(EINVAL as isize);
        }
        let transfer = Transfer::Read { key: (*msg.rma_iov).key, address: (*msg.rma_iov).addr };
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        start(ep, (msg.addr, transfer), buffer, None, (msg.context, Some(flags)))
    }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    bytes: Bytes,
    length: usize,
    _: Ptr,
    to: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Some(Buffer::new(bytes as usize, length));
        start(ep, (to, Transfer::Write { key, address }), buffer, None, (context, None))
    }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: Iov,
    _: Desc,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Buffer::of_vectors(iov, count);
        start(ep, (to, Transfer::Write { key, address }), buffer, None, (context, None))
    }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as above.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(EINVAL as isize);
        }
        let transfer = Transfer::Write { key: (*msg.rma_iov).key, address: (*msg.rma_iov).addr };
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        let data = (flags & REMOTE_CQ_DATA != 0).then_some(msg.data);
        start(ep, (msg.addr, transfer), buffer, data, (msg.context, Some(flags)))
    }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    bytes: Bytes,
    length: usize,
    to: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Some(Buffer::new(bytes as usize, length));
        start(ep, (to, Transfer::Write { key, address }), buffer, None, (null_mut(), INJECTED))
    }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    bytes: Bytes,
    length: usize,
    _: Ptr,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Some(Buffer::new(bytes as usize, length));
        start(ep, (to, Transfer::Write { key, address }), buffer, Some(data), (context, None))
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    bytes: Bytes,
    length: usize,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as above.
    unsafe {
        let buffer = Some(Buffer::new(bytes as usize, length));
        let transfer = Transfer::Write { key, address };
        start(ep, (to, transfer), buffer, Some(data), (null_mut(), INJECTED))
    }
}
