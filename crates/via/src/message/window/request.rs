//! Requests of a process to another one's part of a window.

use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::collective::Operation;

/// The kind of an access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    Put,
    Get,
    Accumulate(Operation),
    /// Combines one value with the window's, and answers with the former value.
    Fetch(Operation),
    /// Answers with the value. If it equals the first value of the request, replaces it with the second.
    CompareAndSwap,
    /// Answers once all accesses before it have taken effect.
    Flush,
    LockShared,
    LockExclusive,
    Unlock,
}

const OPERATIONS: [Operation; 10] = [
    Operation::Sum,
    Operation::Product,
    Operation::Min,
    Operation::Max,
    Operation::And,
    Operation::Or,
    Operation::Xor,
    Operation::LogicalAnd,
    Operation::LogicalOr,
    Operation::LogicalXor,
];

impl Access {
    /// Returns the numbers of the kind and of the operation.
    fn numbers(self) -> (u8, u8) {
        let of = |operation| {
            let at = OPERATIONS.iter().position(|known| *known == operation);
            at.expect("all operations are listed") as u8
        };
        match self {
            Self::Put => (0, 0),
            Self::Get => (1, 0),
            Self::Accumulate(operation) => (2, of(operation)),
            Self::Fetch(operation) => (3, of(operation)),
            Self::CompareAndSwap => (4, 0),
            Self::Flush => (5, 0),
            Self::LockShared => (6, 0),
            Self::LockExclusive => (7, 0),
            Self::Unlock => (8, 0),
        }
    }

    fn of(kind: u8, operation: u8) -> Option<Self> {
        let operation = OPERATIONS.get(usize::from(operation)).copied()?;
        Some(match kind {
            0 => Self::Put,
            1 => Self::Get,
            2 => Self::Accumulate(operation),
            3 => Self::Fetch(operation),
            4 => Self::CompareAndSwap,
            5 => Self::Flush,
            6 => Self::LockShared,
            7 => Self::LockExclusive,
            8 => Self::Unlock,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    operation: u8,
    /// Bytes of a value.
    size: u8,
    reserved: u8,
    reply: U32,
    offset: U64,
    count: U64,
}

/// A request to a process: 24 bytes, little-endian, then the request's values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) access: Access,
    /// Bytes of a value.
    pub(super) size: usize,
    /// The tag of the answer; 0 if none is expected.
    pub(super) reply: u32,
    /// Index of the first value, and number of values.
    pub(super) offset: u64,
    pub(super) count: u64,
}

impl Request {
    pub(super) fn to_bytes(self, values: &[u8]) -> Bytes {
        let (kind, operation) = self.access.numbers();
        let size = u8::try_from(self.size).expect("a number has 16 bytes at most");
        let (reply, offset, count) = (self.reply.into(), self.offset.into(), self.count.into());
        let head = Head { kind, operation, size, reserved: 0, reply, offset, count };
        let mut bytes = BytesMut::with_capacity(size_of::<Head>() + values.len());
        bytes.put_slice(head.as_bytes());
        bytes.put_slice(values);
        bytes.freeze()
    }

    /// Reads a request and its values; `None` if the bytes are no valid request.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, values) = Head::read_from_prefix(bytes).ok()?;
        let access = Access::of(head.kind, head.operation)?;
        let (reply, offset, count) = (head.reply.get(), head.offset.get(), head.count.get());
        let size = usize::from(head.size);
        Some((Self { access, size, reply, offset, count }, values))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_encoded_request_is_parsed_unchanged(
            kind in 0_u8..9, operation in 0_u8..10, reply: u32, offset: u64, count: u64, values: Vec<u8>,
        ) {
            let access = Access::of(kind, operation).unwrap();
            let request = Request { access, size: 8, reply, offset, count };
            let bytes = request.to_bytes(&values);
            prop_assert_eq!(Request::parse(&bytes), Some((request, &values[..])));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = Request::parse(&bytes);
        }
    }
}
