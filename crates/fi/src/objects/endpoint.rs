//! Endpoints, except their transfers.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use super::address_vector::{AddressVector, copy_address};
use super::counter::CounterObject;
use super::queue::QueueObject;
use super::{
    atomic, code, domain, fid, fid_ops, guard, hand_out, rma, size_code, take_back, transfer,
};
use crate::abi::constants::*;
use crate::abi::tables::{CmOps, EpOps, FidOps, missing};
use crate::abi::{Fid, FidDomain, FidEp, Info};
use crate::completion::{Class, QueueBinding};
use crate::domain::{Core, Shared};
use crate::endpoint::Endpoint;
use crate::network::Terms;

/// An endpoint, as the caller holds it.
#[repr(C)]
pub(super) struct EndpointObject {
    fid: FidEp,
    pub(super) shared: Arc<Shared>,
    pub(super) key: usize,
    /// Flags of operations that are started without flags.
    pub(super) transmit_flags: u64,
    pub(super) receive_flags: u64,
    vector: Option<usize>,
}

/// Longest time for which a close sends what waits for space in rings.
const LEAVE: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 1 });

static FID: FidOps = fid_ops(close, bind, control);
static OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: missing,
    rx_ctx: missing,
    rx_size_left: missing,
    tx_size_left: missing,
};
static CM: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: missing,
    getname,
    getpeer: missing,
    connect: missing,
    listen: missing,
    accept: missing,
    reject: missing,
    shutdown: missing,
    join: missing,
};

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    out: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the domain is the caller's, and so is the info, with its attributes.
        let (shared, info, transmit_flags, receive_flags) = unsafe {
            let info = &*info;
            let transmit_flags = info.tx_attr.as_ref().map_or(0, |attr| attr.op_flags);
            let receive_flags = info.rx_attr.as_ref().map_or(0, |attr| attr.op_flags);
            (domain::shared(domain), info, transmit_flags, receive_flags)
        };
        let opened = Terms::from_environment()
            .and_then(|terms| Endpoint::open(info.caps & DIRECTED_RECV != 0, terms.as_ref()));
        let endpoint = opened.map_err(|error| {
            // Standard error is the only way to inform the user.
            eprintln!("midplane: {error}");
            code_of(&error)
        })?;
        let key = shared.lock().add(endpoint).map_err(|_| EOTHER)?;
        let fid = FidEp {
            fid: fid(CLASS_EP, context, &FID),
            ops: &OPS,
            cm: &CM,
            msg: &transfer::MSG_OPS,
            rma: &rma::OPS,
            tagged: &transfer::TAGGED_OPS,
            atomic: &atomic::OPS,
            collective: null(),
        };
        let endpoint =
            EndpointObject { fid, shared, key, transmit_flags, receive_flags, vector: None };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(endpoint, out) };
        Ok(())
    })
}

/// Returns the error with which the opening of an endpoint fails. That of a key file has a kind, and no code.
fn code_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::NotFound => ENOENT,
        io::ErrorKind::PermissionDenied => EACCES,
        _ => EINVAL,
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(-EOTHER, || {
        // SAFETY: it was handed out by `open`, and the caller does not use it any more.
        let endpoint = unsafe { take_back::<EndpointObject>(fid) };
        endpoint.shared.wait(Some(LEAVE), |core| {
            core.endpoints.get(endpoint.key).is_none_or(|one| !one.has_work()).then_some(())
        });
        let mut core = endpoint.shared.lock();
        if let Some(vector) = endpoint.vector.and_then(|key| core.vectors.get_mut(key)) {
            vector.endpoints.retain(|key| *key != endpoint.key);
        }
        let removed = core.endpoints.try_remove(endpoint.key);
        drop(core);
        // It may wait for peers on other hosts.
        drop(removed);
        0
    })
}

