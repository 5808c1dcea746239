//! Rings and ports that are full for a moment: what waits for them continues once they have room.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::peer_rings::{News, PeerRings, SendRefused, WORDS};
use midplane_simhw::region::{Payload, Region};
use midplane_via::attributes::ViAttributes;
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::MemoryOptions;
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::AsyncError;

use super::pair::{End, Setting, connected_over, name, pause};
use super::rings::rings;
use super::{attributes, descriptor, errors, received};

/// Rings that refuse the first frame after each poll: the receiver frees a slot only then.
#[derive(Debug)]
struct Late {
    rings: Box<dyn PeerRings>,
    refuses: bool,
}

impl PeerRings for Late {
    fn mtu(&self) -> usize {
        self.rings.mtu()
    }

    fn has_peer(&self, node: NodeId) -> bool {
        self.rings.has_peer(node)
    }

    fn send_parts(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), SendRefused> {
        match std::mem::take(&mut self.refuses) {
            true => Err(SendRefused::Full),
            false => self.rings.send_parts(to, words, parts),
        }
    }

    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused> {
        self.rings.show(to, name, region)
    }

    fn poll(&mut self) -> Option<News<'_>> {
        self.refuses = true;
        self.rings.poll()
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.rings.arm_wakeup(waker)
    }
}

#[test]
fn a_send_that_completes_just_before_its_task_parks_wakes_it() {
    let ([client_rings, server_rings], _) = rings(1_000, 8);
    let late = client_rings.map(|rings| Box::new(Late { rings, refuses: false }) as Box<_>);
    let client = |mut end: End| async move {
        end.opens().await;
        for _ in 0..3 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            assert_eq!(done.outcome, Ok(()));
        }
    };
    let server = |mut end: End| async move {
        for _ in 0..3 {
            end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(received(&mut end).await.outcome, Ok(()));
        }
    };
    let both = [late, server_rings];
    connected_over(Setting::default(), attributes(), 10, both, client, server);
}

#[test]
fn the_end_of_a_path_is_reported_by_polls_once_the_port_has_room() {
    let (both, [_, to_server]) = rings(1_000, 8);
    let client = |mut end: End| async move {
        end.opens().await;
        pause(&end.host, Duration::from_millis(20)).await;
        end.nic.poll();
        errors(&mut end)
    };
    let server = move |mut end: End| async move {
        end.opens().await;
        let idle = end.nic.create_vi(ViAttributes::default()).await.unwrap();
        while end.nic.post_send(idle, Descriptor::default()).is_ok() {}
        let mut waits = Vec::new();
        while let Ok(wait) = end.nic.listen_for(name("nobody"), None) {
            waits.push(wait);
        }
        to_server.end();
        for _ in 0..200 {
            end.nic.poll();
            pause(&end.host, Duration::from_micros(20)).await;
        }
        // The end of the process would end the connection as well.
        pause(&end.host, Duration::from_millis(100)).await;
        assert_eq!(errors(&mut end), [AsyncError::ConnectionLost]);
    };
    let (reported, ()) = connected_over(Setting::default(), attributes(), 10, both, client, server);
    assert_eq!(reported, [AsyncError::ConnectionLost]);
}

/// One interface gets as many receives as its process can post, and no message. Once the NIC has the queues of both
/// interfaces, the other one still receives.
#[test]
fn all_receives_fit_the_port_once_the_nic_has_their_queues() {
    let (both, _) = rings(1_000, 8);
    let attributes = ViAttributes { rdma_write: true, ..attributes() };
    let name = Arc::new(Mutex::new(None));
    let place = Arc::clone(&name);
    let client = move |mut end: End| async move {
        let first = end.vi;
        end.vi = end.nic.create_vi(attributes).await.unwrap();
        end.connect().await;
        end.opens().await;
        pause(&end.host, Duration::from_millis(5)).await;
        let to = name.lock().unwrap().expect("the server has registered it");
        for vi in [first, end.vi] {
            assert!(end.nic.is_gate_open(vi));
            // Only the NIC writes memory that can't be read, so both NICs get the queues.
            end.nic.post_send(vi, descriptor(&end, 0, 10, 10).write(to)).unwrap();
            end.nic.wait(vi, WorkQueue::Send).await.unwrap().outcome.unwrap();
        }
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
    };
    let server = move |mut end: End| async move {
        let options = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
        let target = end.nic.register(10, options).unwrap();
        *place.lock().unwrap() = Some(target.remote());
        let first = end.vi;
        end.vi = end.nic.create_vi(attributes).await.unwrap();
        end.serve().await;
        end.opens().await;
        assert!(end.nic.is_gate_open(first));
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        while end.nic.post_receive(first, descriptor(&end, 0, 10, 10)).is_ok() {}
        let done = received(&mut end).await;
        pause(&end.host, Duration::from_millis(5)).await;
        done.outcome
    };
    let outcomes = connected_over(Setting::default(), attributes, 10, both, client, server);
    assert_eq!(outcomes, (Ok(()), Ok(())));
}
