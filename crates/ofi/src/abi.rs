//! libfabric's interface in Rust: structures, constants and tables of functions, from its headers.
//!
//! The layouts are those of version 1.17. Later versions, up to 2.x, only append fields. Memory that a caller allocates
//! is at least as long, and memory that either side allocates for the other has slack after it. The first field of each
//! table is its size, by which a caller knows which functions it has.
//!
//! The endpoints of this crate and the provider `midplane-fi` share it. Its API is not stable.
#![allow(missing_debug_implementations, reason = "structures of C, which are not printed")]

pub mod constants;
pub mod tables;

use std::ffi::{c_char, c_int, c_void};

/// An object that a caller holds: the first field of each larger one.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const tables::FidOps,
}

/// The provider, as libfabric's core holds it; the core writes `context` and may write `name`.
#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    pub cleanup: extern "C" fn(),
}

#[repr(C)]
pub struct Info {
    pub next: *mut Self,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut FidDomain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut FidFabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct CntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
}

/// An entry of a completion queue of the format [`constants::CQ_FORMAT_MSG`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CqMsgEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// An entry of a completion queue of the longest format; the shorter formats are prefixes of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct CqErrEntry {
    pub entry: CqTaggedEntry,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct Msg {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct MsgTagged {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct MsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// Contiguous elements of an atomic operation: `count` of them.
#[repr(C)]
pub struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

#[repr(C)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
pub struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const tables::FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const tables::DomainOps,
    pub mr: *const tables::MrOps,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const tables::AvOps,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const tables::EqOps,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const tables::CqOps,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const tables::CntrOps,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const tables::EpOps,
    pub cm: *const tables::CmOps,
    pub msg: *const tables::MsgOps,
    pub rma: *const tables::RmaOps,
    pub tagged: *const tables::TaggedOps,
    pub atomic: *const tables::AtomicOps,
    pub collective: *const c_void,
}

#[cfg(test)]
mod tests;
