//! MPI on PM's channels, with the time that its library takes from the paper's processors, and Table 2's MPI rows.

use std::pin::pin;
use std::task::{Context, Waker};

use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::channel::Channel;
use midplane::gang::channel::geometry::Geometry;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::sim::SimHost;
use midplane::via::message::carrier::{Carrier, Event, Refusal};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Envelope, Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::message::transport::InitError;

use super::{pair, world};
use crate::anchors::measure::{Anchor, Origin};

/// Time of the library for each packet at each end, in nanoseconds. Fitted to the 12.0 us of Table 2; the library of the
/// paper is another one.
pub(in crate::anchors) const PACKET_NS: u64 = 1_685;

/// A channel's carrier that takes the processor's time for each packet: the library's work, and one copy between the
/// channel's FIFO and the process's memory, at the price of the host's profile.
///
/// A poll of the process's task handles one packet in each direction. The next poll comes once the processor is free, so
/// that a FIFO empties no faster than the processor copies.
#[derive(Debug)]
pub struct MpiCarrier {
    channel: ChannelCarrier,
    host: SimHost,
    has_received: bool,
    has_posted: bool,
    /// True if the FIFO had no room for a packet whose work was charged.
    is_charged: bool,
}

impl MpiCarrier {
    /// Creates a carrier over a channel of a process on `host`.
    pub const fn new(channel: Channel, host: SimHost) -> Self {
        let channel = ChannelCarrier::new(channel);
        Self { channel, host, has_received: false, has_posted: false, is_charged: false }
    }
}

/// Takes the processor for a packet of `bytes`. What this task rings or reads from now on comes later by that time.
fn charge(host: &SimHost, bytes: usize) {
    let nanos = PACKET_NS + host.profile().copy.nanos(bytes);
    let work = pin!(host.compute(nanos));
    // The first poll charges the work; the processor, not this future, delays the task.
    let _ = work.poll(&mut Context::from_waker(Waker::noop()));
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
        if self.has_posted {
            return Err(Refusal::Full);
        }
        if !std::mem::take(&mut self.is_charged) {
            charge(&self.host, payload.len());
        }
        let posted = self.channel.post(to, envelope, payload);
        (self.has_posted, self.is_charged) = (posted.is_ok(), posted == Err(Refusal::Full));
        posted
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        if self.has_received {
            return None;
        }
        let event = self.channel.poll()?;
        if let Event::Packet { payload, .. } = &event {
            charge(&self.host, payload.len());
            self.has_received = true;
        }
        Some(event)
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        if std::mem::take(&mut self.has_received) | std::mem::take(&mut self.has_posted) {
            waker.wake_by_ref();
            return true;
        }
        self.channel.arm_wakeup(waker)
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
    let engine = Engine::new(MpiCarrier::new(channel, host.clone()), Config::default());
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
