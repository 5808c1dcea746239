//! Typed messages; only this module uses the codec.
//!
//! The format is bincode's legacy encoding: little-endian, fixed-width integers, `u32` enum tags, `u64`
//! lengths, no trailing bytes. Each number has exactly one encoding. Types on the wire are plain: no recursion,
//! no sequences of zero-sized elements, no maps.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Most bytes of a typed message.
pub const LIMIT: usize = 65_536;

/// The reason why a typed message could not be written or read.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum WireError {
    /// The message needs more than the given space, or more than [`LIMIT`].
    #[error("the message needs more than {room} bytes")]
    TooLong {
        /// Bytes of the given space.
        room: usize,
    },
    /// Serde can't encode the value: because of its type, or because its `Serialize` refuses it.
    #[error(
        "serde can't encode the value: its type has `flatten` or a sequence of unknown length, for which a map or a `Vec` \
         works, or its `Serialize` refuses this value, such as a path that is not UTF-8"
    )]
    Unencodable,
    /// The bytes do not decode to a message of this type.
    #[error("the bytes do not decode to this type of message")]
    Malformed,
    /// Bytes follow the message.
    #[error("{0} bytes after the message")]
    Trailing(usize),
}

/// Most bytes of a value in a file.
pub(crate) const LONG_LIMIT: usize = 1 << 30;

const fn config() -> impl bincode::config::Config {
    bincode::config::legacy().with_limit::<LIMIT>()
}

const fn long() -> impl bincode::config::Config {
    bincode::config::legacy().with_limit::<LONG_LIMIT>()
}

/// Encodes a value for a file, not for the wire, into a new buffer.
///
/// # Errors
/// [`WireError::TooLong`] beyond 1 GiB, which [`decode_long`] would not decode; [`WireError::Unencodable`].
#[doc(hidden)]
pub fn encode_long<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    let encoded = bincode::serde::encode_to_vec(value, long());
    within(LONG_LIMIT, encoded.map_err(|_| WireError::Unencodable)?)
}

/// Decodes a value of [`encode_long`] that fills `bytes` exactly.
///
/// # Errors
/// [`WireError::Malformed`] if the bytes do not decode to a `T`, [`WireError::Trailing`] if bytes follow it.
#[doc(hidden)]
pub fn decode_long<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (value, used) =
        bincode::serde::decode_from_slice(bytes, long()).map_err(|_| WireError::Malformed)?;
    match bytes.len() - used {
        0 => Ok(value),
        left => Err(WireError::Trailing(left)),
    }
}

/// Most bytes of a request, an answer or another value of an application.
#[doc(hidden)]
pub const VALUE_LIMIT: usize = 16 << 20;

const fn value() -> impl bincode::config::Config {
    bincode::config::legacy().with_limit::<VALUE_LIMIT>()
}

/// Encodes an application's value, which may be longer than [`LIMIT`], into a new buffer.
///
/// # Errors
/// [`WireError::TooLong`] above [`VALUE_LIMIT`], [`WireError::Unencodable`].
#[doc(hidden)]
pub fn encode_value<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let encoded = bincode::serde::encode_to_vec(message, value());
    within(VALUE_LIMIT, encoded.map_err(|_| WireError::Unencodable)?)
}

/// Returns the bytes, if there are at most `room`.
fn within(room: usize, bytes: Vec<u8>) -> Result<Vec<u8>, WireError> {
    if bytes.len() > room { Err(WireError::TooLong { room }) } else { Ok(bytes) }
}

/// Decodes a value of [`encode_value`] that fills `bytes` exactly.
///
/// A hostile sender can make it keep as many elements as there are `bytes`, each of the size of its type: 264 bytes for
/// one byte with a `Vec<Option<[u64; 32]>>`. The type may not be recursive, nor hold sequences of values without bytes:
/// neither the depth nor the number of such values is limited.
///
/// # Errors
/// [`WireError::Malformed`] if the bytes do not decode to a `T`, [`WireError::Trailing`] if bytes follow it.
#[doc(hidden)]
pub fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (message, used) =
        bincode::serde::decode_from_slice(bytes, value()).map_err(|_| WireError::Malformed)?;
    match bytes.len() - used {
        0 => Ok(message),
        left => Err(WireError::Trailing(left)),
    }
}

