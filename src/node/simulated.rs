//! The settings of a node on a simulated host.

use std::net::SocketAddr;
use std::sync::Arc;

use midplane_simhw::services::{Hosts, VirtualHost};

use super::NodeBuilder;
use super::transports::{Transports, VARIABLE};
use crate::discovery::List;
use crate::error::{Error, ErrorKind};

/// The UDP port of simulated nodes whose builder binds none.
const PORT: u16 = 4_700;

impl NodeBuilder {
    /// On a simulated host, sets the name and address of the host, UDP, and the places of all other hosts unless others
    /// were given to discover. All hosts trust each other, like those of a cluster on a private network.
    pub(super) fn on_simulated_host(&mut self) -> Result<(), Error> {
        let Some(host) = VirtualHost::current() else { return Ok(()) };
        let refused = |what: &str| {
            Err(Error::new(
                ErrorKind::Config,
                format!("{what} in a simulation: leave it out there"),
            ))
        };
        if self.is_gossiping {
            return refused("there is no gossip");
        }
        if let Some(list) = &self.transports
            && !Transports::parse(list, VARIABLE)?.udp()
        {
            return refused("there are no transports but UDP");
        }
        self.transports = Some("udp".to_owned());
        self.name.get_or_insert_with(|| host.name().to_owned());
        self.bind.get_or_insert_with(|| SocketAddr::new(host.ip(), PORT));
        self.is_trusted = true;
        if self.discover.is_empty() {
            let places = host.hosts().nodes().map(|node| SocketAddr::new(Hosts::ip(node), PORT));
            let list = List::new(places.map(Into::into).collect());
            self.discover.push(Arc::new(list));
        }
        Ok(())
    }
}
