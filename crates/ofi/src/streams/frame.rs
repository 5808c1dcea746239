//! The frames of streams: 24 bytes, then a payload. Numbers are little-endian.

/// Bytes before the payload.
pub(super) const HEAD: usize = 24;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Opens a stream: the value is the sender's number of the stream, the payload its endpoint's name.
    Open = 1,
    /// Accepts a stream: the value is the sender's number of the stream.
    Accept = 2,
    /// Carries bytes of the stream.
    Data = 3,
    /// Returns credit: the value is the number of bytes consumed.
    Credit = 4,
    /// Ends the sender's side, after all of its bytes.
    End = 5,
    /// Fails the stream, after all frames that its sender has sent before.
    Reset = 6,
    /// Asks whether the receiver is alive. The number is that of the sender's next numbered frame.
    Ask = 7,
    /// Answers [`Kind::Ask`], with the number of the sender's next numbered frame.
    Alive = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Open,
        Self::Accept,
        Self::Data,
        Self::Credit,
        Self::End,
        Self::Reset,
        Self::Ask,
        Self::Alive,
    ];
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Frame {
    /// The receiver's number of the stream; 0 in [`Kind::Open`].
    pub(super) to: u64,
    /// The sequence number among the data, credit, ends and reset of one sender.
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) value: u64,
}

impl Frame {
    /// Parses a head; `None` if it is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (to, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (&[kind, 0, 0, 0], rest) = rest.split_first_chunk()? else { return None };
        let (value, _) = rest.split_first_chunk()?;
        Some(Self {
            to: u64::from_le_bytes(*to),
            number: u32::from_le_bytes(*number),
            kind: Kind::ALL.into_iter().find(|known| *known as u8 == kind)?,
            value: u64::from_le_bytes(*value),
        })
    }

    pub(super) fn emit(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.to.to_le_bytes());
        head[8..12].copy_from_slice(&self.number.to_le_bytes());
        head[12] = self.kind as u8;
        head[16..].copy_from_slice(&self.value.to_le_bytes());
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_frame_never_change() {
        let frame = Frame { to: 0x0102_0304_0506_0708, number: 9, kind: Kind::Credit, value: 10 };
        let mut golden = vec![8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 4, 0, 0, 0];
        golden.extend([10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frame.emit(), *golden);
        assert_eq!(Frame::parse(&golden), Some(frame));
        assert_eq!(Frame::parse(&golden[..HEAD - 1]), None);
        for (at, byte) in [(12, 0), (12, 9), (13, 1), (15, 1)] {
            let mut wrong = golden.clone();
            wrong[at] = byte;
            assert_eq!(Frame::parse(&wrong), None);
        }
    }
}
