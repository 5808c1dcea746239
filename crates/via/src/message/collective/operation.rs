//! Operations that combine the values of several processes.

use midplane_nicvm::collective::Operation as WordOperation;

use crate::message::typed::Plain;

/// An operation on numbers that combines the contributions of processes, position by position.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Operation {
    /// The sum; integers wrap.
    #[default]
    Sum,
    /// The product; integers wrap.
    Product,
    /// The least number; NaN only if all numbers are NaN.
    Min,
    /// The greatest number; NaN only if all numbers are NaN.
    Max,
    /// Bitwise and; of floating-point numbers, the bits of their encoding.
    And,
    /// Bitwise or; of floating-point numbers, the bits of their encoding.
    Or,
    /// Bitwise exclusive or; of floating-point numbers, the bits of their encoding.
    Xor,
    /// 1 if no number is 0, else 0.
    LogicalAnd,
    /// 1 if a number is not 0, else 0.
    LogicalOr,
    /// 1 if an odd count of the numbers is not 0, else 0.
    LogicalXor,
}

/// Combines the values of several processes, position by position. It must be associative, and need not be
/// commutative: values are combined in the order of ranks. An [`Operation`] combines numbers. A function that changes
/// the first of two values combines values of any type, such as [`min_location`] or `|a: &mut u64, b: &u64| *a += b`.
pub trait Reduction<T> {
    /// Combines `second`, the values of higher ranks, into `first`. Both have the same length.
    fn join(&mut self, first: &mut [T], second: &[T]);

    /// Returns the NICs' operation on words of 8 bytes that does the same; `None` if there is none.
    fn on_nics(&self) -> Option<WordOperation> {
        None
    }
}

impl<T, F: FnMut(&mut T, &T)> Reduction<T> for F {
    fn join(&mut self, first: &mut [T], second: &[T]) {
        first.iter_mut().zip(second).for_each(|(a, b)| self(a, b));
    }
}

/// Combines pairs of a number and its location: the least number wins; of equal ones, the lower location
/// (`MPI_MINLOC`).
pub fn min_location<T: Number>(best: &mut [T; 2], other: &[T; 2]) {
    if other[0] < best[0] || other[0] == best[0] && other[1] < best[1] {
        *best = *other;
    }
}

/// Combines pairs of a number and its location: the greatest number wins; of equal ones, the lower location
/// (`MPI_MAXLOC`).
pub fn max_location<T: Number>(best: &mut [T; 2], other: &[T; 2]) {
    if other[0] > best[0] || other[0] == best[0] && other[1] < best[1] {
        *best = *other;
    }
}

/// A number that an [`Operation`] combines: integers of 8 to 128 bits, `f32` and `f64`.
pub trait Number: Plain + PartialOrd {
    /// Combines two numbers; `operation` is none of the logical ones.
    #[doc(hidden)]
    fn apply(operation: Operation, a: Self, b: Self) -> Self;

    /// Converts a truth value to 1 or 0.
    #[doc(hidden)]
    fn of(truth: bool) -> Self;

    #[doc(hidden)]
    fn on_nics(_operation: Operation) -> Option<WordOperation> {
        None
    }
}

impl<T: Number> Reduction<T> for Operation {
    fn join(&mut self, first: &mut [T], second: &[T]) {
        let truth = |x: T| x != T::of(false);
        // One loop for each operation, so that the compiler vectorises them.
        macro_rules! loops {
            ($($simple:ident)*) => {
                match self {
                    $(Self::$simple => each(first, second, |a, b| T::apply(Self::$simple, a, b)),)*
                    Self::LogicalAnd => each(first, second, |a, b| T::of(truth(a) && truth(b))),
                    Self::LogicalOr => each(first, second, |a, b| T::of(truth(a) || truth(b))),
                    Self::LogicalXor => each(first, second, |a, b| T::of(truth(a) != truth(b))),
                }
            };
        }
        loops!(Sum Product Min Max And Or Xor);
    }

    fn on_nics(&self) -> Option<WordOperation> {
        // The NICs' words are little-endian.
        if cfg!(target_endian = "little") { T::on_nics(*self) } else { None }
    }
}

#[inline]
fn each<T: Copy>(first: &mut [T], second: &[T], combine: impl Fn(T, T) -> T) {
    first.iter_mut().zip(second).for_each(|(a, b)| *a = combine(*a, *b));
}

