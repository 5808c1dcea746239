//! A reliable datagram endpoint, and the objects that it needs: fabric, domain, address vector, completion queue,
//! memory.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};

use super::info::OwnedInfo;
use super::memory::Memory;
use super::{CallError, check};
use crate::abi::constants::{
    ADDR_UNSPEC, AV_TABLE, CQ_FORMAT_MSG, EAGAIN, EAVAIL, ENABLE, GETWAIT, MR_ENDPOINT, MR_LOCAL,
    RECV, SEND, SOURCE, WAIT_FD, WAIT_NONE,
};
use crate::abi::{
    AvAttr, CqAttr, CqErrEntry, CqMsgEntry, CqTaggedEntry, Fid, FidAv, FidCq, FidDomain, FidEp,
    FidFabric, FidMr,
};

/// Most completions of one call.
const BATCH: usize = 16;
/// Most bytes of an endpoint's name.
pub(crate) const MAX_NAME: usize = 512;

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The returned slot; `None` for a send without a slot.
    pub(crate) slot: Option<usize>,
    /// Length of the received message in bytes.
    pub(crate) length: usize,
    /// The address of the sender; `None` if the provider does not know it.
    pub(crate) source: Option<u64>,
    pub(crate) error: Option<CallError>,
}

/// An endpoint. Its objects are null until they are open; dropping it closes the open ones.
pub(crate) struct RawEndpoint {
    info: OwnedInfo,
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    av: *mut FidAv,
    cq: *mut FidCq,
    ep: *mut FidEp,
    mr: *mut FidMr,
    /// Describes the registered memory; null if none is registered.
    descriptor: *mut c_void,
    memory: ManuallyDrop<Memory>,
    wait: Option<OwnedFd>,
}

// SAFETY: the domain was opened for one thread at a time (FI_THREAD_DOMAIN), and this type is not `Sync`.
unsafe impl Send for RawEndpoint {}

/// Memory for an entry of a later version, which is longer.
#[repr(C)]
struct PaddedError {
    entry: CqErrEntry,
    slack: [u64; 16],
}

