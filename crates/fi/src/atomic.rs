//! Atomic operations: libfabric's numbers for them and for their types, and their effect on memory.

use std::ffi::c_int;

/// Most bytes of operands, and of comparands, in one operation: both together fit into one record.
pub(crate) const MAX_BYTES: usize = 4096;

/// An operation with an element of memory and an operand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operation {
    Min,
    Max,
    Sum,
    Product,
    LogicalOr,
    LogicalAnd,
    BitOr,
    BitAnd,
    LogicalXor,
    BitXor,
    Read,
    Write,
    /// Writes the operand if the element equals the comparand.
    CompareAndSwap,
}

/// The type of an element, in the byte order of the host; numbered as in `rdma/fi_domain.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Datatype {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// The calls that start an atomic operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    /// Changes memory.
    Base,
    /// Changes memory, and returns the previous values.
    Fetch,
    /// Compares before it changes, and returns the previous values.
    Compare,
}

impl Operation {
    /// The operations in the order of `enum fi_op`.
    pub(crate) const ALL: [Self; 13] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Product,
        Self::LogicalOr,
        Self::LogicalAnd,
        Self::BitOr,
        Self::BitAnd,
        Self::LogicalXor,
        Self::BitXor,
        Self::Read,
        Self::Write,
        Self::CompareAndSwap,
    ];

    /// Returns the operation with this number of libfabric.
    pub(crate) fn of(number: c_int) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns whether a call of this form starts the operation on elements of this type.
    pub(crate) const fn fits(self, datatype: Datatype, form: Form) -> bool {
        let is_of_bits = matches!(self, Self::BitOr | Self::BitAnd | Self::BitXor);
        let is_float = matches!(datatype, Datatype::F32 | Datatype::F64);
        let has_form = match self {
            Self::CompareAndSwap => matches!(form, Form::Compare),
            Self::Read => matches!(form, Form::Fetch),
            _ => !matches!(form, Form::Compare),
        };
        has_form && !(is_of_bits && is_float)
    }

    /// Returns the bytes of operands and comparands that an operation on memory of `length` bytes needs.
    pub(crate) const fn operand_bytes(self, length: usize) -> usize {
        match self {
            Self::Read => 0,
            Self::CompareAndSwap => 2 * length,
            _ => length,
        }
    }

    /// Changes the elements of `memory`. `operands` has as many elements, followed by the comparands if there are any.
    pub(crate) fn apply(self, datatype: Datatype, memory: &mut [u8], operands: &[u8]) {
        if self == Self::Read {
            return;
        }
        let (operands, comparands) = operands.split_at(memory.len());
        match datatype {
            Datatype::I8 => i8::apply(self, memory, operands, comparands),
            Datatype::U8 => u8::apply(self, memory, operands, comparands),
            Datatype::I16 => i16::apply(self, memory, operands, comparands),
            Datatype::U16 => u16::apply(self, memory, operands, comparands),
            Datatype::I32 => i32::apply(self, memory, operands, comparands),
            Datatype::U32 => u32::apply(self, memory, operands, comparands),
            Datatype::I64 => i64::apply(self, memory, operands, comparands),
            Datatype::U64 => u64::apply(self, memory, operands, comparands),
            Datatype::F32 => f32::apply(self, memory, operands, comparands),
            Datatype::F64 => f64::apply(self, memory, operands, comparands),
        }
    }
}

