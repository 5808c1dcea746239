//! An extension's own memory: a bounded number of bytes, allocated by its unit.
//!
//! A NIC has little memory (the paper's cards have 256 KiB), and an extension that keeps what peers send must not use
//! its neighbours' share. Each version of an extension has its own [`Heap`] of 64 KiB, unless
//! [`Unit::set_heap`](crate::unit::Unit::set_heap) sets another size. State is kept in the heap's [`Vector`]s. A vector
//! that would exceed the bound is refused; a dropped vector returns its bytes, however the extension ends. (DVCM paper,
//! section 3: "a heap mechanism provided by the framework".) Memory that a native extension keeps elsewhere is not
//! counted: it is trusted code.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// Default size of a heap in bytes; a sandbox has the same.
#[doc(hidden)]
pub const DEFAULT_BYTES: usize = 64 << 10;
/// Bytes that each vector costs in addition to its elements, so that empty vectors are bounded as well.
#[doc(hidden)]
pub const VECTOR_BYTES: usize = 32;

/// Reason for which memory was not allocated.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the heap has no room for {wanted} more bytes: {used} of {limit} are used")]
pub struct HeapFull {
    /// Bytes that were requested.
    pub wanted: usize,
    /// Bytes that are allocated.
    pub used: usize,
    /// Size of the heap in bytes.
    pub limit: usize,
}

#[derive(Debug)]
struct Account {
    limit: usize,
    used: AtomicUsize,
    most: AtomicUsize,
}

/// A bounded account of a NIC's memory. Clones share the same heap.
#[derive(Clone, Debug)]
pub struct Heap(Arc<Account>);

impl Heap {
    /// Creates a heap of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (used, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Account { limit, used, most }))
    }

    /// Allocates an empty vector with room for `capacity` elements.
    ///
    /// # Errors
    /// [`HeapFull`]; then nothing is allocated.
    pub fn vector<T>(&self, capacity: usize) -> Result<Vector<T>, HeapFull> {
        let bytes = capacity.saturating_mul(size_of::<T>());
        self.take(bytes.saturating_add(VECTOR_BYTES))?;
        let elements = Vec::with_capacity(capacity);
        Ok(Vector { heap: self.clone(), elements, room: capacity })
    }

    /// Allocates a copy of `elements`.
    ///
    /// # Errors
    /// [`HeapFull`]; then nothing is allocated.
    pub fn copy<T: Clone>(&self, elements: &[T]) -> Result<Vector<T>, HeapFull> {
        let mut vector = self.vector(elements.len())?;
        vector.elements.extend_from_slice(elements);
        Ok(vector)
    }

    /// Returns the size of the heap in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Returns the bytes that are allocated, at most [`limit`](Self::limit).
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that were ever allocated at once.
    #[must_use]
    pub fn most(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    fn take(&self, wanted: usize) -> Result<(), HeapFull> {
        let Account { limit, used, most } = &*self.0;
        let fits = |used: usize| used.checked_add(wanted).filter(|sum| sum <= limit);
        match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                most.fetch_max(before + wanted, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => Err(HeapFull { wanted, used, limit: *limit }),
        }
    }

    fn release(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A vector in a heap's memory. Reads and writes as a slice; grows as far as the heap allows.
pub struct Vector<T> {
    heap: Heap,
    elements: Vec<T>,
    /// Elements that the heap has been charged for.
    room: usize,
}

impl<T> Vector<T> {
    /// Appends an element.
    ///
    /// # Errors
    /// [`HeapFull`]; then nothing has changed.
    pub fn push(&mut self, element: T) -> Result<(), HeapFull> {
        if self.elements.len() == self.room {
            // Doubles the capacity; if that does not fit, adds one element.
            self.reserve(self.room.max(4)).or_else(|_| self.reserve(1))?;
        }
        self.elements.push(element);
        Ok(())
    }

    /// Reserves capacity for `more` elements beyond those present.
    ///
    /// # Errors
    /// [`HeapFull`]; then nothing has changed.
    pub fn reserve(&mut self, more: usize) -> Result<(), HeapFull> {
        let lacks = more.saturating_sub(self.room - self.elements.len());
        self.heap.take(lacks.saturating_mul(size_of::<T>()))?;
        self.elements.reserve_exact(more);
        self.room += lacks;
        Ok(())
    }

    /// Removes and returns the last element.
    pub fn pop(&mut self) -> Option<T> {
        self.elements.pop()
    }

    /// Removes and returns the element at `at`, and moves the last element into its place.
    ///
    /// # Panics
    /// If there is no element at `at`.
    pub fn swap_remove(&mut self, at: usize) -> T {
        self.elements.swap_remove(at)
    }

    /// Removes all elements; the capacity stays allocated.
    pub fn clear(&mut self) {
        self.elements.clear();
    }
}

impl<T> Drop for Vector<T> {
    fn drop(&mut self) {
        self.heap.release(VECTOR_BYTES + self.room * size_of::<T>());
    }
}

impl<T> Deref for Vector<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T> DerefMut for Vector<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}

impl<T: fmt::Debug> fmt::Debug for Vector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt(f)
    }
}

#[cfg(test)]
mod tests;
