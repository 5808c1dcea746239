//! Describes the provider's capabilities, as `fi_getinfo` returns them.
#![allow(unsafe_code, reason = "reads a caller's hints and allocates what the caller frees")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;

use crate::abi::constants::*;
use crate::abi::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::atomic::MAX_BYTES;
use crate::memory::MAX_PARTS;
use crate::objects::guard;
use crate::provider::VERSION;

/// The capabilities that a caller may request.
const PRIMARY: u64 = MSG | TAGGED | RMA | ATOMIC;
const SUPPORTED: u64 = PRIMARY
    | SEND
    | RECV
    | READ
    | WRITE
    | REMOTE_READ
    | REMOTE_WRITE
    | MULTI_RECV
    | DIRECTED_RECV
    | SOURCE
    | RMA_EVENT
    | LOCAL_COMM
    | REMOTE_COMM; // Open MPI always requests it; peers on other hosts are refused one by one
/// One ring to each peer keeps all records in order. Only the bytes that a read returns may be newer than a later
/// write.
const ORDERS: u64 = ORDER_SAS
    | ORDER_SAW
    | ORDER_WAS
    | ORDER_WAW
    | ORDER_RAW
    | ORDER_RAS
    | ORDER_RMA_RAW
    | ORDER_RMA_WAW
    | ORDER_ATOMIC_RAR
    | ORDER_ATOMIC_RAW
    | ORDER_ATOMIC_WAR
    | ORDER_ATOMIC_WAW;
/// Longer messages work; MPICH computes with this number.
const MAX_MESSAGE: usize = 1 << 30;
/// Most bytes that a call copies.
const INJECT: usize = 4096;
/// Most operations in progress; nothing is reserved for them.
const QUEUE: usize = 4096;
/// Most objects of a kind in a domain; only memory and descriptors limit them.
const OBJECTS: usize = 1024;
/// Bytes after each structure, for fields of later versions, which are zero.
const SLACK: usize = 256;
/// This provider's own format of addresses; the number has no meaning.
pub(crate) const ADDRESS_FORMAT: u32 = PROV_SPECIFIC | 0x4d50;
/// The name of the fabric and of the domain.
const NAME: &CStr = c"midplane";

/// Returns the provider's capabilities within the limits of `hints`, or `-FI_ENODATA`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    _service: *const c_char,
    flags: u64,
    hints: *const Info,
    out: *mut *mut Info,
) -> c_int {
    guard(-EOTHER, || {
        // SAFETY: libfabric passes null, or hints that stay as they are during the call.
        let hints = unsafe { hints.as_ref() };
        // Endpoints have no names that a caller could know in advance.
        let names_peer = !node.is_null() && flags & SOURCE == 0;
        // SAFETY: as above.
        if names_peer || !hints.is_none_or(|hints| unsafe { fits(hints) }) {
            return -ENODATA;
        }
        // SAFETY: `out` is the caller's, for one pointer.
        unsafe { *out = offer(version, hints) };
        0
    })
}

/// Returns whether the provider satisfies the hints.
unsafe fn fits(hints: &Info) -> bool {
    // SAFETY: the attributes of hints are null or valid.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            hints.tx_attr.as_ref(),
            hints.rx_attr.as_ref(),
            hints.ep_attr.as_ref(),
            hints.domain_attr.as_ref(),
            hints.fabric_attr.as_ref(),
        )
    };
    let has = |caps: u64| caps & !SUPPORTED == 0;
    // SAFETY: names of hints are null or strings.
    let is_named = |name: *mut c_char| name.is_null() || unsafe { CStr::from_ptr(name) } == NAME;
    has(hints.caps)
        && (hints.addr_format == 0 || hints.addr_format == ADDRESS_FORMAT)
        && fabric.is_none_or(|fabric| is_named(fabric.name))
        && tx.is_none_or(|tx| {
            has(tx.caps)
                && tx.msg_order & !ORDERS == 0
                && tx.comp_order == 0
                && tx.inject_size <= INJECT
                && tx.size <= QUEUE
                && tx.iov_limit <= MAX_PARTS
                && tx.rma_iov_limit <= 1
        })
        && rx.is_none_or(|rx| {
            has(rx.caps)
                && rx.msg_order & !ORDERS == 0
                && rx.comp_order == 0
                && rx.size <= QUEUE
                && rx.iov_limit <= MAX_PARTS
        })
        && ep.is_none_or(|ep| {
            (ep.kind == 0 || ep.kind == EP_RDM)
                && ep.protocol == 0
                && ep.max_msg_size <= MAX_MESSAGE
                && ep.tx_ctx_cnt <= 1
                && ep.rx_ctx_cnt <= 1
                && ep.auth_key_size == 0
        })
        && domain.is_none_or(|domain| {
            is_named(domain.name) && domain.cq_data_size <= 8 && domain.mr_key_size <= 8
        })
}

/// Returns the capabilities that the hints imply.
const fn capabilities(asked: u64) -> u64 {
    if asked & PRIMARY == 0 {
        return SUPPORTED;
    }
    let mut caps = asked | LOCAL_COMM;
    if asked & (MSG | TAGGED) != 0 && asked & (SEND | RECV) == 0 {
        caps |= SEND | RECV;
    }
    if asked & (RMA | ATOMIC) != 0 && asked & (READ | WRITE | REMOTE_READ | REMOTE_WRITE) == 0 {
        caps |= READ | WRITE | REMOTE_READ | REMOTE_WRITE;
    }
    caps
}

