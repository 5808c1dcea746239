//! The paper's actuator, for study. Do not control a real link by it: use
//! [`Controller`](crate::control::Controller) instead.

/// The paper's actuator: a buffer of updates that is sent when it holds more than Lambda_i B_max of
/// them.
///
/// Lambda moves against the law's right-hand side: the larger it is, the fewer messages leave. The
/// rate at which the application makes updates decides the rate of messages.
#[derive(Clone, Debug)]
pub struct FlushBuffer<T> {
    held: Vec<T>,
    most: usize,
    lambda: f64,
    epsilon: f64,
}

impl<T> FlushBuffer<T> {
    /// Creates a buffer of at most `most` updates, sent at first whenever it holds `start` of them.
    /// Lambda changes by `epsilon` a second for each unit of warp.
    ///
    /// # Panics
    /// If `most` is zero.
    #[must_use]
    pub fn new(most: usize, start: usize, epsilon: f64) -> Self {
        assert!(most > 0, "a message carries at least one update");
        // The buffer is sent at the first whole number above Lambda B_max. Halfway between two
        // whole numbers, rounding cannot change which one that is.
        let lambda = (start.clamp(1, most) as f64 - 0.5) / most as f64;
        Self { held: Vec::with_capacity(most), most, lambda, epsilon }
    }

    /// Applies the law to a `warp` that held for `seconds`.
    pub fn adjust(&mut self, warp: f64, seconds: f64) {
        let lambda = self.lambda - self.epsilon * (1.0 - warp) * seconds;
        if lambda.is_finite() {
            self.lambda = lambda.clamp(0.0, 1.0);
        }
    }

    /// Adds an update. Returns the updates to send now, if the buffer is full enough.
    pub fn push(&mut self, update: T) -> Option<Vec<T>> {
        self.held.push(update);
        let full = self.held.len() as f64 > self.lambda * self.most as f64;
        (full || self.held.len() >= self.most).then(|| self.take())
    }

    /// Empties the buffer and returns its updates, whatever Lambda is.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::replace(&mut self.held, Vec::with_capacity(self.most))
    }

    /// Returns Lambda, from 0 to 1.
    #[must_use]
    pub const fn lambda(&self) -> f64 {
        self.lambda
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes 60 updates and returns the sizes of the messages.
    fn messages(buffer: &mut FlushBuffer<u32>) -> Vec<usize> {
        (0..60).filter_map(|update| buffer.push(update)).map(|sent| sent.len()).collect()
    }

    #[test]
    fn a_buffer_starts_with_the_size_that_it_is_given() {
        for start in 1..=20 {
            let mut buffer = FlushBuffer::new(20, start, 1.0);
            assert!(messages(&mut buffer).iter().all(|size| *size == start), "{start}");
        }
    }

    #[test]
    fn congestion_makes_messages_larger_and_a_draining_queue_smaller() {
        let mut buffer = FlushBuffer::new(20, 4, 0.1);
        let start = buffer.lambda();
        buffer.adjust(3.0, 1.0);
        assert!((buffer.lambda() - start - 0.2).abs() < 1e-12);
        assert_eq!(messages(&mut buffer)[0], 8);
        buffer.take();
        buffer.adjust(0.0, 100.0);
        assert_eq!(buffer.lambda(), 0.0);
        assert_eq!(messages(&mut buffer)[0], 1);
        buffer.adjust(f64::INFINITY, 1.0);
        assert_eq!(buffer.lambda(), 0.0, "an infinite warp changes nothing");
    }
}