impl Datatype {
    /// The types in the order of `enum fi_datatype`.
    pub(crate) const ALL: [Self; 10] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// Returns the type with this number of libfabric.
    pub(crate) fn of(number: c_int) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the bytes of an element.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// A type of elements for operations.
trait Element: Copy {
    fn combine(operation: Operation, old: Self, operand: Self) -> Self;
    fn apply(operation: Operation, memory: &mut [u8], operands: &[u8], comparands: &[u8]);
}

/// Implements [`Element`] for types, each with the names of its sum and product, and of its operations on bits.
macro_rules! elements {
    ($($element:ident: $sum:expr, $product:expr, $or:expr, $and:expr, $xor:expr;)*) => {$(
        impl Element for $element {
            #[inline]
            fn combine(operation: Operation, old: Self, operand: Self) -> Self {
                const ZERO: $element = 0 as $element;
                let logical = |value: bool| u8::from(value) as Self;
                match operation {
                    Operation::Min => if operand < old { operand } else { old },
                    Operation::Max => if operand > old { operand } else { old },
                    Operation::Sum => $sum(old, operand),
                    Operation::Product => $product(old, operand),
                    Operation::LogicalOr => logical(old != ZERO || operand != ZERO),
                    Operation::LogicalAnd => logical(old != ZERO && operand != ZERO),
                    Operation::LogicalXor => logical((old != ZERO) != (operand != ZERO)),
                    Operation::BitOr => $or(old, operand),
                    Operation::BitAnd => $and(old, operand),
                    Operation::BitXor => $xor(old, operand),
                    Operation::Read => old,
                    Operation::Write | Operation::CompareAndSwap => operand,
                }
            }

            fn apply(operation: Operation, memory: &mut [u8], operands: &[u8], comparands: &[u8]) {
                let (elements, _) = memory.as_chunks_mut::<{ size_of::<$element>() }>();
                let (operands, _) = operands.as_chunks();
                let (comparands, _) = comparands.as_chunks();
                for (at, (element, operand)) in elements.iter_mut().zip(operands).enumerate() {
                    let old = Self::from_ne_bytes(*element);
                    let differs = |comparand: &_| Self::from_ne_bytes(*comparand) != old;
                    if comparands.get(at).is_some_and(differs) {
                        continue;
                    }
                    *element = Self::combine(operation, old, Self::from_ne_bytes(*operand)).to_ne_bytes();
                }
            }
        }
    )*};
    (integers: $($element:ident)*) => {
        elements! {$(
            $element: $element::wrapping_add, $element::wrapping_mul, std::ops::BitOr::bitor,
                std::ops::BitAnd::bitand, std::ops::BitXor::bitxor;
        )*}
    };
    // Operations on bits of floats are refused earlier: see `Operation::fits`.
    (floats: $($element:ident)*) => {
        elements! {$(
            $element: std::ops::Add::add, std::ops::Mul::mul, |old, _| old, |old, _| old, |old, _| old;
        )*}
    };
}

elements! { integers: i8 u8 i16 u16 i32 u32 i64 u64 }
elements! { floats: f32 f64 }

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_to<const N: usize>(
        operation: Operation,
        datatype: Datatype,
        mut memory: [u8; N],
        operands: &[u8],
    ) -> [u8; N] {
        operation.apply(datatype, &mut memory, operands);
        memory
    }

    #[test]
    fn numbers_are_those_of_libfabric() {
        assert_eq!(Operation::of(0), Some(Operation::Min));
        assert_eq!(Operation::of(9), Some(Operation::BitXor));
        assert_eq!(Operation::of(12), Some(Operation::CompareAndSwap));
        assert_eq!([13, -1].map(Operation::of), [None; 2]);
        assert_eq!(Datatype::of(9), Some(Datatype::F64));
        assert_eq!([10, -1].map(Datatype::of), [None; 2]);
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, number);
        }
        for (number, datatype) in Datatype::ALL.into_iter().enumerate() {
            assert_eq!(datatype as usize, number);
        }
    }

    #[test]
    fn integers_have_a_sign_and_wrap_and_floats_have_neither() {
        let signed = apply_to(Operation::Min, Datatype::I8, [1, 0xff], &[0xfe, 2]);
        assert_eq!(signed, [0xfe, 0xff]);
        let unsigned = apply_to(Operation::Max, Datatype::U8, [1, 0xff], &[0xfe, 2]);
        assert_eq!(unsigned, [0xfe, 0xff]);
        let wrapped = apply_to(Operation::Sum, Datatype::U16, [0xff, 0xff], &[2, 0]);
        assert_eq!(u16::from_ne_bytes(wrapped), 1);
        let product = apply_to(
            Operation::Product,
            Datatype::F64,
            1.5_f64.to_ne_bytes(),
            &(-2.0_f64).to_ne_bytes(),
        );
        assert_eq!(f64::from_ne_bytes(product), -3.0);
        let logical = apply_to(Operation::LogicalXor, Datatype::U8, [0, 7, 7], &[3, 0, 3]);
        assert_eq!(logical, [1, 1, 0]);
        let bits = apply_to(Operation::BitXor, Datatype::U8, [0b1100], &[0b1010]);
        assert_eq!(bits, [0b0110]);
    }

    #[test]
    fn elements_are_swapped_where_they_equal_their_comparands() {
        let swapped = apply_to(Operation::CompareAndSwap, Datatype::U8, [1, 2], &[8, 9, 1, 1]);
        assert_eq!(swapped, [8, 2]);
    }

    #[test]
    fn each_operation_has_its_calls_and_types() {
        assert!(Operation::Sum.fits(Datatype::F32, Form::Fetch));
        assert!(!Operation::BitOr.fits(Datatype::F64, Form::Base));
        assert!(!Operation::Read.fits(Datatype::U8, Form::Base));
        assert!(Operation::CompareAndSwap.fits(Datatype::U8, Form::Compare));
        assert!(!Operation::CompareAndSwap.fits(Datatype::U8, Form::Fetch));
        assert!(!Operation::Write.fits(Datatype::U8, Form::Compare));
    }
}
