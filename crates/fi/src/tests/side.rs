//! An endpoint with its completion queue, called through the function tables.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::ptr::{null, null_mut};

use crate::abi::constants::*;
use crate::abi::{
    CntrAttr, CqAttr, CqErrEntry, CqTaggedEntry, Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp,
    FidFabric, FidMr, Info, Msg, MsgTagged, Provider,
};
use crate::address::BYTES;

/// Polls before a test fails: some seconds.
const MAX_POLLS: usize = 20_000_000;
pub(super) const ANY: u64 = ADDR_UNSPEC;

/// An endpoint of a test. Nothing is freed: the process ends with the test.
pub(super) struct Side {
    pub(super) fabric: *mut FidFabric,
    pub(super) info: *mut Info,
    pub(super) domain: *mut FidDomain,
    pub(super) av: *mut FidAv,
    pub(super) cq: *mut FidCq,
    pub(super) ep: *mut FidEp,
    pub(super) counter: *mut FidCntr,
}

// SAFETY: the provider may be called from any thread.
unsafe impl Send for Side {}
// SAFETY: as above.
unsafe impl Sync for Side {}

fn check(code: c_int) {
    assert_eq!(code, 0, "a call failed");
}

impl Side {
    pub(super) fn open() -> Self {
        Self::open_with(PROGRESS_MANUAL)
    }

    /// Opens an endpoint in a domain with progress mode `progress`.
    pub(super) fn open_with(progress: c_int) -> Self {
        // SAFETY: the calls of a C program, in its order.
        unsafe {
            let provider = crate::provider::fi_prov_ini().cast::<Provider>();
            let mut info: *mut Info = null_mut();
            check(((*provider).getinfo)(1 << 16 | 17, null(), null(), 0, null(), &raw mut info));
            (*(*info).domain_attr).data_progress = progress;
            let mut fabric: *mut FidFabric = null_mut();
            let attr = (*info).fabric_attr;
            check(((*provider).fabric)(attr, &raw mut fabric, null_mut()));
            let mut domain: *mut FidDomain = null_mut();
            check(((*(*fabric).ops).domain)(fabric, info, &raw mut domain, null_mut()));
            Self::within(fabric, info, domain)
        }
    }

    /// Opens another endpoint, with a queue of its own, in the domain of this one.
    pub(super) fn beside(&self) -> Self {
        Self::within(self.fabric, self.info, self.domain)
    }

    fn within(fabric: *mut FidFabric, info: *mut Info, domain: *mut FidDomain) -> Self {
        let (av, cq, ep, counter) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut side = Self { fabric, info, domain, av, cq, ep, counter };
        // SAFETY: as above.
        unsafe {
            let ops = (*domain).ops;
            check(((*ops).av_open)(domain, null_mut(), &raw mut side.av, null_mut()));
            side.cq = side.open_queue(0);
            side.counter = side.open_counter();
            check(((*ops).endpoint)(domain, info, &raw mut side.ep, null_mut()));
            side.bind(side.cq.cast(), SEND | RECV);
            side.bind(side.counter.cast(), WRITE | READ);
            side.bind(side.av.cast(), 0);
            check(((*(*side.ep).fid.ops).control)(side.ep.cast(), ENABLE, null_mut()));
            side
        }
    }

    /// Opens a queue for which the caller requests space for `size` entries.
    pub(super) fn open_queue(&self, size: usize) -> *mut FidCq {
        let mut queue = null_mut();
        // SAFETY: the domain is open, and zeros are valid attributes.
        unsafe {
            let mut attr: CqAttr = zeroed();
            (attr.size, attr.format, attr.wait_obj) = (size, CQ_FORMAT_TAGGED, WAIT_FD);
            let open = (*(*self.domain).ops).cq_open;
            check(open(self.domain, &raw mut attr, &raw mut queue, null_mut()));
        }
        queue
    }

    pub(super) fn open_counter(&self) -> *mut FidCntr {
        let mut counter = null_mut();
        // SAFETY: the domain is open, and zeros are valid attributes.
        unsafe {
            let mut attr: CntrAttr = zeroed();
            let open = (*(*self.domain).ops).cntr_open;
            check(open(self.domain, &raw mut attr, &raw mut counter, null_mut()));
        }
        counter
    }

    pub(super) fn bind(&self, to: *mut Fid, flags: u64) {
        // SAFETY: both are open.
        unsafe { check(((*(*self.ep).fid.ops).bind)(self.ep.cast(), to, flags)) };
    }

    pub(super) fn name(&self) -> [u8; BYTES] {
        let (mut name, mut length) = ([0; BYTES], BYTES);
        // SAFETY: there is space for an address.
        unsafe {
            let out = name.as_mut_ptr().cast();
            check(((*(*self.ep).cm).getname)(self.ep.cast(), out, &raw mut length));
        }
        name
    }

