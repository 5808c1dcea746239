//! The switch's discard policy, as flags, scenario files and reports name it.

use clap::ValueEnum;
use midplane::simhw::switch::DiscardPolicy;
use serde::{Deserialize, Serialize};

/// Discard policy of a full buffer.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Discard {
    /// Drop packets or cells that do not fit
    #[default]
    Tail,
    /// Drop the same, and the rest of their messages (partial packet discard)
    #[serde(alias = "ppd")]
    #[value(alias = "ppd")]
    Partial,
    /// Refuse whole messages once the buffer is four fifths full (early packet discard)
    #[serde(alias = "epd")]
    #[value(alias = "epd")]
    Early,
}

impl From<Discard> for DiscardPolicy {
    fn from(discard: Discard) -> Self {
        match discard {
            Discard::Tail => Self::Tail,
            Discard::Partial => Self::Partial,
            Discard::Early => Self::EARLY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_files_take_the_same_names() {
        for name in ["tail", "partial", "ppd", "early", "epd"] {
            let of_file: Discard = serde_json::from_value(name.into()).unwrap();
            assert_eq!(Discard::from_str(name, false), Ok(of_file), "{name}");
        }
    }
}
