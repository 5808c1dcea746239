//! What an engine may use, and what it does when that is used up.

use super::flows::Limits;

/// What becomes of an eager message when its receiver's memory for unexpected ones is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum WhenFull {
    /// It is announced; its bytes stay with the sender until the receive is there. If there is no
    /// room for the announcement either, the message waits as with [`WhenFull::Wait`].
    #[default]
    Announce,
    /// It waits with the sender until a receive asks for it, and so do later messages of its context
    /// to that process.
    Wait,
    /// Its send fails with [`Failure::Refused`](crate::message::request::Failure::Refused).
    Refuse,
}

/// Above this, a message is announced first: two copies and no handshake then cost as much as one
/// copy and a round trip, on the shared memory of one host.
pub const DEFAULT_EAGER: usize = 8192;
/// The same over sockets, where a handshake takes two wake-ups, and a copy of this much less than one.
pub const SOCKET_EAGER: usize = 512 * 1024;
/// Of each sender, this much may be here unexpected: 4,096 messages of up to 192 bytes, or some 128
/// of the largest eager ones.
pub const DEFAULT_WINDOW: usize = 1 << 20;
/// Of all processes together, this much may be here unexpected.
pub const DEFAULT_TOTAL: usize = 1 << 30;
/// What part of a window the messages of one stream may take, and what part those of one context
/// leave to the others.
const STREAM_PART: usize = 8;
/// What an unexpected message counts for beside its bytes: about what its bookkeeping takes.
pub const ENTRY: usize = 64;
/// Packets that one call of `advance` takes in before it looks after what is to leave.
pub const DEFAULT_BATCH: usize = 64;

/// Requests of one process to take messages back that another one answers at a time: those that follow
/// wait. Who sends more contradicts the protocol.
pub(super) const QUESTIONS: usize = 64;

/// What an engine may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    pub(super) eager: usize,
    pub(super) window: usize,
    pub(super) stream: Option<usize>,
    pub(super) total: usize,
    pub(super) when_full: WhenFull,
    pub(super) batch: usize,
    pub(super) hash_seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            eager: DEFAULT_EAGER,
            window: DEFAULT_WINDOW,
            stream: None,
            total: DEFAULT_TOTAL,
            when_full: WhenFull::default(),
            batch: DEFAULT_BATCH,
            hash_seed: 0,
        }
    }
}

impl Config {
    /// Most bytes of an eager message; more than a packet of the carrier holds means as many as one
    /// holds. Default: [`DEFAULT_EAGER`]; over sockets, [`SOCKET_EAGER`] is faster.
    #[must_use]
    pub const fn eager(mut self, bytes: usize) -> Self {
        self.eager = bytes;
        self
    }

    /// Bytes of unexpected messages that each process may have here, [`ENTRY`] for each and the
    /// bytes of eager ones; at least 4 [`ENTRY`]. What other processes send beyond it waits with
    /// them. Default: [`DEFAULT_WINDOW`].
    #[must_use]
    pub const fn window(mut self, bytes: usize) -> Self {
        self.window = if bytes < 4 * ENTRY { 4 * ENTRY } else { bytes };
        self
    }

    /// Bytes of that window that the messages of one stream may take: those of one tag, in a context
    /// where no receive asks for any tag. Those of one context leave as much to the others. At least
    /// one message of the largest eager size. Default: an eighth of the window.
    #[must_use]
    pub const fn stream_window(mut self, bytes: usize) -> Self {
        self.stream = Some(bytes);
        self
    }

    /// Bytes of unexpected messages that all processes together may have here: what the window of each
    /// is cut to, where there are many. Default: [`DEFAULT_TOTAL`].
    #[must_use]
    pub const fn total(mut self, bytes: usize) -> Self {
        self.total = bytes;
        self
    }

    /// Returns the limits of a class, if eager messages have up to `eager` bytes.
    pub(super) fn limits(&self, eager: usize) -> Limits {
        let (least, window) = (ENTRY + eager, self.window);
        let word = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let stream = self.stream.unwrap_or(window / STREAM_PART).max(least).min(window);
        Limits { context: word((window - stream).max(least)), stream: word(stream) }
    }

    /// What this process does when another one's memory for unexpected messages is full.
    #[must_use]
    pub const fn when_full(mut self, policy: WhenFull) -> Self {
        self.when_full = policy;
        self
    }

    /// Packets taken in a turn, at least 1. Default: [`DEFAULT_BATCH`].
    #[must_use]
    pub const fn batch(mut self, packets: usize) -> Self {
        self.batch = if packets == 0 { 1 } else { packets };
        self
    }

    /// Seed of the hash of tags. Where processes send that are not trusted, draw it at random: who
    /// knows it can choose tags that make matching slow. Default: 0, so that runs repeat.
    #[must_use]
    pub const fn hash_seed(mut self, seed: u64) -> Self {
        self.hash_seed = seed;
        self
    }
}