macro_rules! integers {
    ($($integer:ident: $nics:expr;)*) => {$(
        impl Number for $integer {
            #[inline]
            fn apply(operation: Operation, a: Self, b: Self) -> Self {
                match operation {
                    Operation::Sum => a.wrapping_add(b),
                    Operation::Product => a.wrapping_mul(b),
                    Operation::Min => a.min(b),
                    Operation::Max => a.max(b),
                    Operation::And | Operation::LogicalAnd => a & b,
                    Operation::Or | Operation::LogicalOr => a | b,
                    Operation::Xor | Operation::LogicalXor => a ^ b,
                }
            }

            fn of(truth: bool) -> Self {
                Self::from(truth)
            }

            fn on_nics(operation: Operation) -> Option<WordOperation> {
                $nics(operation)
            }
        }
    )*};
}

macro_rules! floats {
    ($($float:ident: $nics:expr;)*) => {$(
        impl Number for $float {
            #[inline]
            fn apply(operation: Operation, a: Self, b: Self) -> Self {
                let bits = match operation {
                    Operation::Sum => return a + b,
                    Operation::Product => return a * b,
                    Operation::Min => return a.min(b),
                    Operation::Max => return a.max(b),
                    Operation::And | Operation::LogicalAnd => a.to_bits() & b.to_bits(),
                    Operation::Or | Operation::LogicalOr => a.to_bits() | b.to_bits(),
                    Operation::Xor | Operation::LogicalXor => a.to_bits() ^ b.to_bits(),
                };
                Self::from_bits(bits)
            }

            fn of(truth: bool) -> Self {
                u8::from(truth).into()
            }

            fn on_nics(operation: Operation) -> Option<WordOperation> {
                $nics(operation)
            }
        }
    )*};
}

integers! {
    u8: none; u16: none; u32: none; u64: unsigned_words; u128: none;
    i8: none; i16: none; i32: none; i64: signed_words; i128: none;
}
floats! { f32: none; f64: |operation| (operation == Operation::Sum).then_some(WordOperation::SumFloat); }

const fn none(_: Operation) -> Option<WordOperation> {
    None
}

const fn unsigned_words(operation: Operation) -> Option<WordOperation> {
    match operation {
        Operation::Min => Some(WordOperation::Min),
        Operation::Max => Some(WordOperation::Max),
        _ => signed_words(operation),
    }
}

const fn signed_words(operation: Operation) -> Option<WordOperation> {
    match operation {
        Operation::Sum => Some(WordOperation::Sum),
        Operation::And => Some(WordOperation::And),
        Operation::Or => Some(WordOperation::Or),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined<T: Plain>(mut by: impl Reduction<T>, values: &[T]) -> T {
        let mut first = vec![values[0]];
        values[1..].iter().for_each(|value| by.join(&mut first, &[*value]));
        first[0]
    }

    #[test]
    fn integers_wrap_and_logical_operations_count_what_is_not_zero() {
        let values = [200_u8, 100, 0, 3];
        let cases = [
            (Operation::Sum, 47),
            (Operation::Product, 0),
            (Operation::Min, 0),
            (Operation::Max, 200),
            (Operation::And, 0),
            (Operation::Or, 239),
            (Operation::Xor, 175),
            (Operation::LogicalAnd, 0),
            (Operation::LogicalOr, 1),
            (Operation::LogicalXor, 1),
        ];
        for (operation, expected) in cases {
            assert_eq!(joined(operation, &values), expected, "{operation:?}");
        }
        assert_eq!(joined(Operation::Product, &[100_i8, 3]), 44);
        assert_eq!(joined(Operation::LogicalAnd, &[2_i32, -1]), 1);
    }

    #[test]
    fn floating_point_numbers_skip_nan() {
        assert_eq!(joined(Operation::Max, &[f64::NAN, 2.0, -1.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(joined(Operation::Product, &[0.5_f32, 3.0]).to_bits(), 1.5_f32.to_bits());
        assert_eq!(joined(Operation::LogicalOr, &[0.0, 0.1_f64]).to_bits(), 1.0_f64.to_bits());
        assert_eq!(joined(Operation::Xor, &[1.5, 1.5_f64]).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn of_equal_numbers_the_lower_location_wins() {
        let pairs = [[4, 2], [7, 1], [4, 0], [7, 3]];
        assert_eq!(joined(min_location::<i32>, &pairs), [4, 0]);
        assert_eq!(joined(max_location::<i32>, &pairs), [7, 1]);
    }
}
