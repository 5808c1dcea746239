//! A link whose port is full.

use std::future::Future;
use std::sync::Arc;

use midplane_simhw::host::Host as _;
use midplane_simhw::port::PortOptions;
use midplane_simhw::sim::SimHost;

use super::*;
use crate::attributes::ViAttributes;

/// The depth of the port: room for the descriptors of a link, the command that awaits errors, and six others.
const DEPTH: usize = 16;
const DESCRIPTORS: u16 = 8;

/// Runs a program with a link, and another interface with whose sends it can fill their port.
fn with_link<F: Future<Output = ()> + Send>(
    program: impl FnOnce(SimHost, Nic, Link, ViId) -> F + Send + 'static,
) {
    let mut world = crate::nic::tests::world();
    let host = world.host(NodeId(0));
    let done = world.block_on(NodeId(0), async move {
        let mut nic = Nic::open(&host, PortOptions::default().depth(DEPTH)).await.unwrap();
        let vi = nic.create_vi(ViAttributes::default()).await.unwrap();
        let other = nic.create_vi(ViAttributes::default()).await.unwrap();
        let config = RdmaConfig::default().area(4096).descriptors(DESCRIPTORS);
        let options = MemoryOptions::default();
        let link = Link::new(&mut nic, vi, NodeId(1), options, config).unwrap();
        program(host, nic, link, other).await;
    });
    done.expect("nothing waits for ever");
}

/// Polls the NIC for long enough that it completes all that it can.
async fn settle(host: &SimHost, nic: &mut Nic) {
    for _ in 0..10 {
        host.sleep_until(host.now() + Duration::from_micros(100)).await;
        nic.poll();
    }
}

#[test]
fn a_full_port_delays_the_renewal_of_a_link() {
    with_link(|host, mut nic, mut link, other| async move {
        let names = (0, Peer(0), Peer(1));
        assert!(link.lose());
        assert!(!link.renew(&mut nic, names).unwrap(), "the connection ends first");
        settle(&host, &mut nic).await;
        for _ in 0..=DESCRIPTORS {
            assert!(link.on_descriptor(&mut nic).unwrap().is_none());
        }
        assert_eq!(link.posted, 0);
        // Completions that are not taken leave room for four commands.
        for _ in 0..DEPTH - 1 - 4 {
            nic.post_send(other, Descriptor::default()).unwrap();
        }
        assert!(!link.renew(&mut nic, names).unwrap(), "the port is full");
        assert_eq!(link.posted, 4);
        settle(&host, &mut nic).await;
        assert!(link.renew(&mut nic, names).unwrap());
        assert_eq!(link.posted, usize::from(DESCRIPTORS) + 1);
    });
}

#[test]
fn a_refused_write_keeps_no_memory_registered() {
    with_link(|_, mut nic, mut link, other| async move {
        while nic.post_send(other, Descriptor::default()).is_ok() {}
        let memory = nic.register(64, MemoryOptions::default()).unwrap();
        let write = Descriptor::of(memory.whole()).write(memory.remote());
        let region = Arc::downgrade(memory.region());
        let full = Err(NicError::QueueFull);
        assert_eq!(link.send(&mut nic, write, Held::Nothing), full);
        drop(memory);
        assert!(region.upgrade().is_none());
    });
}
