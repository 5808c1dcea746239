//! Memory that two parties access at once: a NIC and its application, or two processes.
//!
//! All `unsafe` code of the crate is in this module, and its interface is safe: atomic words, and copies in and
//! out. No caller ever gets a `&[u8]` into a segment.
//!
//! # Why the copies are sound
//!
//! A copy reads or writes bytes that another thread, or another process, may be writing. In Rust's memory model
//! that is a data race, and undefined, unless every access is atomic. Relaxed atomic bytes give a mixture of
//! old and new ones, which is all that a copy promises. On x86-64 the copy is inline assembly that does exactly
//! what relaxed atomic bytes would. Each byte is read once and written once, in groups of any size. The compiler sees
//! neither the loads nor the stores, and so derives nothing from them. Elsewhere, and under Miri, a copy accesses the
//! aligned words that contain the bytes, each atomically and whole: see [`words`]. Each byte of a segment is therefore
//! always accessed in the same size, which the model requires as well. Words from [`Segment::line`] are always accessed
//! atomically. A copy accesses the words of a ring's slot only while the slot belongs to the copying side by the ring's
//! protocol.
#![allow(unsafe_code, reason = "the one module that accesses raw memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use crate::sync::AtomicU64;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod copy;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
pub(crate) use file::{Kind, SegmentError};
#[cfg(target_os = "linux")]
mod gather;
#[cfg(target_os = "linux")]
pub(crate) use gather::send_gathered;

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
mod words;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// One cache line of words.
pub(crate) type Line = [AtomicU64; 8];

/// Zeroed memory, aligned to cache lines; its length is a multiple of a line.
pub(crate) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    backing: Backing,
}

enum Backing {
    /// Memory of this process, and the start of its allocation.
    Heap { start: NonNull<u8>, layout: Layout },
    /// A mapped file, which other processes may have mapped as well.
    #[cfg(target_os = "linux")]
    Mapped { start: NonNull<u8>, mapped: usize },
}

// SAFETY: the segment owns the memory until it is dropped. The memory is only accessed through atomic words and through
// the copies below, and any number of threads may use either at once.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Segment {
    /// Allocates at least `bytes` of memory for this process alone.
    ///
    /// # Panics
    /// If `bytes` is above the limit of one allocation. Aborts if memory runs out.
    pub(crate) fn private(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(LINE).max(LINE);
        // Aligned by hand: the allocator zeroes lazily only at the alignment that it chooses.
        let layout = Layout::from_size_align(bytes + LINE, 16).expect("fits the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let skip = start.as_ptr().align_offset(LINE);
        // SAFETY: `skip` is below `LINE`, and `LINE` bytes more than needed were allocated.
        let base = unsafe { start.add(skip) };
        Self { base, bytes, backing: Backing::Heap { start, layout } }
    }

    /// Maps `mapped` bytes of a file, and hides the first `skip`; both are multiples of a page. The file must
    /// keep that length for as long as it is mapped anywhere.
    #[cfg(target_os = "linux")]
    fn map(
        file: rustix::fd::BorrowedFd<'_>,
        mapped: usize,
        skip: usize,
    ) -> rustix::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};

        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses: it replaces no other memory.
        let start =
            unsafe { mmap(std::ptr::null_mut(), mapped, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).expect("the system maps nothing at zero");
        // SAFETY: within the mapping, which is longer.
        let base = unsafe { start.add(skip) };
        Ok(Self { base, bytes: mapped - skip, backing: Backing::Mapped { start, mapped } })
    }

    /// Returns the first line of the mapped file; `None` for memory of this process alone.
    #[cfg(target_os = "linux")]
    fn header(&self) -> Option<&Line> {
        let Backing::Mapped { start, .. } = &self.backing else { return None };
        // SAFETY: a mapping consists of whole pages, so its first line is inside and aligned. Atomics may be shared, and
        // any bytes are valid ones. The mapping lasts as long as the borrow of `self`.
        Some(unsafe { start.cast::<Line>().as_ref() })
    }

    /// Returns the bytes of the segment.
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the cache line at `offset`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of a line, or not below the length.
    #[inline]
    pub(crate) fn line(&self, offset: usize) -> &Line {
        assert!(offset.is_multiple_of(LINE) && offset < self.bytes, "a line within the segment");
        // SAFETY: a whole line is at `offset`, because the length is a multiple of lines. It is aligned, because the base
        // is. Atomics may be shared, and any bytes are valid ones. The memory lasts as long as the borrow of `self`.
        unsafe { self.base.add(offset).cast::<Line>().as_ref() }
    }

    /// Returns a view of a range, to copy the bytes out; `None` if it exceeds the segment.
    #[inline]
    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<View<'_>> {
        if offset.checked_add(length)? > self.bytes {
            return None;
        }
        // SAFETY: at most the end of the allocation.
        let start = unsafe { self.base.add(offset) };
        Some(View {
            start: start.as_ptr(),
            length,
            #[cfg(any(not(target_arch = "x86_64"), miri))]
            is_shared: true,
            owner: PhantomData,
        })
    }

    /// Copies `from` to `offset`. If it would exceed the segment, writes nothing and returns `None`.
    #[inline]
    pub(crate) fn store(&self, offset: usize, from: View<'_>) -> Option<()> {
        let to = self.view(offset, from.length)?;
        // SAFETY: both ranges are live and checked; the destination is this segment's, whose memory any holder
        // may write. They may overlap: then bytes of the range are mixed, as with any two concurrent copies.
        unsafe { from.copy_into(to.start.cast_mut()) };
        Some(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: allocated with this layout, and no borrow of it is left.
            Backing::Heap { start, layout } => unsafe { dealloc(start.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Backing::Mapped { start, mapped } => {
                // SAFETY: mapped with this length, and no borrow of it is left. An error would mean that it is
                // not mapped, which needs no handling.
                let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), mapped) };
            }
        }
    }
}

