//! Cookies: a source proves that it receives at its address before any state is stored for it.

use std::net::{IpAddr, SocketAddr};

use midplane_simhw::time::Instant;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};

use super::super::pipe::packet::COOKIE_BYTES;

/// Nanoseconds of a cookie's period; a cookie is valid for one to two periods.
const PERIOD: u64 = 10_000_000_000;

/// Makes and checks cookies.
#[derive(Debug)]
pub(super) struct Cookies {
    secret: [u8; 32],
}

impl Cookies {
    pub(super) const fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// Makes the cookie of a source for the connection `dialer`.
    pub(super) fn make(&self, now: Instant, from: SocketAddr, dialer: u64) -> [u8; COOKIE_BYTES] {
        self.of_period(now.as_nanos() / PERIOD, from, dialer)
    }

    /// Returns whether a source shows a cookie of this period or the one before.
    pub(super) fn is_good(
        &self,
        now: Instant,
        from: SocketAddr,
        dialer: u64,
        cookie: [u8; COOKIE_BYTES],
    ) -> bool {
        let period = now.as_nanos() / PERIOD;
        cookie == self.of_period(period, from, dialer)
            || period.checked_sub(1).is_some_and(|old| cookie == self.of_period(old, from, dialer))
    }

    fn of_period(&self, period: u64, from: SocketAddr, dialer: u64) -> [u8; COOKIE_BYTES] {
        let mut data = [0; 34];
        let ip = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        data[..16].copy_from_slice(&ip.octets());
        data[16..18].copy_from_slice(&from.port().to_le_bytes());
        data[18..26].copy_from_slice(&period.to_le_bytes());
        data[26..].copy_from_slice(&dialer.to_le_bytes());
        let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
        let mut hash = hash.expect("the build has the hash of the handshake");
        let mut code = [0; 64];
        hash.hmac(&self.secret, &data, &mut code);
        std::array::from_fn(|at| code[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_source_and_time_alone() {
        let cookies = Cookies::new([7; 32]);
        let from = "10.0.0.1:5".parse().unwrap();
        let at = Instant::from_nanos(3 * PERIOD);
        let cookie = cookies.make(at, from, 9);
        assert!(cookies.is_good(at, from, 9, cookie));
        assert!(cookies.is_good(at.plus_nanos(PERIOD), from, 9, cookie));
        assert!(!cookies.is_good(at.plus_nanos(2 * PERIOD), from, 9, cookie));
        assert!(!cookies.is_good(at, "10.0.0.1:6".parse().unwrap(), 9, cookie));
        assert!(!cookies.is_good(at, from, 8, cookie));
    }
}
