//! A daemon's NIC, with gang's firmware, and the channels on it.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nicd::ServerConfig;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use tokio::sync::mpsc;

use super::super::channels;
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
    unit.install(GANG, Gang::new(config)).map_err(|error| text(&error))?;
    let served = ServerConfig::new(&fabric.name);
    let channels = |nic: &ShmOrUdp| match nic {
        ShmOrUdp::Shm(nic) => {
            channels::start(&nic.host(), (host, cluster), fabric.channels, events.clone())
        }
        ShmOrUdp::Udp(nic) => {
            channels::start(&nic.host(), (host, cluster), fabric.channels, events.clone())
        }
    };
    let (nic, server) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            (ShmOrUdp::Shm(nic), server)
        }
        Fabric::Udp(addresses) => {
            // Nothing is paced but by the channels themselves.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            let config = UdpConfig::new(NodeId(host), addresses.clone()).line(line);
            let config = options.key.iter().cloned().fold(config, UdpConfig::key);
            let nic = UdpNic::start(config, unit).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            (ShmOrUdp::Udp(nic), server)
        }
    };
    let tasks = channels(&nic).map_err(|error| text(&error))?;
    let network = Some(Network { name: fabric.name.clone(), tasks });
    Ok(Nic { network, _held: Some(Box::new((server, nic))) })
}

/// One of the live NICs.
enum ShmOrUdp {
    Shm(ShmNic),
    Udp(UdpNic),
}
