//! A daemon's NIC, with gang's and via's firmware, and the channels on it.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nicd::ServerConfig;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use tokio::sync::mpsc;

use super::super::channels::{self, CHECKPOINTER, Hold, PORT_SUSPENDER};
use super::super::hub::Event;
use super::super::local::Network;
use super::{DaemonOptions, Fabric, StartError};
use crate::firmware::Gang;
use crate::{GANG, GangConfig};

/// A NIC that runs, and whoever serves its ports; it stops when this is dropped.
pub(super) struct Nic {
    pub(super) network: Option<Network>,
    _held: Option<Box<dyn std::any::Any>>,
}

/// Starts the daemon's NIC, if it is to have one.
pub(super) async fn start_nic(
    options: &DaemonOptions,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<Nic, StartError> {
    let Some(fabric) = &options.fabric else { return Ok(Nic { network: None, _held: None }) };
    let text = |error: &dyn std::fmt::Display| StartError::Nic(error.to_string());
    let (host, cluster) = (options.host, options.cluster);
    let mut unit = Unit::default();
    let config = GangConfig { channels: cluster.slots + 1, ..GangConfig::default() };
    unit.install(GANG, Gang::new(config.port_suspender(PORT_SUSPENDER)))
        .map_err(|error| text(&error))?;
    let config = ViaConfig::default().checkpointer(CHECKPOINTER);
    unit.install(VIA, Via::new(config)).map_err(|error| text(&error))?;
    let served = ServerConfig::new(&fabric.name);
    let place = (host, cluster);
    let (held, tasks): (Box<dyn std::any::Any>, _) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            let ports = (hold, server.holders());
            let tasks = channels::start(&nic.host(), place, fabric.channels, ports, events.clone());
            (Box::new((server, nic)), tasks)
        }
        Fabric::Udp(addresses) => {
            // Nothing is paced but by the channels themselves.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(NodeId(host), addresses.clone()).line(line);
            let config = options.key.iter().cloned().fold(config, UdpConfig::key);
            let config = options.identity.iter().cloned().fold(config, UdpConfig::identity);
            let nic = UdpNic::start(config, unit).map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            let ports = (hold, server.holders());
            let tasks = channels::start(&nic.host(), place, fabric.channels, ports, events.clone());
            (Box::new((server, nic)), tasks)
        }
    };
    let tasks = tasks.map_err(|error| text(&error))?;
    let network = Some(Network { name: fabric.name.clone(), tasks });
    Ok(Nic { network, _held: Some(held) })
}
