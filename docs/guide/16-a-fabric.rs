use std::task::{Context, Poll};
use std::time::Duration;

use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::drops::DropCause;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::nic::custom::{CustomConfig, CustomNic, FrameLink};
use midplane::simhw::time::LineRate;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Most frames in flight from one node to another.
const DEPTH: usize = 64;

/// One node's ends of the channels to and from each other node.
pub(crate) struct ChannelLink {
    /// By node; this node's own entry is never used.
    to: Vec<Sender<Vec<u8>>>,
    /// By node; `None` once the node has ended.
    from: Vec<Option<Receiver<Vec<u8>>>>,
    /// The node whose channel is polled first, so that no node waits forever behind another's frames.
    turn: usize,
}

impl ChannelLink {
    /// Connects `nodes` nodes of this process, each to each other.
    pub(crate) fn connect(nodes: u16) -> Vec<Self> {
        let mut links: Vec<Self> =
            (0..nodes).map(|_| Self { to: Vec::new(), from: Vec::new(), turn: 0 }).collect();
        for sender in 0..links.len() {
            for receiver in 0..links.len() {
                // A bounded channel for each pair: frames that a node has not received stay at their sender.
                let (to, from) = channel(DEPTH);
                links[sender].to.push(to);
                links[receiver].from.push(Some(from));
            }
        }
        links
    }
}

impl FrameLink for ChannelLink {
    fn nodes(&self) -> u16 {
        u16::try_from(self.to.len()).expect("made for as many")
    }

    fn line_rate(&self) -> LineRate {
        LineRate::mbps(10_000)
    }

    fn has_room(&mut self, to: NodeId, staged: usize) -> bool {
        let channel = &self.to[to.index()];
        // A frame to a node that has ended is accepted, and dropped when it is sent: the firmware need not try again.
        channel.capacity() > staged || channel.is_closed()
    }

    fn send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), DropCause> {
        self.to[to.index()].try_send(frame.to_vec()).map_err(|error| match error {
            TrySendError::Closed(_) => DropCause::NicDown,
            TrySendError::Full(_) => DropCause::BufferFull,
        })
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<(NodeId, Vec<u8>)> {
        let nodes = self.from.len();
        for step in 0..nodes {
            let at = (self.turn + step) % nodes;
            let Some(channel) = &mut self.from[at] else { continue };
            match channel.poll_recv(context) {
                Poll::Ready(Some(frame)) => {
                    self.turn = (at + 1) % nodes;
                    let node = u16::try_from(at).expect("fewer than 65,536 nodes");
                    return Poll::Ready((NodeId(node), frame));
                }
                // The sender was dropped, so nothing would wake this task.
                Poll::Ready(None) => self.from[at] = None,
                // The channel wakes the task.
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }
}

/// Starts a NIC whose firmware carries messages.
fn start(node: u16, link: ChannelLink) -> Result<CustomNic, Box<dyn std::error::Error>> {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new())?;
    Ok(CustomNic::start(CustomConfig::new(NodeId(node)), unit, link)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut links = ChannelLink::connect(2).into_iter().zip(0..);
        let (link, node) = links.next().expect("two were made");
        let near = start(node, link)?;
        let (link, node) = links.next().expect("two were made");
        let far = start(node, link)?;

        let mut inbox = near.host().open_port()?;
        let memory = inbox.register(100)?;
        inbox.submit(&messages::receive(memory.whole(), 0))?;
        // Waits until the NIC has taken the receive: without one, it drops the message.
        tokio::time::sleep(Duration::from_millis(20)).await;

        let mut port = far.host().open_port()?;
        let text = port.register(5)?;
        text.write(0, b"hello")?;
        port.submit(&messages::send(NodeId(0), PortId(0), text.whole(), 0))?;
        port.completion().await?;
        assert_eq!(inbox.completion().await?.length, 5);
        near.shutdown().await;
        far.shutdown().await;
        Ok(())
    })
}
