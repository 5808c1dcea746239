//! Descriptions of providers' offers, as `fi_getinfo` returns them.

use std::ffi::CString;
use std::ptr::{NonNull, null, null_mut};

use super::library::{Library, VERSION, string};
use super::{CallError, check};
use crate::abi::constants::{
    CONTEXT, CONTEXT2, EINVAL, EP_RDM, MR_ALLOCATED, MR_ENDPOINT, MR_LOCAL, MR_PROV_KEY,
    MR_VIRT_ADDR, MSG, ORDER_SAS, PROGRESS_MANUAL, RM_ENABLED, SOURCE, THREAD_DOMAIN,
};
use crate::abi::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};

/// Selects the offers that are listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter<'a> {
    pub(crate) provider: Option<&'a str>,
    pub(crate) domain: Option<&'a str>,
    /// The local address to use.
    pub(crate) source: Option<&'a str>,
    /// True if messages must come with the address of their sender.
    pub(crate) has_source: bool,
}

/// A list of offers, in libfabric's order of preference.
#[derive(Debug)]
pub(crate) struct Infos {
    library: &'static Library,
    first: *mut Info,
}

/// A copy of one offer, which this process may change.
#[derive(Debug)]
pub(crate) struct OwnedInfo(Infos);

// SAFETY: a list belongs to its owner alone, and libfabric keeps nothing of it that depends on a thread.
unsafe impl Send for Infos {}

impl Infos {
    /// Requests offers of reliable datagram endpoints that keep messages in order.
    pub(crate) fn find(library: &'static Library, filter: &Filter<'_>) -> Result<Self, CallError> {
        let hints = Self::hints(library, filter)?;
        let source = filter.source.map(c_string).transpose()?;
        let (node, flags) = source.as_ref().map_or((null(), 0), |text| (text.as_ptr(), SOURCE));
        let mut first = null_mut();
        // SAFETY: all strings and the hints stay during the call, which writes one pointer.
        let code =
            unsafe { (library.getinfo)(VERSION, node, null(), flags, hints.first, &raw mut first) };
        check("fi_getinfo", code as isize)?;
        Ok(Self { library, first })
    }

    /// Creates the hints. Names are allocated so that libfabric can free them.
    fn hints(library: &'static Library, filter: &Filter<'_>) -> Result<Self, CallError> {
        // SAFETY: without an argument, it allocates an empty description with all attributes.
        let first = unsafe { (library.dupinfo)(null()) };
        assert!(!first.is_null(), "out of memory");
        let this = Self { library, first };
        // SAFETY: the list belongs to this call, and its attributes were allocated with it.
        unsafe {
            let info = &mut *first;
            info.caps = MSG | if filter.has_source { SOURCE } else { 0 };
            info.mode = CONTEXT | CONTEXT2;
            (*info.tx_attr).msg_order = ORDER_SAS;
            (*info.rx_attr).msg_order = ORDER_SAS;
            (*info.ep_attr).kind = EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.threading = THREAD_DOMAIN;
            domain.control_progress = PROGRESS_MANUAL;
            domain.data_progress = PROGRESS_MANUAL;
            domain.resource_mgmt = RM_ENABLED;
            domain.mr_mode = MR_LOCAL | MR_VIRT_ADDR | MR_ALLOCATED | MR_PROV_KEY | MR_ENDPOINT;
            if let Some(name) = filter.domain {
                domain.name = libc::strdup(c_string(name)?.as_ptr());
            }
            if let Some(name) = filter.provider {
                (*info.fabric_attr).prov_name = libc::strdup(c_string(name)?.as_ptr());
            }
        }
        Ok(this)
    }

    /// Iterates over all offers, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = InfoRef<'_>> {
        // SAFETY: each member of the list is null or valid as long as the list is borrowed.
        let mut next = unsafe { self.first.as_ref() };
        std::iter::from_fn(move || {
            let info = next?;
            // SAFETY: as above.
            next = unsafe { info.next.as_ref() };
            Some(InfoRef(info))
        })
    }

    /// Copies the first offer for which `is_fit` returns `true`.
    pub(crate) fn choose(&self, is_fit: impl Fn(InfoRef<'_>) -> bool) -> Option<OwnedInfo> {
        let InfoRef(info) = self.iter().find(|info| is_fit(*info))?;
        // SAFETY: it copies one valid description.
        let first = NonNull::new(unsafe { (self.library.dupinfo)(info) })?;
        Some(OwnedInfo(Self { library: self.library, first: first.as_ptr() }))
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: libfabric has allocated the list, and nothing refers to it any more.
        unsafe { (self.library.freeinfo)(self.first) };
    }
}

impl OwnedInfo {
    pub(crate) fn get(&self) -> InfoRef<'_> {
        // SAFETY: it was copied, and is not null.
        InfoRef(unsafe { &*self.0.first })
    }

    pub(super) const fn as_ptr(&self) -> *mut Info {
        self.0.first
    }

    pub(super) const fn library(&self) -> &'static Library {
        self.0.library
    }
}

/// An offer of a list.
#[derive(Clone, Copy)]
pub(crate) struct InfoRef<'a>(&'a Info);

impl<'a> InfoRef<'a> {
    pub(crate) const fn caps(self) -> u64 {
        self.0.caps
    }

    pub(crate) const fn address_format(self) -> u32 {
        self.0.addr_format
    }

    pub(crate) fn transmit(self) -> &'a TxAttr {
        // SAFETY: libfabric sets all attributes of its results, also for the functions below.
        unsafe { &*self.0.tx_attr }
    }

    pub(crate) fn receive(self) -> &'a RxAttr {
        // SAFETY: see `transmit`.
        unsafe { &*self.0.rx_attr }
    }

    pub(crate) fn endpoint(self) -> &'a EpAttr {
        // SAFETY: see `transmit`.
        unsafe { &*self.0.ep_attr }
    }

    pub(crate) fn domain(self) -> &'a DomainAttr {
        // SAFETY: see `transmit`.
        unsafe { &*self.0.domain_attr }
    }

    pub(crate) fn fabric(self) -> &'a FabricAttr {
        // SAFETY: see `transmit`.
        unsafe { &*self.0.fabric_attr }
    }

    pub(crate) fn provider_name(self) -> String {
        // SAFETY: names are null or strings, as long as the list exists, also for the functions below.
        unsafe { string(self.fabric().prov_name) }.unwrap_or_default()
    }

    pub(crate) fn fabric_name(self) -> String {
        // SAFETY: see `provider_name`.
        unsafe { string(self.fabric().name) }.unwrap_or_default()
    }

    pub(crate) fn domain_name(self) -> String {
        // SAFETY: see `provider_name`.
        unsafe { string(self.domain().name) }.unwrap_or_default()
    }
}

fn c_string(text: &str) -> Result<CString, CallError> {
    CString::new(text).map_err(|_| CallError { call: "fi_getinfo", code: EINVAL })
}
