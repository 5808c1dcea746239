//! The default service: messages between ports.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use midplane::nicvm::messages::{self, receive, send};
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Command, Port, PortOptions, Status, WELL_KNOWN};

use super::{contents, filled, next, open, pattern, poll_once, post_receives, settle, succeed};
use crate::conformance::fabrics::{CENTRE, MTU, NODES, Site};

const FIRST: NodeId = NodeId(1);

/// Opens a port on every node; returns it and the numbers of all, once all are open.
pub(super) async fn open_all<H: Host>(site: &Site<H>) -> (Port, [PortId; NODES as usize]) {
    let port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    (port, ports)
}

/// Sends `bytes` to the centre; returns once they have been read.
pub(super) async fn send_to_centre(port: &mut Port, to: PortId, bytes: &[u8]) {
    let region = filled(port, bytes);
    succeed(port, &send(CENTRE, to, region.whole(), 1)).await;
}

pub(crate) async fn a_message_to_the_own_node_arrives<H: Host>(site: Site<H>) {
    let (mut from, mut to) = (open(&site.host), open(&site.host));
    let bytes = pattern(1, 5_000);
    let buffers = post_receives(&mut to, 1, 5_000, receive).await;
    let region = filled(&mut from, &bytes);
    succeed(&mut from, &send(site.host.node(), to.id(), region.whole(), 3)).await;
    let completion = next(&mut to).await;
    assert_eq!((completion.status, completion.node), (Status::Done, site.host.node()));
    assert_eq!(contents(&buffers[0], completion.length), bytes);
}

pub(crate) async fn a_message_arrives_with_its_tag_its_source_and_its_length<H: Host>(
    site: Site<H>,
) {
    let (mut port, ports) = open_all(&site).await;
    let tag = |node: NodeId| 0xFFFF_FF00 + u64::from(node.0);
    let bytes = |node: NodeId| pattern(u32::from(node.0), 100 + u32::from(node.0));
    if site.is(CENTRE.0) {
        let buffers = post_receives(&mut port, 2, 500, receive).await;
        site.meet().await;
        let mut senders = [0; 2];
        for sender in &mut senders {
            let completion = next(&mut port).await;
            assert_eq!((completion.status, completion.opcode), (Status::Done, messages::RECEIVE));
            let from = completion.node;
            assert_eq!(completion.args[0], tag(from));
            let buffer = &buffers[usize::try_from(completion.cookie).unwrap()];
            assert_eq!(contents(buffer, completion.length), bytes(from));
            *sender = from.0;
        }
        senders.sort_unstable();
        assert_eq!(senders, [1, 2]);
    } else {
        site.meet().await;
        let region = filled(&mut port, &bytes(site.host.node()));
        let message = send(CENTRE, ports[0], region.whole(), 1);
        let args = [tag(site.host.node()), 0, 0];
        succeed(&mut port, &Command { args, ..message }).await;
    }
}

pub(crate) async fn a_message_of_no_bytes_arrives<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let buffers = post_receives(&mut port, 1, 16, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!((completion.status, completion.length), (Status::Done, 0));
        assert_eq!((completion.node, completion.args[0]), (FIRST, 77));
        assert_eq!(contents(&buffers[0], 16), [0; 16]);
        return;
    }
    site.meet().await;
    if site.is(1) {
        let region = filled(&mut port, &[9; 16]);
        let nothing = send(CENTRE, ports[0], region.range(8, 0).unwrap(), 1);
        succeed(&mut port, &Command { args: [77, 0, 0], ..nothing }).await;
    }
}

pub(crate) async fn a_message_of_many_frames_arrives_whole<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    let bytes = pattern(5, 20 * MTU as u32 + 1);
    if site.is(0) {
        let buffers = post_receives(&mut port, 1, bytes.len() + 50, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!(completion.status, Status::Done);
        assert_eq!(contents(&buffers[0], completion.length), bytes);
        assert_eq!(contents(&buffers[0], buffers[0].len() as u64)[bytes.len()..], [0; 50]);
        return;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut port, ports[0], &bytes).await;
    }
}

pub(crate) async fn only_the_named_range_is_sent_and_written<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let region = filled(&mut port, &[1; 40]);
        port.submit(&receive(region.range(11, 9).unwrap(), 4)).unwrap();
        settle(&mut port).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!((completion.status, completion.length), (Status::Done, 9));
        let held = contents(&region, 40);
        assert_eq!((&held[..11], &held[20..]), (&[1; 11][..], &[1; 20][..]));
        assert_eq!(held[11..20], pattern(3, 9));
        return;
    }
    site.meet().await;
    if site.is(1) {
        let region = filled(&mut port, &pattern(0, 40));
        succeed(&mut port, &send(CENTRE, ports[0], region.range(3, 9).unwrap(), 1)).await;
    }
}

