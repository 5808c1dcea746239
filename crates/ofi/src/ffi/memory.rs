//! The memory of an endpoint: slots of one size. The provider owns a slot while an operation uses it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

/// Slots begin at multiples of a page: registration pins whole pages.
const PAGE: usize = 4096;
/// Bytes of a cache line: the slots' sizes are multiples of it.
const LINE: usize = 64;

/// Memory of `struct fi_context2`, which a provider may use while an operation is in progress.
#[repr(C, align(64))]
struct Context(UnsafeCell<[*mut c_void; 8]>);

/// Slots of memory, some of which the provider owns.
pub(super) struct Memory {
    base: NonNull<u8>,
    layout: Layout,
    slot_bytes: usize,
    contexts: Box<[Context]>,
    is_passed: Box<[bool]>,
}

// SAFETY: it owns its memory, as a `Vec` does. Memory that the provider may access is not accessed here until it is
// returned.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates slots, filled with zeros.
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Self {
        let slot_bytes = slot_bytes.max(1).next_multiple_of(LINE);
        let bytes = slots.checked_mul(slot_bytes).expect("slots are bounded").max(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE).expect("slots are bounded");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let context = |_| Context(UnsafeCell::new([std::ptr::null_mut(); 8]));
        let contexts = (0..slots).map(context).collect();
        Self { base, layout, slot_bytes, contexts, is_passed: vec![false; slots].into() }
    }

    pub(super) const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the whole memory, for registration.
    pub(super) const fn whole(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr().cast(), self.layout.size())
    }

    /// Returns the bytes of a slot.
    ///
    /// # Panics
    /// If the provider owns it.
    pub(super) fn slot(&self, slot: usize) -> &[u8] {
        assert!(!self.is_passed[slot], "the provider has the slot");
        // SAFETY: the slot is within the allocation, was zeroed, and the provider does not have it.
        unsafe { slice::from_raw_parts(self.pointer(slot).cast(), self.slot_bytes) }
    }

    /// Returns the bytes of a slot for writing.
    ///
    /// # Panics
    /// If the provider owns it.
    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.is_passed[slot], "the provider has the slot");
        // SAFETY: as in `slot`; `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.pointer(slot).cast(), self.slot_bytes) }
    }

    /// Passes a slot to the provider; returns its memory and the context of its operation.
    ///
    /// # Panics
    /// If the provider owns it already.
    pub(super) fn pass(&mut self, slot: usize) -> (*mut c_void, *mut c_void) {
        assert!(!std::mem::replace(&mut self.is_passed[slot], true), "the provider has the slot");
        (self.pointer(slot), self.contexts[slot].0.get().cast())
    }

    /// Reclaims a slot that was passed to the provider.
    pub(super) fn reclaim(&mut self, slot: usize) {
        self.is_passed[slot] = false;
    }

    /// Reclaims the slot of an operation's context; `None` if the provider owns no slot with this context.
    pub(super) fn reclaim_by(&mut self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let slot = offset / size_of::<Context>();
        let is_passed = self.is_passed.get_mut(slot)?;
        std::mem::take(is_passed).then_some(slot)
    }

    fn pointer(&self, slot: usize) -> *mut c_void {
        assert!(slot < self.contexts.len(), "there is such a slot");
        // SAFETY: the slot begins within the allocation.
        unsafe { self.base.as_ptr().add(slot * self.slot_bytes).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout. The endpoint is closed: the provider no longer accesses it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
