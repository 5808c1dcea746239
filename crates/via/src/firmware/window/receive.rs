//! The receiver's half of a connection: which frames it accepts, and when it acknowledges them.

use midplane_simhw::time::Instant;

use super::BYTES;

/// The position of an arriving frame relative to the expected one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::firmware) enum Arrival {
    Next,
    /// It has arrived before.
    Again,
    /// A frame before it is missing.
    Early,
}

/// Frames received after which an acknowledgement is sent alone.
const FRAMES_PER_ACKNOWLEDGEMENT: u32 = 16;
/// Bytes received after which an acknowledgement is sent alone: half of the most that may be under way. So an answer
/// acknowledges a message of up to this length.
const BYTES_PER_ACKNOWLEDGEMENT: usize = BYTES / 2;

/// Least nanoseconds that an acknowledgement waits if the traffic is requests and answers: a timer for each message
/// would cost more than the message. TCP delays acknowledgements likewise. It is shorter than the least time after
/// which a sender sends again.
pub(in crate::firmware) const CONVERSATION_NS: u64 = 500_000;

/// The receiver's half of a connection.
#[derive(Debug, Default)]
pub(in crate::firmware) struct ReceiveWindow {
    expected: u32,
    /// Number of the first frame that is not acknowledged: it was not accepted, or may not be in memory.
    settled: u32,
    /// The accepted frames that the NIC is writing into memory: number of the first one after them, and their bytes.
    writing: Option<(u32, usize)>,
    /// Bytes of the frames accepted after those.
    unwritten: usize,
    /// Frames, and bytes, settled since the last acknowledgement was sent.
    frames: u32,
    bytes: usize,
    /// The time since which an acknowledgement is owed.
    owed_since: Option<Instant>,
    urgent: bool,
    /// True if the last acknowledgement travelled with a data frame: the traffic is requests and answers.
    is_request_response: bool,
    /// The missing frame that was reported to the sender.
    reported_gap: Option<u32>,
}

impl ReceiveWindow {
    /// Restores a saved window.
    pub(in crate::firmware) fn restored(expected: u32) -> Self {
        Self { expected, settled: expected, ..Self::default() }
    }

    /// Returns the number of the next frame to be accepted.
    pub(in crate::firmware) const fn expected(&self) -> u32 {
        self.expected
    }

    /// Returns the number that acknowledgements carry.
    pub(in crate::firmware) const fn settled(&self) -> u32 {
        self.settled
    }

    /// Returns whether all accepted frames can be acknowledged.
    pub(in crate::firmware) const fn is_settled(&self) -> bool {
        self.settled == self.expected
    }

    /// Returns whether a frame has not been accepted.
    pub(in crate::firmware) const fn is_new(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.expected) < 1 << 31
    }

    pub(in crate::firmware) fn place(&mut self, sequence: u32) -> Arrival {
        match sequence.wrapping_sub(self.expected) {
            0 => Arrival::Next,
            ahead if ahead < 1 << 31 => {
                // One report for each missing frame: the rest of the window will arrive early too.
                self.urgent |= self.reported_gap.replace(self.expected) != Some(self.expected);
                Arrival::Early
            }
            _ => {
                self.urgent = true;
                Arrival::Again
            }
        }
    }

    /// Accepts the next frame.
    pub(in crate::firmware) const fn on_taken(&mut self, bytes: usize, urgent: bool) {
        self.expected = self.expected.wrapping_add(1);
        self.unwritten += bytes;
        self.urgent |= urgent;
    }

    /// Lets the accepted frames be acknowledged: at once, or, if `fence` returns true, when the NIC reports that they
    /// are in memory. Only one fence is under way.
    pub(in crate::firmware) fn settle(&mut self, now: Instant, fence: impl FnOnce() -> bool) {
        if self.writing.is_some() || self.is_settled() {
            return;
        }
        self.writing = Some((self.expected, std::mem::take(&mut self.unwritten)));
        if !fence() {
            self.on_written(now);
        }
    }

    /// Handles the NIC's report that the fenced frames are in memory.
    pub(in crate::firmware) fn on_written(&mut self, now: Instant) {
        let Some((settled, bytes)) = self.writing.take() else { return };
        self.frames += settled.wrapping_sub(self.settled);
        self.bytes += bytes;
        self.settled = settled;
        self.urgent |= self.has_gap()
            || self.frames >= FRAMES_PER_ACKNOWLEDGEMENT
            || self.bytes >= BYTES_PER_ACKNOWLEDGEMENT;
        self.owed_since.get_or_insert(now);
    }

    /// Skips lost frames of an unreliable interface.
    pub(in crate::firmware) const fn skip_to(&mut self, sequence: u32) {
        self.expected = sequence;
        self.settled = sequence;
        self.urgent = false;
        self.reported_gap = None;
    }

    /// Handles the sender's request for an acknowledgement.
    pub(in crate::firmware) const fn ask(&mut self) {
        self.urgent = true;
    }

    /// Returns whether an acknowledgement must be sent now, alone if necessary.
    pub(in crate::firmware) const fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// Returns when an owed acknowledgement must be sent, alone if necessary.
    pub(in crate::firmware) fn due(&self, delay_ns: u64) -> Option<Instant> {
        let delay_ns =
            if self.is_request_response { delay_ns.max(CONVERSATION_NS) } else { delay_ns };
        self.owed_since.map(|since| since.plus_nanos(delay_ns))
    }

    /// Records that frames were refused, which the next acknowledgement reports.
    pub(in crate::firmware) const fn report_gap(&mut self) {
        self.reported_gap = Some(self.expected);
    }

    /// Returns whether a frame is missing, which the next acknowledgement reports.
    pub(in crate::firmware) fn has_gap(&self) -> bool {
        self.reported_gap == Some(self.expected)
    }

    /// Records that an acknowledgement is sent, alone or with a frame; returns the number in it.
    pub(in crate::firmware) const fn on_transmit(&mut self) -> u32 {
        self.is_request_response |= self.owed_since.is_some();
        self.frames = 0;
        self.bytes = 0;
        self.owed_since = None;
        self.urgent = false;
        self.settled
    }

    /// Records that the acknowledgement is sent alone.
    pub(in crate::firmware) const fn on_alone(&mut self) {
        self.is_request_response = false;
    }
}
