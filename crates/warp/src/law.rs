//! The rate laws as they stand in the paper and one step on, for study.
//!
//! Neither should steer a real link: an empty queue has a warp of 1 whatever the load, so that they
//! never speed up; any split of the link and any standing queue is an equilibrium; and two clocks
//! that drift apart make the queue grow without end. [`Controller`](crate::control::Controller) is
//! the law to use.

/// The rate adjustment protocol of the paper, additive: d lambda / dt = epsilon (1 - warp).
///
/// Stable while N epsilon tau / mu < pi / 2, for N senders, a feedback delay of tau and a service
/// rate of mu; without overshoot up to 1 / e. The paper's k is thus pi mu / (2 N).
#[derive(Clone, Copy, Debug)]
pub struct PaperLaw {
    rate: f64,
    epsilon: f64,
}

impl PaperLaw {
    /// A sender at `rate`, whose rate changes by `epsilon` a second for each unit of warp.
    #[must_use]
    pub const fn new(rate: f64, epsilon: f64) -> Self {
        Self { rate, epsilon }
    }

    /// Follows a warp for `seconds`.
    pub fn adjust(&mut self, warp: f64, seconds: f64) {
        self.rate = (self.rate + self.epsilon * (1.0 - warp) * seconds).max(0.0);
    }

    /// The rate, in the unit that it was given in.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }
}

/// The gradient term alone, multiplicative: d lambda / dt = epsilon lambda (1 - warp).
///
/// Stable while epsilon tau < pi / 2, whatever the number of senders and the rate of the link.
#[derive(Clone, Copy, Debug)]
pub struct GradientLaw {
    rate: f64,
    epsilon: f64,
}

impl GradientLaw {
    /// A sender at `rate`, with a gain of `epsilon` a second.
    #[must_use]
    pub const fn new(rate: f64, epsilon: f64) -> Self {
        Self { rate, epsilon }
    }

    /// Follows a warp for `seconds`.
    pub fn adjust(&mut self, warp: f64, seconds: f64) {
        self.rate *= (self.epsilon * (1.0 - warp) * seconds).exp();
    }

    /// The rate, in the unit that it was given in.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }
}

/// The paper's actuator: updates gather in a buffer, which is sent when it holds more than
/// Lambda_i B_max of them. Lambda moves against the law's right-hand side, so that the larger it
/// is, the fewer messages leave; what the updates are made of decides the rate in time.
#[derive(Clone, Debug)]
pub struct FlushBuffer<T> {
    held: Vec<T>,
    most: usize,
    lambda: f64,
    epsilon: f64,
}

impl<T> FlushBuffer<T> {
    /// A buffer of at most `most` updates, sent at first whenever it holds `start` of them. Lambda
    /// changes by `epsilon` a second for each unit of warp.
    ///
    /// # Panics
    /// If `most` is zero.
    #[must_use]
    pub fn new(most: usize, start: usize, epsilon: f64) -> Self {
        assert!(most > 0, "a message carries at least one update");
        // More than Lambda B_max and at most one more: halfway, so that rounding does not matter.
        let lambda = (start.clamp(1, most) as f64 - 0.5) / most as f64;
        Self { held: Vec::with_capacity(most), most, lambda, epsilon }
    }

    /// Follows a warp for `seconds`.
    pub fn adjust(&mut self, warp: f64, seconds: f64) {
        let lambda = self.lambda - self.epsilon * (1.0 - warp) * seconds;
        if lambda.is_finite() {
            self.lambda = lambda.clamp(0.0, 1.0);
        }
    }

    /// Adds an update; what is to be sent now, if anything is.
    pub fn push(&mut self, update: T) -> Option<Vec<T>> {
        self.held.push(update);
        let full = self.held.len() as f64 > self.lambda * self.most as f64;
        (full || self.held.len() >= self.most).then(|| self.take())
    }

    /// What the buffer holds, to be sent whatever Lambda says.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::replace(&mut self.held, Vec::with_capacity(self.most))
    }

    /// Lambda: from 0 to 1.
    #[must_use]
    pub const fn lambda(&self) -> f64 {
        self.lambda
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that 60 updates make.
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
        assert_eq!(buffer.lambda(), 0.0, "what is not a number changes nothing");
    }
}
