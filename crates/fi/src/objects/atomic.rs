//! Atomic operations on remote memory.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::{null, null_mut};

use super::endpoint::EndpointObject;
use super::transfer::{NO_COMPLETION, calls};
use super::{code, size_code};
use crate::abi::constants::{
    COMPARE_ATOMIC, COMPLETION, EINVAL, EOPNOTSUPP, FETCH_ATOMIC, REMOTE_CQ_DATA,
};
use crate::abi::tables::AtomicOps;
use crate::abi::{AtomicAttr, FidDomain, FidEp, Ioc, MsgAtomic};
use crate::atomic::{Datatype, Form, MAX_BYTES, Operation};
use crate::endpoint::Atomic;
use crate::memory::{Buffer, MAX_PARTS};

pub(super) static OPS: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

type Ptr = *mut c_void;
type Bytes = *const c_void;
type Desc = *mut Ptr;

/// A caller's vectors of elements, and the number of vectors.
type Elements = (*const Ioc, usize);

/// Returns a vector of contiguous elements.
const fn ioc(bytes: Bytes, count: usize) -> Ioc {
    Ioc { addr: bytes.cast_mut(), count }
}

/// The operands, the comparands and the memory for results; the last two only if the form has them.
struct Operands {
    operands: Elements,
    comparands: Option<Elements>,
    results: Option<Elements>,
}

/// The peer's memory that an operation changes, and libfabric's numbers of operation and type.
struct Target {
    to: u64,
    address: u64,
    key: u64,
    /// Number of elements; `None` if it equals the number of operands.
    count: Option<usize>,
    datatype: c_int,
    operation: c_int,
}

impl Target {
    /// Returns the target of a message; `None` if it is not one range, or has data for the peer's queue.
    ///
    /// # Safety
    /// The message is the caller's.
    unsafe fn of(msg: &MsgAtomic, flags: u64) -> Option<Self> {
        if msg.rma_iov_count != 1 || flags & REMOTE_CQ_DATA != 0 {
            return None;
        }
        // SAFETY: promised by the caller.
        let rma = unsafe { &*msg.rma_iov };
        let MsgAtomic { addr: to, datatype, op: operation, .. } = *msg;
        Some(Self {
            to,
            address: rma.addr,
            key: rma.key,
            count: Some(rma.count),
            datatype,
            operation,
        })
    }
}

/// Wraps the caller's elements of `bytes` each; also returns their number.
///
/// # Safety
/// The vectors are the caller's; their memory stays valid until the operation's completion.
unsafe fn wrap((vectors, count): Elements, bytes: usize) -> Result<(Buffer, usize), c_int> {
    let mut parts = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; MAX_PARTS];
    if count > MAX_PARTS {
        return Err(EINVAL);
    }
    let mut elements = 0_usize;
    for (at, part) in parts.iter_mut().enumerate().take(count) {
        // SAFETY: promised by the caller.
        let Ioc { addr, count } = unsafe { &*vectors.add(at) };
        elements = elements.checked_add(*count).ok_or(EINVAL)?;
        part.iov_len = count.checked_mul(bytes).ok_or(EINVAL)?;
        part.iov_base = *addr;
    }
    // SAFETY: promised by the caller.
    let buffer = unsafe { Buffer::of_vectors(parts.as_ptr(), count) };
    Ok((buffer.ok_or(EINVAL)?, elements))
}

/// Starts an operation.
///
/// # Safety
/// The endpoint is the caller's, and so are the operands, until the operation's completion.
unsafe fn start(
    endpoint: *mut FidEp,
    target: Option<Target>,
    operands: Operands,
    (context, flags): (Ptr, Option<u64>),
) -> isize {
    size_code(|| {
        let target = target.ok_or(EINVAL)?;
        let operation = Operation::of(target.operation).ok_or(EOPNOTSUPP)?;
        let datatype = Datatype::of(target.datatype).ok_or(EOPNOTSUPP)?;
        let form = match (operands.comparands, operands.results) {
            (Some(_), _) => Form::Compare,
            (None, Some(_)) => Form::Fetch,
            (None, None) => Form::Base,
        };
        // The operand of a read may be null.
        let is_read = operation == Operation::Read;
        let given = if is_read { operands.results } else { Some(operands.operands) };
        let or_none = |elements: Option<Elements>| elements.unwrap_or((null(), 0));
        let bytes = datatype.bytes();
        // SAFETY: promised by the caller.
        let (object, (operand, count), (comparand, _), (result, _)) = unsafe {
            (
                &*endpoint.cast::<EndpointObject>(),
                wrap(or_none(given), bytes)?,
                wrap(or_none(operands.comparands), bytes)?,
                wrap(or_none(operands.results), bytes)?,
            )
        };
        let flags = flags.unwrap_or(object.transmit_flags);
        let mut core = object.shared.lock();
        let (endpoint, mut domain) = core.endpoint(object.key);
        let atomic = Atomic {
            to: target.to,
            key: target.key,
            address: target.address,
            operation,
            datatype,
            form,
            count: target.count.unwrap_or(count),
            operand,
            comparand,
            result,
            context: context as usize,
            reports: flags & NO_COMPLETION == 0
                && endpoint.state.bindings.reports(Atomic::class(form), flags & COMPLETION != 0),
        };
        endpoint.post_atomic(&atomic, &mut domain)
    })
}

