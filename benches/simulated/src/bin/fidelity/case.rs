//! A case: senders behind a narrow port, in virtual time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use midplane::Sim;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::network::Simulated;
use crate::traffic::{self, Measured, PORT, PROBE_PORT, Protocol};

/// Senders, and the port of a switch to their receiver.
#[derive(Args, Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Case {
    /// Hosts that send to one
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub senders: u32,
    /// Rate of the port, and of each sender's link, 10^6 bit/s of Ethernet
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub link_mbps: u64,
    /// Bytes that the port buffers
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(2_000..))]
    pub buffer_bytes: u32,
    /// Bytes of a message: a UDP datagram, or a write to a TCP connection
    #[arg(long, default_value_t = 1_400, value_parser = clap::value_parser!(u64).range(64..=65_507))]
    pub message_bytes: u64,
}

impl Case {
    /// Returns the time of a packet on the line. Real senders' clocks differ by as much; senders with exact clocks would stay in
    /// phase, and one of them would win every free place in the port's buffer.
    fn packet_time(&self) -> Duration {
        let packet = self.message_bytes.min(1_472) + 66;
        Duration::from_nanos(packet * 8_000 / self.link_mbps)
    }

    /// Measures the case in virtual time.
    pub fn simulate(&self, protocol: Protocol, measure: Duration) -> Result<Measured, Failure> {
        let builder = Sim::builder().link_mbps(self.link_mbps).port_buffer(self.buffer_bytes);
        let (mut sim, case) = (builder.jitter(self.packet_time()).build(), *self);
        let measured = Arc::new(Mutex::new(None));
        let out = Arc::clone(&measured);
        // The first host has the first address.
        sim.client(move |_| {
            let out = Arc::clone(&out);
            async move {
                let seen = traffic::receive::<Simulated>(protocol, case.senders, measure).await?;
                *out.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
                Ok(())
            }
        });
        let receiver = move |port| SocketAddr::from(([10, 0, 0, 1], port));
        for index in 0..self.senders {
            sim.host(format!("sender-{index}"), move |_| async move {
                let message = case.message_bytes as usize;
                traffic::send::<Simulated>(protocol, receiver(PORT), index, message).await
            });
        }
        sim.host("probe", move |_| traffic::probe::<Simulated>(receiver(PROBE_PORT)));
        sim.run()?;
        let measured = measured.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(measured.ok_or("the receiver has measured nothing")?)
    }
}
