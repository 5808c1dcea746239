//! Save and restore of processes that bypass their NICs: the contents of their rings are part of their state.

use std::time::Duration;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::sim::SimHost;
use midplane_via::checkpointer::{Checkpointer, Joined, SavedPort};
use midplane_via::descriptor::Completed;
use midplane_via::firmware::ViaConfig;
use midplane_via::nic::{NicSaveError, WorkQueue};

use super::moves::{MOVER, Mover, RESUME, SUSPEND, order};
use super::pair::{End, Setting, address, name, pattern, pause, world_with};
use super::rings::rings;
use super::{attributes, descriptor};

const KEEPER: PortId = PortId(1_100);
const PORT: PortId = PortId(0);
const ROOM: usize = 2_000;
const SENT: usize = 5;

/// Returns the length of a message in bytes: the ring holds four parts of 300 bytes.
const fn length(number: usize) -> usize {
    350 * number + 10
}

fn send(end: &mut End, number: usize) {
    end.memory.write(number * ROOM, &pattern(number as u32, length(number))).unwrap();
    let message = descriptor(end, number * ROOM, length(number), 700);
    end.nic.post_send(end.vi, message).unwrap();
}

async fn receive(end: &mut End, number: usize) {
    let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
    check(end, &done, number);
}

fn check(end: &End, done: &Completed, number: usize) {
    assert_eq!((done.outcome, done.length), (Ok(()), length(number)));
    let at = done.descriptor.segments[0].offset();
    assert!(end.bytes(at, done.length) == pattern(number as u32, done.length), "message {number}");
}

/// Connects two ends in one task, and waits until both bypass their NICs.
async fn connected(hosts: &[SimHost]) -> [End; 2] {
    let ([first, second], _) = rings(300, 4);
    let bytes = 2 * SENT * ROOM;
    let mut one = End::over(hosts[0].clone(), attributes(), bytes, first).await;
    let mut other = End::over(hosts[1].clone(), attributes(), bytes, second).await;
    for number in 0..=SENT {
        let receive = descriptor(&other, number * ROOM, ROOM, 900);
        other.nic.post_receive(other.vi, receive).unwrap();
    }
    let there = one.nic.connect_peer(one.vi, address(NodeId(1), "b"), name("a"), None).unwrap();
    let back = other.nic.connect_peer(other.vi, address(NodeId(0), "a"), name("b"), None).unwrap();
    one.nic.finish(&there).await.unwrap();
    other.nic.finish(&back).await.unwrap();
    while !(one.nic.is_gate_open(one.vi) && other.nic.is_gate_open(other.vi)) {
        pause(&hosts[0], Duration::from_micros(10)).await;
        one.nic.poll();
        other.nic.poll();
    }
    [one, other]
}

/// Restores both ends, joins them again, and resumes both processes.
async fn rejoin(keepers: &mut [Checkpointer], hosts: &[SimHost], saved: &[SavedPort]) {
    let mut now = Vec::new();
    for (keeper, saved) in keepers.iter_mut().zip(saved) {
        let restored = keeper.restore(PORT, &saved.context, None).await.unwrap();
        now.push(restored[0]);
    }
    for at in 0..2 {
        let there = saved[1 - at].context.vis[0].link.as_ref().unwrap();
        let joined = Joined { name: 0, end: now[1 - at], taken: there.expected };
        keepers[at].join(PORT, &[joined]).await.unwrap();
    }
    for host in hosts {
        order(host, RESUME, PORT).await;
    }
}

#[test]
fn interfaces_are_saved_and_restored_and_the_gate_opens_again() {
    let config = ViaConfig::default().checkpointer(KEEPER);
    let setting = Setting { config, ..Setting::default() };
    let mut world = world_with(setting, |_, unit| {
        unit.install(MOVER, Mover).unwrap();
    });
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let ended = world.block_on(NodeId(0), async move {
        let [mut one, mut other] = connected(&hosts).await;
        // Some messages are in the ring, one in part, and the others wait; the receiver has taken one.
        (0..SENT).for_each(|number| send(&mut one, number));
        receive(&mut other, 0).await;
        let open = |host: &SimHost| Checkpointer::open(host, KEEPER).unwrap();
        let mut keepers: Vec<Checkpointer> = hosts.iter().map(open).collect();
        for host in &hosts {
            order(host, SUSPEND, PORT).await;
        }
        let mut saved = Vec::new();
        for keeper in &mut keepers {
            saved.push(keeper.save(PORT).await.unwrap());
        }
        let held = |at: usize| saved[at].context.vis[0].gate.lent;
        assert_eq!([held(0), held(1)], [[true; 2]; 2], "the hosts have yet to return the queues");
        assert_eq!(one.nic.save().map(drop), Err(NicSaveError::Lent), "it can't be moved");
        for (keeper, saved) in keepers.iter_mut().zip(&saved) {
            keeper.forget(PORT, saved).await.unwrap();
        }
        rejoin(&mut keepers, &hosts, &saved).await;
        for number in 1..SENT {
            let done = loop {
                // Both ends run in this task.
                pause(&hosts[0], Duration::from_micros(10)).await;
                one.nic.poll();
                if let Some(done) = other.nic.receive_done(other.vi).unwrap() {
                    break done;
                }
            };
            check(&other, &done, number);
        }
        for _ in 0..SENT {
            let done = one.nic.wait(one.vi, WorkQueue::Send).await.unwrap();
            assert_eq!(done.outcome, Ok(()));
        }
        assert_eq!((one.nic.next_error(), other.nic.next_error()), (None, None));
        while !one.nic.is_gate_open(one.vi) {
            pause(&hosts[0], Duration::from_micros(10)).await;
            one.nic.poll();
            other.nic.poll();
        }
        one.memory.write(0, &[0; ROOM]).unwrap();
        send(&mut one, 0);
        receive(&mut other, 0).await;
    });
    ended.expect("it ends");
}