/// Allocates a zeroed structure that the caller frees with `free`.
fn allocate<T>() -> *mut T {
    // SAFETY: allocates memory. Zeros are valid for the structures of `abi`: numbers and pointers.
    let memory = unsafe { libc::calloc(1, size_of::<T>() + SLACK) };
    assert!(!memory.is_null(), "out of memory");
    memory.cast()
}

fn name() -> *mut c_char {
    // SAFETY: copies a string.
    unsafe { libc::strdup(NAME.as_ptr()) }
}

fn offer(version: u32, hints: Option<&Info>) -> *mut Info {
    let info = Info {
        next: null_mut(),
        caps: capabilities(hints.map_or(0, |hints| hints.caps)),
        mode: 0,
        addr_format: ADDRESS_FORMAT,
        src_addrlen: 0,
        dest_addrlen: 0,
        src_addr: null_mut(),
        dest_addr: null_mut(),
        handle: null_mut(),
        tx_attr: allocate(),
        rx_attr: allocate(),
        ep_attr: allocate(),
        domain_attr: allocate(),
        fabric_attr: allocate(),
        nic: null_mut::<c_void>(),
    };
    // SAFETY: all attributes were just allocated, and are written whole; hints are null or valid.
    unsafe {
        let tx = hints.and_then(|hints| hints.tx_attr.as_ref());
        let rx = hints.and_then(|hints| hints.rx_attr.as_ref());
        let domain = hints.and_then(|hints| hints.domain_attr.as_ref());
        info.tx_attr.write(tx_attr(info.caps, tx));
        info.rx_attr.write(rx_attr(info.caps, rx));
        info.ep_attr.write(ep_attr());
        info.domain_attr.write(domain_attr(domain));
        info.fabric_attr.write(FabricAttr {
            fabric: null_mut(),
            name: name(),
            prov_name: null_mut(), // libfabric's core sets it
            prov_version: VERSION,
            api_version: version,
        });
        let out: *mut Info = allocate();
        out.write(info);
        out
    }
}

fn tx_attr(caps: u64, hints: Option<&TxAttr>) -> TxAttr {
    TxAttr {
        caps: caps & (PRIMARY | SEND | READ | WRITE),
        mode: 0,
        op_flags: hints.map_or(0, |hints| hints.op_flags),
        msg_order: ORDERS,
        comp_order: 0,
        inject_size: INJECT,
        size: QUEUE,
        iov_limit: MAX_PARTS,
        rma_iov_limit: 1,
        tclass: 0,
    }
}

fn rx_attr(caps: u64, hints: Option<&RxAttr>) -> RxAttr {
    let remote = REMOTE_READ | REMOTE_WRITE | RMA_EVENT;
    let mine = PRIMARY | RECV | remote | MULTI_RECV | DIRECTED_RECV | SOURCE;
    RxAttr {
        caps: caps & mine,
        mode: 0,
        op_flags: hints.map_or(0, |hints| hints.op_flags),
        msg_order: ORDERS,
        comp_order: 0,
        total_buffered_recv: 0,
        size: QUEUE,
        iov_limit: MAX_PARTS,
    }
}

const fn ep_attr() -> EpAttr {
    EpAttr {
        kind: EP_RDM,
        protocol: PROV_SPECIFIC | 1,
        protocol_version: 1,
        max_msg_size: MAX_MESSAGE,
        msg_prefix_size: 0,
        max_order_raw_size: MAX_MESSAGE,
        // Applies to atomic operations only, which are performed in the order of their arrival.
        max_order_war_size: MAX_BYTES,
        max_order_waw_size: MAX_MESSAGE,
        mem_tag_format: TAG_GENERIC,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: null_mut(),
    }
}

/// Returns the mode of registration: that of old callers; otherwise 0, which requires nothing of callers.
const fn registration(hinted: c_int) -> c_int {
    match hinted {
        MR_BASIC | MR_SCALABLE => hinted,
        _ => 0,
    }
}

fn domain_attr(hints: Option<&DomainAttr>) -> DomainAttr {
    let or = |hinted: fn(&DomainAttr) -> c_int, default: c_int| match hints.map_or(0, hinted) {
        0 => default,
        value => value,
    };
    DomainAttr {
        domain: null_mut(),
        name: name(),
        threading: or(|hints| hints.threading, THREAD_SAFE),
        control_progress: or(|hints| hints.control_progress, PROGRESS_MANUAL),
        data_progress: or(|hints| hints.data_progress, PROGRESS_MANUAL),
        resource_mgmt: RM_ENABLED,
        av_type: or(|hints| hints.av_type, AV_TABLE),
        mr_mode: registration(hints.map_or(0, |hints| hints.mr_mode)),
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: OBJECTS,
        ep_cnt: OBJECTS,
        tx_ctx_cnt: OBJECTS,
        rx_ctx_cnt: OBJECTS,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: 0,
        cntr_cnt: OBJECTS,
        mr_iov_limit: 1,
        caps: LOCAL_COMM,
        mode: 0,
        auth_key: null_mut(),
        auth_key_size: 0,
        max_err_data: 0,
        mr_cnt: 1 << 16,
        tclass: 0,
    }
}
