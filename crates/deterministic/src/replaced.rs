//! Replacements of the C library's functions.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_long, c_uint, clockid_t, size_t, ssize_t, timespec};

use crate::{fill, wall_clock};

/// References the functions, because the linker takes only functions of code that is used.
pub(crate) fn link() {
    black_box((getrandom as *const (), clock_gettime as *const ()));
}

/// Fills a buffer with random bytes: the thread's, if it has a seed, else the system's.
///
/// # Safety
/// As of the C library's: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !buffer.is_null() && isize::try_from(length).is_ok() {
        // SAFETY: the caller's buffer has `length` bytes, and the check has found that a slice may be that long. They
        // may be uninitialised: zeroes are written before the slice is made.
        let bytes = unsafe {
            buffer.cast::<u8>().write_bytes(0, length);
            std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length)
        };
        if fill(bytes) {
            return length as ssize_t;
        }
    }
    // SAFETY: the arguments are the caller's.
    unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as ssize_t }
}

/// Returns the time of a clock: that of the thread's simulation for the wall clock, if it has one, else the system's.
///
/// # Safety
/// As of the C library's: `time` may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let is_wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    if is_wall
        && !time.is_null()
        && let Some(now) = wall_clock()
    {
        let seconds = now.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        // SAFETY: the caller promises that `time` may be written.
        unsafe {
            time.write(timespec {
                tv_sec: seconds,
                tv_nsec: c_long::from(now.subsec_nanos() as i32),
            })
        };
        return 0;
    }
    match system_clock() {
        // SAFETY: the arguments are the caller's.
        Some(system) => unsafe { system(clock, time) },
        // SAFETY: the same.
        None => unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int },
    }
}

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// Returns the C library's function, which needs no system call; `None` if there is none, as in a static program.
fn system_clock() -> Option<ClockGettime> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name ends with a zero.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) };
        FOUND.store(found, Ordering::Relaxed);
    }
    // SAFETY: an optional function pointer has the size of a pointer, and null is `None`. A found pointer is that of
    // the function with this name, whose type is the C library's.
    unsafe { std::mem::transmute::<*mut c_void, Option<ClockGettime>>(found) }
}
