//! Counters.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

use super::{code, domain, fid, fid_ops, guard, hand_out, no_bind, no_control, take_back, timeout};
use crate::abi::constants::{
    CLASS_CNTR, EAVAIL, EBUSY, EINVAL, ENOSYS, ETIMEDOUT, WAIT_NONE, WAIT_UNSPEC, WAIT_YIELD,
};
use crate::abi::tables::{CntrOps, FidOps};
use crate::abi::{CntrAttr, Fid, FidCntr, FidDomain};
use crate::completion::Counter;
use crate::domain::Shared;

/// `FI_CNTR_EVENTS_COMP`: the counter counts completed operations.
const EVENTS_COMP: c_int = 0;

#[repr(C)]
pub(super) struct CounterObject {
    fid: FidCntr,
    shared: Arc<Shared>,
    pub(super) key: usize,
}

static FID: FidOps = fid_ops(close, no_bind, no_control);
static OPS: CntrOps =
    CntrOps { size: size_of::<CntrOps>(), read, readerr, add, set, wait, adderr, seterr };

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    out: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the domain and the attributes are the caller's.
        let (shared, attr) = unsafe { (domain::shared(domain), attr.as_ref()) };
        let is_known = |attr: &CntrAttr| {
            attr.events == EVENTS_COMP
                && matches!(attr.wait_obj, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD)
        };
        if !attr.is_none_or(is_known) {
            return Err(ENOSYS);
        }
        let key = shared.lock().completions.counters.insert(Counter::default());
        let fid = FidCntr { fid: fid(CLASS_CNTR, context, &FID), ops: &OPS };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(CounterObject { fid, shared, key }, out) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    code(|| {
        // SAFETY: it was handed out by `open`.
        let counter = unsafe { &*fid.cast::<CounterObject>() };
        let mut core = counter.shared.lock();
        let is_bound = core.uses(|bindings| bindings.counters.contains(&Some(counter.key)));
        if is_bound || core.regions.has_counter(counter.key) {
            return Err(EBUSY);
        }
        core.completions.counters.try_remove(counter.key);
        drop(core);
        // SAFETY: as above; the caller does not use it any more.
        drop(unsafe { take_back::<CounterObject>(fid) });
        Ok(())
    })
}

/// Runs one progress, and calls a function with a counter.
///
/// # Safety
/// The counter is the caller's.
unsafe fn with<T>(counter: *mut FidCntr, call: impl FnOnce(&mut Counter) -> T) -> Option<T> {
    // SAFETY: promised by the caller.
    let object = unsafe { &*counter.cast::<CounterObject>() };
    object.shared.poll(|core| core.completions.counters.get_mut(object.key).map(call))
}

/// Calls a function that changes a counter.
///
/// # Safety
/// The counter is the caller's.
unsafe fn change(counter: *mut FidCntr, call: impl FnOnce(&mut Counter)) -> c_int {
    code(|| {
        // SAFETY: promised by the caller.
        let object = unsafe { &*counter.cast::<CounterObject>() };
        let mut core = object.shared.lock();
        core.completions.has_changed = true;
        core.completions.counters.get_mut(object.key).map(call).ok_or(EINVAL)
    })
}

unsafe extern "C" fn read(counter: *mut FidCntr) -> u64 {
    // SAFETY: the counter is the caller's; so in the functions below.
    guard(0, || unsafe { with(counter, |counter| counter.value) }.unwrap_or(0))
}

unsafe extern "C" fn readerr(counter: *mut FidCntr) -> u64 {
    // SAFETY: as of `read`.
    guard(0, || unsafe { with(counter, |counter| counter.errors) }.unwrap_or(0))
}

unsafe extern "C" fn add(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as of `read`.
    unsafe { change(counter, |counter| counter.value = counter.value.wrapping_add(value)) }
}

unsafe extern "C" fn set(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as of `read`.
    unsafe { change(counter, |counter| counter.value = value) }
}

unsafe extern "C" fn adderr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as of `read`.
    unsafe { change(counter, |counter| counter.errors = counter.errors.wrapping_add(value)) }
}

unsafe extern "C" fn seterr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as of `read`.
    unsafe { change(counter, |counter| counter.errors = value) }
}

/// Waits until a counter reaches `threshold`; `-FI_EAVAIL` if an operation fails meanwhile.
unsafe extern "C" fn wait(counter: *mut FidCntr, threshold: u64, milliseconds: c_int) -> c_int {
    code(|| {
        // SAFETY: as of `read`.
        let object = unsafe { &*counter.cast::<CounterObject>() };
        let errors = |core: &crate::domain::Core| {
            core.completions.counters.get(object.key).map_or(0, |counter| counter.errors)
        };
        let before = errors(&object.shared.lock());
        object
            .shared
            .wait(timeout(milliseconds), |core| {
                let counter = core.completions.counters.get(object.key)?;
                match counter {
                    counter if counter.value >= threshold => Some(Ok(())),
                    counter if counter.errors != before => Some(Err(EAVAIL)),
                    _ => None,
                }
            })
            .unwrap_or(Err(ETIMEDOUT))
    })
}