impl RawEndpoint {
    /// Opens an endpoint with this many slots.
    pub(crate) fn open(
        info: OwnedInfo,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Self, CallError> {
        let mut this = Self {
            info,
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            ep: null_mut(),
            mr: null_mut(),
            descriptor: null_mut(),
            memory: ManuallyDrop::new(Memory::new(slots, slot_bytes)),
            wait: None,
        };
        let info = this.info.as_ptr();
        // SAFETY: the description is valid and stays as long as the endpoint. Each call writes the pointer of an object,
        // which is used only after the call has succeeded. All tables are those of 1.17 at least.
        unsafe {
            let fabric_attr = (*info).fabric_attr;
            let code = (this.info.library().fabric)(fabric_attr, &raw mut this.fabric, null_mut());
            check("fi_fabric", code as isize)?;
            let ops = (*this.fabric).ops;
            let code = ((*ops).domain)(this.fabric, info, &raw mut this.domain, null_mut());
            check("fi_domain", code as isize)?;
            this.open_address_vector()?;
            if this.open_queue(slots, WAIT_FD).is_err() {
                this.open_queue(slots, WAIT_NONE)?;
            }
            let ops = (*this.domain).ops;
            let code = ((*ops).endpoint)(this.domain, info, &raw mut this.ep, null_mut());
            check("fi_endpoint", code as isize)?;
            let ep = this.ep.cast::<Fid>();
            let bind = (*(*ep).ops).bind;
            check("fi_ep_bind", bind(ep, this.av.cast(), 0) as isize)?;
            check("fi_ep_bind", bind(ep, this.cq.cast(), SEND | RECV) as isize)?;
            check("fi_enable", ((*(*ep).ops).control)(ep, ENABLE, null_mut()) as isize)?;
            this.register()?;
        }
        Ok(this)
    }

    /// # Safety
    /// The domain is open.
    unsafe fn open_address_vector(&mut self) -> Result<(), CallError> {
        let offered = self.info.get().domain().av_type;
        let mut attr = AvAttr {
            kind: if offered == 0 { AV_TABLE } else { offered },
            rx_ctx_bits: 0,
            // The provider's default; the vector grows.
            count: 0,
            ep_per_node: 0,
            name: null(),
            map_addr: null_mut(),
            flags: 0,
        };
        // SAFETY: promised by the caller; the attributes stay during the call.
        let code = unsafe {
            let open = (*(*self.domain).ops).av_open;
            open(self.domain, &raw mut attr, &raw mut self.av, null_mut())
        };
        check("fi_av_open", code as isize).map(drop)
    }

    /// # Safety
    /// The domain is open.
    unsafe fn open_queue(&mut self, entries: usize, wait: c_int) -> Result<(), CallError> {
        // Memory for the attributes of later versions, which are longer.
        #[repr(C)]
        struct Padded(CqAttr, [u64; 8]);
        let attr = CqAttr {
            size: entries,
            flags: 0,
            format: CQ_FORMAT_MSG,
            wait_obj: wait,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let mut attr = Padded(attr, [0; 8]);
        // SAFETY: promised by the caller; the attributes stay during the call.
        let code = unsafe {
            let open = (*(*self.domain).ops).cq_open;
            open(self.domain, &raw mut attr.0, &raw mut self.cq, null_mut())
        };
        check("fi_cq_open", code as isize)?;
        if wait == WAIT_FD {
            self.wait = self.wait_descriptor()?;
        }
        Ok(())
    }

    /// Returns a duplicate of the descriptor that becomes readable with the queue.
    fn wait_descriptor(&mut self) -> Result<Option<OwnedFd>, CallError> {
        let mut number: c_int = -1;
        let cq = self.cq.cast::<Fid>();
        // SAFETY: the queue is open, with a descriptor; the call writes its number.
        let code = unsafe { ((*(*cq).ops).control)(cq, GETWAIT, (&raw mut number).cast()) };
        let got = check("fi_control(FI_GETWAIT)", code as isize);
        // SAFETY: the descriptor is open as long as the queue; its duplicate belongs to this endpoint.
        let duplicate = got.is_ok().then(|| unsafe { BorrowedFd::borrow_raw(number) });
        let owned = duplicate.and_then(|fd| fd.try_clone_to_owned().ok());
        if owned.is_none() {
            // The queue can't be awaited: the caller opens one without a descriptor.
            close(&mut self.cq);
            return Err(CallError { call: "fi_control(FI_GETWAIT)", code: libc::ENOSYS });
        }
        Ok(owned)
    }

    /// Registers the memory, if the provider requires that.
    ///
    /// # Safety
    /// The endpoint is enabled.
    unsafe fn register(&mut self) -> Result<(), CallError> {
        let mode = self.info.get().domain().mr_mode;
        if mode & MR_LOCAL == 0 {
            return Ok(());
        }
        let (memory, bytes) = self.memory.whole();
        let domain = self.domain.cast::<Fid>();
        // SAFETY: promised by the caller. The memory stays until the endpoint is closed.
        unsafe {
            let reg = (*(*self.domain).mr).reg;
            let out = &raw mut self.mr;
            let code = reg(domain, memory, bytes, SEND | RECV, 0, 0, 0, out, null_mut());
            check("fi_mr_reg", code as isize)?;
            if mode & MR_ENDPOINT != 0 {
                let mr = self.mr.cast::<Fid>();
                check("fi_mr_bind", ((*(*mr).ops).bind)(mr, self.ep.cast(), 0) as isize)?;
                let code = ((*(*mr).ops).control)(mr, ENABLE, null_mut());
                check("fi_mr_enable", code as isize)?;
            }
            self.descriptor = (*self.mr).mem_desc;
        }
        Ok(())
    }

    pub(crate) const fn info(&self) -> &OwnedInfo {
        &self.info
    }

    /// Takes the descriptor that becomes readable with completions; `None` if the provider has none.
    pub(crate) fn take_wait(&mut self) -> Option<OwnedFd> {
        self.wait.take()
    }

    /// Returns the endpoint's name, by which peers send to it.
    pub(crate) fn name(&self) -> Result<Vec<u8>, CallError> {
        let mut name = vec![0; MAX_NAME];
        let mut bytes = name.len();
        let ep = self.ep;
        // SAFETY: the endpoint is enabled; the call writes at most `bytes` bytes.
        let code =
            unsafe { ((*(*ep).cm).getname)(ep.cast(), name.as_mut_ptr().cast(), &raw mut bytes) };
        check("fi_getname", code as isize)?;
        name.truncate(bytes);
        Ok(name)
    }

    /// Inserts a name; returns the address of the peer. The caller has checked the length of the name.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Result<u64, CallError> {
        // The padding bounds the bytes that a provider may read as a name.
        let mut padded = [0_u8; 2 * MAX_NAME];
        padded[..name.len()].copy_from_slice(name);
        let mut address = ADDR_UNSPEC;
        // SAFETY: the vector is open; the name and the address stay during the call.
        let count = unsafe {
            let insert = (*(*self.av).ops).insert;
            insert(self.av, padded.as_ptr().cast(), 1, &raw mut address, 0, null_mut())
        };
        let count = check("fi_av_insert", count as isize)?;
        if count == 1 && address != ADDR_UNSPEC {
            Ok(address)
        } else {
            Err(CallError { call: "fi_av_insert", code: libc::EINVAL })
        }
    }

    /// Removes a peer from the address vector, and the provider's connection to it.
    #[cfg(feature = "streams")]
    pub(crate) fn remove(&mut self, mut address: u64) -> Result<(), CallError> {
        // SAFETY: the vector is open, and the address is one of its own; it stays during the call.
        let code = unsafe { ((*(*self.av).ops).remove)(self.av, &raw mut address, 1, 0) };
        check("fi_av_remove", code as isize).map(drop)
    }

    /// Posts a slot for the next message; `false` if the provider can accept it only later.
    pub(crate) fn post_receive(&mut self, slot: usize) -> Result<bool, CallError> {
        let bytes = self.memory.slot_bytes();
        let (buffer, context) = self.memory.pass(slot);
        let (ep, descriptor) = (self.ep, self.descriptor);
        // SAFETY: the slot and the context stay until the operation ends or the endpoint is closed.
        let code =
            unsafe { ((*(*ep).msg).recv)(ep, buffer, bytes, descriptor, ADDR_UNSPEC, context) };
        self.posted("fi_recv", code, slot)
    }

    /// Sends the first bytes of a slot; `false` if the provider can accept them only later.
    ///
    /// # Panics
    /// If a slot has fewer bytes.
    pub(crate) fn post_send(
        &mut self,
        slot: usize,
        bytes: usize,
        to: u64,
    ) -> Result<bool, CallError> {
        assert!(bytes <= self.memory.slot_bytes(), "the frame is within its slot");
        let (buffer, context) = self.memory.pass(slot);
        let (ep, descriptor) = (self.ep, self.descriptor);
        // SAFETY: the slot and the context stay until the operation ends or the endpoint is closed.
        let code = unsafe { ((*(*ep).msg).send)(ep, buffer, bytes, descriptor, to, context) };
        self.posted("fi_send", code, slot)
    }

    fn posted(&mut self, call: &'static str, code: isize, slot: usize) -> Result<bool, CallError> {
        match check(call, code) {
            Ok(_) => Ok(true),
            Err(error) => {
                self.memory.reclaim(slot);
                if error.code == EAGAIN { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Sends bytes that the provider copies, without a completion; `false` if the provider can accept them only later.
    pub(crate) fn inject(&self, bytes: &[u8], to: u64) -> Result<bool, CallError> {
        let ep = self.ep;
        // SAFETY: the call copies the bytes before it returns.
        let code = unsafe { ((*(*ep).msg).inject)(ep, bytes.as_ptr().cast(), bytes.len(), to) };
        match check("fi_inject", code) {
            Ok(_) => Ok(true),
            Err(error) if error.code == EAGAIN => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets the provider progress, and calls `each` with its completions. Returns whether there were any.
    pub(crate) fn poll(&mut self, each: &mut dyn FnMut(Completion)) -> Result<bool, CallError> {
        let empty = CqMsgEntry { op_context: null_mut(), flags: 0, len: 0 };
        let (mut entries, mut sources) = ([empty; BATCH], [ADDR_UNSPEC; BATCH]);
        let (cq, buffer) = (self.cq, entries.as_mut_ptr().cast());
        // SAFETY: the queue is open, with entries of this format; the call writes at most `BATCH` of them.
        let count = unsafe {
            match self.info.get().caps() & SOURCE {
                0 => ((*(*cq).ops).read)(cq, buffer, BATCH),
                _ => ((*(*cq).ops).readfrom)(cq, buffer, BATCH, sources.as_mut_ptr()),
            }
        };
        let count = match check("fi_cq_read", count) {
            Ok(count) => count,
            Err(error) if error.code == EAGAIN => return Ok(false),
            Err(error) if error.code == EAVAIL => return self.poll_error(each),
            Err(error) => return Err(error),
        };
        for (entry, source) in entries.iter().zip(sources).take(count) {
            each(Completion {
                slot: self.memory.reclaim_by(entry.op_context),
                length: entry.len.min(self.memory.slot_bytes()),
                source: (source != ADDR_UNSPEC).then_some(source),
                error: None,
            });
        }
        Ok(count > 0)
    }

    /// Calls `each` with the completion of a failed operation.
    fn poll_error(&mut self, each: &mut dyn FnMut(Completion)) -> Result<bool, CallError> {
        let entry = CqTaggedEntry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
            tag: 0,
        };
        let entry = CqErrEntry {
            entry,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
        };
        let mut error = PaddedError { entry, slack: [0; 16] };
        let cq = self.cq;
        // SAFETY: the queue is open; the call writes one entry, of this or a later version.
        let count = unsafe { ((*(*cq).ops).readerr)(cq, &raw mut error.entry, 0) };
        match check("fi_cq_readerr", count) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.code == EAGAIN => return Ok(false),
            Err(error) => return Err(error),
        }
        each(Completion {
            slot: self.memory.reclaim_by(error.entry.entry.op_context),
            length: 0,
            source: None,
            error: Some(CallError { call: "an operation", code: error.entry.err }),
        });
        Ok(true)
    }

    /// Returns whether the caller may wait for the descriptor now. If not, there are completions or work.
    pub(crate) fn may_wait(&self) -> bool {
        let mut fids = [self.cq.cast::<Fid>()];
        let fabric = self.fabric;
        // SAFETY: the fabric and the queue are open.
        unsafe { ((*(*fabric).ops).trywait)(fabric, fids.as_mut_ptr(), 1) == 0 }
    }

    /// Returns the bytes of a slot. See [`Memory::slot`].
    pub(crate) fn slot(&self, slot: usize) -> &[u8] {
        self.memory.slot(slot)
    }

    /// Returns the bytes of a slot for writing. See [`Memory::slot_mut`].
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        self.memory.slot_mut(slot)
    }
}

impl Drop for RawEndpoint {
    fn drop(&mut self) {
        // libfabric requires this order: an object is closed after those that use it.
        if !close(&mut self.ep) {
            // The provider still uses the memory and the other objects, so they are leaked.
            return;
        }
        let is_free = close(&mut self.mr);
        close(&mut self.cq);
        close(&mut self.av);
        close(&mut self.domain);
        close(&mut self.fabric);
        if is_free {
            // SAFETY: it is dropped only here, and no provider uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Closes an object, if it is open; returns whether it is closed now.
fn close<T>(object: &mut *mut T) -> bool {
    let fid = std::mem::replace(object, null_mut()).cast::<Fid>();
    // SAFETY: each object of libfabric begins with a `Fid`, and this one is open.
    fid.is_null() || unsafe { ((*(*fid).ops).close)(fid) == 0 }
}
