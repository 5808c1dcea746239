//! One-way times of messages that two simulated processes bounce.

use midplane::simhw::hardware::Firmware;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Port};
use midplane::simhw::region::Region;
use midplane::simhw::sim::{SimHost, World};
use midplane_kit::report::text;

/// Timed round trips; in virtual time all take the same, but for credits.
const ROUNDS: u64 = 100;
/// Cookie of the command that receives.
const RECEIVED: u64 = 1;

/// One simulated process, which sends a message, and receives it.
pub trait End: Send + 'static {
    /// Sends the message to the other process.
    fn send(&mut self) -> impl Future<Output = Result<(), String>> + Send;
    /// Receives the message from the other process.
    fn receive(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Bounces a message between two processes on the hosts `nodes`; returns the time of one way, in microseconds.
///
/// # Errors
/// One line: what failed.
pub fn one_way_us<F: Firmware + Send + 'static, E: End>(
    mut world: World<F>,
    nodes: [NodeId; 2],
    [near, far]: [impl Future<Output = Result<E, String>> + Send + 'static; 2],
) -> Result<f64, String> {
    world.spawn(nodes[1], async move {
        let Ok(mut far) = far.await else { return };
        while far.receive().await.is_ok() && far.send().await.is_ok() {}
    });
    let host = world.host(nodes[0]);
    let measured = world.block_on(nodes[0], async move {
        let mut near = near.await?;
        let mut began = host.now();
        for round in 0..=ROUNDS {
            if round == 1 {
                began = host.now();
            }
            near.send().await?;
            near.receive().await?;
        }
        Ok::<_, String>(host.now().nanos_since(began))
    });
    let nanos = measured.ok_or("a simulated process waits for ever")??;
    Ok(nanos as f64 / (2 * ROUNDS) as f64 / 1e3)
}

/// A process that sends a region through its port, and fills it from there.
pub struct PortEnd {
    host: SimHost,
    port: Port,
    region: Region,
    peer: NodeId,
    /// Opcodes of the firmware's commands to send and to receive, and their first arguments.
    opcodes: [u8; 2],
    args: [u64; 2],
    /// Processor time of the layer above, for each message, in ns.
    work_ns: u64,
}

impl PortEnd {
    /// Opens a port for messages of `bytes` to and from `peer`.
    ///
    /// # Errors
    /// One line: what the NIC refused.
    pub async fn open(
        host: SimHost,
        peer: NodeId,
        bytes: usize,
        (opcodes, args): ([u8; 2], [u64; 2]),
        work_ns: u64,
    ) -> Result<Self, String> {
        let mut port = host.open_port().map_err(text)?;
        let region = port.register(bytes).map_err(text)?;
        let mut end = Self { host, port, region, peer, opcodes, args, work_ns };
        end.post(1)?;
        end.port.ring();
        // Waits until the other process has posted its first buffer as well.
        end.host.sleep_until(end.host.now().plus_nanos(1_000_000)).await;
        Ok(end)
    }

    fn post(&mut self, which: usize) -> Result<(), String> {
        let (opcode, cookie) = (self.opcodes[which], which as u64 * RECEIVED);
        let (region, args) = (self.region.whole(), [self.args[which], 0, 0]);
        let node = self.peer;
        let command = Command { opcode, node, region, cookie, args, ..Command::default() };
        self.port.post(&command).map_err(text)
    }
}

impl End for PortEnd {
    async fn send(&mut self) -> Result<(), String> {
        self.host.compute(self.work_ns).await;
        // The message, and the buffer of the next one.
        self.post(0)?;
        self.post(1)?;
        self.port.ring();
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), String> {
        while self.port.completion().await.map_err(text)?.cookie != RECEIVED {}
        self.host.compute(self.work_ns).await;
        Ok(())
    }
}
