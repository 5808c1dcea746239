//! The benchmarks' random number generator: x' = 5^13 x mod 2^46.

/// 5^13.
const A: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;

/// A stream of random numbers between 0 and 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stream(u64);

impl Stream {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the stream after `count` more numbers.
    pub(super) const fn skip(self, mut count: u64) -> Self {
        let (mut x, mut a) = (self.0, A);
        while count > 0 {
            if count & 1 == 1 {
                x = x.wrapping_mul(a) & MASK;
            }
            a = a.wrapping_mul(a) & MASK;
            count >>= 1;
        }
        Self(x)
    }

    #[inline]
    pub(super) const fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(A) & MASK;
        self.0 as f64 / (1_u64 << 46) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_equals_drawing() {
        let mut stream = Stream::new(271_828_183);
        for count in 0..100 {
            assert_eq!(Stream::new(271_828_183).skip(count), stream);
            let _ = stream.next();
        }
    }
}
