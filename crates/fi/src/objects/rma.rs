//! Reads and writes of remote memory.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr::null_mut;

use super::transfer::{INJECTED, borrowed, calls, data_of, start};
use crate::abi::MsgRma;
use crate::abi::constants::EINVAL;
use crate::abi::tables::RmaOps;
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

const fn reads(key: u64, address: u64) -> Transfer {
    Transfer::Read { key, address }
}

const fn writes(key: u64, address: u64) -> Transfer {
    Transfer::Write { key, address }
}

calls! {
    fn read(ep, bytes: Ptr, length: usize, _desc: Ptr, from: u64, address: u64, key: u64, with: Ptr) {
        start(ep, (from, reads(key, address)), borrowed(bytes, length), None, (with, None))
    }
    fn readv(ep, iov: Iov, _desc: Desc, count: usize, from: u64, address: u64, key: u64, with: Ptr) {
        start(ep, (from, reads(key, address)), Buffer::of_vectors(iov, count), None, (with, None))
    }
    fn readmsg(ep, msg: *const MsgRma, flags: u64) {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(EINVAL as isize);
        }
        let transfer = reads((*msg.rma_iov).key, (*msg.rma_iov).addr);
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        start(ep, (msg.addr, transfer), buffer, None, (msg.context, Some(flags)))
    }
    fn write(ep, bytes: Bytes, length: usize, _desc: Ptr, to: u64, address: u64, key: u64, with: Ptr) {
        start(ep, (to, writes(key, address)), borrowed(bytes, length), None, (with, None))
    }
    fn writev(ep, iov: Iov, _desc: Desc, count: usize, to: u64, address: u64, key: u64, with: Ptr) {
        start(ep, (to, writes(key, address)), Buffer::of_vectors(iov, count), None, (with, None))
    }
    fn writemsg(ep, msg: *const MsgRma, flags: u64) {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(EINVAL as isize);
        }
        let transfer = writes((*msg.rma_iov).key, (*msg.rma_iov).addr);
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        start(ep, (msg.addr, transfer), buffer, data_of(flags, msg.data), (msg.context, Some(flags)))
    }
    fn inject(ep, bytes: Bytes, length: usize, to: u64, address: u64, key: u64) {
        start(ep, (to, writes(key, address)), borrowed(bytes, length), None, (null_mut(), INJECTED))
    }
    fn writedata(ep, bytes: Bytes, length: usize, _desc: Ptr, data: u64, to: u64, address: u64, key: u64, with: Ptr) {
        start(ep, (to, writes(key, address)), borrowed(bytes, length), Some(data), (with, None))
    }
    fn injectdata(ep, bytes: Bytes, length: usize, data: u64, to: u64, address: u64, key: u64) {
        start(ep, (to, writes(key, address)), borrowed(bytes, length), Some(data), (null_mut(), INJECTED))
    }
}