pub(crate) async fn messages_of_one_sender_stay_in_order<H: Host>(site: Site<H>) {
    const COUNT: u64 = 40;
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let buffers = post_receives(&mut port, COUNT as usize, 300, receive).await;
        site.meet().await;
        for number in 0..COUNT {
            let completion = next(&mut port).await;
            assert_eq!((completion.cookie, completion.args[0]), (number, number));
            let bytes = contents(&buffers[number as usize], completion.length);
            assert_eq!(bytes, pattern(number as u32, 1 + 7 * number as u32));
        }
        return;
    }
    site.meet().await;
    if site.is(1) {
        let message = |n| pattern(n, 1 + 7 * n);
        let regions: Vec<_> = (0..COUNT as u32).map(|n| filled(&mut port, &message(n))).collect();
        for (number, region) in (0..).zip(&regions) {
            let command = send(CENTRE, ports[0], region.whole(), number);
            port.post(&Command { args: [number, 0, 0], ..command }).unwrap();
        }
        port.ring();
        for number in 0..COUNT {
            let completion = next(&mut port).await;
            assert_eq!((completion.status, completion.cookie), (Status::Done, number));
        }
    }
}

pub(crate) async fn messages_of_two_senders_do_not_mix<H: Host>(site: Site<H>) {
    const EACH: u32 = 4;
    let (mut port, ports) = open_all(&site).await;
    let message = |node: NodeId, number| pattern(u32::from(node.0) << 20 | number, 4_500);
    if site.is(0) {
        let buffers = post_receives(&mut port, 2 * EACH as usize, 4_500, receive).await;
        site.meet().await;
        let mut expected = [0; NODES as usize];
        for _ in 0..2 * EACH {
            let completion = next(&mut port).await;
            let number = &mut expected[completion.node.index()];
            let bytes = contents(&buffers[completion.cookie as usize], completion.length);
            assert_eq!(bytes, message(completion.node, *number));
            *number += 1;
        }
        assert_eq!(expected, [0, EACH, EACH]);
        return;
    }
    site.meet().await;
    for number in 0..EACH {
        send_to_centre(&mut port, ports[0], &message(site.host.node(), number)).await;
    }
}

/// Tests messages that find no buffer. With `listened`, one buffer was posted before and used.
async fn lose_quietly<H: Host>(site: &Site<H>, listened: bool) {
    let (mut port, ports) = open_all(site).await;
    let mut witness = open(&site.host);
    let witnesses = site.learn_ports(witness.id()).await;
    if site.is(0) {
        let _seen = post_receives(&mut witness, 2, 8, receive).await;
        let used = post_receives(&mut port, usize::from(listened), 8, receive).await;
        site.meet().await;
        for _ in &used {
            assert_eq!(next(&mut port).await.args[0], 0);
        }
        // Messages sent before this one have arrived by now.
        assert_eq!(next(&mut witness).await.status, Status::Done);
        let buffers = post_receives(&mut port, 1, 8, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!((completion.status, completion.length), (Status::Done, 5));
        assert_eq!(contents(&buffers[0], 5), b"heard");
        return;
    }
    site.meet().await;
    if site.is(1) {
        for _ in 0..usize::from(listened) {
            send_to_centre(&mut port, ports[0], b"first").await;
        }
        send_to_centre(&mut port, ports[0], b"lost").await;
        send_to_centre(&mut port, witnesses[0], b"sign").await;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut port, ports[0], b"heard").await;
    }
}

pub(crate) async fn a_message_for_a_port_that_never_listened_is_lost_quietly<H: Host>(
    site: Site<H>,
) {
    lose_quietly(&site, false).await;
}

pub(crate) async fn a_message_without_a_buffer_is_lost_quietly<H: Host>(site: Site<H>) {
    lose_quietly(&site, true).await;
}

pub(crate) async fn a_message_to_an_absent_node_is_lost_quietly<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let _buffers = post_receives(&mut port, 1, 8, receive).await;
    let region = filled(&mut port, b"nobody");
    succeed(&mut port, &send(NodeId(NODES), PortId(0), region.whole(), 1)).await;
    let own = send(site.host.node(), port.id(), region.whole(), 2);
    port.submit(&own).unwrap();
    let both = [next(&mut port).await, next(&mut port).await];
    assert!(both.iter().all(|completion| completion.status == Status::Done));
}

pub(crate) async fn a_dropped_completion_future_loses_nothing<H: Host>(site: Site<H>) {
    const ROUNDS: u64 = 5;
    let (mut port, ports) = open_all(&site).await;
    let mut buffers = Vec::new();
    if site.is(0) {
        buffers = post_receives(&mut port, ROUNDS as usize, 8, receive).await;
    }
    for round in 0..ROUNDS {
        if site.is(0) {
            assert!(poll_once(pin!(port.completion())).await.is_pending());
        }
        site.meet().await;
        if site.is(1) {
            send_to_centre(&mut port, ports[0], &round.to_le_bytes()).await;
        }
        if !site.is(0) {
            continue;
        }
        let mut ended = None;
        while round % 2 == 0 && ended.is_none() {
            site.host.sleep_until(site.host.now() + Duration::from_micros(50)).await;
            // Dropped, about half of the time, while the message is in flight.
            if let Poll::Ready(completion) = poll_once(pin!(port.completion())).await {
                ended = Some(completion.unwrap());
            }
        }
        let completion = match ended {
            Some(completion) => completion,
            None => next(&mut port).await,
        };
        assert_eq!(completion.cookie, round);
        assert_eq!(contents(&buffers[round as usize], 8), round.to_le_bytes());
    }
}

