//! Random numbers, the date and names, from the system or from the simulation of a simulated host.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(feature = "sim")]
use midplane_simhw::services::VirtualHost;

/// Returns whether this code runs on a simulated host.
#[cfg(any(all(feature = "fabric", target_os = "linux"), feature = "ofi"))]
pub(super) fn is_simulated() -> bool {
    #[cfg(feature = "sim")]
    return VirtualHost::current().is_some();
    #[cfg(not(feature = "sim"))]
    false
}

/// Returns the time since the system's start, with the time in which it was suspended. `None` if the system has no such
/// clock, and on a simulated host.
pub(crate) fn uptime() -> Option<Duration> {
    #[cfg(feature = "sim")]
    if VirtualHost::current().is_some() {
        return None;
    }
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
        Some(seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs()))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Draws a random number.
pub(crate) fn random() -> io::Result<u64> {
    #[cfg(feature = "sim")]
    if let Some(host) = VirtualHost::current() {
        return Ok(host.random());
    }
    getrandom::u64().map_err(io::Error::other)
}

/// Returns the milliseconds of the host's clock. In a simulation, the clock starts with the simulation.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock distinguishes a node from its former start"
)]
pub(crate) fn milliseconds() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(host) = VirtualHost::current() {
        return host.now().as_nanos() / 1_000_000;
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Resolves `HOST:PORT` to its addresses.
pub(super) async fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    #[cfg(feature = "sim")]
    if let Some(host) = VirtualHost::current() {
        return host.resolve(place).map(|address| vec![address]);
    }
    Ok(tokio::net::lookup_host(place).await?.collect())
}
