//! Brings all nodes of a run together, before, between and after its measured parts.

use std::time::Duration;

use midplane::nicvm::collective::{self, Operation};
use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Completion, Port, PortOptions, Status};
use midplane::simhw::region::Region;

use super::{COME_UP, text};

/// Interval at which a started process says hello to rank 0.
const SAY_SO: Duration = Duration::from_millis(20);

/// Barrier and reductions over all nodes, before, between and after the measured parts.
pub(crate) struct Meeting {
    port: Port,
    words: Region,
    /// Kept open, so that later ports have the same numbers at all nodes.
    _listener: Option<Port>,
}

impl Meeting {
    /// Waits until all nodes have started.
    pub(crate) async fn new(host: &impl Host, nodes: u16) -> Result<Self, String> {
        let mut listener =
            host.open_port_with(PortOptions::default().number(PortId(0))).map_err(text)?;
        let mut port = host.open_port().map_err(text)?;
        let words = port.register(collective::SMALL).map_err(text)?;
        let listener = if host.node() == NodeId(0) {
            greet(host, listener, nodes).await?;
            None
        } else {
            let memory = listener.register(16).map_err(text)?;
            let (hello, lent) = (memory.range(0, 8), memory.range(8, 8));
            let (hello, lent) = hello.zip(lent).expect("within it");
            listener.submit(&messages::receive(lent, 1)).map_err(text)?;
            let until = host.now() + COME_UP;
            'up: while host.now() < until {
                listener.submit(&messages::send(NodeId(0), PortId(0), hello, 0)).map_err(text)?;
                host.sleep_until(host.now() + SAY_SO).await;
                while let Some(done) = listener.poll() {
                    if done.cookie == 1 {
                        break 'up;
                    }
                }
            }
            if host.now() >= until {
                return Err(format!("rank 0 did not come up in {COME_UP:?}"));
            }
            Some(listener)
        };
        let mut meeting = Self { port, words, _listener: listener };
        meeting.barrier().await?;
        Ok(meeting)
    }

    /// Waits for all nodes.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn barrier(&mut self) -> Result<(), String> {
        self.port.submit(&collective::barrier(0)).map_err(text)?;
        self.ended().await
    }

    /// Sums the words of all nodes, up to eleven; every node gets the sums.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn sum(&mut self, words: &mut [u64]) -> Result<(), String> {
        self.combine(Operation::Sum, words).await
    }

    /// Combines the words of all nodes by `operation`.
    ///
    /// # Errors
    /// One line, if one is lost.
    pub(crate) async fn combine(
        &mut self,
        operation: Operation,
        words: &mut [u64],
    ) -> Result<(), String> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.words.write(0, &bytes).map_err(text)?;
        let region = self.words.range(0, bytes.len()).expect("no more than eleven words");
        self.port.submit(&collective::all_reduce(operation, region, 0)).map_err(text)?;
        self.ended().await?;
        self.words.read(0, &mut bytes).map_err(text)?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(())
    }

    async fn ended(&mut self) -> Result<(), String> {
        match self.port.completion().await.map_err(text)?.status {
            Status::Done => Ok(()),
            status => Err(format!("a node is lost: a collective ended as {status:?}")),
        }
    }
}

/// Runs rank 0's part: collects the nodes' hellos and answers each node once all have started, and again whenever a
/// node repeats its hello.
async fn greet(host: &impl Host, mut listener: Port, nodes: u16) -> Result<(), String> {
    let memory = listener.register(8 * usize::from(nodes) * 4).map_err(text)?;
    let slot = |at: u64| memory.range(8 * at as usize, 8).expect("within it");
    for at in 1..u64::from(nodes) * 4 {
        listener.post(&messages::receive(slot(at), at)).map_err(text)?;
    }
    listener.ring();
    let mut up = vec![false; nodes.into()];
    up[0] = true;
    let until = host.now() + COME_UP;
    while up.contains(&false) {
        while let Some(done) = listener.poll() {
            up[done.node.index()] = true;
            listener.submit(&messages::receive(slot(done.cookie), done.cookie)).map_err(text)?;
        }
        if host.now() > until {
            let missing = up.iter().position(|up| !up).unwrap_or(0);
            return Err(format!("rank {missing} did not come up in {COME_UP:?}"));
        }
        host.sleep_until(host.now() + SAY_SO / 4).await;
    }
    for node in (1..nodes).map(NodeId) {
        listener.submit(&messages::send(node, PortId(0), slot(0), 0)).map_err(text)?;
    }
    host.spawn(async move {
        let memory = memory;
        let slot = |at: u64| memory.range(8 * at as usize, 8).expect("within it");
        // A stopped NIC needs no answers.
        while let Ok(Completion { status: Status::Done, cookie, node, .. }) =
            listener.completion().await
        {
            if cookie > 0 {
                let posted = listener
                    .post(&messages::receive(slot(cookie), cookie))
                    .and_then(|()| listener.submit(&messages::send(node, PortId(0), slot(0), 0)));
                if posted.is_err() {
                    return;
                }
            }
        }
    });
    Ok(())
}
