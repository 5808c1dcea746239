//! The frames of calls: a request with its deadline and trace, and an answer.
//!
//! A stream carries one call at a time. A request is 24 bytes, the trace and the payload; an answer is 16 bytes and the
//! payload. Numbers are little-endian.

use std::io;
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::context::{MAX_PARENT, MAX_STATE, Trace};

/// The first bytes of a request and of an answer; the digit is the version.
const REQUEST: [u8; 4] = *b"mpq1";
const ANSWER: [u8; 4] = *b"mpa1";
/// The remaining time of a request without a deadline.
const NEVER: u64 = u64::MAX;

const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 16;

/// The header of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RequestHeader {
    pub(super) length: u32,
    /// The time until the deadline, in whole microseconds on the wire.
    pub(super) remaining: Option<Duration>,
    pub(super) trace: Trace,
}

impl RequestHeader {
    pub(super) fn emit(&self) -> Vec<u8> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(NEVER);
        let Self { length, remaining, trace } = self;
        let (parent, state) = (short(&trace.parent), short(&trace.state));
        let mut bytes = Vec::with_capacity(REQUEST_BYTES + trace.parent.len() + trace.state.len());
        bytes.extend(REQUEST);
        bytes.extend(length.to_le_bytes());
        bytes.extend(remaining.map_or(NEVER, micros).to_le_bytes());
        bytes.extend(parent.to_le_bytes());
        bytes.extend(state.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(trace.parent.as_bytes());
        bytes.extend(trace.state.as_bytes());
        bytes
    }

    /// Reads a header; an error of the kind `InvalidData` if the peer sends something else.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = [0; REQUEST_BYTES];
        stream.read_exact(&mut bytes).await?;
        let (magic, mut rest) = bytes.split_at(REQUEST.len());
        let (length, micros) = (rest.get_u32_le(), rest.get_u64_le());
        let [parent, state] = [rest.get_u16_le(), rest.get_u16_le()].map(usize::from);
        let is_one = magic == REQUEST && rest == [0; 4];
        if !is_one || parent > MAX_PARENT || state > MAX_STATE {
            return Err(no_frame(
                "no request of a call: it was opened by `connect`, or by another version",
            ));
        }
        let mut words = vec![0; parent + state];
        stream.read_exact(&mut words).await?;
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or("");
        // An invalid trace is ignored: it is no reason to refuse a call.
        let trace = Trace::new(text(&words[..parent]), text(&words[parent..])).unwrap_or_default();
        let remaining = (micros != NEVER).then(|| Duration::from_micros(micros));
        Ok(Self { length, remaining, trace })
    }
}

/// The kind of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Status {
    /// The payload is the service's response.
    Response = 0,
    /// The payload is the service's error.
    Error = 1,
    /// The service was stopped at the deadline.
    Deadline = 2,
    /// The payload of the request does not decode as the service's type.
    Undecodable = 3,
    /// The request is longer than `limit`, the service's; the stream ends.
    RequestTooLarge = 4,
    /// The response is longer than `limit`, the service's; a limit of 0 means that serde can't encode the response.
    ResponseTooLarge = 5,
    /// The service was not called: it has too many streams. The stream ends.
    Busy = 6,
}

impl Status {
    fn of(byte: u8) -> Option<Self> {
        use Status::{
            Busy, Deadline, Error, RequestTooLarge, Response, ResponseTooLarge, Undecodable,
        };
        [Response, Error, Deadline, Undecodable, RequestTooLarge, ResponseTooLarge, Busy]
            .into_iter()
            .find(|status| *status as u8 == byte)
    }
}

/// The header of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct AnswerHeader {
    pub(super) status: Status,
    pub(super) length: u32,
    /// The limit that was exceeded.
    pub(super) limit: u32,
}

impl AnswerHeader {
    pub(super) fn emit(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&ANSWER);
        bytes[4] = self.status as u8;
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.limit.to_le_bytes());
        bytes
    }

    /// Reads a header; an error of the kind `InvalidData` if the peer sends something else.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = [0; ANSWER_BYTES];
        stream.read_exact(&mut bytes).await?;
        let (head, mut numbers) = bytes.split_at(8);
        match Status::of(head[4]).filter(|_| head[..4] == ANSWER && head[5..] == [0; 3]) {
            Some(status) => {
                Ok(Self { status, length: numbers.get_u32_le(), limit: numbers.get_u32_le() })
            }
            None => Err(no_frame("no answer of a service of calls")),
        }
    }
}

fn no_frame(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[expect(clippy::cast_possible_truncation, reason = "traces are bounded")]
const fn short(text: &str) -> u16 {
    text.len() as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::member::CHANGED;

    fn ready<T>(future: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("bytes in memory are there"),
        }
    }

    #[test]
    fn the_bytes_of_a_request_and_an_answer_are_frozen() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let header = RequestHeader {
            length: 0x0102,
            remaining: Some(Duration::from_micros(3)),
            trace: Trace::new(parent, "a=1").unwrap(),
        };
        let bytes = header.emit();
        let fixed = b"mpq1\x02\x01\0\0\x03\0\0\0\0\0\0\0\x37\0\x03\0\0\0\0\0";
        assert_eq!(bytes[..24], *fixed, "{CHANGED}");
        assert_eq!(bytes[24..], *format!("{parent}a=1").as_bytes());
        assert_eq!(ready(RequestHeader::read(&mut &bytes[..])).unwrap(), header);
        let answer = AnswerHeader { status: Status::ResponseTooLarge, length: 0, limit: 7 };
        assert_eq!(answer.emit(), *b"mpa1\x05\0\0\0\0\0\0\0\x07\0\0\0", "{CHANGED}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..700), plant: bool) {
            if plant && bytes.len() > 24 {
                bytes[..4].copy_from_slice(&REQUEST);
                bytes[17] &= 3;
                bytes[19] &= 3;
                bytes[20..24].fill(0);
            }
            let _ = ready(RequestHeader::read(&mut &bytes[..]));
            if plant && bytes.len() > 24 {
                bytes[..4].copy_from_slice(&ANSWER);
                bytes[4] &= 7;
                bytes[5..8].fill(0);
            }
            if let Ok(header) = ready(AnswerHeader::read(&mut &bytes[..])) {
                prop_assert_eq!(&header.emit()[..], &bytes[..16]);
            }
        }
    }
}