/// A range of bytes to copy from; other parties may be writing them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    start: *const u8,
    length: usize,
    /// True if the bytes are in a segment.
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    is_shared: bool,
    owner: PhantomData<&'a [u8]>,
}

// SAFETY: equivalent to a shared borrow: the bytes are only copied out, which any number of threads may do at
// once.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> From<&'a [u8]> for View<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
            #[cfg(any(not(target_arch = "x86_64"), miri))]
            is_shared: false,
            owner: PhantomData,
        }
    }
}

impl View<'_> {
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// Returns the offset of this range in `whole`, if it is inside.
    pub(crate) fn place_in(&self, whole: &Self) -> Option<usize> {
        let place = self.start.addr().checked_sub(whole.start.addr())?;
        (place + self.length <= whole.length).then_some(place)
    }

    /// Returns a part of the range; `None` if it exceeds the range.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.length {
            return None;
        }
        // SAFETY: within the range that this covers.
        let start = unsafe { self.start.add(range.start) };
        Some(Self { start, length: range.len(), ..*self })
    }

    /// Copies as many bytes as fit into `out`; returns how many.
    #[inline]
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = self.length.min(out.len());
        // SAFETY: the source is live for the lifetime of this and at least `length` long.
        unsafe { self.copy_out(&mut out[..length]) };
        length
    }

    /// Appends as many bytes as fit to `out`; returns how many.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn append_to(&self, out: &mut tokio::io::ReadBuf<'_>) -> usize {
        let length = self.length.min(out.remaining());
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: both ranges are live and at least `length` long; the destination is borrowed alone, and nothing of it
        // is made uninitialized: the copy initializes those bytes.
        unsafe {
            copy::copy(self.start, out.unfilled_mut().as_mut_ptr().cast(), length);
            out.assume_init(length);
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        // SAFETY: the source is live for the lifetime of this and at least `length` long.
        unsafe {
            self.copy_out(out.initialize_unfilled_to(length));
        }
        out.advance(length);
        length
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl View<'_> {
    /// Copies the whole range to `to`.
    ///
    /// # Safety
    /// `to` must be in a live segment that has as many bytes from there on.
    #[inline]
    unsafe fn copy_into(&self, to: *mut u8) {
        // SAFETY: the source is live for the lifetime of this; the caller vouches for the destination.
        unsafe { copy::copy(self.start, to, self.length) };
    }

    /// Copies the start of the range.
    ///
    /// # Safety
    /// The range must be at least as long as `out`.
    #[inline]
    unsafe fn copy_out(&self, out: &mut [u8]) {
        // SAFETY: the source is live for the lifetime of this, and as long as the caller says; the destination is
        // borrowed exclusively.
        unsafe { copy::copy(self.start, out.as_mut_ptr(), out.len()) };
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
impl View<'_> {
    /// Copies the whole range to `to`.
    ///
    /// # Safety
    /// `to` must be in a live segment that has as many bytes from there on.
    unsafe fn copy_into(&self, to: *mut u8) {
        // SAFETY: the source is live for the lifetime of this, and in a segment or borrowed as a slice; the caller
        // vouches for the destination.
        unsafe {
            if self.is_shared {
                words::carry(self.start, to, self.length);
            } else {
                words::store(std::slice::from_raw_parts(self.start, self.length), to);
            }
        }
    }

    /// Copies the start of the range.
    ///
    /// # Safety
    /// The range must be at least as long as `out`.
    unsafe fn copy_out(&self, out: &mut [u8]) {
        // SAFETY: the source is live for the lifetime of this, as long as the caller says, and in a segment or
        // borrowed as a slice.
        unsafe {
            if self.is_shared {
                words::load(self.start, out);
            } else {
                out.copy_from_slice(std::slice::from_raw_parts(self.start, out.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_segment_is_zeroed_and_its_lines_are_words() {
        let segment = Segment::private(100);
        assert_eq!(segment.len(), 128);
        let mut bytes = [1; 128];
        assert_eq!(segment.view(0, 128).unwrap().copy_to(&mut bytes), 128);
        assert_eq!(bytes, [0; 128]);
        segment.line(64)[1].store(u64::from_le_bytes(*b"12345678"), Ordering::Relaxed);
        segment.view(72, 8).unwrap().copy_to(&mut bytes);
        assert_eq!(&bytes[..8], b"12345678");
        assert!(segment.view(1, 128).is_none());
        assert!(segment.view(usize::MAX, 2).is_none());
    }

    #[test]
    #[should_panic(expected = "a line within the segment")]
    fn there_is_no_line_past_the_end() {
        Segment::private(64).line(64);
    }

    proptest! {
        #[test]
        fn copies_change_their_range_only(
            bytes in proptest::collection::vec(any::<u8>(), 0..700), from in 0_usize..80, to in 0_usize..80,
        ) {
            let (source, target) = (Segment::private(1_024), Segment::private(1_024));
            source.store(from, View::from(&bytes[..])).unwrap();
            target.store(to, source.view(from, bytes.len()).unwrap()).unwrap();
            let mut all = vec![7; 1_024];
            target.view(0, 1_024).unwrap().copy_to(&mut all);
            prop_assert_eq!(&all[to..to + bytes.len()], &bytes[..]);
            let around = all[..to].iter().chain(&all[to + bytes.len()..]);
            prop_assert!(around.copied().all(|byte| byte == 0));
        }
    }

    #[test]
    fn two_threads_may_copy_the_same_bytes() {
        let segment = Segment::private(4_096);
        std::thread::scope(|scope| {
            for value in 0..4_u8 {
                let segment = &segment;
                scope.spawn(move || {
                    for _ in 0..500 {
                        segment.store(5, View::from(&[value; 3_001][..])).unwrap();
                        let mut out = [9; 3_001];
                        segment.view(5, 3_001).unwrap().copy_to(&mut out);
                        assert!(out.iter().all(|byte| *byte < 4));
                    }
                });
            }
        });
    }
}
