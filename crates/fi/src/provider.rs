//! The entry point of the plug-in.
#![allow(unsafe_code, reason = "the entry point that libfabric looks up and calls")]

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::{addr_of_mut, null_mut};

use crate::abi::Provider;
use crate::{info, objects};

/// The version of this provider, 0.2.
pub(crate) const VERSION: u32 = 2;
/// The version of libfabric's interface that is reported if no libfabric is loaded: 1.17.
const FALLBACK: u32 = 1 << 16 | 17;

static mut PROVIDER: Provider = Provider {
    version: VERSION,
    fi_version: FALLBACK,
    context: [null_mut(); 4],
    name: c"midplane".as_ptr(),
    getinfo: info::getinfo,
    fabric: objects::fabric::open,
    cleanup,
};

/// Ends the provider; objects that are still open remain usable.
extern "C" fn cleanup() {}

/// Returns the provider. libfabric calls it once, after it has loaded the library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fi_prov_ini() -> *mut c_void {
    let provider = addr_of_mut!(PROVIDER);
    // SAFETY: libfabric calls this from one thread, before it uses the provider.
    unsafe { (*provider).fi_version = loaded_version() };
    provider.cast()
}

/// Returns the version of the libfabric that has loaded this library. libfabric uses only providers that report at
/// least the version that its caller requests.
fn loaded_version() -> u32 {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_NOW;
    // SAFETY: both names end with a zero. The library is loaded already, so that none of its code runs now; if it is, it
    // stays loaded as long as it uses this provider.
    unsafe {
        let library = libc::dlopen(c"libfabric.so.1".as_ptr(), flags);
        if library.is_null() {
            return FALLBACK;
        }
        let symbol = libc::dlsym(library, c"fi_version".as_ptr());
        if symbol.is_null() {
            return FALLBACK;
        }
        // SAFETY: libfabric declares this type.
        transmute::<*mut c_void, extern "C" fn() -> u32>(symbol)()
    }
}
