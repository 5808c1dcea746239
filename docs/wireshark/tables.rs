//! The tables of the dissector, for tests that compare them with the protocol's types.

use std::collections::BTreeMap;
use std::fmt::Debug;

use midplane_simhw::wire::{self, WireError};
use serde::de::DeserializeOwned;

/// Numbers and what the dissector calls them.
pub(crate) type Names = BTreeMap<u64, String>;

const DISSECTOR: &str = include_str!("midplane.lua");

/// Reads the dissector's table of this name.
///
/// # Panics
/// If there is none, or it has an entry that is no number and its name.
pub(crate) fn table(name: &str) -> Names {
    let (_, rest) = DISSECTOR.split_once(&format!("local {name} = {{")).expect(name);
    let (body, _) = rest.split_once('}').expect(name);
    let entries = body.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let read = |entry: &str| {
        let (key, value) = entry.strip_prefix('[')?.split_once("] = \"")?;
        let number = match key.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => key.parse(),
        };
        Some((number.ok()?, value.strip_suffix('"')?.to_owned()))
    };
    entries.map(|entry| read(entry).unwrap_or_else(|| panic!("{name}: {entry}"))).collect()
}

/// Names numbers of one's own, to be compared with a table.
#[allow(dead_code, reason = "some crates have enums alone")]
pub(crate) fn names<const N: usize>(of: [(u8, &str); N]) -> Names {
    of.into_iter().map(|(number, name)| (number.into(), name.to_owned())).collect()
}

/// Finds the variants of an enum by decoding: their numbers on the wire, and their names.
///
/// # Panics
/// If there is a variant that zeros do not decode to.
#[allow(dead_code, reason = "some crates have flags alone")]
pub(crate) fn variants<T: DeserializeOwned + Debug>() -> Names {
    let decode = |number: u64| {
        let mut bytes = vec![0; 4_096];
        bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        let Err(WireError::Trailing(left)) = wire::decode::<T>(&bytes) else { return None };
        bytes.truncate(bytes.len() - left);
        Some((number, variant(&wire::decode::<T>(&bytes).expect("it was one just now"))))
    };
    (0..256).map_while(decode).collect()
}

/// The name of a value's variant.
pub(crate) fn variant(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.chars().take_while(char::is_ascii_alphanumeric).collect()
}
