//! The body of a data packet: flags and the fields that these require; the layout is in [`packet`](super::packet).

use super::packet::{u32_at, u64_at};

/// Most ranges of one acknowledgement.
const MAX_RANGES: usize = 32;
/// Most bytes of a body's fields before the bytes of the pipe.
pub(crate) const FIELDS_BYTES: usize = 1 + 25 + 8 * (MAX_RANGES - 1) + 8 + 8 + 8;

/// Flags of a body.
pub(crate) mod flag {
    /// Acknowledges packets.
    pub(crate) const ACKNOWLEDGE: u8 = 1;
    /// Ends the pipe.
    pub(crate) const CLOSE: u8 = 2;
    /// Probes the path's MTU.
    pub(crate) const PROBE: u8 = 4;
    /// Requests an acknowledgement.
    pub(crate) const PING: u8 = 8;
    /// Carries bytes of the pipe.
    pub(crate) const BYTES: u8 = 16;
    /// Requests a larger window.
    pub(crate) const ASK: u8 = 32;
    /// All flags together.
    pub(crate) const ALL: u8 = 63;
}

/// An acknowledgement: ranges of numbers, the newest first, each from its first number to one past its last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Acknowledgement {
    /// Microseconds from the receipt of the largest number to the acknowledgement.
    pub(crate) delay_micros: u32,
    /// Offset up to which the receiver accepts bytes.
    pub(crate) window: u64,
    ranges: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl Acknowledgement {
    /// Makes an acknowledgement of up to `MAX_RANGES` ranges, the newest first; `None` if there is none.
    pub(crate) fn new(
        ranges: impl Iterator<Item = (u64, u64)>,
        delay_micros: u32,
        window: u64,
    ) -> Option<Self> {
        let mut this = Self { delay_micros, window, ranges: [(0, 0); MAX_RANGES], count: 0 };
        for range in ranges.take(MAX_RANGES) {
            this.ranges[this.count] = range;
            this.count += 1;
        }
        (this.count > 0).then_some(this)
    }

    /// Returns the ranges, the newest first.
    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count]
    }

    /// Appends the fields to `out`.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let length = |(from, to): (u64, u64)| u32::try_from(to - from).unwrap_or(u32::MAX);
        let first = self.ranges[0];
        out.extend_from_slice(&(first.1 - 1).to_le_bytes());
        out.extend_from_slice(&self.delay_micros.to_le_bytes());
        out.extend_from_slice(&self.window.to_le_bytes());
        out.push((self.count - 1) as u8);
        out.extend_from_slice(&length(first).to_le_bytes());
        for pair in self.ranges().windows(2) {
            let gap = u32::try_from(pair[0].0 - pair[1].1).unwrap_or(u32::MAX);
            out.extend_from_slice(&gap.to_le_bytes());
            out.extend_from_slice(&length(pair[1]).to_le_bytes());
        }
    }

    /// Reads the fields at the beginning of `bytes`; returns also their length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = u64_at(bytes, 0)?.checked_add(1)?;
        let delay_micros = u32_at(bytes, 8)?;
        let window = u64_at(bytes, 12)?;
        let count = usize::from(*bytes.get(20)?) + 1;
        let length = u64::from(u32_at(bytes, 21)?);
        if count > MAX_RANGES || length == 0 {
            return None;
        }
        let mut ranges = [(0, 0); MAX_RANGES];
        ranges[0] = (end.checked_sub(length)?, end);
        let mut at = 25;
        for index in 1..count {
            let gap = u64::from(u32_at(bytes, at)?);
            let length = u64::from(u32_at(bytes, at + 4)?);
            if gap == 0 || length == 0 {
                return None;
            }
            let end = ranges[index - 1].0.checked_sub(gap)?;
            ranges[index] = (end.checked_sub(length)?, end);
            at += 8;
        }
        Some((Self { delay_micros, window, ranges, count }, at))
    }
}

/// The body of a data packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Body<'a> {
    /// Flags of its contents: see [`flag`].
    pub(crate) flags: u8,
    /// The fields of the acknowledgement, with that flag: [`Acknowledgement::parse`] accepts them. They are not kept
    /// parsed, because most bodies have none, and they would be the largest part.
    pub(crate) acknowledgement: Option<&'a [u8]>,
    /// Offset at which the pipe ends, with the flag *close*.
    pub(crate) close: Option<u64>,
    /// Offset up to which the sender has bytes, with the flag *ask*.
    pub(crate) ask: Option<u64>,
    /// Offset and bytes of the pipe, with the flag *bytes*.
    pub(crate) bytes: Option<(u64, &'a [u8])>,
}

impl<'a> Body<'a> {
    /// Reads a body; `None` if it is malformed.
    pub(crate) fn parse(body: &'a [u8]) -> Option<Self> {
        let flags = *body.first()?;
        if flags & !flag::ALL != 0 {
            return None;
        }
        let mut this = Self { flags, acknowledgement: None, close: None, ask: None, bytes: None };
        let mut at = 1;
        if flags & flag::ACKNOWLEDGE != 0 {
            let (_, bytes) = Acknowledgement::parse(&body[at..])?;
            this.acknowledgement = Some(&body[at..at + bytes]);
            at += bytes;
        }
        if flags & flag::CLOSE != 0 {
            this.close = Some(u64_at(body, at)?);
            at += 8;
        }
        if flags & flag::ASK != 0 {
            this.ask = Some(u64_at(body, at)?);
            at += 8;
        }
        if flags & flag::BYTES != 0 {
            let (offset, bytes) = (u64_at(body, at)?, body.get(at + 8..)?);
            offset.checked_add(bytes.len() as u64)?;
            this.bytes = Some((offset, bytes));
        }
        Some(this)
    }

    /// Returns whether the packet's sender waits for its acknowledgement.
    pub(crate) const fn asks_for_acknowledgement(&self) -> bool {
        self.flags & !flag::ACKNOWLEDGE != 0
    }
}
