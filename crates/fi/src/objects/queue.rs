//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

use super::{code, domain, fid, fid_ops, guard, hand_out, no_bind, take_back, timeout};
use crate::abi::constants::*;
use crate::abi::tables::{CqOps, FidOps};
use crate::abi::{CqAttr, CqErrEntry, CqTaggedEntry, Fid, FidCq, FidDomain};
use crate::completion::{Entry, Queue};
use crate::domain::{Core, Shared};

/// Least number of entries of a queue: a full one also delays what a peer sends behind a message.
const LEAST_SIZE: usize = 4096;

#[repr(C)]
pub(super) struct QueueObject {
    fid: FidCq,
    shared: Arc<Shared>,
    pub(super) key: usize,
    /// Bytes of an entry.
    entry: usize,
    has_descriptor: bool,
}

static FID: FidOps = fid_ops(close, no_bind, control);
static OPS: CqOps =
    CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    out: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: the domain and the attributes are the caller's.
        let (shared, attr) = unsafe { (domain::shared(domain), attr.as_ref()) };
        let format = attr.map_or(CQ_FORMAT_UNSPEC, |attr| attr.format);
        let entry = match format {
            CQ_FORMAT_CONTEXT => 8,
            CQ_FORMAT_MSG => 24,
            CQ_FORMAT_DATA => 40,
            CQ_FORMAT_UNSPEC | CQ_FORMAT_TAGGED => size_of::<CqTaggedEntry>(),
            _ => return Err(EINVAL),
        };
        let wait = attr.map_or(WAIT_NONE, |attr| attr.wait_obj);
        let has_descriptor = match wait {
            WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD => false,
            WAIT_FD => true,
            _ => return Err(ENOSYS),
        };
        let capacity = attr.map_or(0, |attr| attr.size).max(LEAST_SIZE);
        let entries = std::collections::VecDeque::new();
        let queue = Queue { entries, is_signalled: false, capacity, waiter: None };
        let key = shared.lock().completions.queues.insert(queue);
        let fid = FidCq { fid: fid(CLASS_CQ, context, &FID), ops: &OPS };
        // SAFETY: `out` is the caller's.
        unsafe { hand_out(QueueObject { fid, shared, key, entry, has_descriptor }, out) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    code(|| {
        // SAFETY: it was handed out by `open`.
        let queue = unsafe { &*fid.cast::<QueueObject>() };
        let mut core = queue.shared.lock();
        if core.uses(|bindings| bindings.has_queue(queue.key)) {
            return Err(EBUSY);
        }
        core.remove_queue(queue.key);
        drop(core);
        // SAFETY: as above; the caller does not use it any more.
        drop(unsafe { take_back::<QueueObject>(fid) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    code(|| {
        // SAFETY: the queue is the caller's, and `arg` what the command says.
        let (queue, arg) = unsafe { (&*fid.cast::<QueueObject>(), arg.cast::<c_int>()) };
        let value = match command {
            GETWAIT if queue.has_descriptor => {
                queue.shared.lock().descriptor(queue.key).map_err(|_| EOTHER)?
            }
            GETWAITOBJ if queue.has_descriptor => WAIT_FD,
            GETWAITOBJ => WAIT_NONE,
            _ => return Err(ENOSYS),
        };
        // SAFETY: as above.
        unsafe { *arg = value };
        Ok(())
    })
}

/// Moves entries of a queue to the caller; returns their number, or the result of [`read`] if there is none.
///
/// # Safety
/// `out` has space for `count` entries, and `sources` for as many numbers or is null.
#[inline]
unsafe fn take(
    queue: &QueueObject,
    core: &mut Core,
    out: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    let Some(entries) = core.completions.queues.get_mut(queue.key) else {
        return -(EINVAL as isize);
    };
    let mut taken = 0;
    while taken < count {
        match entries.entries.front() {
            Some(entry) if entry.error == 0 => {
                let formatted = format(entry);
                // SAFETY: promised by the caller; a shorter format is a prefix of the longest.
                unsafe {
                    let to = out.cast::<u8>().add(taken * queue.entry);
                    std::ptr::copy_nonoverlapping((&raw const formatted).cast(), to, queue.entry);
                    if !sources.is_null() {
                        *sources.add(taken) = entry.source;
                    }
                }
                entries.entries.pop_front();
                taken += 1;
            }
            Some(_) if taken == 0 => return -(EAVAIL as isize),
            None if taken == 0 => return -(EAGAIN as isize),
            _ => break,
        }
    }
    taken as isize
}

#[inline]
const fn format(entry: &Entry) -> CqTaggedEntry {
    CqTaggedEntry {
        op_context: entry.context as *mut c_void,
        flags: entry.flags,
        len: entry.length,
        buf: entry.buffer as *mut c_void,
        data: entry.data,
        tag: entry.tag,
    }
}

/// Runs one progress, and takes entries. Returns their number, `-FI_EAGAIN` if there is none, or `-FI_EAVAIL` if the
/// next one is an error.
unsafe extern "C" fn read(queue: *mut FidCq, out: *mut c_void, count: usize) -> isize {
    // SAFETY: the same promises.
    unsafe { readfrom(queue, out, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    queue: *mut FidCq,
    out: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    guard(-(EOTHER as isize), || {
        // SAFETY: the queue and the memory for entries are the caller's.
        let queue = unsafe { &*queue.cast::<QueueObject>() };
        // SAFETY: as above.
        queue.shared.poll(|core| unsafe { take(queue, core, out, count, sources) })
    })
}

/// Takes an error; returns 1, or `-FI_EAGAIN` if the next entry is not an error.
unsafe extern "C" fn readerr(queue: *mut FidCq, out: *mut CqErrEntry, _flags: u64) -> isize {
    guard(-(EOTHER as isize), || {
        // SAFETY: the queue is the caller's.
        let queue = unsafe { &*queue.cast::<QueueObject>() };
        let mut core = queue.shared.lock();
        let entries = core.completions.queues.get_mut(queue.key).map(|queue| &mut queue.entries);
        let entry = entries.and_then(|entries| {
            let is_error = entries.front().is_some_and(|entry| entry.error != 0);
            if is_error { entries.pop_front() } else { None }
        });
        let Some(entry) = entry else { return -(EAGAIN as isize) };
        let error = CqErrEntry {
            entry: format(&entry),
            olen: entry.excess,
            err: entry.error,
            prov_errno: entry.error,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
        };
        // SAFETY: `out` is the caller's, and at least as long as in version 1.17.
        unsafe { out.write(error) };
        1
    })
}

unsafe extern "C" fn sread(
    queue: *mut FidCq,
    out: *mut c_void,
    count: usize,
    condition: *const c_void,
    milliseconds: c_int,
) -> isize {
    // SAFETY: the same promises.
    unsafe { sreadfrom(queue, out, count, std::ptr::null_mut(), condition, milliseconds) }
}

/// Waits for entries, and takes them.
unsafe extern "C" fn sreadfrom(
    queue: *mut FidCq,
    out: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    milliseconds: c_int,
) -> isize {
    guard(-(EOTHER as isize), || {
        // SAFETY: the queue and the memory for entries are the caller's.
        let queue = unsafe { &*queue.cast::<QueueObject>() };
        let taken = queue.shared.wait(timeout(milliseconds), |core| {
            let is_signalled = core
                .completions
                .queues
                .get_mut(queue.key)
                .is_some_and(|queue| std::mem::take(&mut queue.is_signalled));
            // SAFETY: as above.
            let taken = unsafe { take(queue, core, out, count, sources) };
            (is_signalled || taken != -(EAGAIN as isize)).then_some(taken)
        });
        taken.unwrap_or(-(EAGAIN as isize))
    })
}

/// Wakes a thread that waits for entries.
unsafe extern "C" fn signal(queue: *mut FidCq) -> c_int {
    code(|| {
        // SAFETY: the queue is the caller's.
        let queue = unsafe { &*queue.cast::<QueueObject>() };
        let mut core = queue.shared.lock();
        if let Some(queue) = core.completions.queues.get_mut(queue.key) {
            queue.is_signalled = true;
        }
        core.completions.has_changed = true;
        Ok(())
    })
}

/// Returns whether a caller may wait for the queue's descriptor: there is no entry, and a wake-up was requested.
///
/// # Safety
/// The queue is the caller's.
pub(super) unsafe fn may_wait(queue: *mut FidCq) -> bool {
    // SAFETY: promised by the caller.
    let queue = unsafe { &*queue.cast::<QueueObject>() };
    queue.shared.lock().park_queue(queue.key)
}

/// Returns whether the queue has an entry.
///
/// # Safety
/// The queue is the caller's.
pub(super) unsafe fn has_entries(queue: *mut FidCq) -> bool {
    // SAFETY: promised by the caller.
    let queue = unsafe { &*queue.cast::<QueueObject>() };
    let core = queue.shared.lock();
    core.completions.queues.get(queue.key).is_some_and(|queue| !queue.entries.is_empty())
}

unsafe extern "C" fn strerror(
    _: *mut FidCq,
    error: c_int,
    _: *const c_void,
    out: *mut c_char,
    length: usize,
) -> *const c_char {
    guard(std::ptr::null(), || {
        // SAFETY: libc's texts live as long as the thread makes no further call; `out` has `length` bytes or is null.
        unsafe {
            let text = libc::strerror(error);
            if !out.is_null() && length > 0 {
                libc::strncpy(out, text, length - 1);
                *out.add(length - 1) = 0;
            }
            text
        }
    })
}
