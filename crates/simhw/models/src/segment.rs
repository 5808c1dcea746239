//! A segment for the model checker: it has lines only, as the checked code copies no bytes.

use std::ops::Range;

use tokio::io::ReadBuf;

use crate::sync::AtomicU64;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// One cache line of words.
pub(crate) type Line = [AtomicU64; 8];

#[derive(Debug)]
pub(crate) struct Segment {
    lines: Box<[Line]>,
}

impl Segment {
    pub(crate) fn private(bytes: usize) -> Self {
        let line = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { lines: (0..bytes.div_ceil(LINE)).map(|_| line()).collect() }
    }

    pub(crate) fn line(&self, offset: usize) -> &Line {
        assert!(offset.is_multiple_of(LINE));
        &self.lines[offset / LINE]
    }

    pub(crate) fn view(&self, _: usize, _: usize) -> Option<View<'_>> {
        unreachable!("a model copies no bytes")
    }

    pub(crate) fn store(&self, _: usize, _: View<'_>) -> Option<()> {
        unreachable!("a model copies no bytes")
    }
}

/// Bytes of the caller's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a>(&'a [u8]);

impl<'a> From<&'a [u8]> for View<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl View<'_> {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.0.get(range).map(Self)
    }

    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = self.0.len().min(out.len());
        out[..length].copy_from_slice(&self.0[..length]);
        length
    }

    pub(crate) fn append_to(&self, out: &mut ReadBuf<'_>) -> usize {
        let length = self.0.len().min(out.remaining());
        out.put_slice(&self.0[..length]);
        length
    }
}
