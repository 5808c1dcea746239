//! The places that a node's discoveries return, with their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_simhw::seal::PublicKey;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::ANSWER_WITHIN;
use super::state::Shared;
use crate::discovery::{AnyDiscovery, Place};
use crate::error::{Error, ErrorKind};

/// Most places that a node takes from its discoveries.
const MOST: usize = 4_096;
/// Limit of the time in which each discovery must answer before the node starts: its places decide which address the
/// node binds.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time for which the addresses of a name, and the failure to find any, are not asked for again: a search repeats many
/// times a second, on each of many nodes.
const RESOLVED_FOR: Duration = Duration::from_secs(2);
const UNRESOLVED_FOR: Duration = Duration::from_millis(500);

/// A node's discoveries, and the places that they have returned.
#[derive(Debug, Default)]
pub(super) struct Places {
    sources: Vec<Source>,
    names: Arc<Names>,
    /// Why places of the last search could not be dialed.
    problems: Mutex<Vec<(String, String)>>,
}

#[derive(Debug)]
struct Source {
    discovery: Arc<dyn AnyDiscovery>,
    last: Mutex<Answer>,
}

/// The last answer of a discovery, and the error since then, if any.
#[derive(Clone, Debug, Default)]
struct Answer {
    places: Vec<Place>,
    error: Option<String>,
}

/// The names among the places, and their addresses.
#[derive(Debug, Default)]
struct Names {
    all: Mutex<BTreeMap<Place, Name>>,
    resolved: Notify,
}

/// A name's last addresses, and the error since then, if any.
#[derive(Debug, Default)]
struct Name {
    addresses: Vec<SocketAddr>,
    error: Option<String>,
    is_under_way: bool,
    /// When it is to be resolved anew.
    again_at: Option<Instant>,
}

/// Addresses that a node can dial, and the keys that discovery states for the nodes at some of them.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) addresses: BTreeSet<SocketAddr>,
    pub(super) keys: BTreeSet<(SocketAddr, PublicKey)>,
}

impl Source {
    /// Calls the discovery. After an error, or without an answer in time, returns the last answer.
    async fn ask(&self) -> Answer {
        let asked = timeout(ANSWER_WITHIN, self.discovery.places()).await;
        let mut last = lock(&self.last);
        let error = match asked {
            Ok(Ok(places)) => {
                *last = Answer { places, error: None };
                return last.clone();
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a discovery has not answered within 1 s".to_owned(),
        };
        if last.error.as_ref() != Some(&error) {
            tracing::warn!(%error, "the places of the last answer are used");
        }
        last.error = Some(error);
        last.clone()
    }
}

impl Places {
    /// Calls the discoveries for the first time.
    pub(super) async fn new(discoveries: Vec<Arc<dyn AnyDiscovery>>) -> Result<Self, Error> {
        let sources = discoveries.into_iter();
        let sources = sources.map(|discovery| Source { discovery, last: Mutex::default() });
        let this = Self { sources: sources.collect(), ..Self::default() };
        let until = Instant::now() + FIRST_ANSWER_WITHIN;
        for source in &this.sources {
            let until = until.max(Instant::now() + ANSWER_WITHIN);
            let asked = timeout_at(until, source.discovery.places()).await;
            if let Ok(answer) = asked {
                let wrong = |error| Error::new(ErrorKind::Config, format!("{error}"));
                lock(&source.last).places = answer.map_err(wrong)?;
            }
        }
        Ok(this)
    }

    /// Returns the places of the last answers.
    fn last(&self) -> Vec<Place> {
        self.sources.iter().flat_map(|source| lock(&source.last).places.clone()).collect()
    }

    /// Returns a place that is listed with a key, if there is one.
    pub(super) fn keyed(&self) -> Option<Place> {
        self.last().into_iter().find(|place| place.key().is_some())
    }

