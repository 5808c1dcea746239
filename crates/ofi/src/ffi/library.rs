//! Loads libfabric, and finds its six functions.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use thiserror::Error;

use crate::abi::{FabricAttr, FidFabric, Info};

/// The environment variable that names the library's file.
const VARIABLE: &str = "MIDPLANE_LIBFABRIC";
/// The name by which the system's loader finds the library.
const NAME: &str = "libfabric.so.1";
/// The oldest supported version, and the version of the interface that is requested: 1.17.
pub(super) const VERSION: u32 = 1 << 16 | 17;

/// The reason why libfabric can't be used.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The system has no such library.
    #[error(
        "libfabric can't be loaded ({0}): install it (Debian and Ubuntu: apt install libfabric1), \
         or name its file in MIDPLANE_LIBFABRIC"
    )]
    Missing(String),
    /// The library lacks a function.
    #[error("{0} is not libfabric: it has no function {1}")]
    Foreign(String, &'static str),
    /// The library is too old: its major and minor version.
    #[error("libfabric {0}.{1} is too old: version 1.17 or a later one is needed")]
    Old(u32, u32),
}

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;

/// The functions of the library that a process has loaded.
#[derive(Debug)]
pub(crate) struct Library {
    pub(super) getinfo: GetInfo,
    pub(super) freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) fabric:
        unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

/// Returns the library; the first call loads it. It is never unloaded.
pub(crate) fn library() -> Result<&'static Library, Unavailable> {
    static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

impl Library {
    fn load() -> Result<Self, Unavailable> {
        let file = std::env::var_os(VARIABLE).unwrap_or_else(|| OsString::from(NAME));
        let name = file.to_string_lossy().into_owned();
        let file = CString::new(file.into_vec())
            .map_err(|_| Unavailable::Missing(format!("{VARIABLE} contains a zero byte")))?;
        // SAFETY: the name ends with a zero. The library's initialisers run, as in any program that is linked to it.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Unavailable::Missing(load_error()));
        }
        let symbols = Symbols { handle, name };
        // SAFETY: libfabric declares each of them with this type, in rdma/fabric.h and rdma/fi_errno.h.
        let this = unsafe {
            let version: unsafe extern "C" fn() -> u32 = symbols.find(c"fi_version")?;
            Self {
                getinfo: symbols.find(c"fi_getinfo")?,
                freeinfo: symbols.find(c"fi_freeinfo")?,
                dupinfo: symbols.find(c"fi_dupinfo")?,
                fabric: symbols.find(c"fi_fabric")?,
                strerror: symbols.find(c"fi_strerror")?,
                version: version(),
            }
        };
        let (major, minor) = this.version();
        if this.version < VERSION { Err(Unavailable::Old(major, minor)) } else { Ok(this) }
    }

    /// Returns the major and minor version.
    pub(crate) const fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// Returns the text of an error.
    pub(super) fn text(&self, code: c_int) -> String {
        // SAFETY: it returns a string that stays, whatever the number.
        let text = unsafe { (self.strerror)(code) };
        // SAFETY: as above.
        unsafe { string(text) }.unwrap_or_default()
    }
}

/// A loaded library, and the name of its file.
struct Symbols {
    handle: *mut c_void,
    name: String,
}

impl Symbols {
    /// Returns the function with this name.
    ///
    /// # Safety
    /// `F` is a type of function pointers, and matches this function.
    unsafe fn find<F>(&self, name: &'static CStr) -> Result<F, Unavailable> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: the library stays loaded, and the name ends with a zero.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if symbol.is_null() {
            let name = name.to_str().unwrap_or("?");
            return Err(Unavailable::Foreign(self.name.clone(), name));
        }
        // SAFETY: promised by the caller; it is not null.
        Ok(unsafe { transmute_copy(&symbol) })
    }
}

/// Returns the loader's description of its last failure.
fn load_error() -> String {
    // SAFETY: it returns null, or a string that stays until this thread's next call of the loader.
    unsafe { string(libc::dlerror()) }.unwrap_or_else(|| "unknown error".into())
}

/// Copies a string; `None` if the pointer is null.
///
/// # Safety
/// The pointer is null, or points to a string that ends with a zero and stays during the call.
pub(super) unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
