//! Messages, with a tag and without.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr::null_mut;

use super::endpoint::EndpointObject;
use super::size_code;
use crate::abi::constants::*;
use crate::abi::tables::{MsgOps, TaggedOps};
use crate::abi::{FidEp, Msg, MsgTagged};
use crate::completion::Class;
use crate::endpoint::{Completes, Message, Post, Transfer};
use crate::matching::{Kind, Pattern, Receive};
use crate::memory::Buffer;

pub(super) static MSG_OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};
pub(super) static TAGGED_OPS: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: tagged_recv,
    recvv: tagged_recvv,
    recvmsg: tagged_recvmsg,
    send: tagged_send,
    sendv: tagged_sendv,
    sendmsg: tagged_sendmsg,
    inject: tagged_inject,
    senddata: tagged_senddata,
    injectdata: tagged_injectdata,
};

type Ptr = *mut c_void;
type Bytes = *const c_void;
type Iov = *const libc::iovec;
type Desc = *mut Ptr;

/// A message without a tag.
const PLAIN: Transfer = Transfer::Message(Message { kind: Kind::Plain, tag: 0 });

const fn tagged(tag: u64) -> Transfer {
    Transfer::Message(Message { kind: Kind::Tagged, tag })
}

const fn plain_from(source: u64) -> Pattern {
    Pattern { kind: Kind::Plain, source, tag: 0, ignore: u64::MAX }
}

const fn tagged_from(source: u64, tag: u64, ignore: u64) -> Pattern {
    Pattern { kind: Kind::Tagged, source, tag, ignore }
}