    /// Returns the address that a node without `bind` binds, if its discoveries need one. It is loopback for places on
    /// this host; otherwise one that other hosts reach, if `is_open` permits it.
    pub(super) fn own_address(&self, is_open: bool) -> Result<Option<SocketAddr>, Error> {
        if self.sources.is_empty() {
            return Ok(None);
        }
        let places = self.last();
        let remote = places.iter().find(|place| !place.is_loopback());
        if let Some(remote) = remote.filter(|_| !is_open) {
            let text = format!(
                "{remote} is a place on another host: give the node a key (`NodeBuilder::key_file`), or call \
                 `trusted_network` if all who can send to this host may join"
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        let is_v6 = |place: &Place| place.address().is_some_and(|address| address.is_ipv6());
        let is_v6 = !places.is_empty() && places.iter().all(is_v6);
        // A discovery that returns no place yet may return other hosts later.
        let reaches_others = is_open && (remote.is_some() || places.is_empty());
        let ip: IpAddr = match (reaches_others, is_v6) {
            (true, false) => Ipv4Addr::UNSPECIFIED.into(),
            (true, true) => Ipv6Addr::UNSPECIFIED.into(),
            (false, false) => Ipv4Addr::LOCALHOST.into(),
            (false, true) => Ipv6Addr::LOCALHOST.into(),
        };
        let port = self.sources.iter().find_map(|source| source.discovery.own_port()).unwrap_or(0);
        Ok(Some(SocketAddr::new(ip, port)))
    }

    /// Calls the discoveries, and resolves names; returns the addresses that a node at `own` can dial. Takes at most 1
    /// s for each discovery, and 1 s for the names. A later search uses answers that take longer.
    pub(super) async fn addresses(&self, shared: &Arc<Shared>, own: Option<SocketAddr>) -> Reached {
        let (mut places, mut problems) = (BTreeSet::new(), Vec::new());
        for source in &self.sources {
            let Answer { places: named, error } = source.ask().await;
            problems.extend(error.map(|error| ("discovery".to_owned(), error)));
            places.extend(named);
        }
        if places.is_empty() && problems.is_empty() && !self.sources.is_empty() {
            problems.push((
                "discovery".to_owned(),
                "it names no place now: check its file, or the environment that it reads"
                    .to_owned(),
            ));
        }
        while places.len() > MOST {
            places.pop_last();
        }
        self.resolve(shared, &places).await;
        let mut reached = Reached::default();
        for place in &places {
            let found = match place.address() {
                Some(address) => Ok(vec![address]),
                None => self.names.addresses(place),
            };
            let found = found.and_then(|found| reachable(&found, own));
            match found {
                Ok(addresses) => {
                    let keys = addresses.iter().filter_map(|at| Some((*at, place.key()?)));
                    reached.keys.extend(keys);
                    reached.addresses.extend(addresses);
                }
                Err(why) => problems.push((place.to_string(), why)),
            }
        }
        *lock(&self.problems) = problems;
        reached
    }

    /// Resolves the names among the places.
    async fn resolve(&self, shared: &Arc<Shared>, places: &BTreeSet<Place>) {
        lock(&self.names.all).retain(|place, name| name.is_under_way || places.contains(place));
        let until = Instant::now() + ANSWER_WITHIN;
        for place in places.iter().filter(|place| place.address().is_none()) {
            let mut all = lock(&self.names.all);
            let name = all.entry(place.clone()).or_default();
            let is_due = name.again_at.is_none_or(|at| at <= Instant::now());
            if is_due && !std::mem::replace(&mut name.is_under_way, true) {
                let (names, shared, place) =
                    (Arc::clone(&self.names), Arc::clone(shared), place.clone());
                // Continues if this search is cancelled or has ended: a later one uses the addresses.
                let runtime = shared.runtime.clone();
                runtime.spawn(async move {
                    let found = shared.network().resolve(&place.to_string()).await;
                    names.on_resolved(&place, found);
                });
            }
        }
        loop {
            let resolved = self.names.resolved.notified();
            if !self.names.is_any_under_way(places) || timeout_at(until, resolved).await.is_err() {
                return;
            }
        }
    }

    /// Returns the places that the last search could not dial, and why.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        lock(&self.problems).clone()
    }
}

impl Names {
    fn on_resolved(&self, place: &Place, found: std::io::Result<Vec<SocketAddr>>) {
        let mut all = lock(&self.all);
        if let Some(name) = all.get_mut(place) {
            name.is_under_way = false;
            let again_after = match found {
                Ok(addresses) => {
                    (name.addresses, name.error) = (addresses, None);
                    RESOLVED_FOR
                }
                Err(error) => {
                    name.error = Some(error.to_string());
                    UNRESOLVED_FOR
                }
            };
            name.again_at = Some(Instant::now() + again_after);
        }
        drop(all);
        self.resolved.notify_waiters();
    }

