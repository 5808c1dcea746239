//! Serializes the bytes of messages: as bytes in binary formats, as hexadecimal digits in text formats.

use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return bytes.serialize(serializer);
    }
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a `String` never fails.
        let _ = write!(text, "{byte:02x}");
    }
    serializer.serialize_str(&text)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    if !deserializer.is_human_readable() {
        return Bytes::deserialize(deserializer);
    }
    let text = String::deserialize(deserializer)?;
    let digits = text.as_bytes();
    if digits.len() % 2 != 0 {
        return Err(D::Error::custom("an odd number of hexadecimal digits"));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes: Option<Vec<u8>> =
        digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
    bytes.map(Bytes::from).ok_or_else(|| D::Error::custom("not hexadecimal digits"))
}