/// Defines functions that libfabric calls as documented: the endpoint and all arguments are valid, and buffers stay
/// valid until the operation's completion.
macro_rules! calls {
    ($(fn $name:ident($ep:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => {
        $(unsafe extern "C" fn $name($ep: *mut $crate::abi::FidEp $(, $argument: $kind)*) -> isize {
            // SAFETY: guaranteed by the contract in the macro's comment.
            unsafe { $body }
        })*
    };
}
pub(super) use calls;

/// Wraps a caller's bytes.
///
/// # Safety
/// They stay valid until the operation's completion.
pub(super) unsafe fn borrowed(bytes: Bytes, length: usize) -> Option<Buffer> {
    // SAFETY: promised by the caller.
    Some(unsafe { Buffer::new(bytes as usize, length) })
}

/// Starts a send, or a transfer to or from remote memory. Without flags, those of the endpoint apply.
///
/// # Safety
/// The endpoint is the caller's.
#[inline]
pub(super) unsafe fn start(
    endpoint: *mut FidEp,
    (to, transfer): (u64, Transfer),
    buffer: Option<Buffer>,
    data: Option<u64>,
    (context, flags): (Ptr, Option<u64>),
) -> isize {
    size_code(|| {
        // SAFETY: promised by the caller.
        let object = unsafe { &*endpoint.cast::<EndpointObject>() };
        let buffer = buffer.ok_or(EINVAL)?;
        let flags = flags.unwrap_or(object.transmit_flags);
        let class = match transfer {
            Transfer::Message(_) => Class::Send,
            Transfer::Write { .. } => Class::Write,
            Transfer::Read { .. } => Class::Read,
        };
        let mut core = object.shared.lock();
        let (endpoint, mut domain) = core.endpoint(object.key);
        let post = Post {
            to,
            transfer,
            buffer,
            data,
            context: context as usize,
            reports: flags & NO_COMPLETION == 0
                && endpoint.state.bindings.reports(class, flags & COMPLETION != 0),
            is_injected: flags & INJECT != 0,
            completes: match flags {
                flags if flags & MATCH_COMPLETE != 0 => Completes::Matched,
                flags if flags & DELIVERY_COMPLETE != 0 => Completes::Delivered,
                _ => Completes::Sent,
            },
        };
        endpoint.post(&post, &mut domain)
    })
}

/// A flag of this module, not of libfabric: the call has no completion.
pub(super) const NO_COMPLETION: u64 = 1 << 63;
/// The flags of calls whose bytes may change when they return, and which have no completion.
pub(super) const INJECTED: Option<u64> = Some(INJECT | NO_COMPLETION);

/// Posts a receive, peeks, or receives a claimed message.
///
/// # Safety
/// The endpoint is the caller's.
#[inline]
unsafe fn receive(
    endpoint: *mut FidEp,
    pattern: Pattern,
    buffer: Option<Buffer>,
    (context, flags): (Ptr, Option<u64>),
) -> isize {
    size_code(|| {
        // SAFETY: promised by the caller.
        let object = unsafe { &*endpoint.cast::<EndpointObject>() };
        let flags = flags.unwrap_or(object.receive_flags);
        let context = context as usize;
        if flags & PEEK != 0 {
            object.shared.poll(|core| {
                let (endpoint, mut domain) = core.endpoint(object.key);
                endpoint.peek(pattern, flags, context, &mut domain);
            });
            return Ok(());
        }
        let buffer = buffer.ok_or(EINVAL)?;
        let mut core = object.shared.lock();
        let (endpoint, mut domain) = core.endpoint(object.key);
        let reports = endpoint.state.bindings.reports(Class::Receive, flags & COMPLETION != 0);
        let receive = Receive { pattern, buffer, context, reports, multi: None };
        if pattern.kind == Kind::Tagged && flags & CLAIM != 0 {
            let is_claimed = endpoint.receive_claimed(&receive, flags, &mut domain);
            return if is_claimed { Ok(()) } else { Err(EINVAL) };
        }
        endpoint.post_receive(receive, flags & MULTI_RECV != 0, &mut domain);
        Ok(())
    })
}

pub(super) const fn data_of(flags: u64, data: u64) -> Option<u64> {
    if flags & REMOTE_CQ_DATA != 0 { Some(data) } else { None }
}

calls! {
    fn recv(ep, bytes: Ptr, length: usize, _desc: Ptr, from: u64, with: Ptr) {
        receive(ep, plain_from(from), borrowed(bytes, length), (with, None))
    }
    fn recvv(ep, iov: Iov, _desc: Desc, count: usize, from: u64, with: Ptr) {
        receive(ep, plain_from(from), Buffer::of_vectors(iov, count), (with, None))
    }
    fn recvmsg(ep, msg: *const Msg, flags: u64) {
        let buffer = Buffer::of_vectors((*msg).msg_iov, (*msg).iov_count);
        receive(ep, plain_from((*msg).addr), buffer, ((*msg).context, Some(flags)))
    }
    fn send(ep, bytes: Bytes, length: usize, _desc: Ptr, to: u64, with: Ptr) {
        start(ep, (to, PLAIN), borrowed(bytes, length), None, (with, None))
    }
    fn sendv(ep, iov: Iov, _desc: Desc, count: usize, to: u64, with: Ptr) {
        start(ep, (to, PLAIN), Buffer::of_vectors(iov, count), None, (with, None))
    }
    fn sendmsg(ep, msg: *const Msg, flags: u64) {
        let buffer = Buffer::of_vectors((*msg).msg_iov, (*msg).iov_count);
        let (data, with) = (data_of(flags, (*msg).data), ((*msg).context, Some(flags)));
        start(ep, ((*msg).addr, PLAIN), buffer, data, with)
    }
    fn inject(ep, bytes: Bytes, length: usize, to: u64) {
        start(ep, (to, PLAIN), borrowed(bytes, length), None, (null_mut(), INJECTED))
    }
    fn senddata(ep, bytes: Bytes, length: usize, _desc: Ptr, data: u64, to: u64, with: Ptr) {
        start(ep, (to, PLAIN), borrowed(bytes, length), Some(data), (with, None))
    }
    fn injectdata(ep, bytes: Bytes, length: usize, data: u64, to: u64) {
        start(ep, (to, PLAIN), borrowed(bytes, length), Some(data), (null_mut(), INJECTED))
    }
    fn tagged_recv(ep, bytes: Ptr, length: usize, _desc: Ptr, from: u64, tag: u64, ignore: u64, with: Ptr) {
        receive(ep, tagged_from(from, tag, ignore), borrowed(bytes, length), (with, None))
    }
    fn tagged_recvv(ep, iov: Iov, _desc: Desc, count: usize, from: u64, tag: u64, ignore: u64, with: Ptr) {
        receive(ep, tagged_from(from, tag, ignore), Buffer::of_vectors(iov, count), (with, None))
    }
    fn tagged_recvmsg(ep, msg: *const MsgTagged, flags: u64) {
        let msg = &*msg;
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        receive(ep, tagged_from(msg.addr, msg.tag, msg.ignore), buffer, (msg.context, Some(flags)))
    }
    fn tagged_send(ep, bytes: Bytes, length: usize, _desc: Ptr, to: u64, tag: u64, with: Ptr) {
        start(ep, (to, tagged(tag)), borrowed(bytes, length), None, (with, None))
    }
    fn tagged_sendv(ep, iov: Iov, _desc: Desc, count: usize, to: u64, tag: u64, with: Ptr) {
        start(ep, (to, tagged(tag)), Buffer::of_vectors(iov, count), None, (with, None))
    }
    fn tagged_sendmsg(ep, msg: *const MsgTagged, flags: u64) {
        let msg = &*msg;
        let buffer = Buffer::of_vectors(msg.msg_iov, msg.iov_count);
        let (data, with) = (data_of(flags, msg.data), (msg.context, Some(flags)));
        start(ep, (msg.addr, tagged(msg.tag)), buffer, data, with)
    }
    fn tagged_inject(ep, bytes: Bytes, length: usize, to: u64, tag: u64) {
        start(ep, (to, tagged(tag)), borrowed(bytes, length), None, (null_mut(), INJECTED))
    }
    fn tagged_senddata(ep, bytes: Bytes, length: usize, _desc: Ptr, data: u64, to: u64, tag: u64, with: Ptr) {
        start(ep, (to, tagged(tag)), borrowed(bytes, length), Some(data), (with, None))
    }
    fn tagged_injectdata(ep, bytes: Bytes, length: usize, data: u64, to: u64, tag: u64) {
        start(ep, (to, tagged(tag)), borrowed(bytes, length), Some(data), (null_mut(), INJECTED))
    }
}
