//! The trailer of a message, behind its bytes, so that the bytes are used where they were received.
//!
//! ```text
//! item of a stream     bytes, 0
//! end of a stream      1
//! request              bytes, number of the answer's tag (4 bytes, little-endian)
//! answer               bytes, 0; or the text of an error, 1
//! ```

use bytes::Bytes;

/// Bytes of the tag behind a request.
pub(super) const TAG_BYTES: usize = 4;

const PLAIN: u8 = 0;
const OTHER: u8 = 1;

/// The message has no valid trailer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Malformed;

fn with_byte(bytes: &[u8], last: u8) -> Vec<u8> {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.extend_from_slice(bytes);
    message.push(last);
    message
}

/// Makes an item of a stream.
pub(super) fn item(bytes: &[u8]) -> Vec<u8> {
    with_byte(bytes, PLAIN)
}

/// Makes the end of a stream.
pub(super) fn end() -> Vec<u8> {
    vec![OTHER]
}

/// Parses an item of a stream; returns `None` for its end.
pub(super) fn parse_item(mut message: Vec<u8>) -> Result<Option<Bytes>, Malformed> {
    match message.pop() {
        Some(PLAIN) => Ok(Some(message.into())),
        Some(OTHER) if message.is_empty() => Ok(None),
        _ => Err(Malformed),
    }
}

/// Makes a request whose answer is sent with `tag`.
pub(super) fn request(bytes: &[u8], tag: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(bytes.len() + TAG_BYTES);
    message.extend_from_slice(bytes);
    message.extend_from_slice(&tag.to_le_bytes());
    message
}

/// Parses a request; returns its bytes and its answer's tag.
pub(super) fn parse_request(mut message: Vec<u8>) -> Result<(Bytes, u32), Malformed> {
    let (rest, tag) = message.split_last_chunk::<TAG_BYTES>().ok_or(Malformed)?;
    let (length, tag) = (rest.len(), u32::from_le_bytes(*tag));
    message.truncate(length);
    Ok((message.into(), tag))
}

/// Makes an answer: bytes, or the text of an error.
pub(super) fn answer(result: Result<&[u8], &str>) -> Vec<u8> {
    match result {
        Ok(bytes) => with_byte(bytes, PLAIN),
        Err(text) => with_byte(text.as_bytes(), OTHER),
    }
}

/// Parses an answer.
pub(super) fn parse_answer(mut message: Vec<u8>) -> Result<Result<Bytes, String>, Malformed> {
    match message.pop() {
        Some(PLAIN) => Ok(Ok(message.into())),
        Some(OTHER) => Ok(Err(String::from_utf8_lossy(&message).into_owned())),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_said_is_understood(bytes: Vec<u8>, tag: u32, text: String) {
            let plain = Bytes::from(bytes.clone());
            prop_assert_eq!(parse_item(item(&bytes)), Ok(Some(plain.clone())));
            prop_assert_eq!(parse_item(end()), Ok(None));
            prop_assert_eq!(parse_request(request(&bytes, tag)), Ok((plain.clone(), tag)));
            prop_assert_eq!(parse_answer(answer(Ok(&bytes))), Ok(Ok(plain)));
            prop_assert_eq!(parse_answer(answer(Err(&text))), Ok(Err(text)));
        }

        #[test]
        fn any_bytes_are_something_or_refused(bytes: Vec<u8>) {
            if let Ok(Some(plain)) = parse_item(bytes.clone()) {
                prop_assert_eq!(item(&plain), &bytes[..]);
            }
            if let Ok((plain, tag)) = parse_request(bytes.clone()) {
                prop_assert_eq!(request(&plain, tag), &bytes[..]);
            }
            let _ = parse_answer(bytes);
        }
    }
}
