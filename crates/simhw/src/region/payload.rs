//! Access to memory that two parties may use at once.

use std::ops::Range;

use crate::segment::View;

/// Bytes that another process may be writing at this moment: they are copied out, never borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(Inner<'a>);

#[derive(Clone, Copy, Debug)]
enum Inner<'a> {
    /// Bytes that no other process can write.
    Bytes(&'a [u8]),
    Shared(View<'a>),
}

impl<'a> Payload<'a> {
    /// A payload without bytes.
    pub const EMPTY: Self = Self(Inner::Bytes(&[]));

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Inner::Bytes(bytes) => bytes.len(),
            Inner::Shared(view) => view.len(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the bytes; `None` if the range exceeds them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        Some(Self(match self.0 {
            Inner::Bytes(bytes) => Inner::Bytes(bytes.get(range)?),
            Inner::Shared(view) => Inner::Shared(view.slice(range)?),
        }))
    }

    /// Copies as many bytes as fit into `out`; returns how many.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        self.view().copy_to(out)
    }

    /// Copies the bytes into a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Borrows the bytes, if no other process can write them.
    pub(crate) const fn as_bytes(&self) -> Option<&'a [u8]> {
        match self.0 {
            Inner::Bytes(bytes) => Some(bytes),
            Inner::Shared(_) => None,
        }
    }

    /// Returns a view to copy the bytes from.
    pub(crate) fn view(&self) -> View<'a> {
        match self.0 {
            Inner::Bytes(bytes) => View::from(bytes),
            Inner::Shared(view) => view,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Inner::Bytes(bytes))
    }
}

impl<'a> From<View<'a>> for Payload<'a> {
    fn from(view: View<'a>) -> Self {
        Self(Inner::Shared(view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_a_payload_are_its_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), a in 0_usize..110, b in 0_usize..110,
        ) {
            let memory = Segment::private(128);
            memory.store(3, View::from(&bytes[..])).unwrap();
            for payload in [Payload::from(memory.view(3, bytes.len()).unwrap()), Payload::from(&bytes[..])] {
                let part = payload.slice(a..b).map(|part| part.to_vec());
                prop_assert_eq!(part, bytes.get(a..b).map(<[u8]>::to_vec));
            }
        }
    }
}
