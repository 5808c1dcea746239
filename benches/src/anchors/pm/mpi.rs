//! MPI on PM's channels, with the time that its library takes from the paper's processors, and Table 2's MPI rows.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::channel::Channel;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::process::SuspendHandle;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::sim::SimHost;
use midplane::via::message::carrier::{Carrier, Event, Refusal};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Envelope, Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::transport::InitError;

use super::processor::Processor;
use super::{pair, world};
use crate::anchors::measure::{Anchor, Origin};

/// Time of the library for each packet at each end, in nanoseconds. Fitted to the 12.0 us of Table 2; the library of the
/// paper is another one.
pub(in crate::anchors) const PACKET_NS: u64 = 1_685;

/// A channel's carrier that takes the process's processor for each packet: the library's work, and one copy between the
/// channel's FIFO and the process's memory, at the price of the host's profile. So a FIFO empties no faster than the
/// processor copies.
pub struct MpiCarrier {
    channel: ChannelCarrier,
    processor: Processor,
    /// True once the work for the next packet to be posted is charged.
    is_charged: bool,
    /// True if the next packet to be posted precedes packets that have arrived.
    posts_first: bool,
    /// Wakes the process's task once the processor is idle.
    alarm: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl MpiCarrier {
    /// Creates a carrier over a channel of the process that has `processor`.
    pub fn new(channel: Channel, processor: Processor) -> Self {
        Self {
            channel: ChannelCarrier::new(channel),
            processor,
            is_charged: false,
            posts_first: false,
            alarm: Box::pin(std::future::pending()),
        }
    }

    fn is_idle(&self) -> bool {
        self.processor.left().is_zero()
    }
}

/// Charges the work for a packet of `bytes`.
fn charge(processor: &Processor, bytes: usize) {
    let nanos = PACKET_NS + processor.host().profile().copy.nanos(bytes);
    processor.charge(Duration::from_nanos(nanos));
}

impl Carrier for MpiCarrier {
    fn own(&self) -> Peer {
        self.channel.own()
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        self.channel.connect(peers)
    }

    fn room(&self) -> usize {
        self.channel.room()
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        if !self.is_charged {
            charge(&self.processor, payload.len());
            (self.is_charged, self.posts_first) = (true, true);
        }
        if !self.is_idle() {
            return Err(Refusal::Full);
        }
        let posted = self.channel.post(to, envelope, payload);
        // If the FIFO is full, arrived packets come first: their answers may free some of it.
        (self.is_charged, self.posts_first) = (posted == Err(Refusal::Full), false);
        posted
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        if !self.is_idle() || std::mem::take(&mut self.posts_first) {
            return None;
        }
        let event = self.channel.poll()?;
        if let Event::Packet { payload, .. } = &event {
            charge(&self.processor, payload.len());
        }
        Some(event)
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        if self.is_idle() {
            return self.channel.arm_wakeup(waker);
        }
        let processor = self.processor.clone();
        self.alarm = Box::pin(async move { processor.idle().await });
        self.alarm.as_mut().poll(&mut Context::from_waker(waker)).is_pending()
    }

    fn is_flushed(&mut self) -> bool {
        self.channel.is_flushed()
    }

    fn close(&mut self) {
        self.channel.close();
    }
}

/// Measures Table 2's rows of MPI.
pub fn table_2() -> Vec<Anchor> {
    let (latency, bandwidth) = transfer().expect("all messages arrive");
    let fitted = Origin::Fitted("the library's time for each packet");
    vec![
        Anchor::new(fitted, "Table 2, least latency of MPI", "us", 12.0, latency),
        Anchor::new(Origin::Predicted, "Table 2, most bandwidth of MPI", "MB/s", 36.8, bandwidth),
    ]
}

const TAG: Tag = Tag(1);

/// Returns a process's communicator of the two processes.
fn join(channel: Channel, host: &SimHost) -> Communicator {
    let processor = Processor::new(host.clone(), SuspendHandle::new());
    let engine = Engine::new(MpiCarrier::new(channel, processor), Config::default());
    Communicator::world(engine, 2).expect("both ranks are there")
}

/// Measures messages through a channel: the one-way time of 8 bytes in microseconds (MPI's least latency), and a stream
/// of messages of 1 MiB in MB/s (MPI's most bandwidth).
fn transfer() -> Option<(f64, f64)> {
    const ROUNDS: u32 = 100;
    const STREAM: u32 = 16;
    const LONG: usize = 1 << 20;
    let mut world = world();
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut contexts, mut channels) = pair(&hosts, Geometry::PM).await;
        contexts.start().await;
        let far = join(channels.pop().expect("there are two"), &hosts[1]);
        let near = join(channels.pop().expect("there are two"), &hosts[0]);
        hosts[1].spawn(async move {
            for _ in 0..=ROUNDS {
                let message = far.receive(Rank(0), TAG).await.expect("the peer lives").bytes;
                far.send(Rank(0), TAG, message).await.expect("the peer lives");
            }
            for _ in 0..=STREAM {
                far.receive(Rank(0), TAG).await.expect("the peer lives");
            }
            far.send(Rank(0), TAG, Vec::new()).await.expect("the peer lives");
            far.finalize().await;
        });
        let mut began = hosts[0].now();
        for round in 0..=ROUNDS {
            if round == 1 {
                began = hosts[0].now();
            }
            near.send(Rank(1), TAG, vec![7; 8]).await.expect("the peer lives");
            near.receive(Rank(1), TAG).await.expect("the peer lives");
        }
        let one_way = hosts[0].now().nanos_since(began) as f64 / f64::from(2 * ROUNDS) / 1e3;
        near.send(Rank(1), TAG, vec![7; LONG]).await.expect("the peer lives");
        let began = hosts[0].now();
        for _ in 0..STREAM {
            near.send(Rank(1), TAG, vec![7; LONG]).await.expect("the peer lives");
        }
        near.receive(Rank(1), TAG).await.expect("the peer lives");
        let nanos = hosts[0].now().nanos_since(began) as f64;
        (one_way, f64::from(STREAM) * LONG as f64 / nanos * 1e3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_of_mpi_is_fitted_and_its_bandwidth_predicted() {
        let off = |row: &Anchor| (row.measured / row.published - 1.0).abs();
        let [latency, bandwidth] = &table_2()[..] else { panic!("Table 2 has two rows of MPI") };
        assert!(off(latency) < 0.01, "{latency:?}");
        assert!(off(bandwidth) < 0.25, "{bandwidth:?}");
    }
}
