//! Finds this host's number and the addresses of all hosts.

use midplane::simhw::launch::{self, Launch, LaunchError};
use midplane::simhw::seal::PublicKey;

use crate::gang::daemon::Arguments;

/// Number of this host, from 0; `host:port` of all daemons in the order of hosts; their public keys, if the list has some;
/// and the slots of each host, if a hostfile gives them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Place {
    pub(crate) host: u16,
    pub(crate) peers: Vec<String>,
    pub(crate) keys: Vec<PublicKey>,
    pub(crate) slots: Option<u16>,
}

/// Finds this host's place by the options, or by the launcher's environment. A daemon without a key is alone.
///
/// # Errors
/// One line that names the option.
pub(crate) fn find(arguments: &Arguments) -> Result<Place, String> {
    let given = arguments.host;
    let checked = |place: Place| match place.peers.len().max(1) {
        hosts if usize::from(place.host) >= hosts => {
            Err(format!("--host {}: must be below {hosts}, the number of hosts", place.host))
        }
        _ => Ok(place),
    };
    if arguments.key.is_none() && arguments.secret_key.is_none() {
        return checked(Place { host: given.unwrap_or(0), ..Place::default() });
    }
    let by_hand = arguments.peers.is_some() || arguments.hostfile.is_some();
    let text = |error: LaunchError| error.to_string();
    let flags = Launch::new().peers(arguments.peers.clone()).hostfile(arguments.hostfile.clone());
    let flags = flags.port(arguments.port);
    let place = match given.is_some() || arguments.spread {
        true => None,
        false => match flags.place() {
            // Without --host and a launcher, this is host 0.
            Err(LaunchError::NoRank(_)) => None,
            place => place.map_err(text)?,
        },
    };
    match place {
        Some(place) if !by_hand => {
            let launch::ProcessGroup { rank, peers, keys } = place;
            Ok(Place { host: rank, peers, keys, slots: None })
        }
        place => {
            let (entries, keys) = flags.read_keyed_peers().map_err(text)?;
            let (peers, slots) = hosts(entries, arguments)?;
            let host = given.or_else(|| place.map(|place| place.rank)).unwrap_or(0);
            checked(Place { host, peers, keys, slots })
        }
    }
}

/// Merges the lines of a hostfile into one daemon for each host; a host's number of lines is its number of slots.
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
        return Err("--hostfile: give each host the same number of slots".into());
    }
    let peers = groups.iter().map(|group| group[0].clone()).collect();
    Ok((peers, u16::try_from(slots).ok()))
}
