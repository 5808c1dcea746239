//! A daemon's NIC, with gang's and via's firmware, and the channels on it.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::nicd::{Admitted, ServerConfig};
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{UdpConfig, UdpNic};
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use tokio::sync::mpsc;

use super::super::channels::{self, CHECKPOINTER, Hold, ProcessGroups};
use super::super::event::Event;
use super::options::{DaemonOptions, Fabric, StartError};
use crate::firmware::Gang;
use crate::port_suspender::{ARRIVAL_WATCHER, PORT_SUSPENDER};
use crate::steps::StepQueue;
use crate::{GANG, GangConfig};

/// A NIC that runs, and the server of its ports. It stops when this is dropped.
#[derive(Default)]
pub(super) struct Nic {
    /// The ranks' channels, if the daemon has a fabric.
    pub(super) channels: Option<StepQueue>,
    /// The users whose ranks may open ports, if the daemon has a fabric.
    pub(super) admitted: Admitted,
    _held: Option<Box<dyn std::any::Any>>,
}

/// Starts the daemon's NIC, if it is to have one.
pub(super) async fn start_nic(
    options: &DaemonOptions,
    about: (ProcessGroups, mpsc::UnboundedSender<Event>),
) -> Result<Nic, StartError> {
    let Some(fabric) = &options.fabric else { return Ok(Nic::default()) };
    let text = |error: &dyn std::fmt::Display| StartError::Nic(error.to_string());
    let (host, cluster) = (options.host, options.cluster);
    let mut unit = Unit::default();
    let config = GangConfig { channels: cluster.slots + 1, ..GangConfig::default() };
    let config = config.port_suspender(PORT_SUSPENDER).arrival_watcher(ARRIVAL_WATCHER);
    unit.install(GANG, Gang::new(config)).map_err(|error| text(&error))?;
    let config = ViaConfig::default().checkpointer(CHECKPOINTER);
    unit.install(VIA, Via::new(config)).map_err(|error| text(&error))?;
    let served = ServerConfig::new(&fabric.name);
    let place = (host, cluster);
    let (held, admitted, steps): (Box<dyn std::any::Any>, _, _) = match &fabric.fabric {
        Fabric::Shm => {
            let nodes = cluster.hosts.max(2);
            let nic = ShmNic::start(ShmConfig::new(&fabric.name, NodeId(host), nodes), unit);
            let nic = nic.map_err(|error| text(&error))?;
            let hold = Hold::open(&nic.host()).map_err(|error| text(&error))?;
            let server = nic.serve_ports(served).map_err(|error| text(&error))?;
            let (ports, admitted) = ((hold, server.holders()), server.admitted());
            let steps = channels::start(&nic.host(), place, fabric.channels, ports, about);
            (Box::new((server, nic)), admitted, steps)
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
            let (ports, admitted) = ((hold, server.holders()), server.admitted());
            let steps = channels::start(&nic.host(), place, fabric.channels, ports, about);
            (Box::new((server, nic)), admitted, steps)
        }
    };
    let steps = steps.map_err(|error| text(&error))?;
    Ok(Nic { channels: Some(steps), admitted, _held: Some(held) })
}
