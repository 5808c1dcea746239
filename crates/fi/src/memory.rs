//! Memory of callers: buffers of operations until they complete, and registered regions.
//!
//! A caller of libfabric promises that a buffer stays valid, and that the program does not use it otherwise, until the
//! operation's completion. [`Buffer`] is created where this promise is given, in the functions that the caller calls.
//! From then on it is safe to use.
#![allow(unsafe_code, reason = "the one module that reads and writes a caller's memory")]

use std::io::IoSlice;

/// Most parts of a buffer.
pub(crate) const MAX_PARTS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    address: usize,
    length: usize,
}

/// The caller's bytes, in one or more parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffer {
    parts: [Part; MAX_PARTS],
    count: usize,
    length: usize,
}

impl Buffer {
    /// Wraps `length` bytes at `address`.
    ///
    /// # Safety
    /// They stay valid, for reads by a sender and for writes by a receiver, for as long as the buffer is used.
    pub(crate) unsafe fn new(address: usize, length: usize) -> Self {
        let mut parts = [Part::default(); MAX_PARTS];
        parts[0] = Part { address, length };
        Self { parts, count: usize::from(length > 0), length }
    }

    /// Wraps the bytes that `count` vectors describe; `None` if there are too many.
    ///
    /// # Safety
    /// As of [`Buffer::new`]; the vectors themselves are read now.
    pub(crate) unsafe fn of_vectors(vectors: *const libc::iovec, count: usize) -> Option<Self> {
        let mut buffer = Self::default();
        if count > MAX_PARTS {
            return None;
        }
        for at in 0..count {
            // SAFETY: the caller passes `count` vectors.
            let vector = unsafe { &*vectors.add(at) };
            if vector.iov_len > 0 {
                let part = Part { address: vector.iov_base as usize, length: vector.iov_len };
                buffer.parts[buffer.count] = part;
                buffer.count += 1;
                buffer.length = buffer.length.checked_add(vector.iov_len)?;
            }
        }
        Some(buffer)
    }

    /// Returns the bytes of the buffer.
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// Returns the address of the first byte.
    pub(crate) const fn address(&self) -> usize {
        self.parts[0].address
    }

    /// Returns a range of the buffer, which must be within it.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Self {
        let mut sliced = Self { length, ..Self::default() };
        self.each(offset, length, |part| {
            sliced.parts[sliced.count] = part;
            sliced.count += 1;
        });
        sliced
    }

    /// Calls `each` with the parts of a range.
    #[inline]
    fn each(&self, offset: usize, length: usize, mut each: impl FnMut(Part)) {
        assert!(offset + length <= self.length, "a range of the buffer");
        let (mut skip, mut rest) = (offset, length);
        for part in &self.parts[..self.count] {
            if rest == 0 {
                break;
            }
            if skip >= part.length {
                skip -= part.length;
                continue;
            }
            let taken = rest.min(part.length - skip);
            each(Part { address: part.address + skip, length: taken });
            (skip, rest) = (0, rest - taken);
        }
    }

    /// Fills `out` with slices of a range; returns their number.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        offset: usize,
        length: usize,
        out: &mut [IoSlice<'a>],
    ) -> usize {
        let mut count = 0;
        self.each(offset, length, |part| {
            // SAFETY: the maker of the buffer promised that its bytes are readable while it is used.
            let bytes =
                unsafe { std::slice::from_raw_parts(part.address as *const u8, part.length) };
            out[count] = IoSlice::new(bytes);
            count += 1;
        });
        count
    }

    /// Writes a range: calls `fill` with the position within the range and the bytes to write there.
    #[inline]
    pub(crate) fn fill(
        &self,
        offset: usize,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        let mut done = 0;
        self.each(offset, length, |part| {
            // SAFETY: the maker of the buffer promised that its bytes are writable while it is used, and that nothing
            // else uses them.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(part.address as *mut u8, part.length) };
            fill(done, bytes);
            done += part.length;
        });
    }

    /// Copies the bytes to a vector.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        let mut slices = [IoSlice::new(&[]); MAX_PARTS];
        let count = self.gather(0, self.length, &mut slices);
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_the_parts_of_a_buffer() {
        let (mut one, mut other) = (*b"abc", *b"defgh");
        let vector = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let vectors = [vector(&mut one), vector(&mut []), vector(&mut other)];
        // SAFETY: both arrays outlive the buffer.
        let buffer = unsafe { Buffer::of_vectors(vectors.as_ptr(), 3) }.unwrap();
        assert_eq!(buffer.to_vec(), b"abcdefgh");
        assert_eq!(buffer.slice(2, 3).to_vec(), b"cde");
        buffer
            .fill(2, 4, |done, bytes| bytes.iter_mut().for_each(|byte| *byte = b'0' + done as u8));
        assert_eq!(buffer.to_vec(), b"ab0111gh");
        assert_eq!(buffer.len(), 8);
        // SAFETY: nothing is read of more vectors than there may be.
        assert!(unsafe { Buffer::of_vectors(vectors.as_ptr(), MAX_PARTS + 1) }.is_none());
    }
}
