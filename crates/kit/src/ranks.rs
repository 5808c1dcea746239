//! Flags that name the ranks of a run, for all programs.

use std::io::Error;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use midplane_simhw::launch::{Launch, ProcessGroup};
use midplane_simhw::nic::StartError;
use midplane_simhw::udp::{ResolveError, resolve_peers};

use crate::report::Failure;

/// Addresses of the ranks of a run.
#[derive(Args, Clone, Debug, Default)]
pub struct Peers {
    /// File with one host:port a line, in the order of ranks; "-" reads them from standard input, up to an empty line
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,

    /// Instead of --peers: file with one host a line, "HOST", "HOST slots=N" or "HOST:N"; ranks fill one host after
    /// another
    #[arg(long, value_name = "FILE", conflicts_with = "peers")]
    hostfile: Option<PathBuf>,

    /// Port of each host's first rank, with a hostfile or a launcher; default: 24700
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

impl Peers {
    fn launch(&self) -> Launch {
        Launch::new().peers(self.peers.clone()).hostfile(self.hostfile.clone()).port(self.port)
    }

    /// Reads every rank's `host:port`; at least one.
    ///
    /// # Errors
    /// One line that names the argument.
    pub fn read(&self) -> Result<Vec<String>, String> {
        match self.launch().read_peers() {
            Ok(peers) if peers.is_empty() => Err("--peers: list the addresses of all ranks".into()),
            Ok(peers) => Ok(peers),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Flags of this process's rank in a run. Values that are not given come from srun, mpirun, PMI or an indexed
/// Kubernetes job, if one of them has started this process.
#[derive(Args, Clone, Debug, Default)]
pub struct Ranks {
    /// Rank of this process, from 0
    #[arg(long)]
    rank: Option<u16>,

    /// Number of processes; default: the number of peers
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    size: Option<u16>,

    #[command(flatten)]
    /// Addresses of all ranks.
    pub peers: Peers,

    /// Name of the headless service of an indexed Kubernetes job
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
}

impl Ranks {
    /// Returns this process's place; `None` if it is alone.
    ///
    /// # Errors
    /// One line that names the argument or the variable.
    pub fn place(&self) -> Result<Option<ProcessGroup>, String> {
        let launch = self.peers.launch().rank(self.rank).size(self.size.map(usize::from));
        launch.service(self.service.clone()).place().map_err(|error| error.to_string())
    }
}

/// Returns all ranks' addresses, after checking that this process's own is free. Retries unknown names for `wait`.
///
/// # Errors
/// One line that names the argument and the remedy.
pub fn addresses(place: &ProcessGroup, wait: Duration) -> Result<Vec<SocketAddr>, Failure> {
    let peers = place.addresses(wait).map_err(unresolved)?;
    let own = peers[usize::from(place.rank)];
    UdpSocket::bind(own).map(|_| peers).map_err(|error| refused(own, &error).into())
}

/// Returns the address of a flag's `host:port`.
///
/// # Errors
/// One line that names the flag.
pub fn resolve(flag: &str, text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| format!("{flag} {text}: it must be host:port with a host that resolves");
    resolve_peers(&[text.to_owned()]).map(|found| found[0]).map_err(wrong)
}

/// Returns the addresses of a service's peers, each a `host:port`.
///
/// # Errors
/// One line that names --peers.
pub fn resolve_all(peers: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    resolve_peers(peers).map_err(unresolved)
}

/// Returns the error of a program whose peers were not resolved. A name service that is down may be up later, so that
/// is no bad input.
pub fn unresolved(error: ResolveError) -> Failure {
    let what = format!("--peers: {error}");
    match error {
        ResolveError::Unknown { .. } | ResolveError::TimedOut => Failure::of_run(what),
        _ => what.into(),
    }
}

/// Listens on this process's own address, for TCP.
///
/// # Errors
/// One line that names the argument and the remedy.
pub fn listen(own: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(own).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| refused(own, &error))
}

fn refused(own: SocketAddr, error: &Error) -> String {
    format!("--peers: {}", StartError::of_address(own, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FAILED;

    /// Regression: a name service that is down was bad input, of ranks alone.
    #[test]
    fn a_rank_whose_name_does_not_resolve_is_no_bad_input() {
        let peers = vec!["rank-0.invalid:1".to_owned()];
        let place = ProcessGroup { rank: 0, peers, keys: Vec::new() };
        assert_eq!(addresses(&place, Duration::ZERO).unwrap_err().code(), FAILED);
        assert_eq!(unresolved(ResolveError::TimedOut).code(), FAILED);
    }
}
