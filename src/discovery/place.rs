//! A place where a node may be.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use midplane_simhw::seal::PublicKey;
use thiserror::Error;

/// Names a place where a node may be: `HOST:PORT`. The host is an address, in brackets if it is IPv6, or a name, which
/// may have many addresses. A public key of 64 hexadecimal digits may follow after a space: then only a node that
/// proves to have it is accepted there.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place {
    text: String,
    address: Option<SocketAddr>,
    key: Option<PublicKey>,
}

/// The error of a text that names no place.
#[derive(Clone, Eq, Error, PartialEq)]
#[error(
    "{0:?} is not HOST:PORT or HOST:PORT KEY; name a place such as \"10.0.0.1:4700\", \"[fd00::1]:4700\" or \"orders.internal:4700\""
)]
pub struct NoPlace(String);

impl fmt::Debug for NoPlace {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl Place {
    /// Returns the address of a place that is named by an address.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the public key that the node there must have, if the place states one.
    #[must_use]
    pub const fn key(&self) -> Option<PublicKey> {
        self.key
    }

    /// Returns whether the place is on this host for certain: a loopback address, or the name `localhost`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self.address {
            Some(address) => address.ip().to_canonical().is_loopback(),
            None => {
                let host = self.text.rsplit_once(':').map_or("", |(host, _)| host);
                let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
                host == "localhost" || host.ends_with(".localhost")
            }
        }
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self { text: address.to_string(), address: Some(address), key: None }
    }
}

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let text = text.trim();
        let wrong = || NoPlace(text.chars().take(100).collect());
        let (text, key) = match text.split_once(char::is_whitespace) {
            Some((text, key)) => (text, Some(key.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        let address = text.parse().ok();
        // A longer name is not a name of DNS.
        let is_name = !host.is_empty()
            && host.len() <= 255
            && host
                .chars()
                .all(|c| !c.is_whitespace() && !c.is_control() && !"[]:/,#@".contains(c));
        match is_port && (address.is_some() || is_name) {
            true => Ok(Self { text: text.to_owned(), address, key }),
            false => Err(wrong()),
        }
    }
}

/// Prints the place without its key.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hosts_with_ports_and_nothing_else() {
        for (text, is_loopback) in [
            ("10.0.0.1:4700", false),
            (" 127.3.2.1:1 ", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("[fd00::1]:80", false),
            ("LocalHost.:80", true),
            ("db.localhost:80", true),
            ("localhost.example:80", false),
            ("my_pod-0.svc:24700", false),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.is_loopback(), is_loopback, "{text}");
            assert_eq!(place.to_string(), text.trim());
        }
        let digits = "0a".repeat(32);
        let place: Place = format!("a:1 \t{digits}").parse().unwrap();
        assert_eq!(place.key().map(|key| key.to_string()), Some(digits.clone()));
        assert_eq!(place.to_string(), "a:1");
        for wrong in ["a:1 0a", &format!("a:1 {digits} b"), &format!("a: {digits}"), &digits] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
        for wrong in [
            "",
            "nowhere",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:x",
            "::1:80",
            "[::1]",
            "a b:1",
            "http://a:1",
        ] {
            let error = wrong.parse::<Place>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?} is not HOST:PORT")), "{error}");
        }
        assert!(format!("{}:1", "a".repeat(300)).parse::<Place>().is_err());
    }
}