    fn is_any_under_way(&self, places: &BTreeSet<Place>) -> bool {
        lock(&self.all).iter().any(|(place, name)| name.is_under_way && places.contains(place))
    }

    /// Returns the last known addresses of a name.
    fn addresses(&self, place: &Place) -> Result<Vec<SocketAddr>, String> {
        match lock(&self.all).get(place) {
            Some(name) if !name.addresses.is_empty() => Ok(name.addresses.clone()),
            Some(Name { error: Some(error), .. }) => Err(format!("has no address: {error}")),
            _ => Err("has no address yet".to_owned()),
        }
    }
}

/// Returns the addresses of a place that a node at `own` can send to, in the form that its socket uses; if there are
/// none, the reason.
pub(super) fn reachable(
    found: &[SocketAddr],
    own: Option<SocketAddr>,
) -> Result<Vec<SocketAddr>, String> {
    let Some(own) = own else { return Ok(found.to_vec()) };
    let ours = |address: &SocketAddr| match (own.ip(), address.ip()) {
        (IpAddr::V4(_), IpAddr::V6(ip)) => {
            Some(SocketAddr::new(ip.to_ipv4_mapped()?.into(), address.port()))
        }
        // A socket bound to all IPv6 addresses sends to IPv4 addresses as well.
        (IpAddr::V6(own), IpAddr::V4(ip)) if own.is_unspecified() => {
            Some(SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()))
        }
        (IpAddr::V6(_), IpAddr::V4(_)) => None,
        _ => Some(*address),
    };
    let of_kind: Vec<_> = found.iter().filter_map(ours).collect();
    if of_kind.is_empty() {
        return Err(format!(
            "this node is bound to {own}, which does not send to addresses of the other version of IP: bind [::]:0"
        ));
    }
    let is_here = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
    let reached: Vec<_> =
        of_kind.into_iter().filter(|address| !is_here(&own) || is_here(address)).collect();
    match reached.is_empty() {
        false => Ok(reached),
        true => Err(format!(
            "it is on another host, and this node is bound to {own}: bind another address, or give the node a key before \
             it starts"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::network::{Network, Resolving};
    use super::*;
    use crate::member::{Hello, Target};

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_dials_the_addresses_that_its_own_can_send_to() {
        let reach = |own: &str, found: &[&str]| {
            let found: Vec<_> = found.iter().map(|text| address(text)).collect();
            reachable(&found, Some(address(own))).map(|reached| {
                reached.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            })
        };
        let localhost = ["[::1]:7", "127.0.0.1:7"];
        assert_eq!(reach("127.0.0.1:1", &localhost).unwrap(), "127.0.0.1:7");
        assert_eq!(reach("0.0.0.0:1", &localhost).unwrap(), "127.0.0.1:7");
        assert_eq!(reach("[::1]:1", &localhost).unwrap(), "[::1]:7");
        assert_eq!(reach("[::]:1", &localhost).unwrap(), "[::1]:7 [::ffff:127.0.0.1]:7");
        assert_eq!(reach("0.0.0.0:1", &["[::ffff:10.0.0.1]:7"]).unwrap(), "10.0.0.1:7");
        assert!(reach("0.0.0.0:1", &["[fd00::1]:7"]).unwrap_err().contains("[::]:0"));
        assert!(reach("127.0.0.1:1", &["10.0.0.1:7"]).unwrap_err().contains("another host"));
        assert_eq!(reach("127.0.0.1:1", &["10.0.0.1:7", "127.0.0.1:7"]).unwrap(), "127.0.0.1:7");
    }

    /// Resolves `fast:1` at once, `slow:1` after `may_answer`, and nothing while `is_down`.
    #[derive(Debug, Default)]
    struct Names {
        may_answer: Notify,
        is_down: AtomicBool,
    }

    impl Network for Arc<Names> {
        fn local(&self) -> BTreeSet<u64> {
            BTreeSet::new()
        }

        fn dial(&self, _: Target) -> io::Result<Arc<midplane_via::session::Session>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn resolve<'a>(&'a self, place: &'a str) -> Resolving<'a> {
            Box::pin(async move {
                if self.is_down.load(Ordering::Relaxed) {
                    return Err(io::Error::other("no name server"));
                }
                if place == "slow:1" {
                    self.may_answer.notified().await;
                }
                Ok(vec![address(if place == "slow:1" { "127.0.0.1:2" } else { "127.0.0.1:1" })])
            })
        }
    }

    #[tokio::test]
    async fn a_slow_name_stops_no_other_and_names_keep_their_addresses_when_no_server_answers() {
        let names = Arc::new(Names::default());
        let (sessions, _driver) = midplane_via::session::Sessions::new(None, None).unwrap();
        let hello = Hello {
            version: crate::member::VERSION,
            id: 1,
            incarnation: 1,
            name: "own".into(),
            services: Vec::new(),
            rival: 0,
            cluster: "a".into(),
            key: [0; 32],
            is_kept: false,
            refusal: 0,
            ofi: Vec::new(),
        };
        let members = crate::member::Members::new(&hello, None);
        let shared = Shared::new(sessions, Box::new(Arc::clone(&names)), hello, members);
        let list = ["fast:1", "slow:1", "127.0.0.1:3"].map(|place| place.parse().unwrap());
        let list: Arc<dyn AnyDiscovery> = Arc::new(crate::discovery::List::new(list.into()));
        let places = Places::new(vec![list]).await.unwrap();
        let find = async || {
            let found = places.addresses(&shared, Some(address("127.0.0.1:9"))).await;
            found.addresses.iter().map(|address| address.port()).collect::<Vec<_>>()
        };
        assert_eq!(find().await, [1, 3]);
        let late = ("slow:1".to_owned(), "has no address yet".to_owned());
        assert_eq!(places.problems(), [late]);
        names.may_answer.notify_one();
        // The first search's query is still in progress: its answer serves this search.
        assert_eq!(find().await, [1, 2, 3]);
        assert_eq!(places.problems(), []);
        names.is_down.store(true, Ordering::Relaxed);
        assert_eq!(find().await, [1, 2, 3]);
    }

    /// A discovery that takes longer than a search waits.
    #[derive(Debug)]
    struct Slow;

    impl crate::discovery::Discovery for Slow {
        async fn places(&self) -> Result<Vec<Place>, crate::discovery::DiscoveryError> {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            Ok(vec!["10.0.0.1:1".parse()?])
        }
    }

    #[tokio::test]
    async fn the_places_of_a_slow_discovery_decide_which_address_is_bound() {
        let places = Places::new(vec![Arc::new(Slow)]).await.unwrap();
        assert_eq!(places.own_address(true).unwrap().unwrap().to_string(), "0.0.0.0:0");
        assert_eq!(places.own_address(false).unwrap_err().kind(), ErrorKind::Config);
    }

    #[tokio::test]
    async fn the_own_address_is_open_only_to_places_elsewhere_and_with_leave() {
        let bound = async |list: &[&str], is_open| {
            let places = list.iter().map(|place| place.parse().unwrap()).collect();
            let list: Arc<dyn AnyDiscovery> = Arc::new(crate::discovery::List::new(places));
            let places = Places::new(vec![list]).await.unwrap();
            places.own_address(is_open).map(|address| address.unwrap().to_string())
        };
        assert_eq!(bound(&["localhost:1"], true).await.unwrap(), "127.0.0.1:0");
        assert_eq!(bound(&["[::1]:1"], false).await.unwrap(), "[::1]:0");
        assert_eq!(bound(&["10.0.0.1:1"], true).await.unwrap(), "0.0.0.0:0");
        assert_eq!(bound(&["[fd00::1]:1"], true).await.unwrap(), "[::]:0");
        assert_eq!(bound(&[], true).await.unwrap(), "0.0.0.0:0");
        assert_eq!(bound(&[], false).await.unwrap(), "127.0.0.1:0");
        for places in [&["10.0.0.1:1"][..], &["127.0.0.1:1", "orders.internal:1"]] {
            let error = bound(places, false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("trusted_network"), "{error}");
        }
        assert_eq!(Places::new(Vec::new()).await.unwrap().own_address(false).unwrap(), None);
    }
}