/// Binds an endpoint to a queue, a counter or an address vector.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    code(|| {
        // SAFETY: the endpoint is the caller's, and so is the other object, whose class says what it is.
        let endpoint = unsafe { &mut *fid.cast::<EndpointObject>() };
        let shared = Arc::clone(&endpoint.shared);
        let mut core = shared.lock();
        // SAFETY: as above.
        unsafe {
            match (*bound).class {
                CLASS_CQ => {
                    let queue = (*bound.cast::<QueueObject>()).key;
                    bind_queue(core.endpoint(endpoint.key).0, queue, flags);
                }
                CLASS_CNTR => {
                    let counter = (*bound.cast::<CounterObject>()).key;
                    bind_counter(core.endpoint(endpoint.key).0, counter, flags);
                }
                CLASS_AV => {
                    let vector = (*bound.cast::<AddressVector>()).key;
                    bind_vector(&mut core, endpoint.key, vector);
                    endpoint.vector = Some(vector);
                }
                CLASS_EQ => {}
                _ => return Err(EINVAL),
            }
        }
        Ok(())
    })
}

const fn bind_queue(endpoint: &mut Endpoint, queue: usize, flags: u64) {
    let is_selective = flags & SELECTIVE_COMPLETION != 0;
    let binding = Some(QueueBinding { queue, is_selective });
    if flags & SEND != 0 {
        endpoint.state.bindings.transmit = binding;
    }
    if flags & RECV != 0 {
        endpoint.state.bindings.receive = binding;
    }
}

fn bind_counter(endpoint: &mut Endpoint, counter: usize, flags: u64) {
    let wanted = [SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE];
    for (class, flag) in Class::ALL.into_iter().zip(wanted) {
        if flags & flag != 0 {
            endpoint.state.bindings.counters[class as usize] = Some(counter);
        }
    }
}

fn bind_vector(core: &mut Core, key: usize, vector: usize) {
    let Some(vector) = core.vectors.get_mut(vector) else { return };
    vector.endpoints.push(key);
    for (number, address) in vector.iter() {
        core.endpoints[key].set_route(number, Some(address));
    }
}

/// Enables an endpoint, which must have an address vector.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    code(|| {
        // SAFETY: the endpoint is the caller's.
        let endpoint = unsafe { &*fid.cast::<EndpointObject>() };
        match command {
            ENABLE if endpoint.vector.is_some() => Ok(()),
            ENABLE => Err(ENOAV),
            _ => Err(ENOSYS),
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    size_code(|| {
        // SAFETY: the endpoint is the caller's.
        let object = unsafe { &*fid.cast::<EndpointObject>() };
        let mut core = object.shared.lock();
        let (endpoint, mut domain) = core.endpoint(object.key);
        endpoint.cancel(context as usize, &mut domain);
        Ok(())
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    _level: c_int,
    name: c_int,
    out: *mut c_void,
    length: *mut usize,
) -> c_int {
    code(|| {
        // SAFETY: the endpoint and what is written are the caller's.
        unsafe {
            let object = &*fid.cast::<EndpointObject>();
            if name != OPT_MIN_MULTI_RECV {
                return Err(ENOPROTOOPT);
            }
            if *length < size_of::<usize>() {
                return Err(ETOOSMALL);
            }
            *length = size_of::<usize>();
            out.cast::<usize>().write(object.shared.lock().endpoint(object.key).0.least_multi());
        }
        Ok(())
    })
}

unsafe extern "C" fn setopt(
    fid: *mut Fid,
    _level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        if name != OPT_MIN_MULTI_RECV {
            return Err(ENOPROTOOPT);
        }
        if length != size_of::<usize>() {
            return Err(EINVAL);
        }
        // SAFETY: the endpoint and the value are the caller's.
        unsafe {
            let object = &*fid.cast::<EndpointObject>();
            let bytes = value.cast::<usize>().read();
            object.shared.lock().endpoint(object.key).0.set_least_multi(bytes);
        }
        Ok(())
    })
}

/// Returns the address of an endpoint, or `-FI_ETOOSMALL` with the address's length.
unsafe extern "C" fn getname(fid: *mut Fid, out: *mut c_void, length: *mut usize) -> c_int {
    code(|| {
        // SAFETY: the endpoint is the caller's, and `out` has as many bytes as `length` says.
        unsafe {
            let object = &*fid.cast::<EndpointObject>();
            let address = object.shared.lock().endpoint(object.key).0.address;
            if copy_address(&address, out, length) { Ok(()) } else { Err(ETOOSMALL) }
        }
    })
}