/// Returns the most elements of one call.
///
/// # Safety
/// `count` is the caller's, or null.
unsafe fn valid(datatype: c_int, operation: c_int, form: Form, count: *mut usize) -> c_int {
    code(|| {
        let datatype = Datatype::of(datatype).ok_or(EOPNOTSUPP)?;
        let operation = Operation::of(operation).ok_or(EOPNOTSUPP)?;
        if !operation.fits(datatype, form) {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: promised by the caller.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = MAX_BYTES / datatype.bytes();
        }
        Ok(())
    })
}

unsafe extern "C" fn writevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    out: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the contract of `fi_atomicvalid`, also in the two functions below.
    unsafe { valid(datatype, op, Form::Base, out) }
}

unsafe extern "C" fn readwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    out: *mut usize,
) -> c_int {
    // SAFETY: as of `writevalid`.
    unsafe { valid(datatype, op, Form::Fetch, out) }
}

unsafe extern "C" fn compwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    out: *mut usize,
) -> c_int {
    // SAFETY: as of `writevalid`.
    unsafe { valid(datatype, op, Form::Compare, out) }
}

/// Describes an operation; `flags` select the form.
pub(super) unsafe extern "C" fn query(
    _: *mut FidDomain,
    datatype: c_int,
    op: c_int,
    out: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => Form::Base,
        FETCH_ATOMIC => Form::Fetch,
        COMPARE_ATOMIC => Form::Compare,
        _ => return -EINVAL,
    };
    // SAFETY: the attributes are the caller's.
    unsafe {
        if let Some(datatype) = Datatype::of(datatype) {
            (*out).size = datatype.bytes();
        }
        valid(datatype, op, form, &raw mut (*out).count)
    }
}

const fn base(operands: Elements) -> Operands {
    Operands { operands, comparands: None, results: None }
}

const fn fetching(operands: Elements, results: Elements) -> Operands {
    Operands { operands, comparands: None, results: Some(results) }
}

const fn comparing(operands: Elements, comparands: Elements, results: Elements) -> Operands {
    Operands { operands, comparands: Some(comparands), results: Some(results) }
}

/// Creates the target of a call with as many elements as operands.
const fn at(to: u64, address: u64, key: u64, datatype: c_int, operation: c_int) -> Option<Target> {
    Some(Target { to, address, key, count: None, datatype, operation })
}

calls! {
    fn write(ep, bytes: Bytes, count: usize, _d: Ptr, to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr) {
        start(ep, at(to, addr, key, kind, op), base((&ioc(bytes, count), 1)), (with, None))
    }
    fn writev(ep, iov: *const Ioc, _d: Desc, count: usize, to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr) {
        start(ep, at(to, addr, key, kind, op), base((iov, count)), (with, None))
    }
    fn writemsg(ep, msg: *const MsgAtomic, flags: u64) {
        let msg = &*msg;
        let operands = base((msg.msg_iov, msg.iov_count));
        start(ep, Target::of(msg, flags), operands, (msg.context, Some(flags)))
    }
    fn inject(ep, bytes: Bytes, count: usize, to: u64, addr: u64, key: u64, kind: c_int, op: c_int) {
        let options = (null_mut(), Some(NO_COMPLETION));
        start(ep, at(to, addr, key, kind, op), base((&ioc(bytes, count), 1)), options)
    }
    fn readwrite(
        ep, bytes: Bytes, count: usize, _d: Ptr, result: Ptr, _rd: Ptr,
        to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr
    ) {
        let (operand, result) = (ioc(bytes, count), ioc(result, count));
        let operands = fetching((&operand, 1), (&result, 1));
        start(ep, at(to, addr, key, kind, op), operands, (with, None))
    }
    fn readwritev(
        ep, iov: *const Ioc, _d: Desc, count: usize, results: *mut Ioc, _rd: Desc, result_count: usize,
        to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr
    ) {
        let operands = fetching((iov, count), (results, result_count));
        start(ep, at(to, addr, key, kind, op), operands, (with, None))
    }
    fn readwritemsg(ep, msg: *const MsgAtomic, results: *mut Ioc, _rd: Desc, result_count: usize, flags: u64) {
        let msg = &*msg;
        let operands = fetching((msg.msg_iov, msg.iov_count), (results, result_count));
        start(ep, Target::of(msg, flags), operands, (msg.context, Some(flags)))
    }
    fn compwrite(
        ep, bytes: Bytes, count: usize, _d: Ptr, compare: Bytes, _cd: Ptr, result: Ptr, _rd: Ptr,
        to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr
    ) {
        let (operand, compare, result) = (ioc(bytes, count), ioc(compare, count), ioc(result, count));
        let operands = comparing((&operand, 1), (&compare, 1), (&result, 1));
        start(ep, at(to, addr, key, kind, op), operands, (with, None))
    }
    fn compwritev(
        ep, iov: *const Ioc, _d: Desc, count: usize, compares: *const Ioc, _cd: Desc, compare_count: usize,
        results: *mut Ioc, _rd: Desc, result_count: usize,
        to: u64, addr: u64, key: u64, kind: c_int, op: c_int, with: Ptr
    ) {
        let operands = comparing((iov, count), (compares, compare_count), (results, result_count));
        start(ep, at(to, addr, key, kind, op), operands, (with, None))
    }
    fn compwritemsg(
        ep, msg: *const MsgAtomic, compares: *const Ioc, _cd: Desc, compare_count: usize,
        results: *mut Ioc, _rd: Desc, result_count: usize, flags: u64
    ) {
        let msg = &*msg;
        let operands =
            comparing((msg.msg_iov, msg.iov_count), (compares, compare_count), (results, result_count));
        start(ep, Target::of(msg, flags), operands, (msg.context, Some(flags)))
    }
}
