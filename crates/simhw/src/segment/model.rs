//! A segment for the model checker: it has lines only, as the checked code copies no bytes.

use super::{LINE, Line, View};
use crate::sync::AtomicU64;

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
