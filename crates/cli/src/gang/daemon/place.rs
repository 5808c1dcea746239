//! Which of a cluster's hosts this one is, and where the others are.

use midplane::simhw::launch::{self, Launch, LaunchError};
use midplane::simhw::seal::PublicKey;

use crate::gang::daemon::Arguments;

/// This host among all, from 0, the daemons' `host:port` in the order of hosts, their keys, if the list has some, and
/// how many slots a hostfile gives to each.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Place {
    pub(crate) host: u16,
    pub(crate) peers: Vec<String>,
    pub(crate) keys: Vec<PublicKey>,
    pub(crate) slots: Option<u16>,
}

/// By the flags, or by what started this daemon as one of several; a daemon without a key is alone.
///
/// # Errors
/// One line.
pub(crate) fn find(arguments: &Arguments) -> Result<Place, String> {
    let said = arguments.host;
    let checked = |place: Place| match place.peers.len().max(1) {
        hosts if usize::from(place.host) >= hosts => {
            Err(format!("--host {}: there are {hosts}, counted from 0", place.host))
        }
        _ => Ok(place),
    };
    if arguments.key.is_none() && arguments.secret_key.is_none() {
        return checked(Place { host: said.unwrap_or(0), ..Place::default() });
    }
    let by_hand = arguments.peers.is_some() || arguments.hostfile.is_some();
    let text = |error: LaunchError| error.to_string();
    let flags = Launch::new().peers(arguments.peers.clone()).hostfile(arguments.hostfile.clone());
    let flags = flags.port(arguments.port);
    let place = match said.is_some() || arguments.spread {
        true => None,
        false => match flags.place() {
            // Nobody says which of them this is: the first.
            Err(LaunchError::NoRank(_)) => None,
            place => place.map_err(text)?,
        },
    };
    match place {
        Some(place) if !by_hand => {
            let launch::Place { rank, peers, keys } = place;
            Ok(Place { host: rank, peers, keys, slots: None })
        }
        place => {
            let (entries, keys) = flags.read_keyed_peers().map_err(text)?;
            let (peers, slots) = hosts(entries, arguments)?;
            let host = said.or_else(|| place.map(|place| place.rank)).unwrap_or(0);
            checked(Place { host, peers, keys, slots })
        }
    }
}

/// The daemons of a hostfile: one a host, whose lines give it slots and not daemons.
fn hosts(
    entries: Vec<String>,
    arguments: &Arguments,
) -> Result<(Vec<String>, Option<u16>), String> {
    if arguments.hostfile.is_none() {
        return Ok((entries, None));
    }
    let name = |entry: &str| entry.rsplit_once(':').map_or("", |(name, _)| name).to_owned();
    let groups: Vec<&[String]> = entries.chunk_by(|a, b| name(a) == name(b)).collect();
    let slots = groups.first().map_or(0, |group| group.len());
    if groups.iter().any(|group| group.len() != slots) {
        return Err("--hostfile: each host has the same number of slots".into());
    }
    let peers = groups.iter().map(|group| group[0].clone()).collect();
    Ok((peers, u16::try_from(slots).ok()))
}
