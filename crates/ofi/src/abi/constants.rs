//! libfabric's constants that this crate and the provider use, from `rdma/fabric.h`, `fi_domain.h`, `fi_eq.h` and `fi_errno.h`.

use std::ffi::c_int;

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const MULTI_RECV: u64 = 1 << 16;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const PEEK: u64 = 1 << 19;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const MATCH_COMPLETE: u64 = 1 << 31;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
/// Capability: peers' operations on memory are counted.
pub const RMA_EVENT: u64 = 1 << 56;
pub const SOURCE: u64 = 1 << 57;
/// Message flag: discard the message that a peek finds.
pub const DISCARD: u64 = 1 << 58;
/// Flag of an insertion of addresses: the context is an array for the error of each.
pub const SYNC_ERR: u64 = 1 << 58;
/// Capability: receives can name a source.
pub const DIRECTED_RECV: u64 = 1 << 59;
/// Message flag: reserve the message that a peek finds, or receive the reserved one.
pub const CLAIM: u64 = 1 << 59;
/// Flag for binding a completion queue: only operations that request an entry have one.
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Formats of socket addresses.
pub const SOCKADDR: u32 = 1;
pub const SOCKADDR_IN: u32 = 2;
pub const SOCKADDR_IN6: u32 = 3;
/// Format of addresses: text that ends with a zero.
pub const ADDR_STR: u32 = 9;
pub const ADDR_UNSPEC: u64 = u64::MAX;

/// Mode: an operation's context points to memory that the provider may use.
pub const CONTEXT: u64 = 1 << 59;
/// Mode: as [`CONTEXT`], with twice the memory.
pub const CONTEXT2: u64 = 1 << 52;

pub const AV_TABLE: c_int = 2;
pub const MR_BASIC: c_int = 1;
pub const MR_SCALABLE: c_int = 2;
pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;
pub const MR_ENDPOINT: c_int = 1 << 9;
pub const PROGRESS_MANUAL: c_int = 2;
pub const PROGRESS_AUTO: c_int = 1;
pub const THREAD_SAFE: c_int = 1;
pub const THREAD_DOMAIN: c_int = 3;
pub const RM_ENABLED: c_int = 2;
pub const EP_RDM: c_int = 3;
/// The high bit marks a provider's own formats.
pub const PROV_SPECIFIC: u32 = 1 << 31;
/// A tag of 64 bits without fields.
pub const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

pub const ORDER_RAW: u64 = 1 << 1;
pub const ORDER_RAS: u64 = 1 << 2;
pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_WAS: u64 = 1 << 5;
pub const ORDER_SAW: u64 = 1 << 7;
pub const ORDER_SAS: u64 = 1 << 8;
pub const ORDER_RMA_RAW: u64 = 1 << 33;
pub const ORDER_RMA_WAW: u64 = 1 << 35;

pub const ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const ORDER_ATOMIC_WAW: u64 = 1 << 39;

/// Flag of a query: for the calls that return the previous values.
pub const FETCH_ATOMIC: u64 = 1 << 58;
/// Flag of a query: for the calls that compare.
pub const COMPARE_ATOMIC: u64 = 1 << 59;

pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_AV: usize = 11;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CNTR: usize = 15;

pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;
pub const GETWAITOBJ: c_int = 16;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_UNSPEC: c_int = 1;
pub const WAIT_FD: c_int = 3;
pub const WAIT_YIELD: c_int = 5;
pub const OPT_MIN_MULTI_RECV: c_int = 0;

pub const CQ_FORMAT_UNSPEC: c_int = 0;
pub const CQ_FORMAT_CONTEXT: c_int = 1;
pub const CQ_FORMAT_MSG: c_int = 2;
pub const CQ_FORMAT_DATA: c_int = 3;
pub const CQ_FORMAT_TAGGED: c_int = 4;

pub const EAGAIN: c_int = libc::EAGAIN;
pub const EBUSY: c_int = libc::EBUSY;
pub const EINVAL: c_int = libc::EINVAL;
pub const EMSGSIZE: c_int = libc::EMSGSIZE;
pub const ENODATA: c_int = libc::ENODATA;
pub const ENOENT: c_int = libc::ENOENT;
pub const ENOMSG: c_int = libc::ENOMSG;
pub const ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
pub const ENOSYS: c_int = libc::ENOSYS;
pub const EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
pub const EACCES: c_int = libc::EACCES;
pub const ECANCELED: c_int = libc::ECANCELED;
pub const ECONNRESET: c_int = libc::ECONNRESET;
pub const EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
pub const ETIMEDOUT: c_int = libc::ETIMEDOUT;
pub const EOTHER: c_int = 256;
pub const ETOOSMALL: c_int = 257;
pub const EAVAIL: c_int = 259;
pub const ETRUNC: c_int = 265;
pub const ENOAV: c_int = 267;
