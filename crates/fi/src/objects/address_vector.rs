//! Address vectors: numbers for the addresses of peers.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{code, domain, fid, fid_ops, guard, hand_out, no_bind, no_control, take_back};
use crate::abi::constants::{ADDR_UNSPEC, CLASS_AV, EBUSY, EINVAL, EOTHER, SYNC_ERR};
use crate::abi::tables::{AvOps, FidOps, missing};
use crate::abi::{AvAttr, Fid, FidAv, FidDomain};
use crate::address::{Address, BYTES};
use crate::domain::Shared;
use crate::vector::Vector;

#[repr(C)]
pub(super) struct AddressVector {
    fid: FidAv,
    shared: Arc<Shared>,
    pub(super) key: usize,
}

static FID: FidOps = fid_ops(close, no_bind, no_control);
static OPS: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc: missing,
    insertsym: missing,
    remove,
    lookup,
    straddr,
    av_set: missing,
    insert_auth_key: missing,
    lookup_auth_key: missing,
    set_user_id: missing,
};

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    out: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the caller's domain and attributes; a name asks for a vector that processes share.
        let (shared, is_named) =
            unsafe { (domain::shared(domain), attr.as_ref().is_some_and(|a| !a.name.is_null())) };
        if is_named {
            return Err(EINVAL);
        }
        let key = shared.lock().vectors.insert(Vector::default());
        let fid = FidAv { fid: fid(CLASS_AV, context, &FID), ops: &OPS };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(AddressVector { fid, shared, key }, out) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    code(|| {
        // SAFETY: it was handed out by `open`.
        let av = unsafe { &*fid.cast::<AddressVector>() };
        let mut core = av.shared.lock();
        if core.vectors.get(av.key).is_some_and(|vector| !vector.endpoints.is_empty()) {
            return Err(EBUSY);
        }
        core.vectors.try_remove(av.key);
        drop(core);
        // SAFETY: as above; the caller does not use it any more.
        drop(unsafe { take_back::<AddressVector>(fid) });
        Ok(())
    })
}

/// Inserts addresses; returns their number. With `FI_SYNC_ERR`, the context is an array for their errors.
unsafe extern "C" fn insert(
    av: *mut FidAv,
    addresses: *const c_void,
    count: usize,
    out: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(-EOTHER, || {
        let errors = if flags & SYNC_ERR != 0 { context.cast() } else { null_mut::<c_int>() };
        // SAFETY: the vector is the caller's.
        let av = unsafe { &*av.cast::<AddressVector>() };
        let mut core = av.shared.lock();
        let mut inserted = 0;
        for at in 0..count {
            // SAFETY: the caller passes this many addresses, and space for as many numbers and errors, or null.
            let bytes = unsafe {
                std::slice::from_raw_parts(addresses.cast::<u8>().add(at * BYTES), BYTES)
            };
            let mut number = ADDR_UNSPEC;
            if let Some(address) = Address::parse(bytes)
                && let Some(vector) = core.vectors.get_mut(av.key)
            {
                number = vector.insert(address);
                inserted += 1;
                for endpoint in vector.endpoints.clone() {
                    core.endpoints[endpoint].set_route(number, Some(address));
                }
            }
            if !out.is_null() {
                // SAFETY: as above.
                unsafe { *out.add(at) = number };
            }
            if !errors.is_null() {
                // SAFETY: as above.
                unsafe { *errors.add(at) = if number == ADDR_UNSPEC { EINVAL } else { 0 } };
            }
        }
        inserted
    })
}

unsafe extern "C" fn remove(av: *mut FidAv, numbers: *mut u64, count: usize, _: u64) -> c_int {
    code(|| {
        // SAFETY: the vector is the caller's.
        let av = unsafe { &*av.cast::<AddressVector>() };
        let mut core = av.shared.lock();
        for at in 0..count {
            // SAFETY: the caller passes this many numbers.
            let number = unsafe { *numbers.add(at) };
            let vector = core.vectors.get_mut(av.key).ok_or(EINVAL)?;
            if !vector.remove(number).ok_or(EINVAL)? {
                continue;
            }
            for endpoint in vector.endpoints.clone() {
                core.endpoints[endpoint].set_route(number, None);
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(
    av: *mut FidAv,
    number: u64,
    out: *mut c_void,
    length: *mut usize,
) -> c_int {
    code(|| {
        // SAFETY: the vector is the caller's.
        let av = unsafe { &*av.cast::<AddressVector>() };
        let core = av.shared.lock();
        let vector = core.vectors.get(av.key).ok_or(EINVAL)?;
        let address = vector.address(number).ok_or(EINVAL)?;
        // SAFETY: `out` has as many bytes as `length` says.
        unsafe { copy_address(&address, out, length) };
        Ok(())
    })
}

/// Copies as much of an address as `out` has space for, and sets `length` to the bytes of the whole address. Returns
/// whether it fits.
///
/// # Safety
/// `out` has as many bytes as `length` says.
pub(super) unsafe fn copy_address(address: &Address, out: *mut c_void, length: *mut usize) -> bool {
    let bytes = address.bytes();
    // SAFETY: promised by the caller.
    unsafe {
        let space = (*length).min(BYTES);
        if !out.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), space);
        }
        let fits = *length >= BYTES;
        *length = BYTES;
        fits
    }
}

/// Writes an address as text, and sets `length` to the bytes of the whole text.
unsafe extern "C" fn straddr(
    _: *mut FidAv,
    address: *const c_void,
    out: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    guard(std::ptr::null(), || {
        // SAFETY: the caller passes an address of this provider's format, and space for as many bytes as it says.
        unsafe {
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), BYTES);
            let name = Address::parse(bytes).map_or_else(String::new, |address| address.name());
            let text = format!("fi_midplane://{name}\0");
            let space = (*length).min(text.len());
            if space > 0 {
                std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, space);
                *out.add(space - 1) = 0;
            }
            *length = text.len();
        }
        out
    })
}
