//! A node's log, and the host of a follower, which stalls now and then.

use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::port::{Command, Port, PortOptions};
use midplane::simhw::region::Region;

use super::extension::{ENTRY, LOG, QUORUM};
use super::{LONGEST, entry};
use crate::calls::{Call, Server};
use crate::fleet::{Meeting, text};

/// Time for which a follower's host stalls, once in a hundred entries or milliseconds.
const STALL: Duration = Duration::from_millis(1);
/// Time limit for the last entries to reach all nodes.
const SETTLE: Duration = Duration::from_secs(20);

pub(crate) struct Log {
    pub(crate) port: Port,
    memory: Region,
    server: Server,
}

impl Log {
    /// Posts a log to the NIC.
    pub(crate) async fn open(host: &impl Host) -> Result<Self, String> {
        let server = Server::open(host, ENTRY)?;
        let mut port = host.open_port_with(PortOptions::default().depth(256)).map_err(text)?;
        let memory = port.register(LONGEST as usize * ENTRY).map_err(text)?;
        let (extension, region) = (QUORUM, memory.whole());
        port.submit(&Command { extension, opcode: LOG, region, ..Command::default() })
            .map_err(text)?;
        port.completion().await.map_err(text)?;
        Ok(Self { port, memory, server })
    }

    /// Acknowledges entries that come to this host, until the leader is done.
    pub(crate) async fn follow(
        &mut self,
        host: &impl Host,
        meeting: &mut Meeting,
    ) -> Result<(), String> {
        let mut rng = host.rng("stalls");
        let mut met = std::pin::pin!(meeting.barrier());
        loop {
            tokio::select! {
                biased;
                ended = &mut met => return ended,
                call = self.server.next() => {
                    if let Some(call) = call? {
                        self.keep(&call)?;
                    }
                }
                () = host.sleep_until(host.now() + Duration::from_millis(1)) => {}
            }
            if rng.chance(0.01) {
                host.sleep_until(host.now() + STALL).await;
            }
        }
    }

    /// Writes an entry, and acknowledges it.
    fn keep(&mut self, call: &Call) -> Result<(), String> {
        self.memory.write(call.word as usize * ENTRY, &call.bytes).map_err(text)?;
        self.server.answer(call, 0, &[])
    }

    /// Counts the decided entries that are missing here, once the last ones had time to arrive.
    pub(crate) async fn lacking(&mut self, host: &impl Host, decided: u64) -> Result<u64, String> {
        let until = host.now() + SETTLE;
        loop {
            let mut lacking = 0;
            for number in 0..decided {
                let mut there = [0; ENTRY];
                self.memory.read(number as usize * ENTRY, &mut there).map_err(text)?;
                lacking += u64::from(there != entry(number));
            }
            if lacking == 0 || host.now() >= until {
                return Ok(lacking);
            }
            tokio::select! {
                biased;
                call = self.server.next() => {
                    if let Some(call) = call? {
                        self.keep(&call)?;
                    }
                }
                () = host.sleep_until(host.now() + Duration::from_millis(10)) => {}
            }
        }
    }

    pub(crate) fn clear(&self, entries: u64) -> Result<(), String> {
        self.memory.write(0, &vec![0; entries as usize * ENTRY]).map_err(text)
    }
}
