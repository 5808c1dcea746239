//! The configuration of an endpoint.

use std::time::Duration;

/// Default number of frames that may arrive before the caller receives them: 256.
const DEFAULT_RECEIVES: usize = 256;
/// Default number of frames that may be in flight to peers: 256.
const DEFAULT_SENDS: usize = 256;
/// Default time of busy-polling after a completion: 200 us, as for NICs over UDP.
const DEFAULT_SPIN: Duration = Duration::from_micros(200);

/// Configures an endpoint: its frames and its memory.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) frame_bytes: usize,
    pub(super) receives: usize,
    pub(super) sends: usize,
    pub(super) spin: Duration,
}

impl Config {
    /// Creates the configuration of an endpoint whose frames have at most this many bytes.
    #[must_use]
    pub const fn new(frame_bytes: usize) -> Self {
        let (receives, sends) = (DEFAULT_RECEIVES, DEFAULT_SENDS);
        Self { frame_bytes, receives, sends, spin: DEFAULT_SPIN }
    }

    /// Sets how many frames may arrive before the caller receives them: at least 1, and at most as many as the provider
    /// accepts. Each takes the memory of a frame.
    #[must_use]
    pub const fn receives(mut self, frames: usize) -> Self {
        self.receives = if frames == 0 { 1 } else { frames };
        self
    }

    /// Sets how many frames may be in flight to all peers together: at least 1, and at most as many as the provider
    /// accepts. Each takes the memory of a frame.
    #[must_use]
    pub const fn sends(mut self, frames: usize) -> Self {
        self.sends = if frames == 0 { 1 } else { frames };
        self
    }

    /// Sets how long the endpoint's task busy-polls after a completion, before it parks.
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }
}