pub(crate) async fn each_port_gets_its_own_messages<H: Host>(site: Site<H>) {
    let (mut here, firsts) = open_all(&site).await;
    let mut there = open(&site.host);
    let seconds = site.learn_ports(there.id()).await;
    if site.is(0) {
        let in_first = post_receives(&mut here, 1, 8, receive).await;
        let in_second = post_receives(&mut there, 1, 8, receive).await;
        site.meet().await;
        let completion = next(&mut there).await;
        assert_eq!(contents(&in_second[0], completion.length), b"second");
        let completion = next(&mut here).await;
        assert_eq!(contents(&in_first[0], completion.length), b"first");
        return;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut here, seconds[0], b"second").await;
        send_to_centre(&mut here, firsts[0], b"first").await;
    }
}

pub(crate) async fn answers_arrive<H: Host>(site: Site<H>) {
    const ROUNDS: u64 = 10;
    let (mut sending, _) = open_all(&site).await;
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    let buffers = post_receives(&mut port, 2 * ROUNDS as usize, 8, receive).await;
    site.meet().await;
    let region = sending.register(8).unwrap();
    if site.is(0) {
        for buffer in &buffers {
            let question = next(&mut port).await;
            region.write(0, &contents(buffer, 8)).unwrap();
            let back = ports[question.node.index()];
            succeed(&mut sending, &send(question.node, back, region.whole(), 1)).await;
        }
        return;
    }
    for round in 0..ROUNDS {
        let question = (u64::from(site.host.node().0) << 32 | round).to_le_bytes();
        region.write(0, &question).unwrap();
        succeed(&mut sending, &send(CENTRE, ports[0], region.whole(), 1)).await;
        assert_eq!(next(&mut port).await.node, CENTRE);
        assert_eq!(contents(&buffers[round as usize], 8), question);
    }
}

pub(crate) async fn a_message_finds_a_well_known_port<H: Host>(site: Site<H>) {
    const SERVICE: PortId = PortId(WELL_KNOWN.start);
    if site.is(0) {
        let mut port = site.host.open_port_with(PortOptions::default().number(SERVICE)).unwrap();
        let buffers = post_receives(&mut port, 1, 16, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!(contents(&buffers[0], completion.length), b"found");
        return;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut open(&site.host), SERVICE, b"found").await;
    }
}

pub(crate) async fn a_broadcast_arrives_once_at_each_other_node<H: Host>(site: Site<H>) {
    const SERVICE: PortId = PortId(WELL_KNOWN.start);
    // One message of a frame, one of several.
    let (short, long) = (pattern(1, 100), pattern(2, 5_000));
    let mut port = site.host.open_port_with(PortOptions::default().number(SERVICE)).unwrap();
    let buffers = post_receives(&mut port, 3, 5_000, receive).await;
    site.meet().await;
    if site.is(CENTRE.0) {
        for bytes in [&short, &long] {
            let region = filled(&mut port, bytes);
            succeed(&mut port, &send(NodeId::BROADCAST, SERVICE, region.whole(), 7)).await;
        }
        // The sender itself receives none.
        site.host.sleep_until(site.host.now() + Duration::from_millis(20)).await;
        assert!(port.poll().is_none());
    } else {
        for bytes in [short, long] {
            let completion = next(&mut port).await;
            assert_eq!((completion.status, completion.node), (Status::Done, CENTRE));
            let buffer = &buffers[usize::try_from(completion.cookie).unwrap()];
            assert_eq!(contents(buffer, completion.length), bytes);
        }
        site.host.sleep_until(site.host.now() + Duration::from_millis(20)).await;
        assert!(port.poll().is_none());
    }
    site.meet().await;
}

pub(crate) async fn ports_of_two_tasks_do_not_disturb_each_other<H: Host>(site: Site<H>) {
    const ROUNDS: u64 = 20;
    let mut ended = Vec::new();
    for task in 0..2_u8 {
        let host = site.host.clone();
        let (end, waits) = tokio::sync::oneshot::channel();
        ended.push(waits);
        site.host.spawn(async move {
            let (mut from, mut to) = (open(&host), open(&host));
            let buffer = to.register(8).unwrap();
            let region = filled(&mut from, &[task; 8]);
            for round in 0..ROUNDS {
                to.submit(&receive(buffer.whole(), round)).unwrap();
                settle(&mut to).await;
                succeed(&mut from, &send(host.node(), to.id(), region.whole(), round)).await;
                assert_eq!(next(&mut to).await.cookie, round);
                assert_eq!(contents(&buffer, 8), [task; 8]);
            }
            end.send(()).unwrap();
        });
    }
    for waits in ended {
        waits.await.unwrap();
    }
}
