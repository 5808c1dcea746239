//! Domains.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

use super::{
    address_vector, atomic, code, counter, endpoint, fid, fid_ops, guard, hand_out, no_bind,
    no_control, queue, region, take_back,
};
use crate::abi::constants::{
    CLASS_DOMAIN, EOTHER, MR_BASIC, MR_PROV_KEY, MR_VIRT_ADDR, PROGRESS_AUTO,
};
use crate::abi::tables::{DomainOps, FidOps, missing};
use crate::abi::{Fid, FidDomain, FidFabric, Info};
use crate::domain::{Driver, Shared};

/// A domain, as the caller holds it.
#[repr(C)]
pub(super) struct Domain {
    fid: FidDomain,
    pub(super) shared: Arc<Shared>,
    /// Moves messages while the application does not poll, if the application requests that.
    _driver: Option<Driver>,
    /// True if peers address the bytes of regions by their virtual addresses, and not from 0.
    pub(super) has_addresses: bool,
    /// True if the provider chooses the keys of regions.
    pub(super) chooses_keys: bool,
}

static FID: FidOps = fid_ops(close, no_bind, no_control);
static OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: address_vector::open,
    cq_open: queue::open,
    endpoint: endpoint::open,
    scalable_ep: missing,
    cntr_open: counter::open,
    poll_open: missing,
    stx_ctx: missing,
    srx_ctx: missing,
    query_atomic: atomic::query,
    query_collective: missing,
    endpoint2: missing,
};

pub(super) unsafe extern "C" fn open(
    _: *mut FidFabric,
    info: *mut Info,
    out: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the caller passes an info of this provider.
        let attr = unsafe { (*info).domain_attr.as_ref() };
        let mode = attr.map_or(0, |attr| attr.mr_mode);
        let is_auto = attr.is_some_and(|attr| attr.data_progress == PROGRESS_AUTO);
        let shared = Arc::new(Shared::new());
        let driver = is_auto.then(|| Driver::start(Arc::clone(&shared))).transpose();
        let domain = Domain {
            fid: FidDomain { fid: fid(CLASS_DOMAIN, context, &FID), ops: &OPS, mr: &region::OPS },
            shared,
            _driver: driver.map_err(|error| error.raw_os_error().unwrap_or(EOTHER))?,
            has_addresses: mode & (MR_BASIC | MR_VIRT_ADDR) != 0,
            chooses_keys: mode & (MR_BASIC | MR_PROV_KEY) != 0,
        };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(domain, out) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: it was handed out by `open`, and the caller does not use it any more.
    guard(-EOTHER, || unsafe {
        drop(take_back::<Domain>(fid));
        0
    })
}

/// Returns the state of a caller's domain.
///
/// # Safety
/// It was handed out by `open`, and is not closed.
pub(super) unsafe fn shared(domain: *mut FidDomain) -> Arc<Shared> {
    // SAFETY: promised by the caller.
    Arc::clone(unsafe { &(*domain.cast::<Domain>()).shared })
}
