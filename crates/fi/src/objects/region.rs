//! Memory registration.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::Arc;

use super::counter::CounterObject;
use super::domain::Domain;
use super::{code, fid, fid_ops, guard, hand_out, take_back};
use crate::abi::constants::{
    CLASS_CNTR, CLASS_EP, CLASS_MR, EINVAL, ENABLE, ENOSYS, EOTHER, REMOTE_READ, REMOTE_WRITE,
};
use crate::abi::tables::{FidOps, MrOps};
use crate::abi::{Fid, FidMr, MrAttr};
use crate::completion::Class;
use crate::domain::Shared;
use crate::memory::Buffer;
use crate::region::Region;

/// `FI_ENOKEY`: the requested key is in use.
pub(crate) const ENOKEY: c_int = 266;

#[repr(C)]
struct Registration {
    fid: FidMr,
    shared: Arc<Shared>,
}

static FID: FidOps = fid_ops(close, bind, control);
pub(super) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

/// Registers memory in the caller's domain.
///
/// # Safety
/// `domain` is the caller's; the memory stays valid until the registration is closed; `out` is the caller's.
unsafe fn register(
    domain: *mut Fid,
    vector: libc::iovec,
    (access, offset, requested): (u64, u64, u64),
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: promised by the caller.
    let (domain, buffer) = unsafe {
        (&*domain.cast::<Domain>(), Buffer::new(vector.iov_base as usize, vector.iov_len))
    };
    let region = Region {
        buffer,
        base: if domain.has_addresses { vector.iov_base as u64 } else { offset },
        is_readable: access & REMOTE_READ != 0,
        is_writable: access & REMOTE_WRITE != 0,
        counters: [None; 2],
    };
    let wanted = (!domain.chooses_keys).then_some(requested);
    let key = domain.shared.lock().regions.add(wanted, region).ok_or(ENOKEY)?;
    let fid = FidMr { fid: fid(CLASS_MR, context, &FID), mem_desc: null_mut(), key };
    // SAFETY: promised by the caller.
    unsafe { hand_out(Registration { fid, shared: Arc::clone(&domain.shared) }, out) };
    Ok(())
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    bytes: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    _flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let vector = libc::iovec { iov_base: bytes.cast_mut(), iov_len: length };
    // SAFETY: the caller keeps the contract of `fi_mr_reg`.
    code(|| unsafe { register(domain, vector, (access, offset, key), out, context) })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    vectors: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -EINVAL;
    }
    // SAFETY: the caller keeps the contract of `fi_mr_regv`.
    unsafe {
        let libc::iovec { iov_base, iov_len } = *vectors;
        reg(domain, iov_base, iov_len, access, offset, key, flags, out, context)
    }
}

unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    flags: u64,
    out: *mut *mut FidMr,
) -> c_int {
    // SAFETY: the caller keeps the contract of `fi_mr_regattr`.
    unsafe {
        let MrAttr { mr_iov, iov_count, access, offset, requested_key, context, .. } = *attr;
        regv(domain, mr_iov, iov_count, access, offset, requested_key, flags, out, context)
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(-EOTHER, || {
        // SAFETY: it was handed out by `register`, and the caller does not use it any more.
        let registration = unsafe { take_back::<Registration>(fid) };
        registration.shared.lock().regions.remove(registration.fid.key);
        0
    })
}

/// Binds a region to a counter of peers' reads or writes. Binding it to an endpoint changes nothing.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    code(|| {
        // SAFETY: the region is the caller's, and so is the other object, whose class says what it is.
        let (registration, class) = unsafe { (&*fid.cast::<Registration>(), (*bound).class) };
        match class {
            CLASS_EP => return Ok(()),
            CLASS_CNTR => {}
            _ => return Err(EINVAL),
        }
        // SAFETY: as above.
        let counter = unsafe { (*bound.cast::<CounterObject>()).key };
        let mut core = registration.shared.lock();
        for (flag, class) in [(REMOTE_READ, Class::RemoteRead), (REMOTE_WRITE, Class::RemoteWrite)]
        {
            if flags & flag != 0 {
                core.regions.bind(registration.fid.key, class, counter);
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == ENABLE { 0 } else { -ENOSYS }
}
