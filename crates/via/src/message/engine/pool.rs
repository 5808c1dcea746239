//! Reusable buffers for unexpected messages.

use midplane_simhw::region::Payload;

/// Most free buffers kept in one size class, and most bytes of them.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 4 << 20;
const SMALLEST: u32 = 7;
const CLASSES: usize = 14;

/// Free buffers by capacity: 128 bytes, 256, up to 1 MiB; larger ones are not kept.
#[derive(Debug, Default)]
pub(in crate::message) struct Pool {
    classes: [Vec<Vec<u8>>; CLASSES],
}

impl Pool {
    /// Takes a buffer of exactly `length` bytes, with unspecified content.
    pub(in crate::message) fn take(&mut self, length: usize) -> Vec<u8> {
        if length == 0 {
            return Vec::new();
        }
        let class = (length.next_power_of_two().ilog2()).max(SMALLEST) - SMALLEST;
        let Some(kept) = self.classes.get_mut(class as usize) else { return vec![0; length] };
        let mut buffer = kept.pop().unwrap_or_else(|| vec![0; 1 << (class + SMALLEST)]);
        buffer.resize(length, 0);
        buffer
    }

    /// Copies at most `room` bytes of a payload into `storage`; replaces it with a larger buffer if necessary.
    #[inline]
    pub(super) fn fill(&mut self, storage: &mut Vec<u8>, payload: Payload<'_>, room: usize) {
        let taken = payload.len().min(room);
        if storage.capacity() < taken {
            let own = std::mem::replace(storage, self.take(taken));
            self.put(own);
        }
        storage.resize(taken, 0);
        payload.copy_to(storage);
    }

    /// Returns a buffer to the pool.
    pub(in crate::message) fn put(&mut self, buffer: Vec<u8>) {
        let Some(class) = buffer.capacity().checked_ilog2().and_then(|c| c.checked_sub(SMALLEST))
        else {
            return;
        };
        if let Some(kept) = self.classes.get_mut(class as usize)
            && kept.len() < KEPT.min(KEPT_BYTES >> (class + SMALLEST))
        {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_reused_for_a_message_that_fits_it() {
        let mut pool = Pool::default();
        for length in [1, 128, 129, 5_000, 262_144] {
            let buffer = pool.take(length);
            let (address, room) = (buffer.as_ptr(), buffer.capacity());
            assert!(buffer.len() == length && room >= length);
            pool.put(buffer);
            let again = pool.take(room);
            assert_eq!(again.as_ptr(), address, "{length}");
        }
        pool.put(Vec::with_capacity(2 << 20));
        assert!(pool.classes.iter().all(Vec::is_empty));
    }
}