    /// Inserts a peer's name into the address vector; returns its address.
    pub(super) fn set_route(&self, name: &[u8; BYTES]) -> u64 {
        let mut address = 0;
        // SAFETY: one address, and space for one number.
        let count = unsafe {
            ((*(*self.av).ops).insert)(
                self.av,
                name.as_ptr().cast(),
                1,
                &raw mut address,
                0,
                null_mut(),
            )
        };
        assert_eq!(count, 1);
        address
    }

    pub(super) fn send(&self, to: u64, tag: u64, bytes: &[u8], data: u64, context: usize) -> isize {
        // SAFETY: tests keep the bytes until the completion.
        unsafe {
            let tagged = &*(*self.ep).tagged;
            let from = bytes.as_ptr().cast();
            let context = context as *mut c_void;
            (tagged.senddata)(self.ep, from, bytes.len(), null_mut(), data, to, tag, context)
        }
    }

    /// Sends a tagged message with flags.
    pub(super) fn send_with(&self, to: u64, tag: u64, bytes: &[u8], context: usize, flags: u64) {
        let vector = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let msg = MsgTagged {
            msg_iov: &raw const vector,
            desc: null_mut(),
            iov_count: 1,
            addr: to,
            tag,
            ignore: 0,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: tests keep the bytes until the completion.
        unsafe { assert_eq!(((*(*self.ep).tagged).sendmsg)(self.ep, &raw const msg, flags), 0) };
    }

    /// Sends a message without a tag.
    pub(super) fn send_plain(&self, to: u64, bytes: &[u8], context: usize) {
        // SAFETY: tests keep the bytes until the completion.
        unsafe {
            let msg = &*(*self.ep).msg;
            let from = bytes.as_ptr().cast();
            let sent =
                (msg.send)(self.ep, from, bytes.len(), null_mut(), to, context as *mut c_void);
            assert_eq!(sent, 0);
        }
    }

    pub(super) fn receive(
        &self,
        from: u64,
        (tag, ignore): (u64, u64),
        bytes: &mut [u8],
        context: usize,
    ) {
        // SAFETY: tests keep the bytes until the completion.
        unsafe {
            let tagged = &*(*self.ep).tagged;
            let (to, length) = (bytes.as_mut_ptr().cast(), bytes.len());
            let context = context as *mut c_void;
            let code = (tagged.recv)(self.ep, to, length, null_mut(), from, tag, ignore, context);
            assert_eq!(code, 0);
        }
    }

    /// Receives or peeks at a tagged message, with flags.
    pub(super) fn receive_with(&self, tag: u64, bytes: &mut [u8], context: usize, flags: u64) {
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let msg = MsgTagged {
            msg_iov: &raw const vector,
            desc: null_mut(),
            iov_count: 1,
            addr: ANY,
            tag,
            ignore: 0,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: as of `receive`.
        unsafe { assert_eq!(((*(*self.ep).tagged).recvmsg)(self.ep, &raw const msg, flags), 0) };
    }

    /// Posts a buffer that receives several messages.
    pub(super) fn receive_several(&self, bytes: &mut [u8], context: usize) {
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let msg = Msg {
            msg_iov: &raw const vector,
            desc: null_mut(),
            iov_count: 1,
            addr: ANY,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: as of `receive`.
        unsafe { assert_eq!(((*(*self.ep).msg).recvmsg)(self.ep, &raw const msg, MULTI_RECV), 0) };
    }

    pub(super) fn cancel(&self, context: usize) {
        // SAFETY: the endpoint is open.
        unsafe { ((*(*self.ep).ops).cancel)(self.ep.cast(), context as *mut c_void) };
    }

    /// Registers memory that peers may read and write from offset 0 on, under a key.
    pub(super) fn register(&self, bytes: &mut [u8], key: u64) -> *mut FidMr {
        self.register_for(bytes, key, REMOTE_READ | REMOTE_WRITE)
    }

    /// Registers memory with peers' rights `access`.
    pub(super) fn register_for(&self, bytes: &mut [u8], key: u64, access: u64) -> *mut FidMr {
        let mut region = null_mut();
        // SAFETY: tests keep the bytes until they close the region.
        unsafe {
            check(((*(*self.domain).mr).reg)(
                self.domain.cast(),
                bytes.as_ptr().cast(),
                bytes.len(),
                access,
                0,
                key,
                0,
                &raw mut region,
                null_mut(),
            ));
        }
        region
    }

    /// Takes the next completion or error, if there is one.
    pub(super) fn poll(&self) -> Option<(CqTaggedEntry, c_int, u64)> {
        let (mut entry, mut source) = (MaybeUninit::<CqTaggedEntry>::uninit(), ANY);
        // SAFETY: there is space for one entry of each kind.
        unsafe {
            let ops = &*(*self.cq).ops;
            let out = entry.as_mut_ptr().cast();
            match (ops.readfrom)(self.cq, out, 1, &raw mut source) {
                1 => Some((entry.assume_init(), 0, source)),
                code if code == -(EAVAIL as isize) => {
                    let mut error = MaybeUninit::<CqErrEntry>::uninit();
                    assert_eq!((ops.readerr)(self.cq, error.as_mut_ptr(), 0), 1);
                    let error = error.assume_init();
                    Some((error.entry, error.err, ANY))
                }
                code => {
                    assert_eq!(code, -(EAGAIN as isize));
                    None
                }
            }
        }
    }

    /// Waits in the provider for the next completion; returns its context.
    pub(super) fn wait(&self, milliseconds: c_int) -> Option<usize> {
        let mut entry = MaybeUninit::<CqTaggedEntry>::uninit();
        let (out, count) = (entry.as_mut_ptr().cast(), 1);
        // SAFETY: there is space for one entry.
        unsafe {
            let read = ((*(*self.cq).ops).sread)(self.cq, out, count, null(), milliseconds);
            (read == 1).then(|| entry.assume_init().op_context as usize)
        }
    }

    /// Returns the descriptor of the queue.
    pub(super) fn descriptor(&self) -> c_int {
        let mut descriptor = -1;
        // SAFETY: there is space for a descriptor.
        unsafe {
            let control = (*(*self.cq).fid.ops).control;
            check(control(self.cq.cast(), GETWAIT, (&raw mut descriptor).cast()));
        }
        descriptor
    }

    /// Returns whether the caller may wait for the queue's descriptor.
    pub(super) fn may_wait(&self) -> bool {
        let mut queue = self.cq.cast::<Fid>();
        // SAFETY: the fabric and the queue are open.
        unsafe { ((*(*self.fabric).ops).trywait)(self.fabric, &raw mut queue, 1) == 0 }
    }

    /// Returns the value of the counter that counts reads and writes.
    pub(super) fn count(&self) -> u64 {
        self.value(self.counter)
    }

    pub(super) fn value(&self, counter: *mut FidCntr) -> u64 {
        // SAFETY: the counter is open.
        unsafe { ((*(*counter).ops).read)(counter) }
    }

    /// Returns the number of failed operations that a counter has counted.
    pub(super) fn errors(&self, counter: *mut FidCntr) -> u64 {
        // SAFETY: the counter is open.
        unsafe { ((*(*counter).ops).readerr)(counter) }
    }

    /// Closes the domain, including everything still open in it.
    pub(super) fn close_domain(&self) {
        check(close(self.domain.cast()));
    }

    pub(super) fn close_endpoint(&self) {
        check(close(self.ep.cast()));
    }
}

/// Closes an object; returns the call's result.
pub(super) fn close(object: *mut Fid) -> c_int {
    // SAFETY: no test uses an object after this has returned 0.
    unsafe { ((*(*object).ops).close)(object) }
}

/// Environment variable set for a test that runs alone in its process.
const ALONE: &str = "MIDPLANE_FI_ALONE";

/// Runs the test with this name in a process of its own, and checks that it passes. Returns `true` in that process.
#[track_caller]
pub(super) fn is_alone(test: &str) -> bool {
    let is_alone = std::env::var_os(ALONE).is_some();
    if !is_alone {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let status = command.args(["--exact", "--quiet", test]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
    }
    is_alone
}

/// Two connected endpoints, both polled by the test.
pub(super) struct Pair {
    pub(super) one: Side,
    pub(super) other: Side,
    /// The address of `other` for `one`, and the reverse.
    pub(super) to_other: u64,
    pub(super) to_one: u64,
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::of(Side::open(), Side::open())
    }

    pub(super) fn of(one: Side, other: Side) -> Self {
        let (to_other, to_one) = (one.set_route(&other.name()), other.set_route(&one.name()));
        Self { one, other, to_other, to_one }
    }

    /// Polls both sides until they have `completions` completions together.
    #[track_caller]
    pub(super) fn drive(&self, completions: usize) -> [Vec<(CqTaggedEntry, c_int, u64)>; 2] {
        let mut all = [vec![], vec![]];
        for _ in 0..MAX_POLLS {
            for (side, taken) in [&self.one, &self.other].into_iter().zip(&mut all) {
                taken.extend(side.poll());
            }
            if all[0].len() + all[1].len() >= completions {
                return all;
            }
        }
        panic!("only {} and {} completions of {completions}", all[0].len(), all[1].len());
    }
}

/// Returns the next completion of a side that is polled alone.
#[track_caller]
pub(super) fn next(side: &Side) -> (CqTaggedEntry, c_int, u64) {
    (0..MAX_POLLS).find_map(|_| side.poll()).expect("a completion in time")
}

const _: () = assert!(size_of::<CqTaggedEntry>() == 48);
