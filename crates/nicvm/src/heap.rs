//! An extension's own memory: so many bytes, lent by its unit, and no more.
//!
//! A NIC has little memory (the paper's cards 256 KiB), and an extension that keeps what it is sent must
//! not take its neighbours'. Each version of an extension has a [`Heap`] of its own, of
//! [`DEFAULT_BYTES`] unless [`Unit::set_heap`](crate::unit::Unit::set_heap) says otherwise: state is kept
//! in [`Vector`]s of it, which are refused where they would pass its bound, and give back what they took
//! when they are dropped, however the extension ends. (DVCM paper, section 3: "a heap mechanism provided by
//! the framework".) What a native extension keeps elsewhere is not counted: it is trusted code.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// Bytes of a heap, unless said otherwise: what a sandbox has.
pub const DEFAULT_BYTES: usize = 64 << 10;
/// Bytes that each vector costs beside its elements, so that empty ones are bounded as well.
pub const VECTOR_BYTES: usize = 32;

/// Why memory was not lent.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{wanted} bytes more, where {used} of {limit} are used")]
pub struct HeapFull {
    /// Bytes that were asked for.
    pub wanted: usize,
    /// Bytes that are lent.
    pub used: usize,
    /// Bytes that there are.
    pub limit: usize,
}

#[derive(Debug)]
struct Account {
    limit: usize,
    used: AtomicUsize,
    most: AtomicUsize,
}

/// So many bytes of a NIC's memory. Clones are the same heap.
#[derive(Clone, Debug)]
pub struct Heap(Arc<Account>);

impl Heap {
    /// A heap of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (used, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Account { limit, used, most }))
    }

    /// An empty vector with room for `capacity` elements.
    ///
    /// # Errors
    /// [`HeapFull`]; nothing is lent then.
    pub fn vector<T>(&self, capacity: usize) -> Result<Vector<T>, HeapFull> {
        let bytes = capacity.saturating_mul(size_of::<T>());
        self.take(bytes.saturating_add(VECTOR_BYTES))?;
        let elements = Vec::with_capacity(capacity);
        Ok(Vector { heap: self.clone(), elements, room: capacity })
    }

    /// A copy of `elements`.
    ///
    /// # Errors
    /// [`HeapFull`]; nothing is lent then.
    pub fn copy<T: Clone>(&self, elements: &[T]) -> Result<Vector<T>, HeapFull> {
        let mut vector = self.vector(elements.len())?;
        vector.elements.extend_from_slice(elements);
        Ok(vector)
    }

    /// Bytes that there are.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes that are lent, up to [`limit`](Self::limit).
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever lent at once.
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

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Elements in a heap's memory. Reads and writes as a slice; grows as far as the heap goes.
pub struct Vector<T> {
    heap: Heap,
    elements: Vec<T>,
    /// Elements that there is room for.
    room: usize,
}

impl<T> Vector<T> {
    /// Adds an element at the end.
    ///
    /// # Errors
    /// [`HeapFull`]; nothing has changed then.
    pub fn push(&mut self, element: T) -> Result<(), HeapFull> {
        if self.elements.len() == self.room {
            // Twice as many, and where that is too much, one more.
            self.reserve(self.room.max(4)).or_else(|_| self.reserve(1))?;
        }
        self.elements.push(element);
        Ok(())
    }

    /// Makes room for `more` elements than there are.
    ///
    /// # Errors
    /// [`HeapFull`]; nothing has changed then.
    pub fn reserve(&mut self, more: usize) -> Result<(), HeapFull> {
        let lacks = more.saturating_sub(self.room - self.elements.len());
        self.heap.take(lacks.saturating_mul(size_of::<T>()))?;
        self.elements.reserve_exact(more);
        self.room += lacks;
        Ok(())
    }

    /// Takes the last element out.
    pub fn pop(&mut self) -> Option<T> {
        self.elements.pop()
    }

    /// Takes an element out and puts the last one in its place.
    ///
    /// # Panics
    /// If there is no element `at`.
    pub fn swap_remove(&mut self, at: usize) -> T {
        self.elements.swap_remove(at)
    }

    /// Takes all elements out; its memory stays lent.
    pub fn clear(&mut self) {
        self.elements.clear();
    }
}

impl<T> Drop for Vector<T> {
    fn drop(&mut self) {
        self.heap.give_back(VECTOR_BYTES + self.room * size_of::<T>());
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
