//! The transports that a node may use.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// The words of [`NodeBuilder::transports`](super::NodeBuilder::transports), in the order of preference.
#[cfg(feature = "ofi")]
pub(super) const WORDS: [&str; 4] = ["shm", "ofi", "udp", "tcp"];
/// The words without libfabric.
#[cfg(not(feature = "ofi"))]
pub(super) const WORDS: [&str; 3] = ["shm", "udp", "tcp"];
/// The environment variable with the same meaning.
pub(super) const VARIABLE: &str = "MIDPLANE_TRANSPORTS";

/// The transports that a node may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Transports([bool; WORDS.len()]);

impl Transports {
    /// Parses a list of words separated by commas, in any order; `origin` names the setting in errors.
    pub(super) fn parse(list: &str, origin: &str) -> Result<Self, Error> {
        let known = WORDS.join(", ");
        let needs_feature = |word: &str| word == "ofi" && !WORDS.contains(&word);
        let wrong = |what: String| {
            let text = format!("{origin}: {what}; list some of {known}, with commas between");
            Error::new(ErrorKind::Config, text)
        };
        let mut allowed = [false; WORDS.len()];
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let Some(at) = WORDS.iter().position(|known| *known == word) else {
                let why = if needs_feature(word) { ": it needs the feature `ofi`" } else { "" };
                return Err(wrong(format!("{word:?} is no transport{why}")));
            };
            allowed[at] = true;
        }
        if allowed == [false; WORDS.len()] {
            return Err(wrong("no transport is left".into()));
        }
        Ok(Self(allowed))
    }

    /// Returns whether shared memory between nodes of one host is allowed.
    pub(super) const fn shm(self) -> bool {
        self.0[0]
    }

    /// Returns whether UDP is allowed. It also connects nodes of one host if shared memory is not allowed.
    pub(super) const fn udp(self) -> bool {
        self.0[WORDS.len() - 2]
    }

    /// Returns whether TCP is allowed, for peers that UDP does not reach.
    pub(super) const fn tcp(self) -> bool {
        self.0[WORDS.len() - 1]
    }

    /// Returns whether libfabric's NICs are allowed, between nodes that are connected over UDP or TCP.
    #[cfg(feature = "ofi")]
    pub(super) const fn ofi(self) -> bool {
        self.0[1]
    }

    /// Returns whether a word is allowed.
    pub(super) fn allows(self, word: &str) -> bool {
        self.words().any(|allowed| allowed == word)
    }

    /// Returns the allowed words, in the order of preference.
    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        WORDS.into_iter().zip(self.0).filter(|(_, is_allowed)| *is_allowed).map(|(word, _)| word)
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_any_order_are_read_and_others_are_errors_that_list_them() {
        let all = Transports::parse("tcp, shm,udp", "here").unwrap();
        assert_eq!(all.to_string(), "shm,udp,tcp");
        let tcp = Transports::parse("tcp", "here").unwrap();
        assert_eq!((tcp.shm(), tcp.udp(), tcp.tcp()), (false, false, true));
        for (list, what) in [("shm,quic", "\"quic\""), (" , ", "no transport"), ("SHM", "\"SHM\"")]
        {
            let error = Transports::parse(list, VARIABLE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let text = error.to_string();
            for part in [what, VARIABLE, "shm, ", "udp, tcp"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
