//! libfabric's constants that the provider uses, from `rdma/fabric.h`, `fi_domain.h`, `fi_eq.h` and `fi_errno.h`.

use std::ffi::c_int;

pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const SOURCE: u64 = 1 << 57;
/// Of messages: discard the message that a peek finds.
pub(crate) const DISCARD: u64 = 1 << 58;
/// Of capabilities: receives can name a source.
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;
/// Of messages: reserve the message that a peek finds, or receive the reserved one.
pub(crate) const CLAIM: u64 = 1 << 59;
/// Of binding a completion queue: operations complete in it only if they ask for it.
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

pub(crate) const ADDR_UNSPEC: u64 = u64::MAX;

pub(crate) const AV_TABLE: c_int = 2;
pub(crate) const MR_BASIC: c_int = 1;
pub(crate) const MR_SCALABLE: c_int = 2;
pub(crate) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const MR_PROV_KEY: c_int = 1 << 6;
pub(crate) const PROGRESS_MANUAL: c_int = 2;
pub(crate) const PROGRESS_AUTO: c_int = 1;
pub(crate) const THREAD_SAFE: c_int = 1;
pub(crate) const RM_ENABLED: c_int = 2;
pub(crate) const EP_RDM: c_int = 3;
/// The high bit marks what is a provider's own.
pub(crate) const PROV_SPECIFIC: u32 = 1 << 31;
/// A tag of 64 bits without fields.
pub(crate) const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

pub(crate) const ORDER_RAW: u64 = 1 << 1;
pub(crate) const ORDER_RAS: u64 = 1 << 2;
pub(crate) const ORDER_WAW: u64 = 1 << 4;
pub(crate) const ORDER_WAS: u64 = 1 << 5;
pub(crate) const ORDER_SAW: u64 = 1 << 7;
pub(crate) const ORDER_SAS: u64 = 1 << 8;
pub(crate) const ORDER_RMA_RAW: u64 = 1 << 33;
pub(crate) const ORDER_RMA_WAW: u64 = 1 << 35;

pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;

pub(crate) const GETWAIT: c_int = 5;
pub(crate) const ENABLE: c_int = 6;
pub(crate) const GETWAITOBJ: c_int = 16;
pub(crate) const WAIT_NONE: c_int = 0;
pub(crate) const WAIT_UNSPEC: c_int = 1;
pub(crate) const WAIT_FD: c_int = 3;
pub(crate) const WAIT_YIELD: c_int = 5;
pub(crate) const OPT_MIN_MULTI_RECV: c_int = 0;

pub(crate) const CQ_FORMAT_UNSPEC: c_int = 0;
pub(crate) const CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const CQ_FORMAT_MSG: c_int = 2;
pub(crate) const CQ_FORMAT_DATA: c_int = 3;
pub(crate) const CQ_FORMAT_TAGGED: c_int = 4;

pub(crate) const EAGAIN: c_int = libc::EAGAIN;
pub(crate) const EBUSY: c_int = libc::EBUSY;
pub(crate) const EINVAL: c_int = libc::EINVAL;
pub(crate) const EMSGSIZE: c_int = libc::EMSGSIZE;
pub(crate) const ENODATA: c_int = libc::ENODATA;
pub(crate) const ENOMSG: c_int = libc::ENOMSG;
pub(crate) const ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
pub(crate) const ENOSYS: c_int = libc::ENOSYS;
pub(crate) const EACCES: c_int = libc::EACCES;
pub(crate) const ECANCELED: c_int = libc::ECANCELED;
pub(crate) const ECONNRESET: c_int = libc::ECONNRESET;
pub(crate) const EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
pub(crate) const ETIMEDOUT: c_int = libc::ETIMEDOUT;
pub(crate) const EOTHER: c_int = 256;
pub(crate) const ETOOSMALL: c_int = 257;
pub(crate) const EAVAIL: c_int = 259;
pub(crate) const ETRUNC: c_int = 265;
pub(crate) const ENOAV: c_int = 267;
