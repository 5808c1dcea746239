//! Bounds the connections with other hosts that have not authenticated yet.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Most connections that have not authenticated yet, if one source has more than [`EACH`] of them, and otherwise: many
/// hosts may begin at once.
const MOST: (usize, usize) = (128, 1_024);
/// Connections that a host may have without being the first to lose one.
const EACH: usize = 8;
/// The part of an IPv6 address that names a network: one host may have all addresses of its network.
const NETWORK: u128 = u128::MAX << 64;

/// A connection whose other end has not authenticated yet.
#[derive(Debug)]
struct Waiting {
    connection: u64,
    source: IpAddr,
    /// Ends the connection when it is dropped.
    _ends: oneshot::Sender<()>,
}

/// The connections that have not authenticated yet, oldest first. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Unauthenticated(Arc<Mutex<Vec<Waiting>>>);

impl Unauthenticated {
    /// Adds a connection. If there are too many, drops the oldest one of the source that has the most, so that one
    /// source keeps no other out. The returned receiver completes once the added connection is dropped.
    pub(super) fn add(&self, connection: u64, from: IpAddr) -> oneshot::Receiver<()> {
        let (_ends, ended) = oneshot::channel();
        let mut all = self.lock();
        all.push(Waiting { connection, source: source_of(from), _ends });
        if all.len() > MOST.0 {
            let count = |of: &Waiting| all.iter().filter(|it| it.source == of.source).count();
            let most = all.iter().map(count).max().unwrap_or(0);
            let oldest = all.iter().position(|it| count(it) == most);
            if most > EACH || all.len() > MOST.1 {
                oldest.map(|at| all.remove(at));
            }
        }
        ended
    }

    /// Removes a connection that has authenticated or ended.
    pub(super) fn remove(&self, connection: u64) {
        self.lock().retain(|it| it.connection != connection);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what stands for all addresses that one host may have.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() & NETWORK).into(),
        it @ IpAddr::V4(_) => it,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    /// Regression: 64 silent connections of one host kept all daemons out.
    #[test]
    fn silent_connections_of_one_host_drop_each_other_and_keep_no_host_out() {
        let all = Unauthenticated::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut daemon = all.add(0, address("192.0.2.1"));
        let own = |number: u64| address(&format!("2001:db8::{number:x}"));
        let mut silent: Vec<_> = (1..=500).map(|number| all.add(number, own(number))).collect();
        let mut late = all.add(501, address("::ffff:192.0.2.2"));
        let are_open = |its: &mut oneshot::Receiver<()>| its.try_recv() == Err(TryRecvError::Empty);
        assert!(are_open(&mut daemon) && are_open(&mut late));
        let open: Vec<usize> = (0..500).filter(|at| are_open(&mut silent[*at])).collect();
        assert_eq!(open, (500 - (MOST.0 - 2)..500).collect::<Vec<_>>());
        (2..=500).for_each(|number| all.remove(number));
        assert_eq!(all.lock().len(), 2);
    }
}