/// Encodes `message` at the start of `buffer`; returns the number of bytes used. It does not allocate.
///
/// # Errors
/// [`WireError::TooLong`] if the message does not fit.
#[doc(hidden)]
pub fn encode_into<T: Serialize>(message: &T, buffer: &mut [u8]) -> Result<usize, WireError> {
    let room = buffer.len().min(LIMIT);
    bincode::serde::encode_into_slice(message, &mut buffer[..room], config())
        .map_err(|_| WireError::TooLong { room })
}

/// Encodes `message` into a new buffer.
///
/// # Errors
/// [`WireError::TooLong`] above [`LIMIT`], [`WireError::Unencodable`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let encoded = bincode::serde::encode_to_vec(message, config());
    within(LIMIT, encoded.map_err(|_| WireError::Unencodable)?)
}

/// Decodes one message that fills `bytes` exactly.
///
/// # Errors
/// [`WireError::Malformed`] if the bytes do not decode to a `T`, [`WireError::Trailing`] if bytes follow it,
/// [`WireError::TooLong`] above [`LIMIT`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { room: LIMIT });
    }
    let (message, used) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|_| WireError::Malformed)?;
    match bytes.len() - used {
        0 => Ok(message),
        left => Err(WireError::Trailing(left)),
    }
}

/// Decodes one message at the start of `bytes`, and ignores the bytes after it, which a later version may have
/// appended.
///
/// # Errors
/// [`WireError::Malformed`] if the bytes do not begin with a `T`, [`WireError::TooLong`] above [`LIMIT`].
#[doc(hidden)]
pub fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > LIMIT {
        return Err(WireError::TooLong { room: LIMIT });
    }
    let decoded = bincode::serde::decode_from_slice(bytes, config());
    decoded.map(|(message, _)| message).map_err(|_| WireError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    enum Message {
        Empty,
        Pair(u16, i64),
        Text { words: Vec<String>, flag: Option<bool> },
    }

    fn any_message() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::Empty),
            any::<(u16, i64)>().prop_map(|(a, b)| Message::Pair(a, b)),
            (proptest::collection::vec(".{0,9}", 0..5), any::<Option<bool>>())
                .prop_map(|(words, flag)| Message::Text { words, flag }),
        ]
    }

    #[test]
    fn the_bytes_of_a_message_are_frozen() {
        let bytes = encode(&Message::Pair(0x0102, -2)).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 2, 1, 0xFE, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn a_value_that_serde_cannot_encode_is_not_called_too_long() {
        #[derive(Serialize)]
        struct Flat {
            #[serde(flatten)]
            more: std::collections::BTreeMap<String, u32>,
        }
        let flat = Flat { more: Default::default() };
        assert_eq!(encode(&flat), Err(WireError::Unencodable));
        assert_eq!(encode_value(&flat), Err(WireError::Unencodable));
        assert_eq!(encode(&vec![0_u8; LIMIT]), Err(WireError::TooLong { room: LIMIT }));
    }

    /// A value that its own type refuses.
    struct Refused;

    impl Serialize for Refused {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not now"))
        }
    }

    /// Regression: the text named types alone, though `Serialize` may refuse a single value of a type.
    #[test]
    fn the_error_of_a_value_that_its_type_refuses_fits_it() {
        let error = encode(&Refused).unwrap_err();
        assert_eq!(error, WireError::Unencodable);
        let text = error.to_string();
        for part in ["flatten", "`Vec` works", "`Serialize` refuses this value"] {
            assert!(text.contains(part), "{text}");
        }
    }

    proptest! {
        #[test]
        fn messages_survive_and_cut_or_grown_ones_are_refused(message in any_message()) {
            let mut bytes = encode(&message).unwrap();
            prop_assert_eq!(&decode::<Message>(&bytes).unwrap(), &message);
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode::<Message>(&bytes[..cut]), Err(WireError::Malformed));
            }
            bytes.push(0);
            prop_assert_eq!(decode::<Message>(&bytes), Err(WireError::Trailing(1)));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = decode::<Message>(&bytes) {
                prop_assert_eq!(encode(&message).unwrap(), bytes);
            }
        }

        #[test]
        fn a_message_that_does_not_fit_is_refused(message in any_message(), room in 0_usize..40) {
            let mut buffer = vec![0; room];
            let length = encode(&message).unwrap().len();
            let result = encode_into(&message, &mut buffer);
            prop_assert_eq!(result, if length <= room { Ok(length) } else { Err(WireError::TooLong { room }) });
        }
    }
}
